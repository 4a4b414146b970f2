/* member.h (private): single members of config.json, with their types checked. */
#ifndef SR_MODEL_CONFIG_MEMBER_H
#define SR_MODEL_CONFIG_MEMBER_H

#include "base/status.h"

#include <jansson.h>

typedef struct sr_config_reader {
    const json_t *root;
    const char *path;
    srnn_status status; /* the first failure; later ones change nothing */
} sr_config_reader;

/* Notes a failure of this member: "PATH: KEY WHAT". */
void sr_config_refuse(sr_config_reader *reader, const char *key, const char *what);

/* The value of a key; NULL if it is missing or null. */
const json_t *sr_config_value(const json_t *object, const char *key);

/* `otherwise` if the member is missing, null, or of another type, which is a failure. */
int sr_config_integer(sr_config_reader *reader, const char *key, int otherwise);
double sr_config_real(sr_config_reader *reader, const json_t *object, const char *key,
                      double otherwise);
bool sr_config_flag(sr_config_reader *reader, const json_t *object, const char *key,
                    bool otherwise);
const char *sr_config_word(sr_config_reader *reader, const json_t *object, const char *key,
                           const char *otherwise);

/* Refuses limits of Mamba-2's time steps other than [0, Infinity], with which they are computed. */
void sr_config_check_time_steps(sr_config_reader *reader, const char *key);

#endif
