/* backend.h (private): what the files of the CPU backend share. */
#ifndef SR_OPS_CPU_BACKEND_H
#define SR_OPS_CPU_BACKEND_H

#include "ops/backend.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/pairs.h"
#include "ops/cpu/rows.h"

/* Packing buffers for the operands of one tile of a GEMM, and which rows they hold. */
typedef struct sr_pack {
    float *a, *b;
    const void *a_from, *b_from;
} sr_pack;

typedef struct sr_backend_cpu {
    sr_backend base; /* first member, so that the pointers can be cast */
    const sr_cpu_rows *rows;
    const sr_cpu_pairs *pairs; /* NULL: this level has none */
    sr_pack *packs;            /* (threads) */
    float *parts;              /* (SR_PRODUCT_PARTS, SR_PACK_A, SR_PACK_B): partial sums */
    float *allocation;         /* of all packs and partial sums */
    uint16_t *pair_a; /* (SR_PAIR_ROWS, SR_PACK_DEPTH): packs of products by pairs, or NULL */
    uint32_t *pair_b; /* (SR_PAIR_ROWS, SR_PACK_DEPTH / 2) */
} sr_backend_cpu;

/* Numbers of the two operands of one pack. */
enum { SR_PACK_DEPTH = 1024, SR_PACK_A = 128, SR_PACK_B = 256, SR_PACK_GAP = 16 };
enum { SR_PRODUCT_PARTS = 64, SR_PAIR_ROWS = 8192 };

static inline const sr_cpu_rows *sr_cpu_rows_of(const sr_backend *backend) {
    return ((const sr_backend_cpu *)backend)->rows;
}

static inline int64_t sr_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t sr_tiles(int64_t length, int64_t tile) {
    return (length + tile - 1) / tile;
}

/* Row `row` of a matrix of floats; all matrices of the CPU are. */
static inline float *sr_cpu_row(sr_matrix m, int64_t row) {
    return (float *)m.data + row * m.stride;
}

/* The ops, each in the file named after it; contracts in backend.h. */
srnn_status sr_cpu_narrow(sr_backend *, void *out, const float *x, int64_t n);
srnn_status sr_cpu_widen(sr_backend *, float *out, const void *x, int64_t n);
srnn_status sr_cpu_embed_forward(sr_backend *, sr_matrix out, sr_matrix weight, const int32_t *ids);
srnn_status sr_cpu_embed_backward(sr_backend *, float *d_weight, sr_matrix d_out,
                                  const int32_t *ids);
srnn_status sr_cpu_linear_forward(sr_backend *, sr_matrix y, sr_matrix addend, sr_matrix x,
                                  const sr_linear *layers, int count);
srnn_status sr_cpu_linear_backward_input(sr_backend *, sr_matrix d_x, sr_matrix d_y,
                                         const sr_linear *layers, int count);
srnn_status sr_cpu_linear_backward_weight(sr_backend *, const sr_linear_gradient *layers, int count,
                                          sr_matrix d_y, sr_matrix x);
srnn_status sr_cpu_short_conv_forward(sr_backend *, sr_matrix out, const sr_short_conv *conv);
srnn_status sr_cpu_short_conv_backward(sr_backend *, sr_matrix d_x, float *d_weight, float *d_bias,
                                       sr_matrix d_out, const sr_short_conv *conv);
srnn_status sr_cpu_short_conv_history(sr_backend *, void *history, const sr_short_conv *conv);
srnn_status sr_cpu_short_conv_history_backward(sr_backend *, void *d_history, sr_matrix d_out,
                                               const sr_short_conv *conv);
srnn_status sr_cpu_clear_starts(sr_backend *, sr_matrix states, const int32_t *positions,
                                int64_t T);
srnn_status sr_cpu_rmsnorm_forward(sr_backend *, void *out, const sr_rmsnorm *norm);
srnn_status sr_cpu_rmsnorm_backward(sr_backend *, const sr_rmsnorm_gradient *gradient,
                                    const void *d_out, const sr_rmsnorm *norm);
srnn_status sr_cpu_rope_forward(sr_backend *, sr_matrix x, const sr_rope *rope);
srnn_status sr_cpu_rope_backward(sr_backend *, sr_matrix d_x, const sr_rope *rope);
size_t sr_cpu_context_mix_bytes(const sr_backend *, const sr_context_mix *mix);
srnn_status sr_cpu_context_mix_forward(sr_backend *, sr_matrix out, const sr_context_mix *mix);
srnn_status sr_cpu_context_mix_backward(sr_backend *, sr_matrix d_x, float *d_weight,
                                        sr_matrix d_out, const sr_context_mix *mix, void *scratch);
size_t sr_cpu_rank_bytes(const sr_backend *, const sr_ranking *ranking);
srnn_status sr_cpu_rank_forward(sr_backend *, float *out, const sr_ranking *ranking);
srnn_status sr_cpu_rank_backward(sr_backend *, float *d_e, const float *d_out,
                                 const sr_ranking *ranking);
