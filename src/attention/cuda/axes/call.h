/* call.h (private): one call with every axis of the equation, as the kernels of this folder see it:
 * passed by value, built on the host, and its workspace.
 *
 * Operands are float or bf16; they are widened as they are read, and all that the kernels keep is
 * float, or double where sums cancel. Hkv is that of the plan's core: heads of keys and values that
 * go together. F is the width of a feature. */
#ifndef SR_ATTENTION_CUDA_AXES_CALL_H
#define SR_ATTENTION_CUDA_AXES_CALL_H

#include "attention/cuda/shared/gates.h"
#include "attention/cuda/shared/sums.h"
#include "attention/kernel.h"
#include "base/memory.h"
#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"
#include "device/cuda/ptx.h"
#include "equation/norm.h"
#include "equation/row.h"

#define SR_AXES_NORM_FLOOR 1e-12 /* of unit features and l2 norms */
#define SR_AXES_SMOOTH     1e-6  /* of unit_smooth */

enum { SR_AXES_WARPS = 8, SR_AXES_THREADS = SR_AXES_WARPS * SR_WARP };

/* An operand, an output or a gradient of the caller's; data NULL: absent, or not wanted. */
struct sr_axes_tensor {
    void *data;
    int64_t batch, head, time; /* strides in numbers */
    bool narrow;               /* bf16 */

    SR_DEVICE int64_t place(int b, int h, int64_t t, int c) const {
        return b * batch + h * head + t * time + c;
    }
    SR_DEVICE float at(int b, int h, int64_t t, int c) const {
        const int64_t n = place(b, h, t, c);
        return narrow ? to_float(((const sr_bf16 *)data)[n]) : ((const float *)data)[n];
    }
    SR_DEVICE void put(int b, int h, int64_t t, int c, double x) const {
        const int64_t n = place(b, h, t, c);
        if (narrow)
            ((sr_bf16 *)data)[n] = to_bf16((float)x);
        else
            ((float *)data)[n] = (float)x;
    }
};

/* srnn_operands in this form; learned vectors are float. */
struct sr_axes_operands {
    sr_axes_tensor q, k, v, value_gate, output_gate, decay, write_gate, level_gate, pool_gate, skip;
    float *norm_weight, *norm_bias, *value_power, *a_log, *dt_bias, *skip_weight, *level_scale;
    float *sinks;
};

/* Arrays over all positions; NULL where the variant does not need one. */
struct sr_axes_scratch {
    float *q, *k;                 /* (B, H, T, F), (B, Hkv, T, F): features, q times the scale */
    float *rotated_q, *rotated_k; /* the same with rope_features; else the same arrays */
    float *v;                     /* (B, Hkv, T, Dv): factor * v */
    float *value_factor;          /* (B, Hkv, T) */
    double *decay;                /* (B, Hkv, T, decays): C_i */
    double *cumulative;           /* (B, H, T): sum_{m<=i} exp(output gate_m) */
    float *q_inverse, *k_inverse; /* (B, T, D): 1 / norm across the heads, unit_heads only */
    float *level;                 /* (B, H, T, levels) */
    float *beta;                  /* (B, Hkv, T) */
    float *pooled_k, *pooled_v;   /* (B, Hkv, T, D) and (.., Dv) */
    float *angles;                /* (T, D/2, 2): cosine and sine, by position in the call */
    float *numerator;             /* (B, H, T, Dv) */
    float *row_sum, *maximum;     /* (B, H, T) */
    double *norm;                 /* (B, norm groups, T, 4): statistics of a row's norm */
    /* Backward only. By the epilogue: */
    float *d_numerator, *d_skip; /* (B, H, T, Dv) */
    double *d_row_sum;           /* (B, H, T): a sink multiplies it by up to e^700 */
    double *d_cumulative;        /* (B, H, T) */
    /* By the core, which finds zeros in them: */
    float *d_q, *d_rotated_q; /* as the features */
    float *d_k, *d_rotated_k;
    float *d_v;           /* (B, Hkv, T, Dv) */
    double *row_decay;    /* (B, H, T, decays): of C_i through rows of pairs */
    double *column_decay; /* (B, Hkv, T, decays): through columns */
    float *d_level, *d_beta;
    /* By the prologue's backward: */
    double *d_gate;             /* (B, Hkv, T, decays): of the logarithms of the gates */
    double *value_dot;          /* (B, Hkv, T): <factor v, its gradient> */
    float *d_raw_q, *d_raw_k;   /* (B, H, T, D), (B, Hkv, T, D) */
    double *partial;            /* (SR_SUM_PARTS, columns of the widest sum over rows) */
    char *zeroed, *zeroed_past; /* the arrays by the core */
};

struct sr_axes_call {
    srnn_attention a;
    int B, H, Hkv, T, D, F, Dv;
    int group;      /* query heads of a head of keys and values */
    int shared;     /* heads of k, and with shared queries of q */
    int levels;     /* numbers of a level gate */
    int decays;     /* numbers of a decay: 0, 1 or D */
    int norm_heads; /* heads that a norm runs over */
    bool shares_queries, decay_in_logits, rotated, delta, invariant, sums_rows, floor_follows_rows,
        gated, cumulates;
    bool gates_direct;  /* backward: the core itself fills d_gate */
    bool norm_per_head; /* each head has weights of its own for the norm */
    double scale, rope_theta, norm_epsilon, write_range;
    sr_gate_rule gate;
    const int32_t *first; /* (B, T): the first position a row sees */
    sr_carry carry;       /* of a state that T more tokens are fed to; position NULL: no state */
    sr_axes_operands in, out; /* out: gradients */
    sr_axes_tensor o;         /* forward: output; backward: its gradient */
    sr_axes_tensor saved;     /* numerator; data NULL: nothing is saved */
    float *saved_row_sum, *saved_maximum;
    sr_axes_scratch scratch;

