/* backend.h (private): what the files of the CUDA backend share. */
#ifndef SR_OPS_CUDA_BACKEND_H
#define SR_OPS_CUDA_BACKEND_H

#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"
#include "ops/backend.h"
#include "ops/cuda/gemm/cublaslt.h"

typedef struct sr_fp8_held sr_fp8_held; /* fp8/linear.cu */

/* Shapes of layers whose gradients are expected to be alike: more than a model has. */
enum { SR_FP8_KINDS = 32 };

typedef struct sr_backend_cuda {
    sr_backend base;      /* first member, so that the pointers can be cast */
    sr_cublaslt *library; /* NULL: not available on this machine */

    /* Workspace for partial sums, sorting and GEMMs. Kernels run in launch order, so each op may
     * use all of it. */
    void *workspace;
    size_t workspace_bytes;

    /* The same for operands of 8 bits; NULL: the backend does not compute in FP8. */
    void *fp8;
    size_t fp8_bytes;
    sr_fp8_held *held; /* codes of models' weights; a list */
    bool expects;      /* sizes of gradients: expect_gradients */
    int kind_count;
    struct {
        int64_t N, K;
    } kinds[SR_FP8_KINDS];
} sr_backend_cuda;

static inline cudaStream_t sr_stream_of(const sr_backend *backend) {
    return sr_cuda_stream(backend->device);
}

/* Whether the small kernels of decode may use programmatic dependent launch. */
static inline bool sr_may_start_early(const sr_backend *backend) {
    return sr_cuda_facts(backend->device)->capability_major >= 9;
}

static inline float *sr_workspace_of(const sr_backend *backend) {
    return (float *)((const sr_backend_cuda *)backend)->workspace;
}

/* Capacity of the workspace in floats. */
static inline int64_t sr_workspace_floats(const sr_backend *backend) {
    return (int64_t)(((const sr_backend_cuda *)backend)->workspace_bytes / sizeof(float));
}

