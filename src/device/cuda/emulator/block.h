/* block.h: the threads of a block, as fibers on one host thread.
 *
 * They run one at a time, warp after warp, each until it has to wait for others. Half of the blocks
 * run their threads in reverse order and perform cp.async copies at once, the other half as late as
 * allowed: races then show in one half or the other. Shared memory is initialised to 0xff, a NaN in
 * every format. */
#ifndef SR_EMULATOR_BLOCK_H
#define SR_EMULATOR_BLOCK_H

#include "cuda_runtime.h"

#ifdef __cplusplus
#define SR_EMULATOR_THREAD_LOCAL __thread
extern "C" {
#else
#define SR_EMULATOR_THREAD_LOCAL _Thread_local
#endif

enum {
    SR_EMULATOR_WARP = 32,
    SR_EMULATOR_THREADS = 1024, /* in a block, at most */
    SR_EMULATOR_WARPS = SR_EMULATOR_THREADS / SR_EMULATOR_WARP,
    SR_EMULATOR_BARRIERS = 16,             /* of a block, the one of __syncthreads among them */
    SR_EMULATOR_SHARED_BYTES = 227 * 1024, /* dynamic and static, at most */
};

/* The built-in variables of a thread of a kernel. */
typedef struct sr_emulated_place {
    uint3 index, block;
    dim3 block_size, grid_size;
    int lane;
} sr_emulated_place;

/* The running thread, and its block's dynamic shared memory. */
extern SR_EMULATOR_THREAD_LOCAL sr_emulated_place *sr_emulated_thread
    __attribute__((tls_model("initial-exec")));
extern SR_EMULATOR_THREAD_LOCAL unsigned char *sr_emulated_shared
    __attribute__((tls_model("initial-exec")));

/* A kernel with its arguments; call(arguments) runs one thread. */
typedef struct sr_emulated_kernel {
    const char *name;
    void (*call)(const void *arguments);
    const void *arguments;
    dim3 grid, block;
    size_t shared_bytes;
} sr_emulated_kernel;

/* Runs one block of it. `late`: threads in order and asynchronous copies as late as allowed; else
 * the opposite. False: the threads cannot proceed; sr_emulator_failure() says why. */
bool sr_emulator_block_run(const sr_emulated_kernel *kernel, uint3 block, bool late);

/* The last failure, in any block; "" if there was none. */
const char *sr_emulator_failure(void);

/* ---- called by the threads of a kernel ---- */

/* Rendezvous of the 32 lanes of a warp; the last one calls perform(operands), one of each lane, and
 * all proceed. They must all call for the same instruction. */
typedef void sr_emulator_perform(void *const *operands);
void sr_emulator_collect(sr_emulator_perform *perform, void *operand, const char *name);
void sr_emulator_nothing(void *const *operands);

/* Arrives at barrier `id` and, if `wait`, waits until `threads` have arrived (0: all that have not
 * ended). */
void sr_emulator_barrier(int id, int threads, bool wait, const char *name);

/* Waits until the word differs from `seen`. */
void sr_emulator_wait(const volatile uint32_t *word, uint32_t seen, const char *name);

/* The asynchronous copy of `bytes` bytes to `size` bytes of shared memory, zero-filling the rest;
 * the commit of a group of copies; the wait until at most `pending` groups are in flight. */
void sr_emulator_copy(void *to, const void *from, int size, int bytes);
void sr_emulator_copy_commit(void);
void sr_emulator_copy_wait(int pending);

/* Whether this block performs asynchronous work as late as allowed. */
bool sr_emulator_is_late(void);

/* The time of an access: by which thread of the block, after how many barriers of the whole block
 * (counted across blocks), and after how many of its warp. Barriers of some warps order what these
 * did: `arrivals` counts those at which the thread has arrived, from 1, and what a warp did before
 * its arrival number ordered[warp] comes before this access. */
typedef struct sr_emulated_moment {
    int thread;
    uint32_t time, warp_time, arrivals;
    const uint32_t *ordered; /* (SR_EMULATOR_WARPS) */
} sr_emulated_moment;

/* Now, for lane `lane` of the running thread's warp (negative: that thread). False: no thread of a
 * kernel runs, or the address is on the stack of one. */
bool sr_emulator_moment(sr_emulated_moment *now, int lane, const void *address);

/* Orders accesses of all threads so far before later accesses. */
void sr_emulator_order(void);

/* Fails the block: the kernel did something that GPUs do not allow. */
__attribute__((noreturn, format(printf, 1, 2))) void sr_emulator_fail(const char *format, ...);

#ifdef __cplusplus
}
#endif

#endif
