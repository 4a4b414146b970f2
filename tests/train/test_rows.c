/* test_rows.c: rows in training and evaluation: separate documents, prefix tokens. */
#include "small_model.h"
#include "train/evaluate.h"
#include "train/trainer.h"

enum { T = 12, DOCUMENTS = 3 };

static const int64_t starts[DOCUMENTS + 1] = {0, 5, 9, T};
static sr_backend *cpu;

/* Every row is the same three documents; the last token of each has no target. */
static srnn_status fill_row(const sr_source *source, sr_token_row *row, sr_split split,
                            int64_t number) {
    (void)source, (void)split, (void)number;
    small_ids(row->ids, T, 23, 21);
    for (int n = 0; n < DOCUMENTS; n++) {
        row->starts[n] = starts[n];
        for (int64_t t = starts[n]; t < starts[n + 1]; t++)
            row->targets[t] = t + 1 < starts[n + 1] ? row->ids[t + 1] : -1;
    }
    row->documents = DOCUMENTS;
    return SRNN_OK;
}

static const sr_source packed = {.vocab = 23,
                                 .T = T,
                                 .rows = {INT64_MAX, INT64_MAX},
                                 .fill = fill_row};

/* The summed loss of `count` tokens in their own row, after `front` empty ones. */
static double loss_alone(sr_model *model, const int32_t *ids, const int32_t *targets, int count,
                         int front) {
    const sr_pass_setup setup = {.B = 1, .T = front + count};
    int32_t row[2 * T] = {0}, wanted[2 * T];
    float losses[2 * T];
    double sum = 0;
    sr_pass *pass;
    for (int t = 0; t < front; t++)
        wanted[t] = -1;
    memcpy(row + front, ids, (size_t)count * sizeof *ids);
    memcpy(wanted + front, targets, (size_t)count * sizeof *targets);
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_losses(pass, losses, row, wanted), SRNN_OK);
    sr_pass_free(pass);
    for (int t = 0; t < front + count; t++)
        sum += (double)losses[t];
    return sum;
}

static double trained_loss(sr_model *model, const sr_source *source) {
    const sr_trainer_settings settings = {.B = 2, .T = T, .accumulate = 1, .epsilon = 1e-7};
    sr_trainer *trainer;
    sr_step step;
    sr_validation validation;
    assert_int_equal(sr_validation_create(&validation, 1, 0), SRNN_OK);
    assert_int_equal(sr_trainer_create(&trainer, model, &settings), SRNN_OK);
    assert_int_equal(sr_trainer_step(trainer, &step, source, 1), SRNN_OK);
    assert_int_equal(sr_trainer_validate(trainer, &validation, source), SRNN_OK);
    sr_trainer_free(trainer);
    assert_true(fabs(validation.loss - step.loss) < 1e-6);
    sr_validation_free(&validation);
    return step.loss * (double)step.targets;
}

static void check_packed(const char *attention, int front) {
    sr_model *model = small_model(cpu, attention, SR_MLP_SWIGLU, false, false);
    int32_t ids[T], targets[T];
    int64_t begins[T];
    sr_token_row row = {ids, targets, begins, 0};
    double want = 0;
    assert_int_equal(fill_row(&packed, &row, SR_SPLIT_TRAIN, 0), SRNN_OK);
    for (int n = 0; n < DOCUMENTS; n++) {
        const int64_t at = starts[n] + n * front; /* position in the row */
        int64_t count = starts[n + 1] - starts[n];
        if (count > T - at - front)
            count = T - at - front;
        if (count > 0)
            want += 2 * loss_alone(model, ids + starts[n], targets + starts[n], (int)count, front);
    }
    const double got = trained_loss(model, &packed);
    if (!(fabs(got - want) < 1e-4 * want))
        fail_msg("%s: packed documents lose %f, alone %f", attention, got, want);
    sr_evaluation result = {0};
    assert_int_equal(sr_evaluate_source(&result, model,
                                        &(sr_evaluation_rows){&packed, SR_SPLIT_TRAIN, 2, 1, NULL}),
                     SRNN_OK);
    assert_true(fabs(result.loss_sum - want) < 1e-4 * want);
    sr_model_free(model);
}

