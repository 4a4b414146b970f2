/* verify.c: `softrnn verify`, every kernel and form against the float64 oracle. */
#include "attention/kernel.h"
#include "base/cpu_level.h"
#include "base/memory.h"
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
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger states are skipped: they take long and test nothing new. */
enum { STATE_BYTES_MAX = 4 << 20, METHODS_MAX = 32, OFFSETS_MAX = 8 };

/* Kernels of a GPU have chunks of their own, and know but one other: any size that is requested
 * means their smallest. */
enum { CHUNKS = 5, CHUNKS_OF_GPU = 2 };

static const int chunk_sizes[CHUNKS] = {0, 1, 7, 16, 64};

/* Besides the named variants: families, every gate on variants with a state, and what none of them
 * has with heads of one number. */
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
    "score=linear,normaliser=none,decay=softplus,decay_width=channel,dt_width=channel",
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

/* What others lose, by pairs or through a state, computed on demand: any computation in float, or
 * plain ones in bf16. */
typedef struct lost {
    probe_errors errors;
    bool known;
    probe_plain plain;
} lost;

/* How a method did on one shape, or on all of them: its worst error; infinity: it failed. */
typedef struct cell {
    double worst;
    int64_t comparisons, excused, failed;
} cell;

/* One shape: the reference result, in bf16 the tolerance, and how the methods did. */
typedef struct reference {
    srnn_problem problem; /* B 0: not compared */
    uint64_t seed;
    attention_call oracle;
    double plain_limit;
    lost by_pairs, by_state;
    cell cells[METHODS_MAX];
    srnn_status status;
} reference;

/* A row of the table: a variant and its data. */
typedef struct table_row {
    char name[SR_ATTENTION_TEXT];
    srnn_attention attention;
    uint64_t seed;
    reference of[SHAPES];
} table_row;

/* Rows are computed so many at a time, all shapes of all at once, so that no core waits for the
 * longest shape of each. */
enum { ROWS = 16 };

typedef struct verification {
    method methods[METHODS_MAX];
    size_t method_count, shape_count;
    int threads, random, longest;
    srnn_device *device;
    srnn_dtype dtype;
    uint64_t seed;             /* of the next row */
    sr_cpu_level best, lowest; /* the instruction sets, tried from the best one down */
    table_row *rows;           /* (ROWS), of which the first row_count are yet to be computed */
    int row_count;
    pthread_mutex_t on_device; /* held by the thread that uses a device other than the host */
    cell all;
} verification;

static void hold_device(verification *v) {
    if (!sr_device_is_host(v->device))
        pthread_mutex_lock(&v->on_device);
}

static void release_device(verification *v) {
    if (!sr_device_is_host(v->device))
        pthread_mutex_unlock(&v->on_device);
}

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

static lost *losses_of(reference *right, const method *m) {
    return m->form == SRNN_FORM_PARALLEL ? &right->by_pairs : &right->by_state;
}

/* Prints which tensors exceed the limit, by how much, and the unavoidable error. */
static void report_tensors(reference *right, const method *m, const probe_errors *errors,
                           double limit) {
    const bool narrow = right->problem.dtype == SRNN_BF16;
    const lost *losses = losses_of(right, m);
    const probe_errors *anyway = narrow ? &losses->plain.worst : &losses->errors;
    for (int n = 0; n < PROBE_TENSORS; n++)
        if (!(errors->of[n] <= limit))
            fprintf(stderr, "softrnn:   %s%s: %.2g, limit %.2g, lost anyway %.2g\n",
                    n == PROBE_OUTPUT ? "" : "gradient of ",
                    n == PROBE_OUTPUT ? "output" : sr_operand_at((sr_operand)n)->name,
                    errors->of[n], limit, anyway->of[n]);
}

static void report_failure(const char *name, const method *m, const srnn_problem *p, uint64_t seed,
                           double error, srnn_status status) {
    fprintf(stderr,
            "softrnn: %s, %s %s, %s, B=%d H=%d Hkv=%d T=%d D=%d Dv=%d documents=%lld chunk=%d "
            "seed=%llu: ",
            name, m->title[0], m->title[1], sr_cpu_level_name(sr_cpu_level_used()), p->B, p->H,
            p->Hkv, p->T, p->D, p->Dv, (long long)p->documents, p->chunk, (unsigned long long)seed);
    if (status == SRNN_OK)
        fprintf(stderr, "relative error %.2g\n", error);
    else
        fprintf(stderr, "%s\n", srnn_error_detail());
}

