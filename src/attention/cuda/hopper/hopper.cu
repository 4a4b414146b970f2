/* hopper.cu: attention in bf16 on Hopper: supported problems, and the steps of a call. */
#include "attention/cuda/hopper/hopper.h"

#include "attention/cuda/hopper/tiles.h"
#include "attention/cuda/mma/mma.h"
#include "attention/cuda/shared/computes.h"
#include "attention/cuda/shared/prologue.h"
#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "equation/facts.h"

typedef hopper_view view;

/* TMA needs rows aligned to 16 bytes; other calls fall back to the mma kernel, which saves the same
 * for the backward pass and needs no more workspace. */
static bool rows_aligned(const view &call) {
    return sr_rows_aligned(call.q) && sr_rows_aligned(call.k) && sr_rows_aligned(call.v);
}

static bool forward_aligned(const view &call) {
    return rows_aligned(call) && sr_rows_aligned(call.o);
}

static bool backward_aligned(const view &call) {
    return rows_aligned(call) && sr_rows_aligned(call.d_numerator) && sr_rows_aligned(call.d_q) &&
           sr_rows_aligned(call.d_k) && sr_rows_aligned(call.d_v);
}

static int *take_counters(sr_layout *layout) {
    return (int *)sr_layout_take(layout, HOPPER_COUNTERS, sizeof(int));
}

static int multiprocessors_of(const srnn_plan *plan) {
    return sr_cuda_facts(plan->device)->multiprocessors;
}

static srnn_status forward(const sr_attention_call *wanted) {
    const srnn_plan *plan = wanted->plan;
    sr_layout layout = {(char *)plan->scratch, 0};
    const view call = sr_attention_forward_view<sr_bf16>(wanted, &layout);
    cudaStream_t stream = sr_cuda_stream(plan->device);
    if (!forward_aligned(call))
        return sr_cuda_attention_mma.forward(wanted);
    SR_TRY(sr_attention_prepare(call, stream));
    static_assert((int)FORWARD_COUNTERS <= (int)SR_PLAN_COUNTERS, "a plan has too few");
    SR_CUDA(hopper_forward(call, plan->counters, multiprocessors_of(plan), stream));
    return SRNN_OK;
}

/* Starts a backward pass between prologue and epilogue; its workspace continues in `layout`. */
typedef cudaError_t core_backward(const view &call, const srnn_plan *plan, sr_layout *layout,
                                  cudaStream_t stream);

static srnn_status backward_by(const sr_attention_call *wanted, core_backward *core) {
    const srnn_plan *plan = wanted->plan;
    sr_layout layout = {(char *)plan->scratch, 0};
    view call = sr_attention_backward_view<sr_bf16>(wanted, &layout);
    cudaStream_t stream = sr_cuda_stream(plan->device);
    if (!backward_aligned(call))
        return sr_cuda_attention_mma.backward(wanted);
    /* The backward of features across heads runs after the core, and the inverse RoPE after
     * that. */
    if (call.choices.feature != SRNN_FEATURE_UNIT_HEADS)
        call.rope = wanted->rope;
    *wanted->rope_inverted = call.rope.table != NULL;
    SR_TRY(sr_attention_prepare(call, stream));
    SR_TRY(sr_attention_outputs_backward(call, stream));
    SR_CUDA(core(call, plan, &layout, stream));
    return sr_attention_inputs_backward(call, stream);
}

/* ---- dQ in a kernel of its own ---- */

static cudaError_t core_apart(const view &call, const srnn_plan *plan, sr_layout *layout,
                              cudaStream_t stream) {
    return hopper_backward(call, take_counters(layout), multiprocessors_of(plan), stream);
}

static srnn_status backward(const sr_attention_call *wanted) {
    return backward_by(wanted, core_apart);
}

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_attention_scratch_place<sr_bf16>(plan, &layout);
    take_counters(&layout);
    return layout.used;
}

static const char COMPUTES[] = SR_CUDA_FAST_SCORES SR_CUDA_FAST_DECAYS SR_CUDA_FAST_ROWS;

