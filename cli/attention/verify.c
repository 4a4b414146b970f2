/* verify.c: `softrnn verify`, every kernel and form against the float64 oracle. */
#include "attention/kernel.h"
#include "base/cpu_level.h"
#include "base/status.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/line/options.h"
#include "device/device.h"
#include "equation/facts.h"
#include "equation/operands.h"
#include "verify/probe.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Larger states are skipped: they take long and test nothing new. */
enum { STATE_BYTES_MAX = 4 << 20, METHODS_MAX = 32, OFFSETS_MAX = 8, CHUNKS = 5 };

static const int chunk_sizes[CHUNKS] = {0, 1, 7, 16, 64};

/* Besides the named variants: families, and every gate on variants with a state. */
static const char *const others[] = {
    "order:1",
    "order:2",
    "order:3",
    "order:4",
    "elu:2",
    "relu:3",
    "cosine:2",
    "power:2",
    "power:3",
    "power:16",
    "linear_elu,decay,value_gate,output_gate,norm=rms",
    "order:2,decay,value_gate,output_gate,post_gate,norm=l2",
    "order:2,value_gate,normaliser=cumulative_gate,norm=layer",
    "order:2,normaliser=row_sum_min1,detach,epsilon=0.1",
};

enum { OTHERS = sizeof others / sizeof *others };

/* A way of computing: a column of the table. */
typedef struct method {
    const char *kernel; /* NULL: fed piece by piece through a state */
    srnn_form form;
    const char *title[2]; /* two lines */
} method;

typedef struct shape {
    int B, H, Hkv, T, D, Dv;
    int64_t offsets[OFFSETS_MAX]; /* packed documents: up to B*T; all zero: one document per row */
} shape;

/* --quick uses the first QUICK of them. */
static const shape shapes[] = {
    {1, 2, 2, 1, 8, 8, {0}},      {2, 4, 2, 67, 20, 12, {0}},
    {1, 2, 2, 129, 64, 64, {0}},  {1, 2, 2, 97, 16, 16, {0, 1, 18, 35, 97}},
    {1, 2, 2, 15, 1, 3, {0}},     {1, 4, 2, 16, 64, 64, {0}},
    {2, 2, 1, 17, 8, 8, {0}},     {1, 2, 2, 63, 64, 20, {0}},
    {1, 2, 2, 65, 128, 128, {0}}, {2, 2, 2, 96, 32, 32, {0, 64, 96, 97, 192}},
    {1, 4, 1, 127, 8, 64, {0}},   {1, 2, 2, 128, 20, 20, {0}},
    {1, 3, 3, 257, 16, 16, {0}},
};

enum { SHAPES = sizeof shapes / sizeof *shapes, QUICK = 4 };

/* The error of any computation in float, by pairs or through a state; computed on demand. */
typedef struct lost {
    probe_errors errors;
    bool known;
} lost;

/* The reference result for one shape, and in bf16 the tolerance. */
typedef struct reference {
    srnn_problem problem;
    attention_call oracle;
    double plain_limit;
    lost by_pairs, by_state;
    srnn_status status;
} reference;

typedef struct verification {
    method methods[METHODS_MAX];
    size_t method_count, shape_count;
    int threads, random, longest;
    srnn_device *device; /* NULL: the CPU */
    srnn_dtype dtype;
    uint64_t seed;
    sr_cpu_level best, lowest; /* the instruction sets, tried from the best one down */
    int64_t comparisons, excused;
    bool failed;
} verification;

/* False if the result itself is rounding noise: a vector of one element divided by its length is
 * its sign, and a row of weights of either sign may nearly vanish before a norm. */