static void packed_documents_are_alone(void **state) {
    (void)state;
    check_packed("softmax", 0);
    check_packed("gated_softmax_plusplus", 0);
    check_packed("order:2", 0);
    check_packed("gated_softmax_plusplus_extratoks", 3);
}

/* A split of three rows in batches of two: none counts twice. */
static void rows_count_once(void **state) {
    (void)state;
    sr_source three = packed;
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, false);
    sr_evaluation result = {0};
    three.rows[SR_SPLIT_VALIDATION] = 3;
    assert_int_equal(sr_evaluate_source(&result, model,
                                        &(sr_evaluation_rows){&three, SR_SPLIT_VALIDATION, 2, 2,
                                                              NULL}),
                     SRNN_OK);
    assert_int_equal(result.targets, 3 * (T - DOCUMENTS));
    sr_model_free(model);
}

/* Rows of an exact source get no prefix tokens. */
static void exact_rows_stay(void **state) {
    (void)state;
    sr_source exact = packed;
    sr_model *with =
        small_model(cpu, "gated_softmax_plusplus_extratoks", SR_MLP_SWIGLU, false, false);
    sr_model *without = small_model(cpu, "gated_softmax_plusplus", SR_MLP_SWIGLU, false, false);
    exact.exact = true;
    assert_true(trained_loss(with, &exact) == trained_loss(without, &packed));
    assert_true(trained_loss(with, &packed) != trained_loss(without, &packed));
    sr_model_free(with);
    sr_model_free(without);
}

static void prefix_tokens(void **state) {
    (void)state;
    int32_t ids[] = {1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16};
    int32_t targets[] = {2, 3, 4, 5, 6, 7, 12, -1, 14, 15, -1, 17};
    int64_t offsets[13] = {0, 6, 8, 11, 12};
    sr_batch batch = {.B = 2, .ids = ids, .targets = targets, .offsets = offsets, .documents = 4};
    const int32_t want_ids[] = {0, 0, 1, 2, 3, 4, 0, 0, 11, 12, 0, 0};
    const int32_t want_targets[] = {-1, -1, 2, 3, 4, 5, -1, -1, 12, -1, -1, -1};
    const int64_t want_offsets[] = {0, 6, 10, 12};
    sr_batch_front(&batch, 6, 2);
    assert_memory_equal(ids, want_ids, sizeof ids);
    assert_memory_equal(targets, want_targets, sizeof targets);
    assert_int_equal(batch.documents, 3);
    assert_memory_equal(offsets, want_offsets, sizeof want_offsets);
    sr_batch_front(&batch, 6, 0);
    assert_memory_equal(ids, want_ids, sizeof ids);
    assert_memory_equal(offsets, want_offsets, sizeof want_offsets);
}

/* Every token of a text counts once, whatever the number of prefix tokens. */
static void text_is_whole(void **state) {
    (void)state;
    char text[] = "no token of this text is left out";
    const sr_bytes whole = {.data = text, .count = strlen(text)};
    sr_tokenizer *bytes;
    assert_int_equal(sr_tokenizer_create_bytes(&bytes), SRNN_OK);
    for (int with = 0; with < 2; with++) {
        sr_model_config config = {.V = 257,
                                  .C = 8,
                                  .F = 8,
                                  .L = 1,
                                  .H = 2,
                                  .Hkv = 2,
                                  .D = 4,
                                  .positions = 64,
                                  .norm_epsilon = 1e-5,
                                  .rope_theta = 100,
                                  .bos = -1,
                                  .eos = -1};
        sr_model *model;
        sr_evaluation result = {0}, word = {0};
        assert_int_equal(sr_model_config_attention(&config,
                                                   with ? "softmax,prefix_tokens=3" : "softmax"),
                         SRNN_OK);
        assert_int_equal(sr_model_create(&model, cpu, &config), SRNN_OK);
        assert_int_equal(sr_model_initialise(model, 0.02, 1), SRNN_OK);
        assert_int_equal(sr_evaluate_text(&result, model, bytes, &whole, 2, 8), SRNN_OK);
        const int64_t begins = sr_tokenizer_bos(bytes) >= 0;
        assert_int_equal(result.targets, (int64_t)strlen(text) - 1 + begins);
        assert_int_equal(sr_evaluate_last_word(&word, model, bytes, text, strlen(text),
                                               SR_LONG_REFUSE),
                         SRNN_OK);
        assert_int_equal(word.targets, 1);
        assert_true(word.loss_sum > 4 * 5.0 && word.loss_sum < 4 * 6.5);
        sr_model_free(model);
        sr_model_config_free(&config);
    }
    sr_tokenizer_free(bytes);
}

