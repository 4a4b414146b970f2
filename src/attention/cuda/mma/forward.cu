/* forward.cu: attention forward on tensor cores (mma.sync) with online softmax: query rows stay in
 * registers, keys and values pass by in shared-memory tiles. */
#include "attention/cuda/mma/mma.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = 4, THREADS = WARPS * SR_WARP };

/* Whether a pair is more than its product and a clamp: decays, caps, the sigmoid. */
static bool is_other(const sr_attention_view<sr_bf16> &call) {
    return call.choices.decays || call.score.capped || call.score.sigmoid;
}

/* OTHER: for pairs of that kind. Heads of 64 lack the registers for them with two row tiles, and
 * have kernels of their own. */
template <int WIDTH, sr_score_class KIND> constexpr bool other_apart() {
    return WIDTH == 64 && KIND != SR_CLASS_LONG;
}

template <int WIDTH, sr_score_class KIND, bool OTHER> struct shape {
    /* 16 rows per warp, or twice that, so that each fragment of keys and values serves two
     * GEMMs. */
    static constexpr bool other = OTHER || !other_apart<WIDTH, KIND>();
    static constexpr int row_tiles = WIDTH <= 64 && KIND != SR_CLASS_LONG && !OTHER ? 2 : 1;
    static constexpr int warp_rows = 16 * row_tiles;
    static constexpr int rows = WARPS * warp_rows;
    static constexpr int keys = WIDTH <= 128 ? 64 : 16;
    static constexpr int key_pieces = keys / 8;
    static constexpr int pieces = WIDTH / 8;
    static constexpr bool kept = WIDTH <= 128;                  /* queries in registers */
    static constexpr int steps = WIDTH <= 128 ? WIDTH / 16 : 4; /* unrolled at once */
    static constexpr size_t shared_bytes = (size_t)(rows + 4 * keys) * WIDTH * sizeof(sr_bf16);
};

