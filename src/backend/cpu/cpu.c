/* cpu.c: the CPU backend's table and its memory. */
#include "backend/cpu/cpu.h"
#include "base/memory.h"
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

static srnn_status allocate(sr_backend *backend, void **out, size_t bytes) {
    (void)backend;
    return sr_alloc(out, bytes, 1);
}

static void release(sr_backend *backend, void *memory) {
    (void)backend;
    free(memory);
}

static srnn_status copy_in(sr_backend *backend, void *to, const void *host, size_t bytes) {
    (void)backend;
    memcpy(to, host, bytes);
    return SRNN_OK;
}

static srnn_status copy_out(sr_backend *backend, void *host, const void *from, size_t bytes) {
    (void)backend;
    memcpy(host, from, bytes);
    return SRNN_OK;
}

static srnn_status copy(sr_backend *backend, void *to, const void *from, size_t bytes) {
    (void)backend;
    memcpy(to, from, bytes);
    return SRNN_OK;
}

static srnn_status zero(sr_backend *backend, void *memory, size_t bytes) {
    (void)backend;
    memset(memory, 0, bytes);
    return SRNN_OK;
}

static void destroy(sr_backend *backend) {
    sr_backend_cpu *cpu = (sr_backend_cpu *)backend;
    free(cpu->packs);
    free(cpu->room);
    free(cpu);
}

static srnn_status make_packs(sr_backend_cpu *cpu) {
    const size_t a = SR_PACK_DEPTH * (SR_PACK_A + SR_PACK_GAP);
    const size_t b = SR_PACK_DEPTH * (SR_PACK_B + SR_PACK_GAP);
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)cpu->base.threads, sizeof *cpu->packs));
    cpu->packs = memory;
    SR_TRY(sr_alloc(&memory, (size_t)cpu->base.threads, (a + b) * sizeof(float)));
    cpu->room = memory;
    for (int worker = 0; worker < cpu->base.threads; worker++) {
        cpu->packs[worker].a = cpu->room + (size_t)worker * (a + b);
        cpu->packs[worker].b = cpu->packs[worker].a + a;
    }
    return SRNN_OK;
}

static const sr_backend table = {
    .name = "cpu",
    .destroy = destroy,
    .allocate = allocate,
    .release = release,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy = copy,
    .zero = zero,
    .embed_forward = sr_cpu_embed_forward,
    .embed_backward = sr_cpu_embed_backward,
    .linear_forward = sr_cpu_linear_forward,
    .linear_backward_input = sr_cpu_linear_backward_input,
    .linear_backward_weight = sr_cpu_linear_backward_weight,
    .rmsnorm_forward = sr_cpu_rmsnorm_forward,
    .rmsnorm_backward = sr_cpu_rmsnorm_backward,
    .rope_forward = sr_cpu_rope_forward,
    .rope_backward = sr_cpu_rope_backward,
    .swiglu_forward = sr_cpu_swiglu_forward,
    .swiglu_backward = sr_cpu_swiglu_backward,
    .gelu_forward = sr_cpu_gelu_forward,
    .gelu_backward = sr_cpu_gelu_backward,
    .short_conv_forward = sr_cpu_short_conv_forward,
    .short_conv_backward = sr_cpu_short_conv_backward,
    .add = sr_cpu_add,
    .cross_entropy = sr_cpu_cross_entropy,
    .adamw = sr_cpu_adamw,
    .sum = sr_cpu_sum,
    .square_sum = sr_cpu_square_sum,
};

srnn_status sr_backend_cpu_create(sr_backend **backend, int threads) {
    void *memory;
    *backend = NULL;
    SR_TRY(sr_alloc(&memory, 1, sizeof(sr_backend_cpu)));
    sr_backend_cpu *cpu = memory;
    *cpu = (sr_backend_cpu){.base = table, .rows = sr_cpu_rows_best()};
    cpu->base.threads = sr_thread_count(threads);
    const srnn_status status = make_packs(cpu);
    if (status != SRNN_OK) {
        destroy(&cpu->base);
        return status;
    }
    *backend = &cpu->base;
    return SRNN_OK;
}

void sr_backend_free(sr_backend *backend) {
    if (backend)
        backend->destroy(backend);
}