static bool well_conditioned(const srnn_attention *a, const shape *s) {
    bool near_zero = a->score == SRNN_SCORE_LINEAR || a->score == SRNN_SCORE_POWER;
    bool divided = a->norm != SRNN_NORM_NONE;
    if (a->feature == SRNN_FEATURE_UNIT_HEADS && s->Hkv == 1)
        return false;
    /* Such keys have a length of sqrt(D), and the delta rule is stable only with a write strength
     * of e^-D, which is negligible. */
    if (a->feature == SRNN_FEATURE_UNIT_HEADS && a->write == SRNN_WRITE_DELTA &&
        a->score == SRNN_SCORE_EXP && s->D > 8)
        return false;
    /* Features of rotated numbers cannot all be small, and exp of their products overflows
     * float. */
    if (a->position == SRNN_POSITION_ROPE_CHUNKS && a->feature == SRNN_FEATURE_ELU1 &&
        a->scale == SRNN_SCALE_ONE && a->score == SRNN_SCORE_EXP && s->D > 64)
        return false;
    return s->D > 1 || !(a->feature == SRNN_FEATURE_UNIT || (near_zero && divided));
}

static srnn_problem problem_of(const verification *v, const srnn_attention *a, const shape *s) {
    srnn_problem problem = {.attention = *a,
                            .B = s->B,
                            .H = s->H,
                            .Hkv = s->Hkv,
                            .T = s->T,
                            .D = s->D,
                            .Dv = s->Dv,
                            .threads = v->threads,
                            .device = v->device,
                            .dtype = v->dtype,
                            .state_limit = STATE_BYTES_MAX};
    while (problem.documents + 1 < OFFSETS_MAX && s->offsets[problem.documents + 1])
        problem.documents++;
    if (problem.documents)
        problem.offsets = s->offsets;
    return problem;
}

static bool unavailable(srnn_status status) {
    return status == SRNN_ERR_UNSUPPORTED || status == SRNN_ERR_LIMIT;
}

/* Runs one method on a problem and computes its errors; *errors is unchanged on failure. */
static srnn_status measure(probe_errors *errors, const method *m, srnn_problem problem,
                           const attention_call *oracle, uint64_t seed) {
    attention_call run;
    problem.kernel = m->kernel;
    problem.form = m->form;
    SR_TRY(probe_copy(&run, &problem, oracle));
    bool backward = m->kernel && m->form != SRNN_FORM_RECURRENT;
    srnn_status status = !m->kernel ? probe_feed(&run, seed)
                         : backward ? call_forward_backward(&run)
                                    : call_forward(&run);
    if (status == SRNN_OK)
        *errors = probe_errors_of(&run, oracle, backward);
    call_free(&run);
    return status;
}

/* Prints which tensors exceed the limit, by how much, and the unavoidable error. */
static void report_tensors(const lost *losses, const probe_errors *errors, double limit) {
    for (int n = 0; n < PROBE_TENSORS; n++)
        if (!(errors->of[n] <= limit))
            fprintf(stderr, "softrnn:   %s%s: %.2g, limit %.2g, lost anyway %.2g\n",
                    n == PROBE_OUTPUT ? "" : "gradient of ",
                    n == PROBE_OUTPUT ? "output" : sr_operand_at((sr_operand)n)->name,
                    errors->of[n], limit, losses->errors.of[n]);
}

static void report_failure(const verification *v, const char *name, const method *m,
                           const srnn_problem *p, double error, srnn_status status) {
    fprintf(stderr,
            "softrnn: %s, %s %s, %s, B=%d H=%d Hkv=%d T=%d D=%d Dv=%d documents=%lld chunk=%d "
            "seed=%llu: ",
            name, m->title[0], m->title[1], sr_cpu_level_name(sr_cpu_level_used()), p->B, p->H,
            p->Hkv, p->T, p->D, p->Dv, (long long)p->documents, p->chunk,
            (unsigned long long)v->seed);
    if (status == SRNN_OK)
        fprintf(stderr, "relative error %.2g\n", error);
    else
        fprintf(stderr, "%s\n", srnn_error_detail());
}

/* The entry of a method in the table: its worst error; infinity: it failed, -1: not run yet. */
typedef struct cell {
    double worst;
    bool failed, excused;
} cell;

static lost *losses_of(reference *right, const method *m) {
    return m->form == SRNN_FORM_PARALLEL ? &right->by_pairs : &right->by_state;
}

