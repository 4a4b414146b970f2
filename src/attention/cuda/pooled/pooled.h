/* pooled.h (private): exp over running averages of keys and values (RAT) in bf16, on tensor cores.
 *
 * A row sees the averages at the last token of each finished chunk of its document, and its own.
 * Chunks have the same length L, so that any L consecutive tokens hold at most one last token:
 * those of slot n, tokens n L .. n L + L - 1 of a batch row, are key n, or there is none. A row
 * pairs with a range of slots and with itself, about T / L + 1 keys, so that nearly all time goes
 * into the bytes of a few passes over rows:
 *
 *     forward    averages and rotated queries; the core: numerators; outputs from numerators
 *     backward   the averages again; gradients of numerators; dQ, and the weight and the slope of
 *                each row's pair with itself; gradients of slots; from the last token of a chunk to
 *                its first: gradients of k, v and the gates; sums over heads that share
 *
 * Bytes at B 36, H 16, T 1024, D 64, in rows of all heads (75 MB): forward 10, backward 24; at 4.2
 * TB/s 0.18 and 0.43 ms. Outputs and their gradients are those of chunks/ (chunks/outputs.cu);
 * calls whose rows these cannot move 16 bytes at a time go to `pairs`, which saves the same. */
#ifndef SR_ATTENTION_CUDA_POOLED_POOLED_H
#define SR_ATTENTION_CUDA_POOLED_POOLED_H

#include "attention/cuda/chunks/lanes.h"
#include "attention/cuda/chunks/steps.h"
#include "attention/cuda/mma/mma.h"

/* In bf16: exp with pool. */
extern const sr_attention_kernel sr_cuda_attention_pooled;

/* What the cores see of a call. Rows have D numbers, a multiple of 8. */
struct sr_pooled {
    int B, H, Hkv, T, D;
    int group;     /* query heads of a head of averages */
    int length;    /* L; T where it is longer */
    int slots;     /* of L tokens, in a batch row */
    bool rotated;  /* queries and averages are rotated by the numbers of their chunks */
    bool shares;   /* query heads share rows of q */
    bool row_sums; /* the gradient of row sums exists */
    sr_score_rule score;
    const int32_t *first; /* (B, T): the first token of the document of t */
    int32_t *last;        /* (B, slots): the last token of a chunk that the slot has, or -1 */
    sr_chunk_rows q;      /* as the core reads them; see query_row */
    int q_share, q_heads;
    sr_chunk_rows k, v;                   /* (B, Hkv, T, D): averages */
    sr_chunk_rows seen_k, seen_v;         /* (B, Hkv, slots, D): those of last tokens, or zero */
    sr_chunk_rows numerator, d_numerator; /* (B, H, T, D) */
    float *row_sum, *maximum;             /* (B, H, T) */
    const float *d_row_sum;
    /* (B, H, T): of the pair of a row with itself, its weight and the gradient of <q, k> */
    float *own_weight, *own_slope;
    float *d_seen_k, *d_seen_v; /* (B, Hkv, slots, D) */
    sr_chunk_rows d_q, d_k;     /* (B, H, T, D), (B, Hkv, T, D) */

    SR_BOTH int64_t row(int heads, int b, int h, int64_t t) const {
        return ((int64_t)b * heads + h) * T + t;
    }
    SR_BOTH int query_head(int h) const {
        return h / q_share % q_heads;
    }
    /* Where the chunk of token t begins. */
    SR_DEVICE int chunk_of(int b, int t) const {
        return t - (t - first[(int64_t)b * T + t]) % length;
    }
};

/* The slots that a row sees: those whose last token is in from .. past-1. */
struct sr_seen_range {
    int from, past;

    SR_DEVICE bool has(int last) const {
        return last >= from && last < past;
    }
};

SR_DEVICE sr_seen_range seen_range(const sr_pooled &p, int b, int t) {
    const int inside = min(t, p.T - 1);
    return {p.first[(int64_t)b * p.T + inside], p.chunk_of(b, inside)};
}

/* Tiles of slots that rows t0 .. past-1 see. */
struct sr_pooled_slots {
    int first, past, tiles;
};

SR_DEVICE sr_pooled_slots pooled_slots(const sr_pooled &p, int b, int t0, int past, int keys) {
    const int first = p.first[(int64_t)b * p.T + t0] / p.length / keys * keys;
    const int end = p.chunk_of(b, past - 1);
    const int slots = max(first, (int)(((int64_t)end + p.length - 1) / p.length));
    return {first, slots, (slots - first + keys - 1) / keys};
}

/* Rows of a head of bf16 that start at multiples of 16 bytes. */
SR_DEVICE sr_head_rows<const sr_bf16> pooled_rows(const sr_chunk_rows &rows, int b, int h, int D) {
    return {rows.row(b, h, 0), rows.time, D, true};
}

/* Averages, slots and rotated queries, before a core. */
srnn_status sr_pooled_averages(const sr_axes_call &call, const sr_pooled &pooled,
                               cudaStream_t stream);
/* After the cores' backward: gradients of the operands. */
srnn_status sr_pooled_averages_backward(const sr_axes_call &call, const sr_pooled &pooled,
                                        cudaStream_t stream);

/* The cores: numerators, row sums and maxima; dQ and own pairs; gradients of slots. */
srnn_status sr_pooled_forward(const sr_pooled &pooled, cudaStream_t stream);
srnn_status sr_pooled_backward_queries(const sr_pooled &pooled, cudaStream_t stream);
srnn_status sr_pooled_backward_slots(const sr_pooled &pooled, cudaStream_t stream);

/* Starts start<WIDTH>(pooled, stream) for rows of D numbers. */
#define SR_POOLED_START(start, pooled, stream)      \
    ((pooled).D <= 32   ? start<32>(pooled, stream) \
     : (pooled).D <= 64 ? start<64>(pooled, stream) \
                        : start<128>(pooled, stream))

#endif