    /* Tokens before the first of this call. */
    SR_DEVICE int64_t position() const {
        return carry.position ? *carry.position : 0;
    }
    SR_DEVICE int start(int b, int t) const { /* of the document of token t */
        return carry.position ? 0 : first[(int64_t)b * T + t];
    }
    /* Of a token in its document, from 0. */
    SR_DEVICE int64_t place(int b, int t) const {
        return position() + t - start(b, t);
    }
    SR_BOTH int64_t row(int heads, int b, int h, int64_t t) const {
        return ((int64_t)b * heads + h) * T + t;
    }
    /* The head of k that a head of keys and values reads, and that of q. */
    SR_BOTH int shared_head(int h) const {
        switch (a.share) {
        case SRNN_SHARE_KV:
            break;
        case SRNN_SHARE_QK:
            return h / (H / shared);
        case SRNN_SHARE_QK_TILED:
            return h % shared;
        }
        return h;
    }
};

/* Takes the arrays of a plan from `layout`, which a core may continue. */
sr_axes_scratch sr_axes_scratch_place(const srnn_plan *plan, bool backward, sr_layout *layout);

/* What a call has from its plan alone: no arrays but `first`. */
sr_axes_call sr_axes_facts_of(const srnn_plan *plan);

/* The call, with its scratch in `layout`. */
sr_axes_call sr_axes_call_of(const sr_attention_call *call, bool backward, sr_layout *layout);

/* Features, running sums, gates: before the core. With a carry, moves its sums on. */
srnn_status sr_axes_prepare(const sr_axes_call &call, cudaStream_t stream);

/* Of that, cosines and sines of positions; nothing where the caller has rotated. */
srnn_status sr_axes_angles(const sr_axes_call &call, cudaStream_t stream);

/* Of that, the weights of levels; nothing without them. */
srnn_status sr_axes_levels(const sr_axes_call &call, cudaStream_t stream);

/* Outputs from numerator, row_sum and maximum; saves them where that is wanted. */
srnn_status sr_axes_finish(const sr_axes_call &call, cudaStream_t stream);

/* After sr_axes_finish of a feed: adds T to the position. */
srnn_status sr_axes_advance(const sr_axes_call &call, cudaStream_t stream);

/* d_numerator, d_row_sum and what belongs to outputs; and zeros for the core. */
srnn_status sr_axes_outputs_backward(const sr_axes_call &call, cudaStream_t stream);

/* Gradients of the operands from those that the core left. */
srnn_status sr_axes_inputs_backward(const sr_axes_call &call, cudaStream_t stream);

/* Of that, the gradients of level gates and their scales; nothing without levels. */
srnn_status sr_axes_levels_backward(const sr_axes_call &call, cudaStream_t stream);

static inline unsigned axes_blocks(int64_t count, int64_t each) {
    return (unsigned)((count + each - 1) / each);
}

/* AXES_START(kernel, threads, arguments...): one thread for each of a number of things. */
#define AXES_START(kernel, count, ...)                                                            \
    SR_CUDA(sr_launch(kernel, dim3(axes_blocks((count), SR_AXES_THREADS)), dim3(SR_AXES_THREADS), \
                      0, stream, __VA_ARGS__))

/* AXES_START_WARPS(kernel, warps, arguments...): the same with a warp for each. */
#define AXES_START_WARPS(kernel, count, ...)                                                       \
    SR_CUDA(sr_launch(kernel, dim3(axes_blocks((count), SR_AXES_WARPS)), dim3(SR_AXES_THREADS), 0, \
                      stream, __VA_ARGS__))

/* Cosine and sine. Those of CUDA reduce large arguments in local memory; in units of pi there is
 * nothing to reduce. */
SR_DEVICE double axes_cosine(double x) {
#ifdef __CUDA_ARCH__
    return cospi(x * 0.31830988618379067154);
#else
    return cos(x);
#endif
}

SR_DEVICE double axes_sine(double x) {
#ifdef __CUDA_ARCH__
    return sinpi(x * 0.31830988618379067154);
#else
    return sin(x);
#endif
}

SR_DEVICE int64_t axes_thread() {
    return (int64_t)blockIdx.x * SR_AXES_THREADS + threadIdx.x;
}

SR_DEVICE int64_t axes_warp() {
    return (int64_t)blockIdx.x * SR_AXES_WARPS + threadIdx.x / SR_WARP;
}

SR_DEVICE int axes_lane() {
    return (int)threadIdx.x % SR_WARP;
}

/* Row n of an array (B, heads, T). */
struct axes_row {
    int b, h, t;
};

SR_DEVICE axes_row axes_row_of(int64_t n, int heads, int T) {
    return {(int)(n / T / heads), (int)(n / T % heads), (int)(n % T)};
}

#endif
