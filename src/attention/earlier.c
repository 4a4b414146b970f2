/* earlier.c: attention in blocks of keys. */
#include "attention/earlier.h"

#include "equation/facts.h"
#include "equation/support.h"

/* What a pair and a row need from the key, its value and its value gate alone: everything else
 * that belongs to a key would have to travel with it (equation/support.h). */
static const char COMPUTES[] =
    "score=exp|linear|taylor|power|sigmoid clamp=any score_bias=any cap=any window=any "
    "position=rope|none share=kv scale=inverse_sqrt|one value_gate=off|sigmoid "
    "decay=none|learned|log_sigmoid|softplus|bounded|neg_softplus|given decay_divisor=any "
    "decay_bound=any decay_width=head decay_place=weight|logit dt_width=head|none "
    "feature=identity|relu|elu1|unit|unit_heads|unit_smooth|norm_split|norm_cosine "
    "normaliser=row_sum|row_sum_min1|row_length|none|cumulative_gate detach=off|on epsilon=any "
    "sink=none|zero|learned output_gate=none|sigmoid|inverse_exp|inverse_cumulative "
    "post_gate=off|sigmoid "
    "gate_width=head|channel gate_shape=sigmoid|silu|silu_square|identity "
    "norm=none|layer|rms|l2|l2_scaled norm_width=head|row norm_weight=shared|head "
    "norm_epsilon=any";

const char *sr_attention_earlier_refusal(const srnn_attention *attention) {
    const sr_axis *missing = NULL;
    return sr_computes(COMPUTES, attention, &missing) ? NULL : missing->name;
}

srnn_status sr_plan_check_earlier(const srnn_plan *plan) {
    const char *refusal = sr_attention_earlier_refusal(&plan->problem.attention);
    char text[SR_ATTENTION_TEXT];
    srnn_attention_print(text, sizeof text, &plan->problem.attention);
    if (refusal)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: keys of other ranks are not taken with this %s",
                       text, refusal);
    const sr_attention_kernels *kernels = plan->device->attention;
    return kernels->takes_earlier && kernels->takes_earlier(plan)
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_UNSUPPORTED,
                         "%s: the %s kernel on %s takes no keys of other ranks; the flash kernel "
                         "on the CPU does",
                         text, plan->kernel->name, plan->device->name);
}

static srnn_status check(const srnn_plan *plan, const void *saved, const sr_earlier_keys *earlier) {
    SR_TRY(sr_plan_check_earlier(plan));
    return saved && earlier->gap >= plan->problem.T
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_ARGUMENT,
                         "earlier keys need what forward saved, and a gap of %d "
                         "tokens or more, not %lld",
                         plan->problem.T, (long long)earlier->gap);
}

/* The plan has the keys' place during the call. */
static srnn_status forward(srnn_plan *plan, srnn_tensor o, const srnn_operands *in, void *saved,
                           sr_earlier_keys earlier) {
    plan->earlier = earlier;
    const srnn_status status = srnn_attention_forward(plan, o, in, saved);
    plan->earlier = (sr_earlier_keys){0};
    return status;
}

static srnn_status backward(srnn_plan *plan, const srnn_operands *gradients, srnn_tensor d_o,
                            const srnn_operands *in, const void *saved, sr_earlier_keys earlier) {
    plan->earlier = earlier;
    const srnn_status status = srnn_attention_backward(plan, gradients, d_o, in, saved);
    plan->earlier = (sr_earlier_keys){0};
    return status;
}

srnn_status sr_attention_earlier_forward(srnn_plan *plan, srnn_tensor o, const srnn_operands *in,
                                         void *saved, const sr_earlier_keys *earlier) {
    SR_TRY(check(plan, saved, earlier));
    return forward(plan, o, in, saved, *earlier);
}

srnn_status sr_attention_earlier_backward(srnn_plan *plan, const srnn_operands *gradients,
                                          srnn_tensor d_o, const srnn_operands *in,
                                          const void *saved, const sr_earlier_keys *earlier) {
    srnn_operands wanted = *gradients;
    wanted.decay = (srnn_tensor){0};
    wanted.a_log = wanted.dt_bias = NULL;
    SR_TRY(check(plan, saved, earlier));
    return backward(plan, &wanted, d_o, in, saved, *earlier);
}

void sr_plan_take_sums(srnn_plan *plan, const double *before, double *d_before) {
    plan->sums = (sr_part_sums){before, d_before};
}

void sr_plan_leave_decays(srnn_plan *plan, double *own, double *end) {
    plan->decays = (sr_part_decays){.own = own, .end = end};
}

srnn_status sr_attention_sums_backward(srnn_plan *plan, const srnn_operands *gradients,
                                       srnn_tensor d_o, const srnn_operands *in, const void *saved,
                                       void *d_saved) {
    SR_TRY(sr_plan_check_earlier(plan));
    const sr_saved d_sums = sr_plan_saved(plan, d_saved);
    return backward(plan, gradients, d_o, in, saved, (sr_earlier_keys){.d_sums = &d_sums});
}

/* Where outputs are neither made nor read: any address serves. */
static srnn_tensor no_output(const void *saved) {
    return (srnn_tensor){.data = (void *)(uintptr_t)saved};
}

srnn_status sr_attention_decays_backward(srnn_plan *plan, const srnn_operands *gradients,
                                         const srnn_operands *in, const void *saved,
                                         const double *d_own, const double *d_end) {
    const srnn_operands wanted = {.decay = gradients->decay,
                                  .a_log = gradients->a_log,
                                  .dt_bias = gradients->dt_bias};
    plan->decays.d_own = d_own;
    plan->decays.d_end = d_end;
    const srnn_status status = srnn_attention_backward(plan, &wanted, no_output(saved), in, saved);
    plan->decays.d_own = plan->decays.d_end = NULL;
    return status;
}

srnn_status sr_attention_visitors_forward(srnn_plan *plan, const srnn_operands *in, void *saved,
                                          const sr_earlier_keys *earlier) {
    SR_TRY(check(plan, saved, earlier));
    sr_earlier_keys keys = *earlier;
    keys.visitors = true;
    return forward(plan, no_output(saved), in, saved, keys);
}

srnn_status sr_attention_visitors_backward(srnn_plan *plan, const srnn_operands *gradients,
                                           const srnn_operands *in, const void *d_saved,
                                           const sr_earlier_keys *earlier) {
    SR_TRY(check(plan, d_saved, earlier));
    const srnn_operands wanted = {.q = gradients->q,
                                  .k = gradients->k,
                                  .v = gradients->v,
                                  .value_gate = gradients->value_gate};
    sr_earlier_keys keys = *earlier;
    keys.visitors = true;
    return backward(plan, &wanted, no_output(d_saved), in, d_saved, keys);
}
