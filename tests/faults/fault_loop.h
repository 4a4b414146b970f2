/* fault_loop.h: one call after the other of a command fails, and what comes out is looked at.
 *
 * Only an error with a message or the right files may, and after an error the same command once
 * more (a training resumed) gives the right files. Of every command some calls; all with
 * SOFTRNN_FAULTS=all, with 2/8 the second of eight shares of them. */
#ifndef SR_TESTS_FAULT_LOOP_H
#define SR_TESTS_FAULT_LOOP_H

#include <stddef.h>

typedef struct fault {
    const char *library; /* to be preloaded */
    const char *with;    /* SOFTRNN_FAIL_WITH: the error's name */
    long tries;          /* of every command, when not all */
} fault;

/* Runs the tests of one or two kinds of fault, as cmocka's groups do. */
int fault_loop(const fault *faults, size_t count);

#endif
