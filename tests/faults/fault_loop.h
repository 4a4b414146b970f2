/* fault_loop.h: makes each call of a command fail in turn, and checks the outcome.
 *
 * The outcome must be an error with a message, or the right files; after an error the same command
 * (a resumed training) gives the right files. Tries some calls of every command; all with
 * SOFTRNN_FAULTS=all, the second eighth of them with 2/8. */
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
