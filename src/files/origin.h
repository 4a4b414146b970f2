/* origin.h: where and with what a record was made. */
#ifndef SR_FILES_ORIGIN_H
#define SR_FILES_ORIGIN_H

#include <jansson.h>

/* The revision of the sources that this program was built from. Static text. */
const char *sr_revision(void);

/* This machine. */
typedef struct sr_machine {
    char system[65], machine[65]; /* as uname says */
    char processor[256];          /* "AMD EPYC ..." where the system says so */
    char instructions[32]; /* "x86-64-v3": the set that kernels are chosen by, and with it bits */
    int processors;
    double memory_bytes;
} sr_machine;
void sr_machine_look(sr_machine *machine);

/* { "command", "softrnn", "revision", "machine" }; NULL if memory is short. */
json_t *sr_origin_json(const char *command);

#endif
