/* fiber.h (private): fibers: functions that can be suspended and resumed. */
#ifndef SR_EMULATOR_FIBER_H
#define SR_EMULATOR_FIBER_H

#include <stdbool.h>
#include <stddef.h>

/* A stack, and where the function on it is suspended. The caller's stack is one of these too. */
typedef struct sr_fiber {
    void *stopped_at; /* the stack pointer; everything else is on the stack */
    char *stack;      /* its lowest byte */
    size_t stack_bytes;
    void *sanitizer_data; /* state that AddressSanitizer keeps while the fiber is suspended */
} sr_fiber;

/* `count` fibers with their own stacks, and one for the caller, the last. NULL: out of memory. Free
 * with sr_fibers_free. `guarded` against overflow; a process cannot have enough guard pages for a
 * hundred blocks at a time. */
sr_fiber *sr_fibers_create(int count, bool guarded);
void sr_fibers_free(sr_fiber *fibers, int count);

/* Whether the address is on one of their stacks. */
bool sr_fibers_have(const sr_fiber *fibers, int count, const void *address);

/* The next switch to this fiber calls start(), which must never return. The fiber's previous state
 * is discarded. */
void sr_fiber_prepare(sr_fiber *fiber, void (*start)(void));

/* Resumes `to`; returns when some fiber switches back. */
void sr_fiber_switch(sr_fiber *from, sr_fiber *to);

/* The first call in start(): completes the switch for AddressSanitizer. */
void sr_fiber_arrived(sr_fiber *here);

#endif
