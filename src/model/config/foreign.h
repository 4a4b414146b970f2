/* foreign.h (private): members of config.json that would change a model's numbers and are not
 * supported. */
#ifndef SR_MODEL_CONFIG_FOREIGN_H
#define SR_MODEL_CONFIG_FOREIGN_H

#include "model/config/family.h"

/* SRNN_ERR_UNSUPPORTED, naming the member, if the file requires something that softrnn
 * does not compute. Unknown members are accepted, and so are known ones whose value changes
 * nothing. */
srnn_status sr_config_foreign(const json_t *root, int positions, const char *path);

#endif