/* Whether every float computation in the method's form would exceed the limit too. */
static bool excused(reference *right, const method *m, const probe_errors *errors, double limit) {
    lost *losses = losses_of(right, m);
    srnn_problem problem = right->problem;
    problem.form = m->form;
    if (problem.dtype != SRNN_F32)
        return false;
    if (!losses->known && probe_find_losses(&losses->errors, &problem, &right->oracle) != SRNN_OK)
        return false;
    losses->known = true;
    return probe_is_excused(errors, &losses->errors, limit);
}

/* Compares one method on one problem, with every chunk size it supports. */
static void compare(verification *v, cell *of, const char *name, const method *m,
                    reference *right) {
    double limit =
        v->dtype == SRNN_BF16 ? right->plain_limit : probe_limit(&right->problem, m->form);
    size_t chunks = m->form == SRNN_FORM_CHUNKED ? CHUNKS : 1;
    for (size_t i = 0; i < chunks; i++) {
        srnn_problem chunked = right->problem;
        chunked.chunk = chunk_sizes[i];
        probe_errors errors = {.of[PROBE_OUTPUT] = (double)INFINITY};
        srnn_status status = measure(&errors, m, chunked, &right->oracle, v->seed);
        if (unavailable(status))
            continue;
        v->comparisons++;
        const double error = probe_worst(&errors);
        if (!(error <= limit) && excused(right, m, &errors, limit)) {
            of->excused = true;
            v->excused++;
        } else if (!(error <= limit)) {
            v->failed = of->failed = true;
            report_failure(v, name, m, &chunked, error, status);
            if (status == SRNN_OK)
                report_tensors(losses_of(right, m), &errors, limit);
        }
        if (!(error <= of->worst))
            of->worst = isnan(error) ? (double)INFINITY : error;
    }
}

/* Compares every method on one problem, with the kernels of every instruction set. */
static void compare_all(verification *v, cell *cells, const char *name, reference *right) {
    for (int level = (int)v->best; level >= (int)v->lowest; level--) {
        sr_cpu_level_use((sr_cpu_level)level);
        for (size_t i = 0; i < v->method_count; i++)
            if (v->methods[i].kernel || !right->problem.documents)
                compare(v, &cells[i], name, &v->methods[i], right);
    }
    sr_cpu_level_use(v->best);
}

/* Shared by the oracle's tasks. */
typedef struct references {
    const verification *v;
    const srnn_attention *attention;
    reference of[SHAPES];
} references;

/* The tolerance of bf16 is derived from the errors of a plain bf16 computation. */
static srnn_status find_reference(reference *right, const verification *v) {
    probe_errors errors;
    SR_TRY(probe_oracle(&right->oracle, &right->problem, v->seed));
    if (v->dtype == SRNN_BF16) {
        SR_TRY(probe_plain_errors(&errors, &right->problem, &right->oracle));
        right->plain_limit = probe_plain_limit(probe_worst(&errors));
    }
    return SRNN_OK;
}

/* Whether any method can compute it; otherwise the oracle is not needed. */
static bool is_computed(const srnn_problem *problem) {
    srnn_plan *plan = NULL;
    const srnn_status status = srnn_plan_create(&plan, problem);
    srnn_plan_free(plan);
    return !unavailable(status);
}

static void find_reference_task(void *context, int64_t task, int worker) {
    references *all = context;
    reference *right = &all->of[task];
    (void)worker;
    if (right->problem.B)
        right->status = find_reference(right, all->v);
}

static srnn_status verify_shapes(verification *v, cell *cells, const char *name,
                                 const srnn_attention *a) {
    references all = {.v = v, .attention = a};
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < v->shape_count; i++) {
        const srnn_problem problem = problem_of(v, a, &shapes[i]);
        if (shapes[i].T <= v->longest && well_conditioned(a, &shapes[i]) && is_computed(&problem))
            all.of[i].problem = problem;
    }
    sr_parallel(find_reference_task, &all, (int64_t)v->shape_count, sr_thread_count(v->threads));
    for (size_t i = 0; i < v->shape_count; i++) {
        reference *right = &all.of[i];
        if (status == SRNN_OK)
            status = right->status;
        if (status == SRNN_OK && right->problem.B)
            compare_all(v, cells, name, right);
        call_free(&right->oracle);
    }
    return status;
}

