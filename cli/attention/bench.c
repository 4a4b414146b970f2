/* bench.c: `softrnn bench`, which checks and then times; one JSON line per case. */
#include "base/threads.h"
#include "cli/attention/bench_case.h"
#include "cli/commands.h"
#include "cli/line/cautions.h"
#include "cli/line/options.h"
#include "equation/facts.h"
#include "files/json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTHS_MAX = 16, ITEM_MAX = 512 };

typedef struct bench_request {
    srnn_problem problem; /* everything except attention and T */
    bool backward;
    int repeats;
    const char *against; /* a variant whose parallel form is timed for comparison; NULL: none */
    bench_product product;
} bench_request;

/* The best of several calls, alternating so that all run under the same conditions. */
typedef struct timings {
    double forward, both;                 /* seconds */
    double against_forward, against_both; /* seconds */
    double product;                       /* GFLOP/s */
} timings;

static void keep_best(double *best, double seconds) {
    if (*best == 0 || seconds < *best)
        *best = seconds;
}

static srnn_status time_case(double *forward, double *both, bench_case *timed, bool backward) {
    double seconds;
    SR_TRY(bench_forward(&seconds, timed));
    keep_best(forward, seconds);
    if (!backward)
        return SRNN_OK;
    SR_TRY(bench_forward_backward(&seconds, timed));
    keep_best(both, seconds);
    return SRNN_OK;
}

/* The first round is a warm-up. */
static srnn_status take_timings(timings *best, const bench_request *request, bench_case *timed,
                                bench_case *against) {
    const bool backward = request->backward;
    for (int round = 0; round <= request->repeats; round++) {
        double gflops;
        if (round <= 1)
            *best = (timings){0};
        SR_TRY(bench_product_speed(&gflops, &request->product));
        if (gflops > best->product)
            best->product = gflops;
        SR_TRY(time_case(&best->forward, &best->both, timed, backward));
        if (against)
            SR_TRY(time_case(&best->against_forward, &best->against_both, against, backward));
    }
    return SRNN_OK;
}

static void set_real(json_t *line, const char *key, double value) {
    sr_json_set(line, key, json_real(value));
}

static srnn_status print_line(const char *name, const bench_request *request,
                              const bench_case *timed, const timings *best) {
    const srnn_problem *p = &timed->call.problem;
    double forward_flops = 1e-9 * bench_forward_flops(p);
    double both_flops = forward_flops + 1e-9 * bench_backward_flops(p);
    json_t *line =
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "variant", name, "form",
                  form_words[srnn_plan_form(timed->plan)], "kernel", srnn_plan_kernel(timed->plan),
                  "B", p->B, "H", p->H, "T", p->T, "D", p->D, "Dv", p->Dv ? p->Dv : p->D, "threads",
                  sr_thread_count(p->threads));
    set_real(line, "seconds_forward", best->forward);
    set_real(line, "gflops_forward", forward_flops / best->forward);
    set_real(line, "product_gflops", best->product);
    set_real(line, "fraction_forward", forward_flops / best->forward / best->product);
    if (request->backward) {
        set_real(line, "seconds_forward_backward", best->both);
        set_real(line, "gflops_forward_backward", both_flops / best->both);
        set_real(line, "fraction_forward_backward", both_flops / best->both / best->product);
    }
    if (request->against) {
        sr_json_set(line, "against", json_string(request->against));
        set_real(line, "times_faster_forward", best->against_forward / best->forward);
        if (request->backward)
            set_real(line, "times_faster_forward_backward", best->against_both / best->both);
    }
    const srnn_status status =
        sr_json_print(stdout, line, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    fflush(stdout);
    json_decref(line);
    return status;
}

static srnn_status time_with_reference(const char *name, const bench_request *request,
                                       bench_case *timed) {
    bench_case against = {0};
    if (request->against) {
        srnn_problem problem = timed->call.problem;
        problem.form = SRNN_FORM_PARALLEL;
        problem.kernel = NULL;
        SR_TRY(srnn_attention_parse(&problem.attention, request->against));
        SR_TRY(bench_case_open(&against, &problem));
    }
    timings best = {0};
    srnn_status status = take_timings(&best, request, timed, request->against ? &against : NULL);
    if (status == SRNN_OK)
        status = print_line(name, request, timed, &best);
    bench_case_close(&against);
    return status;
}

static srnn_status bench_variant(const char *name, const bench_request *request, int T) {
    srnn_problem problem = request->problem;
    bench_case timed;
    problem.T = T;
    SR_TRY(srnn_attention_parse(&problem.attention, name));
    caution_problem(&problem);
    SR_TRY(bench_case_open(&timed, &problem));
    srnn_status status = time_with_reference(name, request, &timed);
    bench_case_close(&timed);
    return status;
}

/* ---- Lists on the command line */

/* The length of the first text form of a list: an item that is a name begins the next one. */
static size_t first_spec(const char *list) {
    size_t length = strcspn(list, ",");
    while (list[length] == ',') {
        char item[ITEM_MAX];
        size_t next = strcspn(list + length + 1, ",");
        snprintf(item, sizeof item, "%.*s", (int)next, list + length + 1);
        if (sr_variant_find(item) || (strchr(item, ':') && !strchr(item, '=')))
            break;
        length += 1 + next;
    }
    return length;
}

