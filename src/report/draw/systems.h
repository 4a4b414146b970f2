/* systems.h (private): descriptions of related systems: their axes, how they follow from softmax,
 * their cost. */
#ifndef SR_REPORT_DRAW_SYSTEMS_H
#define SR_REPORT_DRAW_SYSTEMS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct sr_system {
    const char *name;         /* of the variant */
    const char *title;        /* of the system */
    const char *paper;        /* arXiv number; NULL: none */
    const char *chooses;      /* its axes, as in the table of docs/SYSTEMS.md; "" for softmax */
    const char *from_softmax; /* sentences */
    const char *lines;        /* the update for each token, line by line */
    const char *state;        /* its recurrent state: sentences */
    const char *work;         /* a layer's parameters and computation: sentences */
    bool leaks;               /* not causal: later tokens affect earlier ones */
} sr_system;

/* The system by number, NULL past the end. */
const sr_system *sr_system_at(size_t index);

/* The system whose name a text form starts with, whatever it changes after that; NULL: none. */
const sr_system *sr_system_of(const char *text);

/* True if a text form is a system's name alone, so that the system's lines describe it. */
bool sr_system_is_named(const char *text);

/* True if the text form names a system that leaks. */
bool sr_system_leaks(const char *text);

/* The warning about a system that is not causal. */
extern const char sr_system_leak[];

#endif