static srnn_status fill_without_targets(const sr_source *source, sr_token_row *row, sr_split split,
                                        int64_t number) {
    (void)split;
    (void)number;
    for (int t = 0; t < source->T; t++) {
        row->ids[t] = 0;
        row->targets[t] = -1;
    }
    row->starts[0] = 0;
    row->documents = 1;
    return SRNN_OK;
}

/* Nothing to predict is no perfect loss; rows that were there before are no further batches. */
static void validation_counts_what_is_there(void **state) {
    (void)state;
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, false);
    const sr_source source = {.T = T, .vocab = 2, .rows = {5, 5}, .fill = fill_without_targets};
    const sr_trainer_settings settings = {.B = 2, .T = T, .accumulate = 1, .epsilon = 1e-7};
    sr_trainer *trainer;
    sr_validation validation;
    assert_int_equal(sr_validation_create(&validation, 7, 0), SRNN_OK);
    assert_int_equal(sr_trainer_create(&trainer, model, &settings), SRNN_OK);
    assert_int_equal(sr_trainer_validate(trainer, &validation, &source), SRNN_OK);
    assert_int_equal(validation.batches, 3);
    assert_true(isnan(validation.loss) && isnan(validation.accuracy));
    sr_trainer_free(trainer);
    sr_validation_free(&validation);
    sr_model_free(model);
}

/* A long text, and how far its bytes were read before tokens were evaluated. */
typedef struct long_text {
    const sr_evaluation *result;
    int64_t left, read, most_ahead;
} long_text;

static srnn_status read_long_text(void *context, void *bytes, size_t size, size_t *got) {
    long_text *text = context;
    const int64_t ahead = text->read - text->result->targets;
    text->most_ahead = ahead > text->most_ahead ? ahead : text->most_ahead;
    *got = text->left < (int64_t)size ? (size_t)text->left : size;
    for (size_t i = 0; i < *got; i++)
        ((char *)bytes)[i] = "words of a text "[(text->read + (int64_t)i) % 16];
    text->read += (int64_t)*got;
    text->left -= (int64_t)*got;
    return SRNN_OK;
}

/* What is held of a text does not grow with it. */
static void streams_hold_little(void **state) {
    (void)state;
    enum { BYTES = 200000 };
    sr_model *model = small_byte_model(cpu, "gla", 0.02);
    sr_tokenizer *bytes;
    sr_evaluation result = {0};
    long_text text = {.result = &result, .left = BYTES};
    const sr_text_source source = {read_long_text, &text};
    assert_int_equal(sr_tokenizer_create_bytes(&bytes), SRNN_OK);
    assert_int_equal(sr_evaluate_stream(&result, model, bytes, &source, 512), SRNN_OK);
    assert_int_equal(result.targets, BYTES);
    assert_int_equal(result.bytes, BYTES);
    assert_false(result.state_grows);
    assert_in_range(text.most_ahead, 1, 1 << 15);
    sr_tokenizer_free(bytes);
    sr_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(validation_counts_what_is_there),
        cmocka_unit_test(packed_documents_are_alone),
        cmocka_unit_test(rows_count_once),
        cmocka_unit_test(exact_rows_stay),
        cmocka_unit_test(prefix_tokens),
        cmocka_unit_test(text_is_whole),
        cmocka_unit_test(streams_hold_little),
    };
    if (sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}) != SRNN_OK)
        return 1;
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sr_backend_free(cpu);
    return failures;
}
