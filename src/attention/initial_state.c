/* initial_state.c: attention with an initial and a final state, and their gradients. */
#include "attention/problem.h"
#include "attention/states.h"
#include "equation/facts.h"

#include <string.h>

/* What states of a sequence consist of besides their matrix, or NULL. */
static const char *carried_besides(const srnn_attention *a, bool continues) {
    if (a->levels != SRNN_LEVELS_NONE)
        return "a state for each level";
    if (a->normaliser == SRNN_NORMALISER_CUMULATIVE_GATE ||
        a->output_gate == SRNN_GATE_INVERSE_CUMULATIVE)
        return "the running sum of its output gates";
    if (a->decay == SRNN_DECAY_LEARNED && a->decay_width == SRNN_WIDTH_CHANNEL)
        return "a learned decay of each channel";
    const bool counts = a->normaliser == SRNN_NORMALISER_ROW_LENGTH ||
                        a->normaliser == SRNN_NORMALISER_VALUE_POWER ||
                        a->position == SRNN_POSITION_ROPE_FEATURES;
    return counts && !continues ? "the position of its tokens" : NULL;
}

static srnn_status sizes_of(int64_t sizes[4], const srnn_problem *problem, bool continues) {
    srnn_problem p = *problem;
    SR_TRY(sr_problem_fill(&p));
    SR_TRY(sr_problem_check_state(&p));
    const char *besides = carried_besides(&p.attention, continues);
    if (besides) {
        char text[SR_ATTENTION_TEXT];
        srnn_attention_print(text, sizeof text, &p.attention);
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s carries %s besides a matrix, which initial and final states do not "
                       "hold: use srnn_state_feed",
                       text, besides);
    }
    const int64_t W = p.Dv + sr_needs_row_sum(&p.attention);
    sizes[0] = p.B;
    sizes[1] = sr_shares_queries(&p.attention) ? p.H : p.Hkv;
    sizes[2] = (int64_t)srnn_attention_state_numbers(&p.attention, p.D, p.Dv) / W;
    sizes[3] = W;
    return SRNN_OK;
}

srnn_status srnn_states_sizes(int64_t sizes[4], const srnn_problem *problem) {
    return sizes_of(sizes, problem, false);
}

srnn_status sr_states_sizes(int64_t sizes[4], const srnn_problem *problem) {
    return sizes_of(sizes, problem, true);
}

const char *sr_states_kernel(const srnn_problem *problem) {
    srnn_plan plan = {.problem = *problem};
    srnn_problem *p = &plan.problem;
    p->form = SRNN_FORM_CHUNKED;
    if (sr_problem_fill(p) != SRNN_OK || sr_problem_check_state(p) != SRNN_OK)
        return NULL;
    plan.device = p->device;
    for (const sr_attention_kernel *const *k = p->device->attention->list(); *k; k++) {
        plan.kernel = *k;
        if ((!p->kernel || strcmp(p->kernel, (*k)->name) == 0) &&
            sr_kernel_serves(*k, p, p->form) && p->device->attention->carries_states(&plan))
            return (*k)->name;
    }
    return NULL;
}

static srnn_status check_states(const srnn_plan *plan, const srnn_states *states) {
    int64_t sizes[4];
    if (!plan || !states)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "no %s given (NULL)", plan ? "states were" : "plan was");
    SR_TRY(sizes_of(sizes, &plan->problem, plan->continues));
    if (!plan->device->attention->carries_states(plan))
        return SR_FAIL(
            SRNN_ERR_UNSUPPORTED,
            "the %s kernel on %s has no initial and final states: make the plan with "
            "SRNN_FORM_CHUNKED; on a GPU with the kernel \"chunks\", for bf16, without row "
            "sums, with D and Dv that are multiples of 8",
            plan->kernel->name, plan->device->name);
    if (states->d_initial && !states->initial)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "d_initial was requested without an initial state");
    return SRNN_OK;
}

/* The plan has the states during the call. */
srnn_status srnn_attention_states_forward(srnn_plan *plan, srnn_tensor o, const srnn_operands *in,
                                          void *saved, const srnn_states *states) {
    SR_TRY(check_states(plan, states));
    plan->states = (srnn_states){.initial = states->initial, .final = states->final};
    const srnn_status status = srnn_attention_forward(plan, o, in, saved);
    plan->states = (srnn_states){0};
    return status;
}

srnn_status srnn_attention_states_backward(srnn_plan *plan, const srnn_operands *gradients,
                                           srnn_tensor d_o, const srnn_operands *in,
                                           const void *saved, const srnn_states *states) {
    SR_TRY(check_states(plan, states));
    plan->states = (srnn_states){.initial = states->initial,
                                 .d_final = states->d_final,
                                 .d_initial = states->d_initial};
    const srnn_status status = srnn_attention_backward(plan, gradients, d_o, in, saved);
    plan->states = (srnn_states){0};
    return status;
}
