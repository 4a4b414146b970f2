/* pairs.h (private): pairs of positions with every axis: what both directions share. */
#ifndef SR_ATTENTION_CUDA_AXES_PAIRS_H
#define SR_ATTENTION_CUDA_AXES_PAIRS_H

#include "attention/cuda/axes/call.h"
#include "attention/cuda/shared/lanes.h"

enum {
    AXES_TILE = SR_TILE,
    AXES_OWN = SR_OWN,
    AXES_PAIR_WARPS = AXES_TILE / AXES_OWN,
    AXES_PAIR_THREADS = AXES_PAIR_WARPS * SR_WARP,
};

/* Keys and values of a head, of this call or of a KV cache: key j is that of token j of the row, or
 * of the state. */
struct axes_keys {
    const float *plain, *rotated; /* (B Hkv, capacity, F) */
    const float *values;          /* (B Hkv, capacity, Dv) */
    const double *decay;          /* (B Hkv, capacity, decays) */
    const float *beta;            /* (B Hkv, capacity) */
    float *u, *error;             /* (B Hkv, capacity, Dv): what the delta rule writes; by beta */
    int64_t capacity;
    bool ring; /* key j is in place j mod capacity */
};

/* One walk over pairs. The delta rule's own, of keys with earlier keys, is one too: `kappa`,
 * without clamp, maximum and levels. With the delta rule and levels there is one walk per level:
 * its values are those of one block of 2^(level-1) tokens, read by the tokens of the block behind
 * it, while the rule runs over both. */
struct axes_pass {
    const float *queries; /* (B, heads, T, F) */
    const float *keys;    /* (B Hkv, capacity, F) */
    const float *values;  /* (B Hkv, capacity, Dv), or NULL */
    const double *decay;  /* of keys */
    int64_t capacity;
    bool ring;
    int heads, group; /* of queries; those of a head of keys */
    bool kappa;
    int level; /* -1: all */
    bool sums; /* forward: row sums too */
    /* Backward: gradients of the numerators, or of what has their place, and of row sums (NULL:
     * none). */
    const float *d_out;
    const double *d_row_sum;
    /* Added to; NULL: not wanted. */
    float *d_queries, *d_keys, *d_values;
    double *row_decay, *column_decay;
    float *d_level;
};

/* Rows t0, t0 + step .. of an array with `columns` numbers a row; zeros outside from .. past-1 and
 * past the columns. ring: row t is in place t mod it; 0: in its own. By the whole block.
 * Parameters, not a struct: they stay in registers. */
template <int WIDTH>
SR_DEVICE void axes_tile_load(sr_float_tile<WIDTH> &to, const float *rows, int columns, int64_t t0,
                              int64_t from, int64_t past, int64_t ring = 0, int step = 1) {
    for (int n = (int)threadIdx.x; n < AXES_TILE * WIDTH; n += AXES_PAIR_THREADS) {
        const int row = n / WIDTH, column = n % WIDTH;
        const int64_t t = t0 + (int64_t)row * step;
        const bool there = t >= from && t < past && column < columns;
        const int64_t place = ring ? t % ring : t;
        to.number[row][column] = there ? rows[place * columns + column] : 0;
    }
}

/* ---- which pairs there are ---- */

/* Bits of i xor j. */
SR_DEVICE int axes_pair_level(int64_t i, int64_t j) {
    return 32 - __clz((int)(i ^ j)); /* documents have less than 2^31 tokens */
}

/* The token at which the segment of a token at this place of its document starts. */
SR_DEVICE int64_t axes_segment(int level, int64_t place) {
    return level < 0 ? 0 : place >> level << level;
}

/* True if the tokens of a segment's second block, or of its first, have this place. */
SR_DEVICE bool axes_reads(int level, int64_t place) {
    return level <= 0 || (place >> (level - 1) & 1) != 0;
}

SR_DEVICE bool axes_is_written(int level, int64_t place) {
    return level <= 0 || (place >> (level - 1) & 1) == 0;
}

/* Row i (counted as keys are) sees key j; start: where its document starts. */
SR_DEVICE bool axes_seen(const sr_axes_call &call, const axes_pass &pass, int64_t start, int64_t i,
                         int64_t j) {
    const int64_t own = i - start, other = j - start, chunk = call.a.pool;
    if (j < start || j > i || (pass.kappa && j == i) || (call.a.window && i - j >= call.a.window))
        return false;
    if (chunk && !(j == i || (other % chunk == chunk - 1 && other / chunk < own / chunk)))
        return false;
    if (pass.level < 0)
        return true;
    return other >= axes_segment(pass.level, own) && (pass.kappa || axes_reads(pass.level, own));
}

