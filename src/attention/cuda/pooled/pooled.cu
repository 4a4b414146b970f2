/* pooled.cu: supported problems, and the steps of a call. */
#include "attention/cuda/pooled/pooled.h"

#include "attention/cuda/axes/axes.h"
#include "device/cuda/device.h"
#include "equation/facts.h"

static const char COMPUTES[] =
    "score=exp clamp=any position=rope|none|rope_chunks pool=any share=kv|qk|qk_tiled "
    "scale=inverse_sqrt|one normaliser=row_sum|row_sum_min1|row_length detach=off|on epsilon=any "
    "output_gate=none|sigmoid|inverse_exp post_gate=off|sigmoid gate_width=head|channel "
    "gate_shape=sigmoid|silu|silu_square|identity norm=none|layer|rms norm_width=head|row "
    "norm_weight=shared|head norm_epsilon=any";

static bool has_lanes(int heads, int D) {
    return chunk_lanes_of(heads, D).slots > 0;
}

static bool fits(const srnn_problem *problem) {
    return problem->attention.pool > 0 && problem->D == problem->Dv && problem->D <= 128 &&
           has_lanes(problem->H, problem->D) && has_lanes(problem->Hkv, problem->D);
}

/* ---- a call ---- */

struct pooled_steps {
    sr_chunk_steps steps;
    sr_pooled pooled;
    bool direct; /* every row can be moved 16 bytes at a time */
};

static bool is_aligned(const sr_axes_tensor &x) {
    return (uintptr_t)x.data % 16 == 0 && x.batch % 8 == 0 && x.head % 8 == 0 && x.time % 8 == 0;
}

static sr_chunk_rows take_rows(int B, int heads, int T, int width, sr_layout *layout) {
    const size_t count = (size_t)B * (size_t)heads * (size_t)T * (size_t)width;
    sr_bf16 *const data = (sr_bf16 *)sr_layout_take(layout, count, sizeof(sr_bf16));
    return {data, (int64_t)heads * T * width, (int64_t)T * width, width};
}

static float *take_floats(int64_t count, sr_layout *layout) {
    return (float *)sr_layout_take(layout, (size_t)count, sizeof(float));
}

/* What a call has from its plan alone. */
static sr_pooled pooled_of(const sr_axes_call &call) {
    sr_pooled p = {};
    p.B = call.B;
    p.H = call.H;
    p.Hkv = call.Hkv;
    p.T = call.T;
    p.D = call.D;
    p.group = call.group;
    p.length = call.a.pool < call.T ? call.a.pool : call.T;
    p.slots = (call.T + p.length - 1) / p.length;
    p.rotated = call.a.position == SRNN_POSITION_ROPE_CHUNKS;
    p.shares = call.shares_queries;
    p.row_sums = call.sums_rows;
    p.score = sr_score_rule_of(&call.a, call.D);
    p.first = call.first;
    return p;
}

static void take_arrays(sr_pooled *p, bool backward, sr_layout *layout) {
    const int64_t seen = (int64_t)p->B * p->Hkv * p->slots * p->D;
    p->last = (int32_t *)sr_layout_take(layout, (size_t)p->B * (size_t)p->slots, sizeof(int32_t));
    p->k = take_rows(p->B, p->Hkv, p->T, p->D, layout);
    p->v = take_rows(p->B, p->Hkv, p->T, p->D, layout);
    p->seen_k = take_rows(p->B, p->Hkv, p->slots, p->D, layout);
    p->seen_v = take_rows(p->B, p->Hkv, p->slots, p->D, layout);
    if (p->rotated)
        p->q = take_rows(p->B, p->H, p->T, p->D, layout);
    if (!backward)
        return;
    p->own_weight = take_floats((int64_t)p->B * p->H * p->T, layout);
    p->own_slope = take_floats((int64_t)p->B * p->H * p->T, layout);
    p->d_seen_k = take_floats(seen, layout);
    p->d_seen_v = take_floats(seen, layout);
}

static size_t scratch_bytes(const srnn_plan *plan) {
    const sr_axes_call facts = sr_axes_facts_of(plan);
    sr_pooled pooled = pooled_of(facts);
    sr_layout layout = {};
    sr_axes_scratch_place(plan, true, &layout);
    sr_layout_take(&layout, sr_chunk_steps_bytes(facts), 1);
    take_arrays(&pooled, true, &layout);
    return layout.used;
}

static pooled_steps steps_of(const sr_attention_call *wanted, bool backward) {
    pooled_steps s = {};
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    sr_axes_call call = sr_axes_call_of(wanted, backward, &layout);
    if (call.saved.data)
        call.scratch.maximum = call.saved_maximum;
    s.steps = sr_chunk_steps_of(call, 0, false, backward, &layout);
    s.direct = s.steps.direct && is_aligned(call.in.pool_gate) && is_aligned(call.out.pool_gate);
    const sr_chunk_call &chunk = s.steps.chunk;
    sr_pooled *const p = &s.pooled;
    *p = pooled_of(call);
    take_arrays(p, backward, &layout);
    p->q_share = chunk.q_share;
    p->q_heads = chunk.q_heads;
    if (p->rotated)
        p->q.batch = (int64_t)p->q_heads * p->q.head;
    else
        p->q = chunk.q;
    p->numerator = chunk.numerator;
    p->row_sum = chunk.row_sum;
    p->maximum = call.scratch.maximum;
    p->d_numerator = chunk.d_numerator;
    p->d_row_sum = chunk.d_row_sum;
    p->d_q = chunk.d_q;
    p->d_k = chunk.d_k;
    return s;
}

static srnn_status forward(const sr_attention_call *wanted) {
    const pooled_steps s = steps_of(wanted, false);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    if (!s.direct)
        return sr_cuda_attention_pairs_bf16.forward(wanted);
    SR_TRY(sr_pooled_averages(s.steps.call, s.pooled, stream));
    SR_TRY(sr_pooled_forward(s.pooled, stream));
    return sr_chunks_outputs(s.steps.call, s.steps.chunk, stream);
}

static srnn_status backward(const sr_attention_call *wanted) {
    const pooled_steps s = steps_of(wanted, true);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    if (!s.direct)
        return sr_cuda_attention_pairs_bf16.backward(wanted);
    SR_TRY(sr_pooled_averages(s.steps.call, s.pooled, stream));
    SR_TRY(sr_chunks_outputs_backward(s.steps, stream));
    SR_TRY(sr_pooled_backward_queries(s.pooled, stream));
    SR_TRY(sr_pooled_backward_slots(s.pooled, stream));
    return sr_pooled_averages_backward(s.steps.call, s.pooled, stream);
}

const sr_attention_kernel sr_cuda_attention_pooled = {
    "pooled", SRNN_FORM_PARALLEL, SRNN_BF16, COMPUTES, fits,
    nullptr,  scratch_bytes,      forward,   backward, false,
};
