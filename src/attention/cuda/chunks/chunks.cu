/* chunks.cu: linear scores in chunks on tensor cores: supported problems, the choice of a core, and
 * the steps of a call. */
#include "attention/cuda/chunks/steps.h"
#include "device/cuda/device.h"
#include "equation/facts.h"

static const char COMPUTES[] =
    "score=linear position=rope|none share=kv|qk|qk_tiled scale=inverse_sqrt|one "
    "decay=none|learned|log_sigmoid|softplus|bounded|neg_softplus|given decay_divisor=any "
    "decay_bound=any decay_width=head|channel dt_width=head|channel|none "
    "write=add|delta write_range=1|2 write_gate=sigmoid|given levels=none|fenwick "
    "value_gate=off|sigmoid|time_step "
    "feature=identity|relu|elu1|unit|unit_heads|unit_smooth|norm_split|norm_cosine "
    "normaliser=row_sum|row_sum_min1|row_length|none|cumulative_gate|value_power detach=off|on "
    "epsilon=any skip=none|head|channel|conv|bonus "
    "output_gate=none|sigmoid|inverse_exp|inverse_cumulative post_gate=off|sigmoid "
    "gate_width=head|channel gate_shape=sigmoid|silu|silu_square|identity "
    "norm=none|layer|rms|l2|l2_scaled norm_width=head|row norm_weight=shared|head "
    "norm_epsilon=any";

/* Cores by what they compute: the first that fits. */
static const sr_chunk_core *const CORES[] = {&sr_chunk_core_head, &sr_chunk_core_channel,
                                             &sr_chunk_core_delta, nullptr};

static sr_chunk_shape shape_of(const srnn_problem *p) {
    const srnn_attention *const a = &p->attention;
    const sr_cuda_device *const gpu = sr_cuda_facts(p->device);
    sr_chunk_shape shape = {};
    shape.B = p->B;
    shape.H = p->H;
    shape.Hkv = sr_shares_queries(a) ? p->H : p->Hkv;
    shape.T = p->T;
    shape.group = shape.H / shape.Hkv;
    shape.shared = sr_shares_queries(a) ? p->Hkv : 0;
    shape.F = sr_chunk_width(sr_feature_width(a, p->D));
    shape.V = sr_chunk_width(p->Dv);
    const int decays = a->decay == SRNN_DECAY_NONE ? 0 : sr_decay_numbers(a, p->D);
    shape.decays = decays > 1 ? shape.F : decays;
    if (a->levels == SRNN_LEVELS_FENWICK)
        shape.levels = p->levels ? p->levels : SR_LEVELS_USUAL;
    shape.delta = a->write == SRNN_WRITE_DELTA;
    shape.sums_rows = sr_needs_row_sum(a) || sr_floor_follows_rows(a);
    shape.capability = 10 * gpu->capability_major + gpu->capability_minor;
    shape.multiprocessors = gpu->multiprocessors;
    shape.shared_bytes = gpu->shared_bytes;
    return shape;
}

/* NULL: none. */
static const sr_chunk_core *core_of(const sr_chunk_shape &shape) {
    if (shape.levels > 0)
        return sr_chunk_core_levels.fits(shape) ? &sr_chunk_core_levels : nullptr;
    for (const sr_chunk_core *const *core = CORES; *core; core++)
        if ((*core)->fits(shape))
            return *core;
    return nullptr;
}

/* Gates of channels belong to those of a key: features of another width have none. */
static bool fits(const srnn_problem *problem) {
    const srnn_attention *const a = &problem->attention;
    const bool widened = sr_feature_width(a, problem->D) != problem->D;
    if (widened && a->decay_width == SRNN_WIDTH_CHANNEL)
        return false;
    /* row sums are those of weights without erasing */
    if (a->write == SRNN_WRITE_DELTA && shape_of(problem).sums_rows)
        return false;
    return core_of(shape_of(problem)) != nullptr;
}

bool sr_cuda_carries_states(const srnn_plan *plan) {
    const srnn_problem *const p = &plan->problem;
    return plan->kernel == &sr_cuda_attention_chunks && !shape_of(p).sums_rows && p->D % 8 == 0 &&
           p->Dv % 8 == 0 && p->attention.decay != SRNN_DECAY_LEARNED &&
           p->attention.levels == SRNN_LEVELS_NONE;
}

/* A call, its core and its workspace. */
struct core_call {
    sr_chunk_steps steps;
    sr_chunk_shape shape;
    const sr_chunk_core *core;
    void *workspace;
    cudaStream_t stream;

    srnn_status forward() const {
        return core->forward(steps.chunk, shape, workspace, stream);
    }
    srnn_status backward() const {
        return core->backward(steps.chunk, shape, workspace, stream);
    }
};

static void *take_workspace(const sr_chunk_core *core, const sr_chunk_shape &shape, bool backward,
                            sr_layout *layout) {
    const size_t unit = 256, bytes = core->workspace(shape, backward);
    char *const place = (char *)sr_layout_take(layout, bytes + unit, 1);
    return place ? place + (unit - (uintptr_t)place % unit) % unit : nullptr;
}

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    const sr_chunk_shape shape = shape_of(&plan->problem);
    sr_axes_scratch_place(plan, true, &layout);
    sr_layout_take(&layout, sr_chunk_steps_bytes(sr_axes_facts_of(plan)), 1);
    take_workspace(core_of(shape), shape, true, &layout);
    return layout.used;
}

static core_call core_call_of(const sr_attention_call *wanted, bool backward) {
    core_call c = {};
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    const sr_axes_call call = sr_axes_call_of(wanted, backward, &layout);
    c.shape = shape_of(&wanted->plan->problem);
    c.core = core_of(c.shape);
    c.steps = sr_chunk_steps_of(call, c.core->parts ? c.core->parts(c.shape) : 0,
                                c.core->makes_units, backward, &layout);
    const srnn_states *const states = &wanted->plan->states;
    c.steps.chunk.initial = (const float *)states->initial;
    c.steps.chunk.final = (float *)states->final;
    c.steps.chunk.d_final = (const float *)states->d_final;
    c.steps.chunk.d_initial = (float *)states->d_initial;
    c.steps.call.gates_direct = true;
    c.workspace = take_workspace(c.core, c.shape, backward, &layout);
    c.stream = sr_cuda_stream(wanted->plan->device);
    return c;
}

static srnn_status forward(const sr_attention_call *wanted) {
    const core_call c = core_call_of(wanted, false);
    SR_TRY(sr_chunks_begin(c.steps, c.stream));
    SR_TRY(c.forward());
    return sr_chunks_finish(c.steps, c.stream);
}

static srnn_status backward(const sr_attention_call *wanted) {
    const core_call c = core_call_of(wanted, true);
    SR_TRY(sr_chunks_begin(c.steps, c.stream));
    SR_TRY(sr_chunks_begin_backward(c.steps, c.stream));
    SR_TRY(c.backward());
    return sr_chunks_finish_backward(c.steps, c.stream);
}

const sr_attention_kernel sr_cuda_attention_chunks = {
    "chunks", SRNN_FORM_CHUNKED, SRNN_BF16, COMPUTES, fits,
    nullptr,  scratch_bytes,     forward,   backward, false,
};
