/* origin.h: provenance of a record: command, version, machine. */
#ifndef SR_FILES_ORIGIN_H
#define SR_FILES_ORIGIN_H

#include <jansson.h>

/* The revision of the sources that this program was built from. Static text. */
const char *sr_revision(void);

/* This machine. */
typedef struct sr_machine {
    char system[65], machine[65]; /* from uname */
    char processor[256];          /* "AMD EPYC ..." if the system reports it */
    char instructions[32];        /* "x86-64-v3": selects the kernels and therefore the bits */
    int processors;
    double memory_bytes;
} sr_machine;
void sr_machine_look(sr_machine *machine);

/* { "command", "softrnn", "revision", "machine" }; NULL if memory runs out. */
json_t *sr_origin_json(const char *command);

#endif
