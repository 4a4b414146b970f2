/* races.h (private): race detector: threads of a block that access the same memory with no barrier
 * in between, one of them writing.
 *
 * In a build with SOFTRNN_CUDA_RACES the compiler calls __tsan_read4 and similar functions for
 * every access of a kernel (-fsanitize=thread, without its library), and the emulator calls them
 * for what it does on a kernel's behalf. Barriers of the block order everything; those of some of
 * its warps what came before an arrival, in that warp's view, and what follows a wait; mbarriers
 * everything; __syncwarp orders the lanes of a warp, other collective instructions do not. */
#ifndef SR_EMULATOR_RACES_H
#define SR_EMULATOR_RACES_H

#include <stdbool.h>
#include <stddef.h>

#ifdef SR_EMULATOR_RACES

/* Lane `lane` of the running thread's warp (negative: that thread itself) reads or writes these
 * bytes. */
void sr_emulator_touch(int lane, const void *address, size_t bytes, bool write);

#else

static inline void sr_emulator_touch(int lane, const void *address, size_t bytes, bool write) {
    (void)lane, (void)address, (void)bytes, (void)write;
}

#endif

#endif
