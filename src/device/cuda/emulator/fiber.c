/* fiber.c: the switch between stacks, in as few instructions as the calling convention allows. */
#include "device/cuda/emulator/fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { STACK_BYTES = 256 * 1024 };
#else
enum { STACK_BYTES = 64 * 1024 };
#endif
enum { GUARD_BYTES = 4096 };

#if defined(__x86_64__)
/* Saves what a function must preserve and the stack pointer; takes the other's. The control words
 * of the floating-point units are the same everywhere here. */
void sr_fiber_swap(void **save, void *load);
__asm__(".text\n"
        ".globl sr_fiber_swap\n"
        ".hidden sr_fiber_swap\n"
        ".type sr_fiber_swap, @function\n"
        "sr_fiber_swap:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size sr_fiber_swap, . - sr_fiber_swap\n");
enum { SAVED_WORDS = 6 };

static void prepare(sr_fiber *fiber, char *top, void (*start)(void)) {
    /* As sr_fiber_swap left it: six registers, then where to go on; above, the return address that
     * start() never uses, so that its stack is aligned as after a call. */
    uintptr_t *words = (uintptr_t *)(void *)top - SAVED_WORDS - 2;
    for (int i = 0; i < SAVED_WORDS + 2; i++)
        words[i] = 0;
    words[SAVED_WORDS] = (uintptr_t)start;
    fiber->stopped_at = words;
}
#else
#include <ucontext.h>

/* Elsewhere by the C library, which also saves the signal mask: correct, and slower. The context
 * lies at the stack's lower end. */
static void sr_fiber_swap(void **save, void *load) {
    static _Thread_local ucontext_t caller;
    ucontext_t *here = *save == NULL ? &caller : *save;
    *save = here;
    swapcontext(here, load);
}

static void prepare(sr_fiber *fiber, char *top, void (*start)(void)) {
    ucontext_t *context = (ucontext_t *)(void *)fiber->stack;
    getcontext(context);
    context->uc_stack.ss_sp = fiber->stack + sizeof(ucontext_t);
    context->uc_stack.ss_size = (size_t)(top - fiber->stack) - sizeof(ucontext_t);
    context->uc_link = NULL;
    makecontext(context, start, 0);
    fiber->stopped_at = context;
}
#endif

sr_fiber *sr_fibers_create(int count, bool guarded) {
    const size_t each = STACK_BYTES + GUARD_BYTES, fibers = (size_t)count;
    sr_fiber *all = calloc(fibers + 1, sizeof *all);
    char *stacks = mmap(NULL, fibers * each, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == NULL || stacks == MAP_FAILED) {
        free(all);
        return NULL;
    }
    for (size_t i = 0; i < fibers; i++) {
        if (guarded)
            mprotect(stacks + i * each, GUARD_BYTES, PROT_NONE);
        all[i].stack = stacks + i * each + GUARD_BYTES;
        all[i].stack_bytes = STACK_BYTES;
    }
    return all;
}

void sr_fibers_free(sr_fiber *fibers, int count) {
    if (fibers == NULL)
        return;
    munmap(fibers[0].stack - GUARD_BYTES, (size_t)count * (STACK_BYTES + GUARD_BYTES));
    free(fibers);
}

bool sr_fibers_have(const sr_fiber *fibers, int count, const void *address) {
    const sr_fiber *last = &fibers[count - 1];
    return (const char *)address >= fibers[0].stack &&
           (const char *)address < last->stack + last->stack_bytes;
}

void sr_fiber_prepare(sr_fiber *fiber, void (*start)(void)) {
#ifdef SANITIZED
    __asan_unpoison_memory_region(fiber->stack, fiber->stack_bytes);
    fiber->sanitizer_data = NULL;
#endif
    /* Tops at different places of a page, or all stacks would fight for the same lines of the
     * cache. */
    const size_t colour = (uintptr_t)fiber->stack / (STACK_BYTES + GUARD_BYTES) % 31 * 128;
    prepare(fiber, fiber->stack + fiber->stack_bytes - colour, start);
}

void sr_fiber_switch(sr_fiber *from, sr_fiber *to) {
#ifdef SANITIZED
    __sanitizer_start_switch_fiber(&from->sanitizer_data, to->stack, to->stack_bytes);
#endif
    sr_fiber_swap(&from->stopped_at, to->stopped_at);
    sr_fiber_arrived(from);
}

void sr_fiber_arrived(sr_fiber *here) {
#ifdef SANITIZED
    __sanitizer_finish_switch_fiber(here->sanitizer_data, NULL, NULL);
#else
    (void)here;
#endif
}