static void print_cell(const cell *of) {
    if (of->worst < 0)
        printf(" %11s", "-");
    else
        printf(" %10.1e%c", of->worst, of->failed ? '!' : of->excused ? '~' : ' ');
}

static srnn_status verify_variant(verification *v, const char *name, const srnn_attention *a) {
    cell cells[METHODS_MAX];
    const bool failed_before = v->failed;
    const int64_t before = v->comparisons;
    v->failed = false;
    for (size_t i = 0; i < METHODS_MAX; i++)
        cells[i] = (cell){.worst = -1};
    SR_TRY(verify_shapes(v, cells, name, a));
    printf("%-58s", name);
    for (size_t i = 0; i < v->method_count; i++)
        print_cell(&cells[i]);
    printf("   %s\n", v->failed ? "FAIL" : v->comparisons > before ? "ok" : "not here");
    fflush(stdout);
    v->failed |= failed_before;
    v->seed++;
    return SRNN_OK;
}

/* ---- Which columns, which rows */

static void add_method(verification *v, method m) {
    if (v->method_count < METHODS_MAX)
        v->methods[v->method_count++] = m;
}

/* Every kernel for these numbers, by form; its cells stay empty where it fits no problem. */
static void list_methods(verification *v) {
    const sr_attention_kernel *const *list = v->device->attention->list();
    for (int form = SRNN_FORM_PARALLEL; form_words[form]; form++)
        for (size_t k = 0; list[k]; k++)
            if ((int)list[k]->form == form && list[k]->dtype == v->dtype)
                add_method(v, (method){list[k]->name,
                                       (srnn_form)form,
                                       {form_words[form], list[k]->name}});
    add_method(v, (method){NULL, SRNN_FORM_PARALLEL, {"KV cache", "by token"}});
    add_method(v, (method){NULL, SRNN_FORM_CHUNKED, {"state", "chunked"}});
    add_method(v, (method){NULL, SRNN_FORM_RECURRENT, {"state", "recurrent"}});
}

static void print_header(const verification *v) {
    for (int row = 0; row < 2; row++) {
        printf("%-58s", row ? "relative error, worst of o and gradients" : "variant");
        for (size_t i = 0; i < v->method_count; i++)
            printf(" %10s ", v->methods[i].title[row]);
        printf("\n");
    }
}

/* Random combinations of all axes, from the seed. */
static srnn_status verify_random(verification *v) {
    for (int i = 0; i < v->random; i++) {
        const srnn_attention a = probe_attention(v->seed);
        char text[SR_ATTENTION_TEXT];
        srnn_attention_print(text, sizeof text, &a);
        SR_TRY(verify_variant(v, text, &a));
    }
    return SRNN_OK;
}

/* Every composition once, under its first name. */
static srnn_status verify_all(verification *v) {
    const srnn_variant *variant;
    for (size_t i = 0; (variant = srnn_variant_at(i)); i++)
        if (strcmp(srnn_attention_name(&variant->attention), variant->name) == 0)
            SR_TRY(verify_variant(v, variant->name, &variant->attention));
    for (size_t i = 0; i < OTHERS; i++) {
        srnn_attention a;
        SR_TRY(srnn_attention_parse(&a, others[i]));
        SR_TRY(verify_variant(v, others[i], &a));
    }
    return verify_random(v);
}

