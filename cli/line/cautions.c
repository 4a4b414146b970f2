/* cautions.c: warnings about a request, on stderr. */
#include "cli/line/cautions.h"

#include "equation/facts.h"
#include "verify/call.h"

#include <stdio.h>
#include <string.h>

static const char *text_of(char text[SR_ATTENTION_TEXT], const srnn_attention *attention) {
    const char *name = srnn_attention_name(attention);
    if (name)
        return name;
    srnn_attention_print(text, SR_ATTENTION_TEXT, attention);
    return text;
}

void caution_attention(const srnn_attention *attention) {
    char text[SR_ATTENTION_TEXT];
    if (!sr_delta_is_stable(attention))
        fprintf(stderr,
                "softrnn: %s: the delta rule is stable while beta score(|feature(k)|^2) stays "
                "below 2, which nothing ensures here: outputs may grow without bound "
                "(score=linear,feature=unit is stable)\n",
                text_of(text, attention));
}

/* The kernel of a form of a problem, static text; "" if there is none. */
static const char *kernel_of(const srnn_problem *problem, srnn_form form) {
    srnn_problem requested = *problem;
    srnn_plan *plan = NULL;
    requested.form = form;
    const char *name = srnn_plan_create(&plan, &requested) == SRNN_OK ? srnn_plan_kernel(plan) : "";
    srnn_plan_free(plan);
    return name;
}

void caution_problem(const srnn_problem *problem) {
    static const char slow[] = "generic";
    char text[SR_ATTENTION_TEXT];
    caution_attention(&problem->attention);
    if (problem->kernel || strcmp(kernel_of(problem, problem->form), slow) != 0)
        return;
    const char *automatic = kernel_of(problem, SRNN_FORM_AUTO);
    if (*automatic && strcmp(automatic, slow) != 0)
        fprintf(stderr,
                "softrnn: %s: the %s form is left to the generic kernel, up to hundreds of times "
                "slower than the %s kernel that --form auto chooses\n",
                text_of(text, &problem->attention), form_words[problem->form], automatic);
}
