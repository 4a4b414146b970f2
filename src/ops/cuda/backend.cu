/* backend.cu: the CUDA backend's table, its device and its workspace. */
#include "base/memory.h"
#include "ops/backends.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/decode/queue.h"
#include "ops/cuda/fp8/linear.h"

#include <stdlib.h>

enum {
    WORKSPACE_BYTES = 64 << 20, /* cuBLASLt recommends 32 MiB on Hopper */
    LOGIT_NUMBERS = 1 << 28     /* large products, half a GiB in bf16 */
};

static void destroy(sr_backend *backend) {
    sr_backend_cuda *cuda = (sr_backend_cuda *)backend;
    sr_cublaslt_close(cuda->library);
    if (backend->device) {
        sr_device_release(backend->device, cuda->workspace);
        sr_cuda_fp8_close(backend);
    }
    srnn_device_close(backend->device);
    free(cuda);
}

static void fill_table(sr_backend *backend) {
    backend->destroy = destroy;
    backend->narrow = sr_cuda_narrow;
    backend->widen = sr_cuda_widen;
    backend->embed_forward = sr_cuda_embed_forward;
    backend->embed_backward = sr_cuda_embed_backward;
    backend->hold_codes = sr_cuda_fp8_hold;
    backend->drop_codes = sr_cuda_fp8_drop;
    backend->expect_gradients = sr_cuda_expect_gradients;
    backend->takes_codes = sr_cuda_takes_codes;
    backend->linear_forward = sr_cuda_linear_forward;
    backend->linear_backward_input = sr_cuda_linear_backward_input;
    backend->linear_backward_weight = sr_cuda_linear_backward_weight;
    backend->linear_backward = sr_cuda_linear_backward;
    backend->rmsnorm_forward = sr_cuda_rmsnorm_forward;
    backend->rmsnorm_backward = sr_cuda_rmsnorm_backward;
    backend->rope_forward = sr_cuda_rope_forward;
    backend->rope_backward = sr_cuda_rope_backward;
    backend->swiglu_forward = sr_cuda_swiglu_forward;
    backend->swiglu_backward = sr_cuda_swiglu_backward;
    backend->gelu_forward = sr_cuda_gelu_forward;
    backend->gelu_backward = sr_cuda_gelu_backward;
    backend->activation_forward = sr_cuda_activation_forward;
    backend->activation_backward = sr_cuda_activation_backward;
    backend->route_forward = sr_cuda_route_forward;
    backend->route_backward = sr_cuda_route_backward;
    backend->expert_gather = sr_cuda_expert_gather;
    backend->expert_add = sr_cuda_expert_add;
    backend->expert_weigh_backward = sr_cuda_expert_weigh_backward;
    backend->norm_forward = sr_cuda_norm_forward;
    backend->norm_backward = sr_cuda_norm_backward;
    backend->scale = sr_cuda_scale;
    backend->add_scaled = sr_cuda_add_scaled;
    backend->cap_forward = sr_cuda_cap_forward;
    backend->cap_backward = sr_cuda_cap_backward;
    backend->norm_linear_forward = sr_cuda_norm_linear_forward;
    backend->norm_swiglu_forward = sr_cuda_norm_swiglu_forward;
    backend->argmax = sr_cuda_argmax;
    backend->next_inputs = sr_cuda_next_inputs;
    backend->short_conv_forward = sr_cuda_short_conv_forward;
    backend->short_conv_backward = sr_cuda_short_conv_backward;
    backend->short_conv_history = sr_cuda_short_conv_history;
    backend->short_conv_history_backward = sr_cuda_short_conv_history_backward;
    backend->clear_starts = sr_cuda_clear_starts;
    backend->context_mix_bytes = sr_cuda_context_mix_bytes;
    backend->context_mix_forward = sr_cuda_context_mix_forward;
    backend->context_mix_backward = sr_cuda_context_mix_backward;
    backend->rank_bytes = sr_cuda_rank_bytes;
    backend->rank_forward = sr_cuda_rank_forward;
    backend->rank_backward = sr_cuda_rank_backward;
    backend->add = sr_cuda_add;
    backend->add_rows = sr_cuda_add_rows;
    backend->copy_rows = sr_cuda_copy_rows;
    backend->cross_entropy = sr_cuda_cross_entropy;
    backend->divergence = sr_cuda_divergence;
    backend->square_error = sr_cuda_square_error;
    backend->stats_losses = sr_cuda_stats_losses;
    backend->stats_squares = sr_cuda_stats_squares;
    backend->adamw = sr_cuda_adamw;
    backend->muon_direction = sr_cuda_muon_direction;
    backend->muon_normalise = sr_cuda_muon_normalise;
    backend->muon_polynomial = sr_cuda_muon_polynomial;
    backend->muon_update = sr_cuda_muon_update;
    backend->largest_scores = sr_cuda_largest_scores;
    backend->limit_scores = sr_cuda_limit_scores;
}

static srnn_status open_parts(sr_backend_cuda *cuda, const sr_backend_settings *settings) {
    SR_TRY(srnn_device_open(&cuda->base.device, settings->device));
    sr_decode_install(cuda->base.device);
    SR_TRY(sr_device_allocate(cuda->base.device, &cuda->workspace, WORKSPACE_BYTES));
    cuda->workspace_bytes = WORKSPACE_BYTES;
    if (settings->fp8)
        SR_TRY(sr_cuda_fp8_open(&cuda->base, settings->fp8_bytes));
    return sr_cublaslt_open(&cuda->library);
}

srnn_status sr_backend_cuda_create(sr_backend **backend, const sr_backend_settings *settings) {
    void *memory;
    *backend = nullptr;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(sr_backend_cuda)));
    sr_backend_cuda *cuda = (sr_backend_cuda *)memory;
    fill_table(&cuda->base);
    cuda->base.number = settings->bf16 || settings->fp8 ? SRNN_BF16 : SRNN_F32;
    cuda->base.product = cuda->base.number;
    cuda->base.fp8_head = settings->fp8 && settings->fp8_head;
    cuda->base.logit_numbers = LOGIT_NUMBERS;
    cuda->base.threads = settings->threads;
    const srnn_status status = open_parts(cuda, settings);
    if (status != SRNN_OK) {
        destroy(&cuda->base);
        return status;
    }
    *backend = &cuda->base;
    return SRNN_OK;
}