/* ---- which keys pass by ---- */

/* 32 keys: first, first + step .. , those before `past`. With pool, `own`: each is seen by its own
 * row alone; else by all other rows. */
struct axes_key_tile {
    int64_t first, past;
    int step;
    bool own;

    SR_DEVICE int64_t key(int n) const {
        return first + (int64_t)n * step;
    }
    SR_DEVICE bool has(const sr_axes_call &call, int64_t i, int64_t j) const {
        return j < past && (call.a.pool == 0 || own == (i == j));
    }
};

/* The tiles of keys that rows t0 .. t0+31 see: all keys from `from` on; with pool the rows' own
 * tokens, and then the last tokens of chunks, document by document. */
struct axes_key_tiles {
    const sr_axes_call &call;
    int b, t0;
    int64_t from, past; /* of keys, counted as these are */
    int64_t start;      /* of the document whose chunks pass by */
    axes_key_tile tile;

    SR_DEVICE axes_key_tiles(const sr_axes_call &of_call, int of_b, int of_t0, int64_t of_from,
                             int64_t of_past)
        : call(of_call), b(of_b), t0(of_t0), from(of_from), past(of_past), start(of_from) {
        tile = {from / AXES_TILE * AXES_TILE, past, 1, false};
        if (call.a.pool > 0)
            tile = {call.position() + t0, past, 1, true};
    }
    SR_DEVICE bool more() const {
        return tile.first < past;
    }
    /* Where the next document begins, or `past`. */
    SR_DEVICE int64_t next_start() const {
        for (int t = t0 + 1; t < min(t0 + (int)AXES_TILE, call.T); t++)
            if (call.start(b, t) > start)
                return t;
        return past;
    }
    SR_DEVICE void next() {
        const int pool = call.a.pool;
        if (pool == 0) {
            tile.first += AXES_TILE;
            return;
        }
        tile.first = tile.own ? start + pool - 1 : tile.key(AXES_TILE);
        tile.past = next_start();
        tile.step = pool;
        tile.own = false;
        while (tile.first >= tile.past && tile.past < past) {
            start = tile.past;
            tile.first = start + pool - 1;
            tile.past = next_start();
        }
    }
};

/* What the levels make of a weight; its number in the row's levels. */
SR_DEVICE int axes_level_of(const axes_pass &pass, int64_t start, int64_t i, int64_t j) {
    return pass.level >= 0 ? pass.level : axes_pair_level(i - start, j - start);
}

/* ---- logits and weights ---- */

/* C of some rows that stay, `step` apart: row r of the warp, or the last of them. */
struct axes_stay_decay {
    const double *first; /* NULL: there is none per channel */
    int rows, step;
};

/* s[r] = <row r of the warp, the lane's row>, with the decay where that is inside and has one
 * number per channel; `other`: C of the lane's row. */
template <bool KEYS_STAY, int WIDTH>
SR_DEVICE void axes_logits(float (&s)[AXES_OWN], const sr_axes_call &call,
                           const float (*stays)[WIDTH + 1], const sr_float_tile<WIDTH> &comes,
                           axes_stay_decay decay, const double *other) {
    if (call.decays < 2) {
        dots(s, stays, comes, call.F);
        return;
    }
    const int lane = axes_lane();
#pragma unroll
    for (int r = 0; r < AXES_OWN; r++)
        s[r] = 0;
    for (int c = 0; c < call.F; c++) {
        const float x = comes.number[lane][c];
        const double passing = other[c];
#pragma unroll
        for (int r = 0; r < AXES_OWN; r++) {
            const int64_t row = (int64_t)min(r, decay.rows - 1) * decay.step;
            const double stay = decay.first[row * call.decays + c];
            s[r] = fmaf(stays[r][c] * x, expf((float)(KEYS_STAY ? passing - stay : stay - passing)),
                        s[r]);
        }
    }
}