/* A GPU has only one; those beyond AVX-512 differ in bf16 alone. */
static void list_levels(verification *v) {
    v->best = sr_cpu_level_used();
    if (v->dtype != SRNN_BF16 && v->best > SR_CPU_V4)
        v->best = SR_CPU_V4;
    v->lowest = sr_device_is_host(v->device) ? SR_CPU_BASE : v->best;
    if (!sr_device_is_host(v->device))
        return;
    printf("instruction sets:");
    for (int level = (int)v->best; level >= (int)v->lowest; level--)
        printf(" %s", sr_cpu_level_name((sr_cpu_level)level));
    printf("; errors are the worst of them\n");
}

static srnn_status verify(verification *v, const char *attention) {
    srnn_attention a;
    const bool all = strcmp(attention, "all") == 0, random = strcmp(attention, "random") == 0;
    if (!all && !random)
        SR_TRY(srnn_attention_parse(&a, attention));
    list_methods(v);
    list_levels(v);
    print_header(v);
    return all ? verify_all(v) : random ? verify_random(v) : verify_variant(v, attention, &a);
}

int command_verify(int argc, char **argv) {
    static const char *const dtypes[] = {"float", "bf16", NULL};
    const char *attention = "all";
    const char *device = "cpu";
    bool quick = false;
    int dtype = 0;
    int64_t seed = 1;
    verification v = {.shape_count = SHAPES, .random = 12, .longest = INT_MAX};
    const command_option options[] = {
        OPTION_TEXT("--attention", &attention, "SPEC",
                    "a variant, all, or random: the random combinations alone, the first from "
                    "--seed"),
        OPTION_INTEGER("--threads", &v.threads, 0, 1024, "N", "threads to use; 0: all cores"),
        OPTION_INTEGER64("--seed", &seed, 0, INT64_MAX, "N", "other random inputs"),
        OPTION_INTEGER("--random", &v.random, 0, 100000, "N",
                       "random combinations in addition to the table"),
        OPTION_FLAG("--quick", &quick, "fewer shapes"),
        OPTION_INTEGER("--longest", &v.longest, 1, INT_MAX, "N", "no shapes of more tokens"),
        OPTION_DEVICE(&device),
        OPTION_CHOICE("--dtype", &dtype, dtypes, "TYPE",
                      "numbers to compute with; bf16 on a CPU only in tiles (flash)"),
    };
    const command_line line = {
        .usage = "softrnn verify [options]",
        .purpose =
            "Compares every kernel and form, outputs and gradients, with a slow computation in\n"
            "double precision that shares no code with them, on shapes that are awkward: length 1, "
            "odd lengths, lengths about a\n"
            "tile's edge, head sizes from 1 to 128, grouped heads, packed documents. Exit code 1 "
            "if\na relative error passes 1e-5 (parallel) or 2e-5 (through a state), or 1e-6 p for "
            "power:p, 1e-4 on a GPU, or "
            "in bf16 twice that of a plain computation in bf16. Float is excused, and a ~ says "
            "so, where a plain computation in it, or exact ones on operands (through a state: on "
            "its numbers too) half a unit of their "
            "last "
            "place off, lose a sixteenth as much of the same tensor, up to 1e-3. On the "
            "CPU, all of it with the kernels of every instruction set that it "
            "has,\n"
            "up to SOFTRNN_CPU (base, v3, v4, bf16, amx) where that is set.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .examples = "  softrnn verify --quick\n"
                    "  softrnn verify --attention order:4,norm=l2\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    v.seed = (uint64_t)seed;
    v.dtype = dtype ? SRNN_BF16 : SRNN_F32;
    if (quick)
        v.shape_count = QUICK;
    srnn_status status = srnn_device_open(&v.device, device);
    if (status == SRNN_OK)
        status = verify(&v, attention);
    srnn_device_close(v.device);
    if (status != SRNN_OK)
        return command_report(status);
    if (v.excused)
        printf("%lld errors past the limit that any computation in float has (~)\n",
               (long long)v.excused);
    printf("%lld comparisons: %s\n", (long long)v.comparisons,
           v.failed         ? "FAIL"
           : !v.comparisons ? "FAIL, nothing could be compared"
                            : "ok");
    return v.failed || !v.comparisons ? EXIT_FAILED : EXIT_OK;
}
