/* call.h (private): linear scores in chunks on tensor cores, as the cores of this folder see a
 * call.
 *
 * The steps of a call (chunks.cu) prepare bf16 rows, gates and factors for the core and turn what
 * it leaves into outputs and gradients. A core sees the recurrence alone. With S a state (F, V),
 * k_t and q_t rows of F numbers, v_t of V, a_t the logarithm of a gate and diag(e^a) one number or
 * F:
 *
 *     write=add      S_t = diag(e^(a_t)) S_{t-1} + k_t v_t'
 *     write=delta    S_t = (I - beta_t k_t k_t') diag(e^(a_t)) S_{t-1} + beta_t k_t v_t'
 *     numerator_t = scale S_t' q_t,    row_sum_t = the same with 1 for v
 *
 * With levels each query weighs the key j of token i, both counted from the first of their
 * document, by level_i of the bit length of i ^ j.
 *
 * A document starts from a state of zero (the first of a batch row from `initial`, where given).
 * A row never sees a token of another document: its factor is 0 even where the token holds NaN. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_CALL_H
#define SR_ATTENTION_CUDA_CHUNKS_CALL_H

#include "attention/cuda/chunks/gates.h"
#include "device/cuda/launch.h"
#include "device/cuda/ptx.h"

/* Rows of bf16: number c of row (b, h, t) is data[b batch + h head + t time + c]. Rows start at
 * multiples of 16 bytes; data NULL: absent, or not wanted. */
struct sr_chunk_rows {
    sr_bf16 *data;
    int64_t batch, head, time; /* in numbers, multiples of 8 */

    SR_BOTH sr_bf16 *row(int b, int h, int t) const {
        return data + b * batch + h * head + t * time;
    }
};

/* Gates of channels as functions of the numbers that the caller has of them, and what follows for
 * the gradients of those; `numbers` absent: the core reads and writes logarithms. */
struct sr_chunk_numbers {
    sr_chunk_rows numbers; /* (B, Hkv, T, F); without dt_bias */
    sr_gate_rule rule;
    int later;               /* the gate before token t is that of token t - later: 0 or 1 */
    sr_chunk_rows d_numbers; /* (B, Hkv, T, F), or not wanted */
    float
        *sums; /* (B, chunks, 2, Hkv, F): of a chunk, gradients of a_log and dt_bias; rated only */
};

struct sr_chunk_call {
    int B, H, Hkv, T;
    int group; /* query heads of a head of keys and values: h / group */
    int F, V;  /* multiples of 8 */
    bool delta, sums_rows;
    int decays; /* numbers of a_t: 0 (it is 0), 1 or F */
    int levels; /* of each row, 0: pairs have none */
    float scale;
    const int32_t *first; /* (B, T): the first token of the document of t */

    /* q (B, H, T, F), k (B, Hkv, T, F), v (B, Hkv, T, V), with features and value factors. Heads of
     * q and k may repeat: see query_head and key_head. Where `feature` is unit or unit_smooth the
     * core makes it: q and k are the rows before, and d_q and d_k their gradients. */
    srnn_feature feature; /* of a core that makes units; else identity */
    sr_chunk_rows q, k, v;
    int q_share, k_share; /* query head h reads row head h / q_share of q, key head h h / k_share */
    int q_heads, k_heads; /* and then modulo these */
    const float *gate;    /* (B, Hkv, T, decays): a_t, in SR_CHUNK_GATE_LEAST .. 0 */
    sr_chunk_numbers gates; /* or these, and `gate` is NULL */
    const float *beta;      /* (B, Hkv, T); delta only */
    const float *level;     /* (B, H, T, levels): weights of pairs, by the bit length of i ^ j */
    const float *initial;   /* (B, Hkv, F, V), or NULL: zero */

    /* Of cores that fold (core.h), else NULL. */
    const float *factor; /* (B, Hkv, T): v counts this many times */
    double *value_dot;   /* (B, Hkv, T): backward, <v, d_v> without the skip; with `factor` */
    const float *skip;   /* (H): d_v += this times d_numerator */

    /* Forward results. */
    sr_chunk_rows numerator; /* (B, H, T, V) */
    float *row_sum;          /* (B, H, T); sums_rows only */
    float *final;            /* (B, Hkv, F, V), or NULL: not wanted */

    /* Backward: gradients of the results; final NULL: zero. */
    sr_chunk_rows d_numerator; /* (B, H, T, V) */
    const float *d_row_sum;    /* (B, H, T); sums_rows only */
    const float *d_final;
    /* And its results: each row and head written once, q (B, H, T, F), k (B, Hkv, T, F) without
     * sums over heads that share; with `parts` (B, q_heads parts, T, F), the parts of sums over
     * those. d_gate of a token that begins a document is 0. */
    int parts;
    sr_chunk_rows d_q, d_k, d_v;
    float *d_gate;  /* (B, Hkv, T, decays): of a_t; NULL with `gates` */
    float *d_beta;  /* (B, Hkv, T) */
    float *d_level; /* (B, H, T, levels) */
    float *d_initial;

    /* Divisions cost as much as a copy: none where no heads share rows. */
    static SR_BOTH int row_head(int h, int share, int heads) {
        if (share == 1 && h < heads)
            return h;
        return h / share % heads;
    }
    SR_BOTH int query_head(int h) const {
        return row_head(h, q_share, q_heads);
    }
    SR_BOTH int key_head(int h) const {
        return row_head(h, k_share, k_heads);
    }
    SR_BOTH int64_t row(int heads, int b, int h, int t) const {
        return ((int64_t)b * heads + h) * T + t;
    }
};

#endif