/* Decay is a term of the exponent here, whose gradient a cap would change (cap_gradients). C
 * counts from a position in one float: next to a gate that forgets everything it has ten bits
 * behind the point, too few for the gradient of a rate, which multiplies the error by that gate's
 * logarithm. */
static bool scores_fit(const srnn_attention *a, int D) {
    const sr_score_class kind = sr_score_class_of(a);
    const bool square = a->score == SRNN_SCORE_POWER && a->order == 2 && a->clamp == 0 && D == 64;
    if (a->decay == SRNN_DECAY_NONE)
        return kind != SR_CLASS_LONG;
    return (kind == SR_CLASS_EXPONENTIAL || square) && !sr_decay_in_logits(a) && a->cap == 0 &&
           !sr_decay_has_rate(a);
}

static bool fits(const srnn_problem *problem) {
    const sr_cuda_device *gpu = sr_cuda_facts(problem->device);
    return gpu->capability_major == 9 && gpu->capability_minor == 0 &&
           (problem->D == 64 || problem->D == 128) && problem->Dv == problem->D &&
           scores_fit(&problem->attention, problem->D);
}

const sr_attention_kernel sr_cuda_attention_hopper = {
    "hopper", SRNN_FORM_PARALLEL, SRNN_BF16, COMPUTES, fits,
    nullptr,  scratch_bytes,      forward,   backward, false,
};

/* ---- all gradients in one kernel, dQ summed in a fixed order ---- */

static hopper_sums take_sums(const srnn_problem *p, sr_layout *layout) {
    const size_t heads = (size_t)p->B * (size_t)p->H;
    const size_t tiles = ((size_t)p->T + HOPPER_SUM_ROWS - 1) / HOPPER_SUM_ROWS;
    const size_t numbers = heads * tiles * HOPPER_SUM_ROWS * (size_t)p->D;
    hopper_sums sums = {};
    sums.sums = (float *)sr_layout_take(layout, numbers, sizeof(float));
    sums.tickets = (int *)sr_layout_take(layout, heads * tiles * HOPPER_SUM_TICKETS, sizeof(int));
    return sums;
}

static cudaError_t core_ordered(const view &call, const srnn_plan *plan, sr_layout *layout,
                                cudaStream_t stream) {
    int *const counters = take_counters(layout);
    if (!call.d_q.data)
        return hopper_backward(call, counters, multiprocessors_of(plan), stream);
    hopper_sums sums = take_sums(&plan->problem, layout);
    sums.drawn = counters;
    return hopper_backward_ordered(call, sums, multiprocessors_of(plan), stream);
}

static srnn_status backward_ordered(const sr_attention_call *wanted) {
    return backward_by(wanted, core_ordered);
}

static size_t scratch_bytes_ordered(const srnn_plan *plan) {
    sr_layout layout = {};
    layout.used = scratch_bytes(plan);
    take_sums(&plan->problem, &layout);
    return layout.used;
}

/* For exponentials: polynomials and decays lack the registers, and linear scores were slower.
 * Chosen automatically at lengths where it was measured to be faster. */
static const char COMPUTES_ORDERED[] = "score=exp clamp=any cap=any window=any " SR_CUDA_FAST_ROWS;

static bool fits_ordered(const srnn_problem *problem) {
    return fits(problem) && sr_score_class_of(&problem->attention) == SR_CLASS_EXPONENTIAL;
}

/* Shorter sequences have too few tiles to hide the ordered additions. */
static bool pays_ordered(const srnn_problem *problem) {
    const int64_t seen = sr_keys_seen(&problem->attention, problem->T);
    return seen >= 16 * problem->D;
}

const sr_attention_kernel sr_cuda_attention_hopper_ordered = {
    "hopper_ordered", SRNN_FORM_PARALLEL,    SRNN_BF16, COMPUTES_ORDERED, fits_ordered,
    pays_ordered,     scratch_bytes_ordered, forward,   backward_ordered, false,
};