srnn_status sr_cpu_cross_entropy(sr_backend *, float *losses, int32_t *hits, sr_matrix logits,
                                 const sr_cross_entropy *of);
srnn_status sr_cpu_argmax(sr_backend *, int32_t *out, sr_matrix x);
srnn_status sr_cpu_next_inputs(sr_backend *, int32_t *ids, int32_t *positions,
                               const int32_t *chosen, int32_t position, int64_t rows);
srnn_status sr_cpu_swiglu_forward(sr_backend *, sr_matrix out, sr_matrix x);
srnn_status sr_cpu_swiglu_backward(sr_backend *, sr_matrix d_x, sr_matrix d_out, sr_matrix x);
srnn_status sr_cpu_gelu_forward(sr_backend *, sr_matrix out, sr_matrix x);
srnn_status sr_cpu_gelu_backward(sr_backend *, sr_matrix d_x, sr_matrix d_out, sr_matrix x);
srnn_status sr_cpu_activation_forward(sr_backend *, sr_matrix out, sr_matrix x,
                                      const sr_mlp_activation *activation);
srnn_status sr_cpu_activation_backward(sr_backend *, sr_matrix d_x, float *const d_alpha[2],
                                       sr_matrix d_out, sr_matrix x,
                                       const sr_mlp_activation *activation);
srnn_status sr_cpu_route_forward(sr_backend *, float *weights, sr_matrix logits,
                                 const sr_routing *routing);
srnn_status sr_cpu_route_backward(sr_backend *, sr_matrix d_logits, const float *d_weights,
                                  const float *weights, sr_matrix logits,
                                  const sr_routing *routing);
srnn_status sr_cpu_expert_gather(sr_backend *, sr_matrix *out, sr_matrix x,
                                 const sr_expert_rows *of);
srnn_status sr_cpu_expert_add(sr_backend *, sr_matrix y, sr_matrix rows, const sr_expert_rows *of,
                              bool weighted);
srnn_status sr_cpu_expert_weigh_backward(sr_backend *, sr_matrix d_out, sr_matrix d_activated,
                                         sr_matrix activated, const float *bias,
                                         const sr_expert_rows *of);
srnn_status sr_cpu_norm_forward(sr_backend *, sr_matrix out, const sr_norm *norm);
srnn_status sr_cpu_norm_backward(sr_backend *, const sr_norm_gradient *gradient, sr_matrix d_out,
                                 const sr_norm *norm);
srnn_status sr_cpu_scale(sr_backend *, sr_matrix x, float factor);
srnn_status sr_cpu_add_scaled(sr_backend *, sr_matrix out, sr_matrix x, sr_matrix y, float factor);
srnn_status sr_cpu_cap_forward(sr_backend *, sr_matrix x, float cap);
srnn_status sr_cpu_cap_backward(sr_backend *, sr_matrix d_x, sr_matrix capped, float cap);
srnn_status sr_cpu_add(sr_backend *, float *y, const float *x, int64_t n);
srnn_status sr_cpu_add_rows(sr_backend *, sr_matrix y, sr_matrix x);
srnn_status sr_cpu_copy_rows(sr_backend *, sr_matrix out, sr_matrix x);
srnn_status sr_cpu_divergence(sr_backend *, float *losses, const sr_divergence *of);
srnn_status sr_cpu_square_error(sr_backend *, float *errors, sr_matrix d_x,
                                const sr_square_error *of);
srnn_status sr_cpu_stats_losses(sr_backend *, sr_step_stats *stats, const float *losses,
                                const int32_t *hits, const int32_t *targets, int64_t rows);
srnn_status sr_cpu_stats_squares(sr_backend *, sr_step_stats *stats, const float *x, int64_t n);
srnn_status sr_cpu_unit_squares(sr_backend *, double *units, const float *x, int64_t n);
srnn_status sr_cpu_adamw(sr_backend *, sr_step_stats *stats, const sr_adamw *adamw);
srnn_status sr_cpu_muon_direction(sr_backend *, const sr_step_stats *stats,
                                  const sr_muon_part *part);
srnn_status sr_cpu_muon_normalise(sr_backend *, void *out, const sr_step_stats *stats,
                                  const float *x, int64_t n);
srnn_status sr_cpu_muon_polynomial(sr_backend *, sr_matrix out, sr_matrix P, const float *Q,
                                   const float factors[3]);
srnn_status sr_cpu_muon_update(sr_backend *, const sr_step_stats *stats, const sr_muon_part *part);
srnn_status sr_cpu_largest_scores(sr_backend *, float *largest, const sr_scores *of);
srnn_status sr_cpu_limit_scores(sr_backend *, const sr_step_stats *stats,
                                const sr_head_weights *of);

#endif
