/* systems.h (private): the neighbouring systems in words: what they choose, how they follow from
 * softmax, what they cost. */
#ifndef SR_REPORT_DRAW_SYSTEMS_H
#define SR_REPORT_DRAW_SYSTEMS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct sr_system {
    const char *name;    /* of the variant */
    const char *title;   /* of the system */
    const char *paper;   /* arXiv's number; NULL: none */
    const char *chooses; /* which axes, as the table in docs/SYSTEMS.md says it; "" for softmax */
    const char *from_softmax; /* sentences */
    const char *lines;        /* what is done for each token, one line each */
    const char *state;        /* what it keeps of the past: sentences */
    const char *work;         /* what a layer learns and computes: sentences */
    bool leaks;               /* later tokens reach earlier ones */
} sr_system;

/* The system by number, NULL past the end. */
const sr_system *sr_system_at(size_t index);

/* The system that a text form begins with the name of; NULL: none. */
const sr_system *sr_system_of(const char *text);

/* True if the text form names a system that leaks. */
bool sr_system_leaks(const char *text);

/* What must be said of a system that leaks. */
extern const char sr_system_leak[];

#endif
