/* cpu.c: the CPU backend's table and its memory. */
#include "backend/cpu/cpu.h"
#include "base/memory.h"
#include "base/threads.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of memory that the system can still give, or SIZE_MAX if it does not say. */
static size_t available_memory(void) {
    char line[128];
    unsigned long long kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return kilobytes ? (size_t)kilobytes * 1024 : SIZE_MAX;
}

/* Systems promise memory that they do not have and end the program when it is used; so what was
 * given out is counted against what there was. */
static srnn_status allocate(sr_backend *backend, void **out, size_t bytes) {
    sr_backend_cpu *cpu = (sr_backend_cpu *)backend;
    *out = NULL;
    if (bytes > cpu->memory || cpu->taken > cpu->memory - bytes)
        return SR_FAIL(SRNN_ERR_MEMORY,
                       "%.1f MB more are needed, but of the %.1f MB that were free %.1f MB are "
                       "taken: use a smaller batch, shorter rows or --recompute",
                       (double)bytes / 1e6, (double)cpu->memory / 1e6, (double)cpu->taken / 1e6);
    SR_TRY(sr_alloc(out, bytes, 1));
    cpu->taken += malloc_usable_size(*out);
    return SRNN_OK;
}

static void release(sr_backend *backend, void *memory) {
    if (memory)
        ((sr_backend_cpu *)backend)->taken -= malloc_usable_size(memory);
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
    for (int worker = 0; cpu->packs && worker < cpu->base.threads; worker++)
        sr_matmul_bf16_free(cpu->packs[worker].bf16);
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
    *cpu =
        (sr_backend_cpu){.base = table, .rows = sr_cpu_rows_best(), .memory = available_memory()};
    cpu->base.threads = sr_thread_count(threads);
    const srnn_status status = make_packs(cpu);
    if (status != SRNN_OK) {
        destroy(&cpu->base);
        return status;
    }
    *backend = &cpu->base;
    return SRNN_OK;
}

srnn_status sr_backend_cpu_bf16(sr_backend *backend) {
    sr_pack *packs = ((sr_backend_cpu *)backend)->packs;
    if (!sr_matmul_bf16_available())
        return SR_FAIL(
            SRNN_ERR_UNSUPPORTED,
            "this machine (or %s here) has no bf16 matrix products, which need AVX512_BF16 "
            "or AMX: use --precision float",
            sr_matmul_library());
    for (int worker = 0; worker < backend->threads; worker++)
        if (!packs[worker].bf16 && !(packs[worker].bf16 = sr_matmul_bf16_create()))
            return SR_FAIL(SRNN_ERR_MEMORY, "%s had no memory for bf16 products",
                           sr_matmul_library());
    return SRNN_OK;
}

void sr_backend_free(sr_backend *backend) {
    if (backend)
        backend->destroy(backend);
}
