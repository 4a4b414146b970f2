/* earlier.c: attention in blocks of keys. */
#include "attention/earlier.h"

#include "equation/facts.h"

/* Everything else that belongs to a key would have to travel with it. */
const char *sr_attention_earlier_refusal(const srnn_attention *a) {
    if (a->decay != SRNN_DECAY_NONE)
        return "decays";
    if (a->value_gate == SRNN_VALUE_GATE_TIME_STEP)
        return "time steps on values";
    if (a->write != SRNN_WRITE_ADD)
        return "a delta rule";
    if (a->skip != SRNN_SKIP_NONE)
        return "skips";
    if (a->levels != SRNN_LEVELS_NONE)
        return "levels";
    if (a->pool)
        return "pooling";
    if (a->position == SRNN_POSITION_ROPE_FEATURES || a->position == SRNN_POSITION_ROPE_CHUNKS)
        return "rotations inside the equation";
    if (a->share != SRNN_SHARE_KV)
        return "shared queries";
    if (a->normaliser == SRNN_NORMALISER_VALUE_POWER)
        return "values by their position";
    if (a->normaliser == SRNN_NORMALISER_CUMULATIVE_GATE ||
        a->output_gate == SRNN_GATE_INVERSE_CUMULATIVE)
        return "running sums of gates";
    return NULL;
}

srnn_status sr_plan_check_earlier(const srnn_plan *plan) {
    const char *refusal = sr_attention_earlier_refusal(&plan->problem.attention);
    char text[SR_ATTENTION_TEXT];
    srnn_attention_print(text, sizeof text, &plan->problem.attention);
    if (refusal)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: keys of other ranks are not taken with %s", text,
                       refusal);
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
    SR_TRY(check(plan, saved, earlier));
    return backward(plan, gradients, d_o, in, saved, *earlier);
}

srnn_status sr_attention_sums_backward(srnn_plan *plan, const srnn_operands *gradients,
                                       srnn_tensor d_o, const srnn_operands *in, const void *saved,
                                       void *d_saved) {
    SR_TRY(sr_plan_check_earlier(plan));
    const sr_saved d_sums = sr_plan_saved(plan, d_saved);
    return backward(plan, gradients, d_o, in, saved, (sr_earlier_keys){.d_sums = &d_sums});
}

/* Outputs of visitors are not made here, nor read: any address serves. */
static srnn_tensor no_output(const void *saved) {
    return (srnn_tensor){.data = (void *)(uintptr_t)saved};
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
