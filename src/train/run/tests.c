/* tests.c: evaluates a finished run on its test tasks. */
#include "train/run/tests.h"

#include "data/rows/synthetic.h"
#include "files/json.h"
#include "train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXT = 1024 };

/* Visits the tests one after the other, each as text and as a source. */
typedef srnn_status test_visitor(void *context, const char *text, const sr_source *source);

static srnn_status visit_one(const char *begin, size_t bytes, uint64_t seed, test_visitor *visit,
                             void *context) {
    char text[MOST_TEXT];
    sr_source *source;
    if (bytes >= sizeof text)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "test: a task of %zu bytes is too long", bytes);
    memcpy(text, begin, bytes);
    text[bytes] = '\0';
    SR_TRY(sr_synthetic_create(&source, text, seed));
    const srnn_status status = visit(context, text, source);
    sr_source_free(source);
    return status;
}

static srnn_status visit_tests(const sr_run_settings *s, test_visitor *visit, void *context) {
    const char *at = s->test;
    while (*at) {
        at += strspn(at, "; ");
        size_t whole = strcspn(at, ";"), bytes = whole;
        while (bytes > 0 && at[bytes - 1] == ' ')
            bytes--;
        if (bytes > 0)
            SR_TRY(visit_one(at, bytes, (uint64_t)s->seed, visit, context));
        at += whole;
    }
    return SRNN_OK;
}

typedef struct size_check {
    int *T, vocab;
} size_check;

static srnn_status check_size(void *context, const char *text, const sr_source *source) {
    const size_check *check = context;
    if (source->vocab > check->vocab)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "test %s: the task has %d tokens, the model only %d",
                       text, source->vocab, check->vocab);
    *check->T = source->T > *check->T ? source->T : *check->T;
    return SRNN_OK;
}

srnn_status sr_run_tests_check(int *T, const sr_run_settings *settings, int vocab) {
    *T = 0;
    return visit_tests(settings, check_size, &(size_check){T, vocab});
}

typedef struct tester {
    const sr_run_settings *settings;
    sr_model *model;
    sr_ranks *ranks;
    json_t *list;
} tester;

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* The number of rows of a validation, in batches of at most the tokens of a training batch. */
static srnn_status take_test(void *context, const char *text, const sr_source *source) {
    const tester *t = context;
    const sr_run_settings *s = t->settings;
    const int64_t rows = (int64_t)s->B * s->validate_batches;
    const int64_t fit = (int64_t)s->B * s->T / source->T;
    const int64_t B = fit < 1 ? 1 : fit < s->B ? fit : s->B;
    sr_evaluation result = {.ranks = t->ranks};
    const sr_evaluation_rows what = {.source = source,
                                     .split = SR_SPLIT_VALIDATION,
                                     .B = (int)B,
                                     .batches = (rows + B - 1) / B};
    SR_TRY(sr_evaluate_source(&result, t->model, &what));
    const double targets = (double)result.targets;
    json_t *object = json_object();
    sr_json_set(object, "data", json_string(text));
    sr_json_set(object, "length", json_integer(source->T));
    sr_json_set(object, "rows", json_integer(what.batches * B));
    sr_json_set(object, "targets", json_integer(result.targets));
    sr_json_set(object, "loss", number(result.loss_sum / targets));
    sr_json_set(object, "accuracy", number((double)result.correct / targets));
    sr_json_set(object, "chance", number(sr_synthetic_chance(source)));
    sr_json_append(t->list, object);
    return SRNN_OK;
}

srnn_status sr_run_tests_write(const sr_run_settings *settings, sr_model *model, const char *folder,
                               sr_ranks *ranks) {
    if (!*settings->test)
        return SRNN_OK;
    json_t *root = json_object();
    const tester t = {settings, model, ranks, json_array()};
    sr_json_set(root, "tests", t.list);
    srnn_status status = visit_tests(settings, take_test, (void *)(uintptr_t)&t);
    if (status != SRNN_OK || ranks->rank != 0) {
        json_decref(root);
        return status;
    }
    return sr_json_replace(root, folder, "tests.json", JSON_INDENT(2) | JSON_REAL_PRECISION(9));
}
