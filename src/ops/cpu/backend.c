/* backend.c: the CPU backend's table and its memory. */
#include "ops/cpu/backend.h"
#include "base/memory.h"
#include "base/threads.h"

#include <stdlib.h>

static void destroy(sr_backend *backend) {
    sr_backend_cpu *cpu = (sr_backend_cpu *)backend;
    free(cpu->packs);
    free(cpu->allocation);
    free(cpu->pair_a);
    free(cpu->pair_b);
    srnn_device_close(cpu->base.device);
    free(cpu);
}

static srnn_status make_packs(sr_backend_cpu *cpu) {
    /* Either operand may have as many rows: tiles are tall or wide. */
    const size_t a = SR_PACK_DEPTH * (SR_PACK_B + SR_PACK_GAP), b = a;
    const size_t parts = SR_PRODUCT_PARTS * SR_PACK_A * SR_PACK_B;
    const size_t threads = (size_t)cpu->base.threads;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, threads, sizeof *cpu->packs));
    cpu->packs = memory;
    SR_TRY(sr_alloc(&memory, threads * (a + b) + parts, sizeof(float)));
    cpu->allocation = memory;
    cpu->parts = cpu->allocation + threads * (a + b);
    for (int worker = 0; worker < cpu->base.threads; worker++) {
        cpu->packs[worker].a = cpu->allocation + (size_t)worker * (a + b);
        cpu->packs[worker].b = cpu->packs[worker].a + a;
    }
    return SRNN_OK;
}

static srnn_status make_pair_packs(sr_backend_cpu *cpu) {
    const size_t numbers = (size_t)SR_PAIR_ROWS * SR_PACK_DEPTH;
    void *memory;
    SR_TRY(sr_alloc(&memory, numbers, sizeof *cpu->pair_a));
    cpu->pair_a = memory;
    SR_TRY(sr_alloc(&memory, numbers / 2, sizeof *cpu->pair_b));
    cpu->pair_b = memory;
    return SRNN_OK;
}

/* Its products have operands of 16 bits or more. */
static bool takes_codes(const sr_backend *backend, const sr_linear *layers, int count, int64_t rows,
                        int64_t K) {
    (void)backend, (void)layers, (void)count, (void)rows, (void)K;
    return false;
}

static srnn_status expect_gradients(sr_backend *backend, bool expects) {
    (void)backend, (void)expects;
    return SRNN_OK;
}

static srnn_status hold_codes(sr_backend *backend, size_t *bytes, const void *weights,
                              int64_t numbers) {
    (void)backend, (void)weights, (void)numbers;
    *bytes = 0;
    return SRNN_OK;
}

static void drop_codes(sr_backend *backend, const void *weights) {
    (void)backend, (void)weights;
}

