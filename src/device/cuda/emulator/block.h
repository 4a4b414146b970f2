/* block.h: the threads of a block, played by fibers on one thread of the host.
 *
 * They run one at a time, warp after warp, each until it has to wait for others. Half of the blocks
 * take their threads in reverse order and copy what cp.async asks for at once, the other half as
 * late as allowed: whatever a kernel leaves to chance then goes wrong in one half or the other.
 * Shared memory begins as 0xff, a NaN in every format. */
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
    SR_EMULATOR_THREADS = 1024,            /* in a block, at most */
    SR_EMULATOR_BARRIERS = 16,             /* of a block, the one of __syncthreads among them */
    SR_EMULATOR_SHARED_BYTES = 227 * 1024, /* dynamic and static, at most */
};

/* What a thread of a kernel knows about itself. */
typedef struct sr_emulated_place {
    uint3 index, block;
    dim3 block_size, grid_size;
    int lane;
} sr_emulated_place;

/* The thread that runs now, and its block's dynamic shared memory. */
extern SR_EMULATOR_THREAD_LOCAL sr_emulated_place *sr_emulated_thread
    __attribute__((tls_model("initial-exec")));
extern SR_EMULATOR_THREAD_LOCAL unsigned char *sr_emulated_shared
    __attribute__((tls_model("initial-exec")));

/* A kernel with its arguments; call(arguments) is what one thread does. */
typedef struct sr_emulated_kernel {
    const char *name;
    void (*call)(const void *arguments);
    const void *arguments;
    dim3 grid, block;
    size_t shared_bytes;
} sr_emulated_kernel;

/* Runs one block of it. `late`: threads in their order and asynchronous copies as late as allowed;
 * else the contrary. False: the threads cannot go on; sr_emulator_failure() says why. */
bool sr_emulator_block_run(const sr_emulated_kernel *kernel, uint3 block, bool late);

/* What went wrong last, in any block; "" if nothing did. */
const char *sr_emulator_failure(void);

/* ---- called by the threads of a kernel ---- */

/* The 32 lanes of a warp meet; the last one calls perform(operands), one of each lane, and all go
 * on. They must all ask for the same. */
typedef void sr_emulator_perform(void *const *operands);
void sr_emulator_collect(sr_emulator_perform *perform, void *operand, const char *name);
void sr_emulator_nothing(void *const *operands);

/* Arrives at barrier `id`, and waits there if `wait`, until `threads` have arrived (0: all that
 * have not ended). */
void sr_emulator_barrier(int id, int threads, bool wait, const char *name);

/* Waits until the word is another than `seen`. */
void sr_emulator_wait(const volatile uint32_t *word, uint32_t seen, const char *name);

/* The asynchronous copy of `bytes` bytes to `size` bytes of shared memory, the rest becoming zero;
 * the end of a group of them; the wait until at most `pending` groups are under way. */
void sr_emulator_copy(void *to, const void *from, int size, int bytes);
void sr_emulator_copy_commit(void);
void sr_emulator_copy_wait(int pending);

/* Whether this block does what is asynchronous as late as allowed. */
bool sr_emulator_is_late(void);

/* When something happens: by which thread of the block, after how many barriers (counted on and on
 * from block to block), and after how many of its warp. */
typedef struct sr_emulated_moment {
    int thread;
    uint32_t time, warp_time;
} sr_emulated_moment;

/* Now, for lane `lane` of the running thread's warp (negative: that thread). False: no thread of a
 * kernel runs, or the address is on the stack of one. */
bool sr_emulator_moment(sr_emulated_moment *now, int lane, const void *address);

/* What some threads did so far comes before what others do from now on. */
void sr_emulator_order(void);

/* Ends the block: the kernel did what no GPU allows. */
__attribute__((noreturn, format(printf, 1, 2))) void sr_emulator_fail(const char *format, ...);

#ifdef __cplusplus
}
#endif

#endif