/* Whether others would exceed the limit too: in float every computation in the method's form, in
 * bf16 a plain one at another scale. */
static bool excused(reference *right, const method *m, const probe_errors *errors, double limit) {
    lost *losses = losses_of(right, m);
    srnn_problem problem = right->problem;
    bool plain;
    problem.form = m->form;
    if (problem.dtype != SRNN_F32)
        return probe_is_plain(&plain, &losses->plain, errors, limit, &problem, &right->oracle) ==
                   SRNN_OK &&
               plain;
    if (!losses->known && probe_find_losses(&losses->errors, &problem, &right->oracle) != SRNN_OK)
        return false;
    losses->known = true;
    return probe_is_excused(errors, &losses->errors, limit);
}

/* Compares one method on one problem, with every chunk size it supports. */
static void compare(verification *v, const char *name, size_t at, reference *right) {
    const method *m = &v->methods[at];
    cell *of = &right->cells[at];
    const bool host = sr_device_is_host(v->device);
    const double limit =
        v->dtype == SRNN_BF16 ? right->plain_limit : probe_limit(&right->problem, m->form);
    const int chunks = m->form != SRNN_FORM_CHUNKED ? 1 : host ? CHUNKS : CHUNKS_OF_GPU;
    for (int i = 0; i < chunks; i++) {
        srnn_problem chunked = right->problem;
        chunked.chunk = chunk_sizes[i];
        probe_errors errors = {.of[PROBE_OUTPUT] = (double)INFINITY};
        hold_device(v);
        const srnn_status status = measure(&errors, m, chunked, &right->oracle, right->seed);
        release_device(v);
        if (unavailable(status))
            continue;
        of->comparisons++;
        const double error = probe_worst(&errors);
        if (!(error <= limit) && status == SRNN_OK && excused(right, m, &errors, limit)) {
            of->excused++;
        } else if (!(error <= limit)) {
            of->failed++;
            report_failure(name, m, &chunked, right->seed, error, status);
            if (status == SRNN_OK)
                report_tensors(right, m, &errors, limit);
        }
        if (!(error <= of->worst))
            of->worst = isnan(error) ? (double)INFINITY : error;
    }
}

/* Compares every method on one problem. */
static void compare_all(verification *v, const char *name, reference *right) {
    for (size_t i = 0; i < v->method_count; i++)
        if (v->methods[i].kernel || !right->problem.documents)
            compare(v, name, i, right);
}

/* The same with the kernels of every instruction set. */
static void compare_levels(verification *v, const char *name, reference *right) {
    for (int level = (int)v->best; level >= (int)v->lowest; level--) {
        sr_cpu_level_use((sr_cpu_level)level);
        compare_all(v, name, right);
    }
    sr_cpu_level_use(v->best);
}

/* The tolerance of bf16 is derived from the errors of a plain bf16 computation. */
static srnn_status find_reference(reference *right) {
    probe_errors errors;
    SR_TRY(probe_oracle(&right->oracle, &right->problem, right->seed));
    if (right->problem.dtype == SRNN_BF16) {
        SR_TRY(probe_plain_errors(&errors, &right->problem, &right->oracle));
        right->plain_limit = probe_plain_limit(probe_worst(&errors));
    }
    return SRNN_OK;
}

/* Whether any method can compute it; otherwise the oracle is not needed. */
static bool is_computed(verification *v, const srnn_problem *problem) {
    srnn_plan *plan = NULL;
    hold_device(v);
    const srnn_status status = srnn_plan_create(&plan, problem);
    srnn_plan_free(plan);
    release_device(v);
    return !unavailable(status);
}

/* One shape of one row, the last shapes first, which take longest. A GPU compares while other
 * references are computed; kernels of the CPU have its threads to themselves, later. */
static void verify_task(void *context, int64_t task, int worker) {
    verification *v = context;
    table_row *row = &v->rows[task % v->row_count];
    const size_t n = v->shape_count - 1 - (size_t)(task / v->row_count);
    const srnn_problem problem = problem_of(v, &row->attention, &shapes[n]);
    reference *right = &row->of[n];
    (void)worker;
    if (shapes[n].T > v->longest || !well_conditioned(&row->attention, &shapes[n]) ||
        !is_computed(v, &problem))
        return;
    right->problem = problem;
    right->seed = row->seed;
    right->status = find_reference(right);
    if (right->status == SRNN_OK && !sr_device_is_host(v->device)) {
        compare_all(v, row->name, right);
        call_free(&right->oracle);
    }
}