/* A warp's rows and accumulators. Row (m, half) is t + 16 m + 8 half + lane / 4. */
template <int WIDTH, sr_score_class KIND, bool OTHER> struct warp_rows {
    using Shape = shape<WIDTH, KIND, OTHER>;
    static constexpr int MT = Shape::row_tiles, KP = Shape::key_pieces, P = Shape::pieces;

    const sr_attention_view<sr_bf16> &call;
    int b, h, t;      /* first row */
    int first[MT][2]; /* the first key of each row */
    sr_operand<WIDTH, Shape::kept> q[MT];
    float s[MT][KP][4];               /* dot products, then weights */
    float o[MT][P][4];                /* numerators */
    float sum[MT][2], maximum[MT][2]; /* online softmax; sum: the lane's share */

    SR_DEVICE int row(int m, int half) const {
        return t + 16 * m + 8 * half + (int)(threadIdx.x % SR_WARP) / 4;
    }

    SR_DEVICE static int column(int n, int e) {
        return 8 * n + 2 * (int)(threadIdx.x % 4) + e % 2;
    }

    SR_DEVICE warp_rows(const sr_attention_view<sr_bf16> &call_, int b_, int h_, int t_)
        : call(call_), b(b_), h(h_), t(t_) {
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                first[m][half] = call.first[(int64_t)b * call.T + min(row(m, half), call.T - 1)];
                sum[m][half] = 0;
                maximum[m][half] = call.score.maximum ? -INFINITY : 0;
            }
#pragma unroll
            for (int n = 0; n < P; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    o[m][n][e] = 0;
        }
    }

    /* s = Q K'. */
    SR_DEVICE void multiply_keys(const sr_bf16 *keys) {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < KP; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[m][n][e] = 0;
#pragma unroll Shape::steps
        for (int k = 0; k < WIDTH / 16; k++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
                q[m].get(a[m], k);
#pragma unroll
            for (int n = 0; n < KP; n += 2) {
                uint32_t b_pair[4];
                load_b<WIDTH>(b_pair, keys, 8 * n, k);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma_m16n8k16(s[m][n], a[m], b_pair);
                    mma_m16n8k16(s[m][n + 1], a[m], b_pair + 2);
                }
            }
        }
    }

    /* Hidden pairs (causal mask, other documents) get this number: weight 0. */
    SR_DEVICE void hide(int key, float nothing) {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < KP; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int j = key + column(n, e);
                    if (j > row(m, e / 2) || j < first[m][e / 2])
                        s[m][n][e] = nothing;
                }
    }

    /* Adds C_i - C_j, in the unit of the logarithms in s, or multiplies by its exponential. */
    template <bool MULTIPLY> SR_DEVICE void apply_decay(int key) {
        const double *const decay =
            call.scratch.decay + call.row_index(call.Hkv, b, h / call.group, 0);
        const double reference = decay[key];
        const float unit = call.score.decay_unit;
        sr_decay_since of_row[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                of_row[m][half].open(decay, min(row(m, half), call.T - 1), reference);
#pragma unroll
        for (int n = 0; n < KP; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                sr_decay_since of_key;
                of_key.open(decay, min(key + column(n, e), call.T - 1), reference);
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        float &x = s[m][n][e + 2 * half];
                        const float difference = of_row[m][half].less(of_key) * unit;
                        x = MULTIPLY ? x * exp2_fast(difference) : x + difference;
                    }
            }
    }

    /* All products of a warp are small, as a rule: these need no special function. */
    SR_DEVICE void cap() {
        const float cap = 1 / call.score.cap_inverse, near = SR_CAP_NEAR * cap;
        bool small = true;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < KP; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    small = small && fabsf(s[m][n][e]) <= near;
        const bool all_small = warp_ballot(small) == SR_FULL_WARP;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < KP; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float &x = s[m][n][e];
                    x = all_small ? cap_near(call.score, x) : cap_of(call.score, cap, x).value;
                }
    }

    SR_DEVICE void clamp() {
        if (!call.score.clamped)
            return;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < KP; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[m][n][e] = clamp_dot(call.score, s[m][n][e]);
    }

    SR_DEVICE void polynomial_weights(int key, bool masked) {
        const sr_score_rule &rule = call.score;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < KP; n += 2) {
                float r[8], w[8];
#pragma unroll
                for (int e = 0; e < 8; e++)
                    r[e] = s[m][n + e / 4][e % 4];
                if (Shape::other && rule.sigmoid)
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        w[e] = sigmoid_weight(rule, r[e]);
                else
                    polynomial_of(w, r, rule.coefficient, rule.degree);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    s[m][n + e / 4][e % 4] = w[e];
            }
        if (Shape::other && call.choices.decays && !call.choices.decays_logits)
            apply_decay<true>(key);
        if (masked)
            hide(key, 0);
        if (call.choices.sums_rows)
            add_sums();
    }

    SR_DEVICE void add_sums() {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < KP; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum[m][e / 2] += s[m][n][e];
    }

    /* Online softmax: raises the running maximum by this tile's, and rescales row sum and numerator
     * by 2^(old - new) if any row's maximum was raised. */
    SR_DEVICE void raise_maxima(float unit) {
        bool raised = false;
        float factor[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float largest = maximum[m][half];
#pragma unroll
                for (int n = 0; n < KP; n++)
                    largest = fmaxf(largest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                largest = quad_maximum(largest);
                const float before = maximum[m][half];
                factor[m][half] = exp2_fast((before - (largest == -INFINITY ? 0 : largest)) * unit);
                raised = raised || largest != before;
                maximum[m][half] = largest;
            }
        if (warp_ballot(raised) == 0)
            return;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                sum[m][half] *= factor[m][half];
#pragma unroll
                for (int n = 0; n < P; n++) {
                    o[m][n][2 * half] *= factor[m][half];
                    o[m][n][2 * half + 1] *= factor[m][half];
                }
            }
    }

    /* s are logarithms in `unit`s of base 2; bit 4 n + e of negative[m]: the weight is negative. */
    SR_DEVICE void weights_of_logarithms(float unit, const uint32_t (&negative)[MT]) {
        if (call.score.maximum)
            raise_maxima(unit);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float largest = maximum[m][half];
                const float shift = largest == -INFINITY ? 0 : largest * unit;
#pragma unroll
                for (int n = 0; n < KP; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++) {
                        const float w = exp2_fast(fmaf(s[m][n][e], unit, -shift));
                        s[m][n][e] =
                            KIND == SR_CLASS_LONG && negative[m] >> (4 * n + e) & 1 ? -w : w;
                    }
            }
        if (call.choices.sums_rows)
            add_sums();
    }

    SR_DEVICE void exponential_weights(int key, bool masked) {
        const uint32_t none[MT] = {};
        if (Shape::other && call.choices.decays && !call.choices.decays_logits)
            apply_decay<false>(key);
        if (masked)
            hide(key, -INFINITY);
        weights_of_logarithms(call.score.scale_log2, none);
    }

    SR_DEVICE void long_weights(int key, bool masked) {
        const sr_score_rule &rule = call.score;
        uint32_t negative[MT] = {};
        bool plain = !rule.power;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < KP; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float x = s[m][n][e] * rule.scale;
                    plain = plain && x >= rule.exp_from && x <= rule.exp_to;
                }
        const bool all_plain = warp_ballot(plain) == SR_FULL_WARP;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < KP; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (all_plain) {
                        s[m][n][e] *= rule.scale_log2;
                        continue;
                    }
                    const sr_signed_log w = long_log(rule, s[m][n][e], 0);
                    s[m][n][e] = w.log2;
                    negative[m] |= (uint32_t)w.negative << (4 * n + e);
                }
        if (Shape::other && call.choices.decays && !call.choices.decays_logits)
            apply_decay<false>(key);
        if (masked)
            hide(key, -INFINITY);
        weights_of_logarithms(1, negative);
    }

    /* o += W V. */
    SR_DEVICE void multiply_values(const sr_bf16 *values) {
#pragma unroll
        for (int k = 0; k < KP / 2; k++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
                pack_a(a[m], s[m][2 * k], s[m][2 * k + 1]);
#pragma unroll
            for (int n = 0; n < P; n += 2) {
                uint32_t b_pair[4];
                load_b_rows<WIDTH>(b_pair, values, 16 * k, n / 2);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma_m16n8k16(o[m][n], a[m], b_pair);
                    mma_m16n8k16(o[m][n + 1], a[m], b_pair + 2);
                }
            }
        }
    }

    /* One tile of keys and values, whose first key is `key`. */
    SR_DEVICE void visit(const sr_bf16 *keys, const sr_bf16 *values, int key, bool masked) {
        multiply_keys(keys);
        if (Shape::other && call.choices.decays_logits)
            apply_decay<true>(key);
        if (Shape::other && call.score.capped)
            cap();
        clamp();
        if constexpr (KIND == SR_CLASS_EXPONENTIAL)
            exponential_weights(key, masked);
        else if constexpr (KIND == SR_CLASS_POLYNOMIAL)
            polynomial_weights(key, masked);
        else
            long_weights(key, masked);
        multiply_values(values);
    }

    /* The logarithm by which the row's weights were scaled down. */
    SR_DEVICE float saved_maximum(int m, int half) const {
        const float unit = KIND == SR_CLASS_LONG ? SR_LN_2 : call.score.scale;
        return maximum[m][half] == -INFINITY ? 0 : maximum[m][half] * unit;
    }

    /* Epilogue: saves numerators and row statistics for the backward pass if requested, then writes
     * the outputs. `tile`: the warp's own. */
    SR_DEVICE void finish(sr_bf16 *tile, const sr_mma_alignment &aligned) {
        const int past = call.T;
        const sr_head_rows<sr_bf16> out = head_rows(call.o, b, h, call.Dv, aligned.o);
        const sr_head_rows<sr_bf16> saved = {call.numerator +
                                                 call.row_index(call.H, b, h, 0) * call.Dv,
                                             call.Dv, call.Dv, aligned.numerator};
#pragma unroll
        for (int m = 0; m < MT; m++) {
            if (call.numerator)
                tile_store<WIDTH>(saved, o[m], tile, t + 16 * m, past);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = row(m, half);
                const sr_row_facts facts =
                    row_facts(call, b, h, min(i, call.T - 1), quad_sum(sum[m][half]),
                              saved_maximum(m, half));
                if (call.numerator && threadIdx.x % 4 == 0 && i < call.T) {
                    call.row_sum[call.row_index(call.H, b, h, i)] = facts.row_sum;
                    call.maximum[call.row_index(call.H, b, h, i)] = facts.maximum;
                }
                float x[2 * P];
                row_of(x, o[m], half);
                row_output<sr_quad_row<WIDTH>>(x, call, facts);
                set_row(o[m], x, half);
            }
            tile_store<WIDTH>(out, o[m], tile, t + 16 * m, past);
        }
    }
};