static inline int64_t sr_minimum(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t sr_maximum(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline int64_t sr_pieces(int64_t length, int64_t piece) {
    return (length + piece - 1) / piece;
}

/* out (columns) += the sum of the rows of parts (count, columns), in a fixed order. */
srnn_status sr_cuda_add_parts(sr_backend *, float *out, const float *parts, int64_t count,
                              int64_t columns);
/* out (columns) += the sums of the columns of x, in a fixed order. */
srnn_status sr_cuda_add_columns(sr_backend *, float *out, sr_matrix x);

/* The ops, each in the file named after it; contracts in backend.h. */
srnn_status sr_cuda_narrow(sr_backend *, void *out, const float *x, int64_t n);
srnn_status sr_cuda_widen(sr_backend *, float *out, const void *x, int64_t n);
srnn_status sr_cuda_add(sr_backend *, float *y, const float *x, int64_t n);
srnn_status sr_cuda_add_rows(sr_backend *, sr_matrix y, sr_matrix x);
srnn_status sr_cuda_copy_rows(sr_backend *, sr_matrix out, sr_matrix x);
srnn_status sr_cuda_embed_forward(sr_backend *, sr_matrix out, sr_matrix weight,
                                  const int32_t *ids);
srnn_status sr_cuda_embed_backward(sr_backend *, float *d_weight, sr_matrix d_out,
                                   const int32_t *ids);
bool sr_cuda_takes_codes(const sr_backend *, const sr_linear *layers, int count, int64_t rows,
                         int64_t K);
srnn_status sr_cuda_linear_forward(sr_backend *, sr_matrix y, sr_matrix addend, sr_matrix x,
                                   const sr_linear *layers, int count);
srnn_status sr_cuda_linear_backward_input(sr_backend *, sr_matrix d_x, sr_matrix d_y,
                                          const sr_linear *layers, int count);
srnn_status sr_cuda_linear_backward_weight(sr_backend *, const sr_linear_gradient *layers,
                                           int count, sr_matrix d_y, sr_matrix x);
srnn_status sr_cuda_linear_backward(sr_backend *, const sr_linear_backward *of);
srnn_status sr_cuda_rmsnorm_forward(sr_backend *, void *out, const sr_rmsnorm *norm);
srnn_status sr_cuda_rmsnorm_backward(sr_backend *, const sr_rmsnorm_gradient *gradient,
                                     const void *d_out, const sr_rmsnorm *norm);
srnn_status sr_cuda_activation_forward(sr_backend *, sr_matrix out, sr_matrix x,
                                       const sr_mlp_activation *activation);
srnn_status sr_cuda_activation_backward(sr_backend *, sr_matrix d_x, float *const d_alpha[2],
                                        sr_matrix d_out, sr_matrix x,
                                        const sr_mlp_activation *activation);
srnn_status sr_cuda_route_forward(sr_backend *, float *weights, sr_matrix logits,
                                  const sr_routing *routing);
srnn_status sr_cuda_route_backward(sr_backend *, sr_matrix d_logits, const float *d_weights,
                                   const float *weights, sr_matrix logits,
                                   const sr_routing *routing);
srnn_status sr_cuda_expert_gather(sr_backend *, sr_matrix *out, sr_matrix x,
                                  const sr_expert_rows *of);
srnn_status sr_cuda_expert_add(sr_backend *, sr_matrix y, sr_matrix rows, const sr_expert_rows *of,
                               bool weighted);
srnn_status sr_cuda_expert_weigh_backward(sr_backend *, sr_matrix d_out, sr_matrix d_activated,
                                          sr_matrix activated, const float *bias,
                                          const sr_expert_rows *of);
srnn_status sr_cuda_norm_forward(sr_backend *, sr_matrix out, const sr_norm *norm);
srnn_status sr_cuda_norm_backward(sr_backend *, const sr_norm_gradient *gradient, sr_matrix d_out,
                                  const sr_norm *norm);
srnn_status sr_cuda_scale(sr_backend *, sr_matrix x, float factor);
srnn_status sr_cuda_add_scaled(sr_backend *, sr_matrix out, sr_matrix x, sr_matrix y, float factor);
srnn_status sr_cuda_cap_forward(sr_backend *, sr_matrix x, float cap);
srnn_status sr_cuda_cap_backward(sr_backend *, sr_matrix d_x, sr_matrix capped, float cap);
srnn_status sr_cuda_rope_forward(sr_backend *, sr_matrix x, const sr_rope *rope);
srnn_status sr_cuda_rope_backward(sr_backend *, sr_matrix d_x, const sr_rope *rope);
srnn_status sr_cuda_swiglu_forward(sr_backend *, sr_matrix out, sr_matrix x);
srnn_status sr_cuda_swiglu_backward(sr_backend *, sr_matrix d_x, sr_matrix d_out, sr_matrix x);
srnn_status sr_cuda_gelu_forward(sr_backend *, sr_matrix out, sr_matrix x);
srnn_status sr_cuda_gelu_backward(sr_backend *, sr_matrix d_x, sr_matrix d_out, sr_matrix x);
srnn_status sr_cuda_norm_linear_forward(sr_backend *, sr_matrix y, const sr_norm_linear *of);
srnn_status sr_cuda_norm_swiglu_forward(sr_backend *, sr_matrix out, sr_matrix up,
                                        const sr_norm_linear *of);
srnn_status sr_cuda_argmax(sr_backend *, int32_t *out, sr_matrix x);
srnn_status sr_cuda_next_inputs(sr_backend *, int32_t *ids, int32_t *positions,
                                const int32_t *chosen, int32_t position, int64_t rows);
srnn_status sr_cuda_short_conv_forward(sr_backend *, sr_matrix out, const sr_short_conv *conv);
srnn_status sr_cuda_short_conv_backward(sr_backend *, sr_matrix d_x, float *d_weight, float *d_bias,
                                        sr_matrix d_out, const sr_short_conv *conv);
srnn_status sr_cuda_short_conv_history(sr_backend *, void *history, const sr_short_conv *conv);
srnn_status sr_cuda_short_conv_history_backward(sr_backend *, void *d_history, sr_matrix d_out,
                                                const sr_short_conv *conv);
srnn_status sr_cuda_clear_starts(sr_backend *, sr_matrix states, const int32_t *positions,
                                 int64_t T);
size_t sr_cuda_context_mix_bytes(const sr_backend *, const sr_context_mix *mix);
srnn_status sr_cuda_context_mix_forward(sr_backend *, sr_matrix out, const sr_context_mix *mix);
srnn_status sr_cuda_context_mix_backward(sr_backend *, sr_matrix d_x, float *d_weight,
                                         sr_matrix d_out, const sr_context_mix *mix, void *scratch);
size_t sr_cuda_rank_bytes(const sr_backend *, const sr_ranking *ranking);
srnn_status sr_cuda_rank_forward(sr_backend *, float *out, const sr_ranking *ranking);
srnn_status sr_cuda_rank_backward(sr_backend *, float *d_e, const float *d_out,
                                  const sr_ranking *ranking);
srnn_status sr_cuda_cross_entropy(sr_backend *, float *losses, int32_t *hits, sr_matrix logits,
                                  const sr_cross_entropy *of);
srnn_status sr_cuda_divergence(sr_backend *, float *losses, const sr_divergence *of);
srnn_status sr_cuda_square_error(sr_backend *, float *errors, sr_matrix d_x,
                                 const sr_square_error *of);
srnn_status sr_cuda_stats_losses(sr_backend *, sr_step_stats *stats, const float *losses,
                                 const int32_t *hits, const int32_t *targets, int64_t rows);
srnn_status sr_cuda_stats_squares(sr_backend *, sr_step_stats *stats, const float *x, int64_t n);
srnn_status sr_cuda_adamw(sr_backend *, sr_step_stats *stats, const sr_adamw *adamw);
srnn_status sr_cuda_muon_direction(sr_backend *, const sr_step_stats *stats,
                                   const sr_muon_part *part);
srnn_status sr_cuda_muon_normalise(sr_backend *, void *out, const sr_step_stats *stats,
                                   const float *x, int64_t n);
srnn_status sr_cuda_muon_polynomial(sr_backend *, sr_matrix out, sr_matrix P, const float *Q,
                                    const float factors[3]);
srnn_status sr_cuda_muon_update(sr_backend *, const sr_step_stats *stats, const sr_muon_part *part);
srnn_status sr_cuda_largest_scores(sr_backend *, float *largest, const sr_scores *of);
srnn_status sr_cuda_limit_scores(sr_backend *, const sr_step_stats *stats,
                                 const sr_head_weights *of);

#endif
