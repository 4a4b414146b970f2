/* fiber.h (private): functions that can be left in the middle, and gone on with later. */
#ifndef SR_EMULATOR_FIBER_H
#define SR_EMULATOR_FIBER_H

#include <stdbool.h>
#include <stddef.h>

/* A stack, and where the function on it stopped. The stack of the caller is one of these too. */
typedef struct sr_fiber {
    void *stopped_at; /* the stack pointer; everything else lies on the stack */
    char *stack;      /* its lowest byte */
    size_t stack_bytes;
    void *sanitizer_data; /* what AddressSanitizer keeps while the fiber stands still */
} sr_fiber;

/* `count` fibers with stacks of their own, and one for the caller, the last. NULL: no memory. Free
 * with sr_fibers_free. `guarded` against overflow; a process cannot have so many guards that a
 * hundred blocks at a time could be. */
sr_fiber *sr_fibers_create(int count, bool guarded);
void sr_fibers_free(sr_fiber *fibers, int count);

/* Whether the address lies on one of their stacks. */
bool sr_fibers_have(const sr_fiber *fibers, int count, const void *address);

/* The next switch to this fiber calls start(), which must never return. What the fiber was doing is
 * forgotten. */
void sr_fiber_prepare(sr_fiber *fiber, void (*start)(void));

/* Goes on with `to`; returns when somebody switches back. */
void sr_fiber_switch(sr_fiber *from, sr_fiber *to);

/* The first call in start(): completes the switch for AddressSanitizer. */
void sr_fiber_arrived(sr_fiber *here);

#endif
