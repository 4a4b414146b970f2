/* support.c: which kernels compute which variants, from the kernels' declarations. */
#include "cli/attention/support.h"

#include "attention/kernel.h"

#include <stdio.h>

/* Long enough for kernels that pay for long sequences only. */
enum { TOKENS = 4096 };

static const struct {
    srnn_dtype dtype;
    const char *name;
} types[] = {{SRNN_BF16, "bf16"}, {SRNN_F32, "float"}, {SRNN_F64, "double"}};

/* The kernel that computes the problem in this form; NULL: there is none. */
static const sr_attention_kernel *kernel_of(const srnn_problem *problem, srnn_form form) {
    for (const sr_attention_kernel *const *k = problem->device->attention->list(); *k; k++)
        if (sr_kernel_serves(*k, problem, form))
            return *k;
    return NULL;
}

static bool has_type(const srnn_device *device, srnn_dtype dtype) {
    for (const sr_attention_kernel *const *k = device->attention->list(); *k; k++)
        if ((*k)->dtype == dtype)
            return true;
    return false;
}

static void print_kernel(const srnn_problem *problem, srnn_form form) {
    const sr_attention_kernel *kernel = kernel_of(problem, form);
    printf(" %s%s |", kernel ? kernel->name : "–", kernel && !kernel->backward ? " (forward)" : "");
}

static void print_state(const srnn_problem *problem, bool fixed) {
    const bool exists = !fixed || srnn_attention_has_state(&problem->attention);
    printf(" %s |", exists && problem->device->attention->state(problem, fixed) ? "yes" : "–");
}

static void print_variant(const srnn_variant *variant, srnn_problem problem) {
    problem.attention = variant->attention;
    printf("| `%s` |", variant->name);
    print_kernel(&problem, SRNN_FORM_PARALLEL);
    print_kernel(&problem, SRNN_FORM_CHUNKED);
    print_kernel(&problem, SRNN_FORM_RECURRENT);
    print_state(&problem, false);
    print_state(&problem, true);
    printf("\n");
}

static void print_type(bool (*row_at)(srnn_variant *row, size_t index), srnn_problem problem,
                       const char *device, const char *type) {
    srnn_variant row;
    printf("\n## %s, %s\n\n", device, type);
    printf("| variant | parallel | chunked | recurrent | KV cache | recurrent state |\n");
    printf("|---|---|---|---|---|---|\n");
    for (size_t i = 0; row_at(&row, i); i++)
        print_variant(&row, problem);
}

static srnn_status print_kind(const sr_device_kind *kind,
                              bool (*row_at)(srnn_variant *row, size_t index), int D) {
    char text[SR_DEVICE_TEXT];
    int count;
    const char *reason;
    srnn_device *device;
    SR_TRY(kind->count(&count, &reason));
    if (count == 0) {
        printf("\n## %s\n\nNot available: %s.\n", kind->name, reason);
        return SRNN_OK;
    }
    SR_TRY(kind->describe(text, 0));
    if (kind->open(&device, 0, 0) != SRNN_OK) {
        printf("\n## %s\n\nNot available: %s.\n", kind->name, srnn_error_detail());
        return SRNN_OK;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (has_type(device, types[i].dtype))
            print_type(row_at,
                       (srnn_problem){.B = 1,
                                      .H = 1,
                                      .Hkv = 1,
                                      .T = TOKENS,
                                      .D = D,
                                      .Dv = D,
                                      .device = device,
                                      .dtype = types[i].dtype},
                       kind->name, types[i].name);
    srnn_device_close(device);
    return SRNN_OK;
}

srnn_status support_print(bool (*row_at)(srnn_variant *row, size_t index), int D) {
    const sr_device_kind *kind;
    printf(
        "Kernels for heads of D = %d and T = %d tokens; other sizes may have other kernels.\n"
        "A form without a kernel is refused, never computed elsewhere. Kernels marked (forward)\n"
        "have no backward pass; all others have both.\n",
        D, TOKENS);
    for (size_t i = 0; (kind = sr_device_kind_at(i)); i++)
        SR_TRY(print_kind(kind, row_at, D));
    return SRNN_OK;
}