/* What the score is taken of: s capped, clamped and moved by the bias, and its slope by s. */
SR_DEVICE double axes_logit(const sr_axes_call &call, bool kappa, double s, double *slope) {
    const bool caps = !kappa && call.a.cap != 0;
    const double capped = caps ? sr_cap_value(call.a.cap, s) : s;
    const bool clamped = !kappa && call.a.clamp != 0 && capped > call.a.clamp;
    *slope = clamped ? 0 : caps ? sr_cap_slope(call.a.cap, s) : 1;
    return (clamped ? call.a.clamp : capped) + call.a.score_bias;
}

/* w_ij without its level, its derivative by the logit; the factor of a decay inside it. */
struct axes_pair {
    float weight, slope, inside;
};

/* s: the product of features; between: C_i - C_j where the decay has one number. */
SR_DEVICE axes_pair axes_pair_of(const sr_axes_call &call, bool kappa, float s, double between,
                                 float maximum) {
    const bool logits = call.decay_in_logits && call.decays == 1;
    axes_pair pair = {0, 0, logits ? expf((float)between) : 1};
    s *= pair.inside;
    const double decay = call.decay_in_logits ? 0 : between;
    double inner = 1; /* the slope of what the score is taken of */
    const double x = axes_logit(call, kappa, (double)s, &inner);
    const double shift = decay - (kappa ? 0 : (double)maximum);
    switch (call.a.score) {
    case SRNN_SCORE_EXP:
        pair.weight = pair.slope = expf((float)(x + shift));
        break;
    case SRNN_SCORE_LINEAR:
        pair.slope = expf((float)shift);
        pair.weight = pair.slope * (float)x;
        break;
    case SRNN_SCORE_TAYLOR:
    case SRNN_SCORE_POWER:
    case SRNN_SCORE_SIGMOID: {
        const double factor = exp(shift);
        pair.weight = (float)(factor * sr_score_value(call.a.score, call.a.order, x));
        pair.slope = (float)(factor * sr_score_slope(call.a.score, call.a.order, x));
        break;
    }
    }
    pair.slope = inner == 0 ? 0 : pair.slope * (float)inner;
    return pair;
}

/* The keys of this call as the core reads them; u and error: the delta rule's. */
static inline axes_keys axes_own_keys(const sr_axes_call &call, float *u, float *error) {
    const sr_axes_scratch &s = call.scratch;
    return {s.k, s.rotated_k, s.v, s.decay, s.beta, u, error, call.T, false};
}

/* Numerators, row sums and maxima of all rows by their pairs. */
srnn_status sr_axes_pairs_forward(const sr_axes_call &call, const axes_keys &keys,
                                  cudaStream_t stream);

/* Gradients of what the core reads. */
srnn_status sr_axes_pairs_backward(const sr_axes_call &call, const axes_keys &keys, float *d_u,
                                   float *r, cudaStream_t stream);

/* Shared memory of a block of the backward pass, which needs the most, for rows of `width`. */
size_t sr_axes_pairs_shared_bytes(int width);

/* What the delta rule writes: keys.u and keys.error of this call's tokens, of all where levels take
 * it apart; and on the way back r from d_u. */
srnn_status sr_axes_solve(const sr_axes_call &call, const axes_keys &keys, int level,
                          cudaStream_t stream);
srnn_status sr_axes_solve_backward(const sr_axes_call &call, const axes_keys &keys, int level,
                                   float *r, const float *d_u, cudaStream_t stream);

/* AXES_BY_WIDTH(kernel, memory, grid, arguments...): kernel<WIDTH> with memory<WIDTH>. */
#define AXES_BY_WIDTH(kernel, memory, grid, ...)                                                   \
    do {                                                                                           \
        const int axes_width = max(call.F, call.Dv);                                               \
        const dim3 axes_block(AXES_PAIR_THREADS);                                                  \
        if (axes_width <= 64)                                                                      \
            SR_CUDA(                                                                               \
                sr_launch(kernel<64>, grid, axes_block, sizeof(memory<64>), stream, __VA_ARGS__)); \
        else if (axes_width <= 128)                                                                \
            SR_CUDA(sr_launch(kernel<128>, grid, axes_block, sizeof(memory<128>), stream,          \
                              __VA_ARGS__));                                                       \
        else                                                                                       \
            SR_CUDA(sr_launch(kernel<256>, grid, axes_block, sizeof(memory<256>), stream,          \
                              __VA_ARGS__));                                                       \
    } while (0)

#endif
