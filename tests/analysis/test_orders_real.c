/* test_orders_real.c: real models truncated about centres: losses converge to the untruncated one.
 * Skipped unless SOFTRNN_REAL_DATA names the folder of real models and texts. */
#include "analysis/truncated/model.h"
#include "model/files/model_folder.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T = 96, MOST = 168, MOST_LAYERS = 8 };

typedef struct real {
    sr_backend *backend;
    sr_model *model;
    sr_survey survey;
    int32_t ids[T], targets[T];
    sr_trial trial;
} real;

static const char *path_of(const char *name) {
    static char path[4096];
    const char *folder = getenv("SOFTRNN_REAL_DATA");
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Surveys the first T tokens of the text. */
static void real_open(real *r, sr_model *model, const char *tokenizer_name) {
    sr_tokenizer *tokenizer;
    sr_token_rows *rows;
    sr_survey_pass *pass;
    bool more;
    r->model = model;
    assert_int_equal(sr_tokenizer_load(&tokenizer, path_of(tokenizer_name)), SRNN_OK);
    assert_int_equal(sr_token_rows_open_text(&rows, path_of("text/tinystories_sample.txt"),
                                             tokenizer, 1, T),
                     SRNN_OK);
    assert_int_equal(sr_token_rows_next(rows, r->ids, r->targets, &more), SRNN_OK);
    assert_true(more);
    r->survey = (sr_survey){.orders = 8, .most_order = 2};
    assert_int_equal(sr_survey_create(&r->survey, model), SRNN_OK);
    assert_int_equal(sr_survey_pass_create(&pass, &r->survey, model, T), SRNN_OK);
    assert_int_equal(sr_survey_measure(pass, r->ids, r->targets), SRNN_OK);
    r->trial = (sr_trial){.ids = r->ids, .targets = r->targets, .B = 1, .T = T};
    assert_int_equal(sr_trial_begin(&r->trial, model), SRNN_OK);
    sr_survey_pass_free(pass);
    sr_token_rows_free(rows);
    sr_tokenizer_free(tokenizer);
}

static void real_close(real *r) {
    sr_trial_end(&r->trial);
    sr_survey_free(&r->survey);
    sr_model_free(r->model);
    sr_backend_free(r->backend);
}

/* From `begin` on the loss converges with every even order (up to `slack`). */
static void check_converges(const real *r, sr_centre centre, int begin, double slack) {
    double before = INFINITY, loss, error;
    for (int cut = 1; cut < sr_cut_count(MOST); cut++) {
        if (sr_cut_order(cut) < begin)
            continue;
        sr_cut cuts[MOST_LAYERS];
        for (int layer = 0; layer < MOST_LAYERS; layer++)
            cuts[layer] = (sr_cut){sr_cut_order(cut), centre};
        assert_int_equal(sr_trial_run(&loss, &error, &r->trial, r->model, &r->survey, cuts),
                         SRNN_OK);
        const double apart = fabs(loss - r->trial.loss);
        if (!(apart <= before + slack))
            fail_msg("order %d: %g from the untruncated loss, %g before", sr_cut_order(cut), apart,
                     before);
        before = apart;
        if (error < 1e-3)
            return;
    }
    fail_msg("no order up to %d is enough: the last is %g from the untruncated loss", MOST, before);
}

static void stories260K(void **state) {
    (void)state;
    real r = {0};
    sr_model *model;
    if (!getenv("SOFTRNN_REAL_DATA"))
        skip();
    assert_int_equal(sr_backend_create(&r.backend, &(sr_backend_settings){.threads = 0}), SRNN_OK);
    assert_int_equal(sr_model_load_llama2c(&model, r.backend,
                                           path_of("models/stories260K/stories260K.bin")),
                     SRNN_OK);
    real_open(&r, model, "models/stories260K/tok512.bin");
    check_converges(&r, SR_CENTRE_ROW_MIDDLE, 2, 2e-4);
    real_close(&r);
}

static void tinystories656K(void **state) {
    (void)state;
    real r = {0};
    sr_model *model;
    if (!getenv("SOFTRNN_REAL_DATA"))
        skip();
    assert_int_equal(sr_backend_create(&r.backend, &(sr_backend_settings){.threads = 0}), SRNN_OK);
    assert_int_equal(sr_model_load(&model, r.backend, path_of("models/tinystories-656K-hf")),
                     SRNN_OK);
    real_open(&r, model, "models/tinystories-656K-hf/tokenizer.json");
    check_converges(&r, SR_CENTRE_ROW_MIDDLE, 2, 2e-4);
    real_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stories260K),
        cmocka_unit_test(tinystories656K),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