static srnn_status bench_list(const char *list, const bench_request *request, int T) {
    for (;;) {
        char spec[ITEM_MAX];
        size_t length = first_spec(list);
        snprintf(spec, sizeof spec, "%.*s", (int)length, list);
        SR_TRY(bench_variant(spec, request, T));
        list += length;
        if (!*list++)
            return SRNN_OK;
    }
}

/* Every composition once, under its first name. */
static srnn_status bench_all(const bench_request *request, int T) {
    const srnn_variant *variant;
    for (size_t i = 0; (variant = srnn_variant_at(i)); i++)
        if (strcmp(srnn_attention_name(&variant->attention), variant->name) == 0)
            SR_TRY(bench_variant(variant->name, request, T));
    return SRNN_OK;
}

/* "1024,4096" */
static bool read_lengths(int *lengths, size_t *count, const char *text) {
    for (*count = 0; *count < LENGTHS_MAX; text++) {
        char *end;
        long length = strtol(text, &end, 10);
        if (end == text || length < 1 || length > 1 << 24)
            return false;
        lengths[(*count)++] = (int)length;
        text = end;
        if (!*text)
            return true;
        if (*text != ',')
            return false;
    }
    return false;
}

static srnn_status bench_attention(const char *list, bench_request *request, const int *lengths,
                                   size_t count) {
    SR_TRY(bench_product_create(&request->product, &request->problem));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < count && status == SRNN_OK; i++)
        status = strcmp(list, "all") == 0 ? bench_all(request, lengths[i])
                                          : bench_list(list, request, lengths[i]);
    bench_product_free(&request->product);
    return status;
}

static int command_bench_attention(int argc, char **argv) {
    static const char *const dtypes[] = {"float", "bf16", NULL};
    const char *list = "softmax,norm", *length_list = "1024", *device = "cpu";
    int lengths[LENGTHS_MAX], form = SRNN_FORM_AUTO, dtype = 0;
    size_t count;
    bench_request request = {.problem = {.B = 1, .H = 16, .D = 64}, .repeats = 7};
    const command_option options[] = {
        OPTION_TEXT("--attention", &list, "SPEC,...", "variants, or all"),
        OPTION_TEXT("--T", &length_list, "N,...", "lengths of the sequence"),
        OPTION_INTEGER("--B", &request.problem.B, 1, 4096, "N", "batch rows"),
        OPTION_INTEGER("--H", &request.problem.H, 1, 4096, "N", "heads"),
        OPTION_INTEGER("--D", &request.problem.D, 1, SR_HEAD_SIZE_MAX, "N", "head size"),
        OPTION_INTEGER("--Dv", &request.problem.Dv, 0, SR_VALUE_SIZE_MAX, "N",
                       "size of a head's values; 0: its head size"),
        OPTION_INTEGER("--threads", &request.problem.threads, 0, 1024, "N",
                       "threads to use; 0: all cores"),
        OPTION_CHOICE("--form", &form, form_words, "FORM", "how to compute"),
        OPTION_INTEGER("--chunk", &request.problem.chunk, 0, 1 << 20, "N",
                       "tokens in a chunk; 0: chosen"),
        OPTION_TEXT("--kernel", &request.problem.kernel, "NAME", "this kernel and no other"),
        OPTION_FLAG("--backward", &request.backward, "time forward with backward too"),
        OPTION_DEVICE(&device),
        OPTION_CHOICE("--dtype", &dtype, dtypes, "TYPE",
                      "numbers to compute with; bf16 on a CPU only in tiles (flash)"),
        OPTION_INTEGER("--repeats", &request.repeats, 1, 1000, "N", "rounds; the best counts"),
        OPTION_TEXT("--against", &request.against, "SPEC",
                    "also time the parallel form of this variant, and compare"),
    };
    const command_line line = {
        .usage = "softrnn bench attention [options]",
        .purpose =
            "Checks the kernels against the double oracle, then times them, alternating with a "
            "matrix\n"
            "product of the same numbers: one JSON line per case. gflops counts what the "
            "parallel form "
            "cannot do\n"
            "without: 2 B H (D + Dv) T^2/2 forward, 2.5 times that backward.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .examples = "  softrnn bench attention --attention softmax,norm --T 1024,4096 --backward\n"
                    "  softrnn bench attention --attention linear_elu --form chunked --T 4096 "
                    "--against softmax\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (!read_lengths(lengths, &count, length_list))
        return command_refuse("option '--T': expected lengths such as 1024,4096, got '%s'",
                              length_list);
    request.problem.form = (srnn_form)form;
    request.problem.dtype = dtype ? SRNN_BF16 : SRNN_F32;
    srnn_status status = srnn_device_open(&request.problem.device, device);
    if (status == SRNN_OK)
        status = bench_attention(list, &request, lengths, count);
    srnn_device_close(request.problem.device);
    return command_report(status);
}

int command_bench(int argc, char **argv) {
    static const command commands[] = {
        {"attention", "forward and backward of variants, next to SGEMM", command_bench_attention},
    };
    const command_table table = {
        .program = "softrnn bench",
        .purpose = "softrnn bench: checks, then times; one JSON line per case.",
        .commands = commands,
        .count = sizeof commands / sizeof *commands,
        .examples = "  softrnn bench attention --attention norm --T 4096 --backward\n",
    };
    return command_dispatch(&table, argc, argv);
}
