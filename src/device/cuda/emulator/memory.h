/* memory.h (private): the memory of the emulated GPU.
 *
 * The host cannot touch it: outside of sr_emulator_memory_open its pages are closed, and an access
 * ends the program with a message. New memory is 0xff throughout. */
#ifndef SR_EMULATOR_MEMORY_H
#define SR_EMULATOR_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* How much there is. */
#define SR_EMULATOR_MEMORY_BYTES ((size_t)16 << 30)

/* Lets kernels and copies at it; closes it again. */
void sr_emulator_memory_open(void);
void sr_emulator_memory_close(void);

/* `bytes` bytes at a multiple of 256; NULL: there is no room. */
void *sr_emulator_memory_take(size_t bytes);

/* False: nothing begins there. */
bool sr_emulator_memory_give(void *memory);
void sr_emulator_memory_give_all(void);

/* Whether the address lies in the GPU's memory, and whether all of these bytes lie in one piece of
 * it. */
bool sr_emulator_memory_has(const void *address);
bool sr_emulator_memory_holds(const void *address, size_t bytes);

size_t sr_emulator_memory_used(void);

#endif