/* One block per tile of ROWS queries of one head, in the tile scheduler's order (longest first);
 * warp w owns rows 16 w .. (or 32 w ..). cp.async copies Q, then K and V tiles of KEYS, global ->
 * shared memory with swizzled rows, in two stages: after the wait and __syncthreads for stage n,
 * the copy of tile n + 1 starts, and each warp runs mma Q K' (Q fragments in registers up to width
 * 128, ldmatrix for K), mask, online softmax, mma W V into its accumulators. The walk starts at the
 * first key of the rows' document and ends at the diagonal. Each warp writes its output rows
 * through its own part of the Q tile; no block adds to another's rows. */
template <int WIDTH, sr_score_class KIND, bool OTHER>
__global__ void __launch_bounds__(THREADS, 2)
    forward_tiles(const __grid_constant__ sr_attention_view<sr_bf16> call,
                  const sr_tile_order order, const sr_mma_alignment aligned) {
    using Shape = shape<WIDTH, KIND, OTHER>;
    constexpr int KEYS = Shape::keys, ROWS = Shape::rows;
    SR_SHARED(sr_bf16, shared);
    sr_bf16 *const q_tile = shared, *const kv_tiles = shared + ROWS * WIDTH;
    const sr_tile_place place = tile_place(order, (int)blockIdx.x);
    const int b = place.head / call.H, h = place.head % call.H, warp = threadIdx.x / SR_WARP;
    const int t0 = (order.tiles - 1 - place.rank) * ROWS, past = min(t0 + ROWS, call.T);
    const int32_t *const first = call.first + (int64_t)b * call.T;
    const int from = first[t0];
    const auto q = head_rows(call.q, b, h, call.D, aligned.q);
    const auto k = head_rows(call.k, b, h / call.group, call.D, aligned.k);
    const auto v = head_rows(call.v, b, h / call.group, call.Dv, aligned.v);

    int key = from / KEYS * KEYS, stage = 0;
    tile_load<WIDTH, ROWS, THREADS>(q_tile, q, t0, t0, past);
    tile_load<WIDTH, KEYS, THREADS>(kv_tiles, k, key, from, past);
    tile_load<WIDTH, KEYS, THREADS>(kv_tiles + KEYS * WIDTH, v, key, from, past);
    cp_async_commit();

    const int t = t0 + warp * Shape::warp_rows, last = min(t + Shape::warp_rows, call.T) - 1;
    const int first_of_last = first[max(last, 0)];
    sr_bf16 *const own_tile = q_tile + warp * Shape::warp_rows * WIDTH;
    warp_rows<WIDTH, KIND, OTHER> rows(call, b, h, t);
    for (bool opened = false; key < past; key += KEYS, stage ^= 1) {
        sr_bf16 *const tile = kv_tiles + stage * 2 * KEYS * WIDTH;
        cp_async_wait<0>();
        __syncthreads(); /* this tile has landed, and no warp reads the other */
        if (key + KEYS < past) {
            sr_bf16 *const next = kv_tiles + (stage ^ 1) * 2 * KEYS * WIDTH;
            tile_load<WIDTH, KEYS, THREADS>(next, k, key + KEYS, from, past);
            tile_load<WIDTH, KEYS, THREADS>(next + KEYS * WIDTH, v, key + KEYS, from, past);
            cp_async_commit();
        }
        if (!opened) {
#pragma unroll
            for (int m = 0; m < Shape::row_tiles; m++)
                rows.q[m].open(own_tile, 16 * m);
            opened = true;
        }
        if (key <= last && t < call.T && key + KEYS > first[min(t, call.T - 1)])
            rows.visit(tile, tile + KEYS * WIDTH, key, key + KEYS - 1 > t || key < first_of_last);
    }
    if (t < call.T)
        rows.finish(own_tile, aligned);
}

