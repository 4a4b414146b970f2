/* adamw.cu: AdamW step of all weights, applied or skipped by the step's statistics.
 *
 * Bytes per weight: reads 4 gradient, 4 weight, 4 + 4 moments; writes 4, 4 + 4 and 2 of the bf16
 * copy: 30 (float: 28). */
#include "ops/cuda/elements.h"

enum { THREADS = 256 };

/* The factors of AdamW, with everything that depends on the step already computed. */
struct adamw_factors {
    float gradient_scale, keep, new1, beta2, new2, step_size, inverse_root_correction, epsilon;
    int applied;
};

/* One thread: from the step's sums (loss, squares of gradients, targets) computes the gradient
 * norm, the clipping factor and the bias corrections, and whether the step is applied (loss and
 * norm finite); stores the factors for `update` on the same stream.
 *
 * torch.optim.AdamW: weight *= 1 - lr wd;  weight -= lr / (1 - beta1^t) * m / (sqrt(v / (1 -
 * beta2^t)) + eps). */
static __global__ void decide(adamw_factors *factors, sr_step_stats *stats, const sr_adamw s) {
    const double targets = stats->targets > 0 ? (double)stats->targets : 1.0;
    const double to_mean = s.nominal / targets, norm = sqrt(stats->squares) * to_mean;
    const bool applied = isfinite(stats->loss) && isfinite(norm);
    stats->gradient_norm = norm;
    stats->applied = applied;
    factors->applied = applied;
    if (!applied)
        return;
    const double step = (double)(++stats->updates);
    const double correction1 = 1.0 - pow(s.beta1, step), correction2 = 1.0 - pow(s.beta2, step);
    const double clip = s.clip > 0 && norm > s.clip ? s.clip / norm : 1.0;
    stats->gradient_scale = to_mean * clip;
    factors->gradient_scale = (float)stats->gradient_scale;
    factors->keep = (float)(1.0 - stats->learning_rate * s.weight_decay);
    factors->new1 = (float)(1.0 - s.beta1);
    factors->beta2 = (float)s.beta2;
    factors->new2 = (float)(1.0 - s.beta2);
    factors->step_size = (float)(stats->learning_rate / correction1);
    factors->inverse_root_correction = (float)(1.0 / sqrt(correction2));
    factors->epsilon = (float)s.epsilon;
}

/* A thread owns W consecutive weights: loads weight, both moments and gradient, global ->
 * registers, updates, stores weight, moments and the bf16 working copy. Elementwise: no shared
 * memory. */
template <class N, int W>
static __global__ void __launch_bounds__(THREADS)
    update(const sr_adamw s, const adamw_factors *__restrict__ factors) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    const adamw_factors f = *factors;
    if (i >= s.n || !f.applied)
        return;
    const float keep = s.weight_decay != 0 ? f.keep : 1.0f;
    float weight[W], mean[W], square[W], gradient[W];
    load_numbers<W>(weight, s.weight + i);
    load_numbers<W>(mean, s.mean + i);
    load_numbers<W>(square, s.square + i);
    load_numbers<W>(gradient, s.gradient + i);
#pragma unroll
    for (int k = 0; k < W; k++) {
        const float g = gradient[k] * f.gradient_scale;
        mean[k] += f.new1 * (g - mean[k]);
        square[k] = f.beta2 * square[k] + f.new2 * (g * g);
        const float root = sqrtf(square[k]) * f.inverse_root_correction + f.epsilon;
        weight[k] = weight[k] * keep - f.step_size * (mean[k] / root);
    }
    store_numbers<W>(s.weight + i, weight);
    store_numbers<W>(s.mean + i, mean);
    store_numbers<W>(s.square + i, square);
    if (s.working != s.weight)
        store_numbers<W>((N *)s.working + i, weight);
}

static srnn_status update_range(sr_backend *backend, const sr_adamw *s) {
    const sr_place places[] = {{s->weight, 0, SRNN_F32},
                               {s->mean, 0, SRNN_F32},
                               {s->square, 0, SRNN_F32},
                               {s->gradient, 0, SRNN_F32},
                               {s->working, 0, backend->number}};
    const adamw_factors *factors = (const adamw_factors *)((sr_backend_cuda *)backend)->workspace;
    if (s->n == 0)
        return SRNN_OK;
    return sr_with_access<4>(backend->number, s->n, places, 5, [&](auto access) -> srnn_status {
        using A = decltype(access);
        SR_CUDA(sr_launch(update<typename A::N, A::W>,
                          dim3((unsigned)sr_pieces(s->n, THREADS * A::W)), dim3(THREADS), 0,
                          sr_stream_of(backend), *s, factors));
        return SRNN_OK;
    });
}

static sr_adamw range_of(const sr_backend *backend, const sr_adamw *s, int64_t first, int64_t n) {
    sr_adamw range = *s;
    range.n = n;
    range.weight += first;
    range.mean += first;
    range.square += first;
    range.gradient += first;
    range.working = sr_number_at(range.working, first, backend->number);
    return range;
}

/* The last few numbers on their own, so that the others can be moved four at a time. */
static srnn_status update_both(sr_backend *backend, const sr_adamw *s) {
    const int64_t body = s->n - s->n % 4;
    const sr_adamw all = range_of(backend, s, 0, body);
    const sr_adamw rest = range_of(backend, s, body, s->n - body);
    SR_TRY(update_range(backend, &all));
    return update_range(backend, &rest);
}

srnn_status sr_cuda_adamw(sr_backend *backend, sr_step_stats *stats, const sr_adamw *adamw) {
    SR_CUDA(sr_launch(decide, dim3(1), dim3(1), 0, sr_stream_of(backend),
                      (adamw_factors *)((sr_backend_cuda *)backend)->workspace, stats, *adamw));
    for (int64_t first = 0, end; first < adamw->n; first = end) {
        bool decays;
        end = sr_adamw_piece(adamw, first, &decays);
        sr_adamw piece = range_of(backend, adamw, first, end - first);
        piece.weight_decay = decays ? piece.weight_decay : 0;
        SR_TRY(update_both(backend, &piece));
    }
    return SRNN_OK;
}