static void add_cell(cell *sum, const cell *of) {
    sum->comparisons += of->comparisons;
    sum->excused += of->excused;
    sum->failed += of->failed;
    sum->worst = fmax(sum->worst, of->worst);
}

static void print_row(const verification *v, const table_row *row, cell *all) {
    printf("%-58s", row->name);
    for (size_t m = 0; m < v->method_count; m++) {
        cell of = {0};
        for (size_t n = 0; n < v->shape_count; n++)
            add_cell(&of, &row->of[n].cells[m]);
        if (of.comparisons == 0)
            printf(" %11s", "-");
        else
            printf(" %10.1e%c", of.worst, of.failed ? '!' : of.excused ? '~' : ' ');
        add_cell(all, &of);
    }
    printf("   %s\n", all->failed ? "FAIL" : all->comparisons ? "ok" : "not here");
    fflush(stdout);
}

static srnn_status finish_row(verification *v, table_row *row) {
    srnn_status status = SRNN_OK;
    cell all = {0};
    for (size_t n = 0; n < v->shape_count; n++) {
        reference *right = &row->of[n];
        if (status == SRNN_OK)
            status = right->status;
        if (status == SRNN_OK && right->problem.B && sr_device_is_host(v->device))
            compare_levels(v, row->name, right);
        call_free(&right->oracle);
    }
    if (status == SRNN_OK)
        print_row(v, row, &all);
    add_cell(&v->all, &all);
    return status;
}

/* Computes and prints the rows that are yet to be computed. */
static srnn_status verify_rows(verification *v) {
    srnn_status status = SRNN_OK;
    sr_parallel(verify_task, v, (int64_t)v->shape_count * v->row_count,
                sr_thread_count(v->threads));
    for (int i = 0; i < v->row_count; i++) {
        const srnn_status own = finish_row(v, &v->rows[i]);
        status = status == SRNN_OK ? own : status;
    }
    v->row_count = 0;
    return status;
}

static srnn_status verify_variant(verification *v, const char *name, const srnn_attention *a) {
    table_row *row = &v->rows[v->row_count++];
    *row = (table_row){.attention = *a, .seed = v->seed++};
    snprintf(row->name, sizeof row->name, "%s", name);
    return v->row_count == ROWS ? verify_rows(v) : SRNN_OK;
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
    for (int line = 0; line < 2; line++) {
        printf("%-58s", line ? "relative error, worst of o and gradients" : "variant");
        for (size_t i = 0; i < v->method_count; i++)
            printf(" %10s ", v->methods[i].title[line]);
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
    SR_TRY(all ? verify_all(v) : random ? verify_random(v) : verify_variant(v, attention, &a));
    return verify_rows(v);
}

int command_verify(int argc, char **argv) {
    static const char *const dtypes[] = {"float", "bf16", NULL};
    const char *attention = "all";
    const char *device = "cpu";
    bool quick = false;
    int dtype = 0;
    int64_t seed = 1;
    verification v = {.shape_count = SHAPES,
                      .random = 12,
                      .longest = INT_MAX,
                      .on_device = PTHREAD_MUTEX_INITIALIZER};
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
            "in bf16 twice that of a plain computation in bf16. A ~ says that an error beyond is "
            "excused: in float, where a plain computation in it, or exact ones on operands "
            "(through a state: on its numbers too) half a unit of their last place off, lose a "
            "sixteenth as much of the same tensor, up to 1e-3; in bf16, where one of 32 plain "
            "computations that keep their numbers at other scales, and round others of them up, "
            "loses half as much of the same tensor, as happens to gradients that are one number "
            "per head. On the "
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
    srnn_status status = sr_alloc_zero((void **)&v.rows, ROWS, sizeof *v.rows);
    if (status == SRNN_OK)
        status = srnn_device_open(&v.device, device);
    if (status == SRNN_OK)
        status = verify(&v, attention);
    srnn_device_close(v.device);
    free(v.rows);
    if (status != SRNN_OK)
        return command_report(status);
    if (v.all.excused)
        printf("%lld errors past the limit that %s has (~)\n", (long long)v.all.excused,
               dtype ? "a plain computation at another scale" : "any computation in float");
    printf("%lld comparisons: %s\n", (long long)v.all.comparisons,
           v.all.failed         ? "FAIL"
           : !v.all.comparisons ? "FAIL, nothing could be compared"
                                : "ok");
    return v.all.failed || !v.all.comparisons ? EXIT_FAILED : EXIT_OK;
}