template <int WIDTH, sr_score_class KIND, bool OTHER>
static srnn_status start_kernel(const sr_attention_view<sr_bf16> &call,
                                const sr_mma_alignment &aligned, cudaStream_t stream) {
    using Shape = shape<WIDTH, KIND, OTHER>;
    const int tiles = (call.T + Shape::rows - 1) / Shape::rows;
    const sr_tile_order order =
        tile_order(call.B * call.H, tiles,
                   (int64_t)call.T * (call.D + call.Dv) * (int64_t)sizeof(sr_bf16), call.group);
    SR_CUDA(sr_launch(forward_tiles<WIDTH, KIND, OTHER>,
                      dim3((unsigned)(order.heads * order.tiles)), dim3(THREADS),
                      Shape::shared_bytes, stream, call, order, aligned));
    return SRNN_OK;
}

template <int WIDTH, sr_score_class KIND>
static srnn_status start(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                         cudaStream_t stream) {
    if constexpr (other_apart<WIDTH, KIND>())
        if (is_other(call))
            return start_kernel<WIDTH, KIND, true>(call, aligned, stream);
    return start_kernel<WIDTH, KIND, false>(call, aligned, stream);
}

srnn_status sr_mma_forward(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                           cudaStream_t stream) {
    return SR_MMA_START(start, call, aligned, stream);
}
