/* order2.h (private): chunked attention of order 2 on tensor cores: pairs inside a segment of
 * tokens, and between segments a recurrent state of products of two numbers of a key.
 *
 * With weights w = c0 + c1 r + c2 r^2 of r = <q, k>, and r^2 = sum_ab q_a q_b k_a k_b, what all
 * keys before a segment contribute to a query of it is
 *     sum_a q_a <q, S_a> c2 + <q, S> c1 + s c0,
 *     S_a = sum_j k_ja k_j v_j^T,   S = sum_j k_j v_j^T,   s = sum_j v_j
 * So order 2 is D states of linear attention, whose keys are multiplied by one of their numbers.
 * The block of a state that has a in 16 numbers A and b in 16 numbers B is the transpose of that of
 * B and A: only A <= B is stored, for both. Keys of up to 16 numbers have one such block, which is
 * its own transpose: of it, the products of number n and number n + d modulo 16 are stored for d =
 * 0 .. 8. Those of 16 - d are the same.
 *
 * Segments are long enough that pairs inside cost less than the state, which does not fit into one
 * block: blocks compute parts of the sum of each segment, a scan turns these into the states before
 * all segments, rounded to bf16, and every 128 rows read the whole state before their segment, 128
 * features at a time. Only the scan is sequential.
 *
 * A state is groups of 16 features by SR_CHUNK columns, and vectors:
 *     16 for each pair A <= B: number a of A times those of B, by values;
 *     or for one tile 9, of d = 0 .. 8
 *     `tiles` for the keys: by values
 *     `tiles` for the keys: by keys, for the row sums
 *     the last: row 0 the sum of values, row 1 the sum of keys, row 2 the count; never rounded */
#ifndef SR_ATTENTION_CUDA_ORDER2_ORDER2_H
#define SR_ATTENTION_CUDA_ORDER2_ORDER2_H

#include "attention/cuda/linear/linear.h"

/* In bf16: Taylor series and powers up to order 2 with D and Dv up to 64. */
extern const sr_attention_kernel sr_cuda_attention_order2;

/* Numbers of a group; rows of a block; groups of a stage of the state; groups of the products of
 * one tile. */
enum {
    SR_GROUP_NUMBERS = 16 * SR_CHUNK,
    SR_ORDER2_ROWS = 128,
    SR_STAGE_GROUPS = 8,
    SR_ROTATION_GROUPS = 9,
};

/* The row in which a group of one tile stores number n: so that a lane has four consecutive numbers
 * of an mma's A and C fragments. */
SR_BOTH int rotated_row(int n) {
    return 2 * (n / 4) + n % 2 + n % 4 / 2 * 8;
}

/* How a problem is cut, and where its states are. */
struct sr_order2 {
    int heads, segment, count; /* KV heads, b * Hkv + kv; tokens per segment; segments */
    int tiles, pairs;          /* of 16 numbers of a key; A <= B */
    /* (heads, count, groups + 1, 16, SR_CHUNK): what segments add; the vectors before them */
    float *sums;
    sr_bf16 *states; /* (heads, count, groups, 16, SR_CHUNK): before segments, times coefficients */

    SR_BOTH int product_groups() const {
        return tiles == 1 ? SR_ROTATION_GROUPS * pairs : 16 * pairs;
    }
    SR_BOTH int groups() const {
        return product_groups() + 2 * tiles;
    }
    SR_BOTH int stages() const {
        return (groups() + SR_STAGE_GROUPS - 1) / SR_STAGE_GROUPS;
    }
    SR_BOTH int64_t state_numbers() const {
        return (int64_t)groups() * SR_GROUP_NUMBERS;
    }
    SR_BOTH int64_t sum_numbers() const {
        return state_numbers() + SR_GROUP_NUMBERS;
    }
    SR_BOTH float *sum(int head, int at) const {
        return sums + ((int64_t)head * count + at) * sum_numbers();
    }
    SR_BOTH const float *vectors(int head, int at) const {
        return sum(head, at) + state_numbers();
    }
    SR_BOTH sr_bf16 *state(int head, int at) const {
        return states + ((int64_t)head * count + at) * state_numbers();
    }
};

/* The pair A <= B of number `n`. */
struct sr_tile_pair {
    int a, b;
};

SR_BOTH sr_tile_pair tile_pair(int n) {
    int b = 0;
    while ((b + 1) * (b + 2) / 2 <= n)
        b++;
    return {n - b * (b + 1) / 2, b};
}

/* The first token from `begin` on whose document begins there or later, if that is before `end`;
 * else `end`. */
SR_DEVICE int other_documents(const sr_chunk_head<true> &head, int begin, int end) {
    if (begin >= end || head.first[end - 1] < begin)
        return end;
    int low = begin, high = end - 1;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (head.first[middle] < begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* With a decay, what rounding to bf16 takes from saved numerators is saved behind them. */
SR_DEVICE sr_bf16 *lost_numerators(const sr_attention_view<sr_bf16> &call) {
    return call.numerator + call.row_index(call.H, call.B, 0, 0) * call.Dv;
}

/* Without workspace for states. */
sr_order2 sr_order2_of(const srnn_problem *problem);

/* The states of all segments: of keys and values before them; of queries and gradients of
 * numerators, times their row scales, after them. */
srnn_status sr_order2_states_before(const sr_attention_view<sr_bf16> &call,
                                    const sr_mma_alignment &aligned, const sr_order2 &expanded,
                                    cudaStream_t stream);
srnn_status sr_order2_states_after(const sr_attention_view<sr_bf16> &call,
                                   const sr_mma_alignment &aligned, const sr_order2 &expanded,
                                   cudaStream_t stream);

/* The cores: outputs and dQ, with the states before; dK and dV, with those after. */
srnn_status sr_order2_forward(const sr_attention_view<sr_bf16> &call,
                              const sr_mma_alignment &aligned, const sr_order2 &expanded,
                              cudaStream_t stream);
srnn_status sr_order2_backward_queries(const sr_attention_view<sr_bf16> &call,
                                       const sr_mma_alignment &aligned, const sr_order2 &expanded,
                                       cudaStream_t stream);
srnn_status sr_order2_backward_keys(const sr_attention_view<sr_bf16> &call,
                                    const sr_mma_alignment &aligned, const sr_order2 &expanded,
                                    cudaStream_t stream);
srnn_status sr_order2_backward_values(const sr_attention_view<sr_bf16> &call,
                                      const sr_mma_alignment &aligned, const sr_order2 &expanded,
                                      cudaStream_t stream);

#endif