static const sr_backend table = {
    .number = SRNN_F32,
    .logit_numbers = 1 << 20,
    .destroy = destroy,
    .narrow = sr_cpu_narrow,
    .widen = sr_cpu_widen,
    .embed_forward = sr_cpu_embed_forward,
    .embed_backward = sr_cpu_embed_backward,
    .hold_codes = hold_codes,
    .expect_gradients = expect_gradients,
    .drop_codes = drop_codes,
    .takes_codes = takes_codes,
    .linear_forward = sr_cpu_linear_forward,
    .linear_backward_input = sr_cpu_linear_backward_input,
    .linear_backward_weight = sr_cpu_linear_backward_weight,
    .linear_backward = sr_linear_backward_steps,
    .rmsnorm_forward = sr_cpu_rmsnorm_forward,
    .rmsnorm_backward = sr_cpu_rmsnorm_backward,
    .rope_forward = sr_cpu_rope_forward,
    .rope_backward = sr_cpu_rope_backward,
    .swiglu_forward = sr_cpu_swiglu_forward,
    .swiglu_backward = sr_cpu_swiglu_backward,
    .gelu_forward = sr_cpu_gelu_forward,
    .gelu_backward = sr_cpu_gelu_backward,
    .activation_forward = sr_cpu_activation_forward,
    .activation_backward = sr_cpu_activation_backward,
    .route_forward = sr_cpu_route_forward,
    .route_backward = sr_cpu_route_backward,
    .expert_gather = sr_cpu_expert_gather,
    .expert_add = sr_cpu_expert_add,
    .expert_weigh_backward = sr_cpu_expert_weigh_backward,
    .norm_forward = sr_cpu_norm_forward,
    .norm_backward = sr_cpu_norm_backward,
    .scale = sr_cpu_scale,
    .add_scaled = sr_cpu_add_scaled,
    .cap_forward = sr_cpu_cap_forward,
    .cap_backward = sr_cpu_cap_backward,
    .norm_linear_forward = sr_norm_linear_steps,
    .norm_swiglu_forward = sr_norm_swiglu_steps,
    .argmax = sr_cpu_argmax,
    .next_inputs = sr_cpu_next_inputs,
    .short_conv_forward = sr_cpu_short_conv_forward,
    .short_conv_backward = sr_cpu_short_conv_backward,
    .short_conv_history = sr_cpu_short_conv_history,
    .short_conv_history_backward = sr_cpu_short_conv_history_backward,
    .clear_starts = sr_cpu_clear_starts,
    .context_mix_bytes = sr_cpu_context_mix_bytes,
    .context_mix_forward = sr_cpu_context_mix_forward,
    .context_mix_backward = sr_cpu_context_mix_backward,
    .rank_bytes = sr_cpu_rank_bytes,
    .rank_forward = sr_cpu_rank_forward,
    .rank_backward = sr_cpu_rank_backward,
    .add = sr_cpu_add,
    .add_rows = sr_cpu_add_rows,
    .copy_rows = sr_cpu_copy_rows,
    .cross_entropy = sr_cpu_cross_entropy,
    .divergence = sr_cpu_divergence,
    .square_error = sr_cpu_square_error,
    .stats_losses = sr_cpu_stats_losses,
    .stats_squares = sr_cpu_stats_squares,
    .unit_squares = sr_cpu_unit_squares,
    .adamw = sr_cpu_adamw,
    .muon_direction = sr_cpu_muon_direction,
    .muon_normalise = sr_cpu_muon_normalise,
    .muon_polynomial = sr_cpu_muon_polynomial,
    .muon_update = sr_cpu_muon_update,
    .largest_scores = sr_cpu_largest_scores,
    .limit_scores = sr_cpu_limit_scores,
};

static srnn_status open_device(sr_backend_cpu *cpu) {
    sr_device_choice choice;
    SR_TRY(sr_device_choose(&choice, "cpu"));
    return choice.kind->open(&cpu->base.device, choice.index, cpu->base.threads);
}

static srnn_status fill(sr_backend_cpu *cpu, const sr_backend_settings *settings) {
    cpu->base.threads = sr_thread_count(settings->threads);
    SR_TRY(open_device(cpu));
    SR_TRY(make_packs(cpu));
    SR_TRY(sr_cpu_level_check());
    if (settings->fp8)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "cpu: fp8 needs a GPU of compute capability 8.9 or newer: use bf16");
    if (sr_cpu_level_requested())
        sr_gemm_limit(sr_cpu_level_used());
    cpu->base.product = settings->bf16 ? SRNN_BF16 : SRNN_F32;
    /* Rounding the head's weights once more takes as long as multiplying a hundred rows. */
    if (settings->bf16)
        cpu->base.logit_numbers = 1 << 24;
    return settings->bf16 && cpu->pairs ? make_pair_packs(cpu) : SRNN_OK;
}

srnn_status sr_backend_cpu_create(sr_backend **backend, const sr_backend_settings *settings) {
    void *memory;
    *backend = NULL;
    SR_TRY(sr_alloc(&memory, 1, sizeof(sr_backend_cpu)));
    sr_backend_cpu *cpu = memory;
    *cpu =
        (sr_backend_cpu){.base = table, .rows = sr_cpu_rows_best(), .pairs = sr_cpu_pairs_best()};
    const srnn_status status = fill(cpu, settings);
    if (status != SRNN_OK) {
        destroy(&cpu->base);
        return status;
    }
    *backend = &cpu->base;
    return SRNN_OK;
}
