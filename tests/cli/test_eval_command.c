/* test_eval_command.c: `softrnn eval`: what is counted, and that all ways give the same loss. */
#include "base/random.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/safetensors.h"
#include "model/files/model_folder.h"
#include "test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTE_TOKENS = 257, POSITIONS = 12 };

static char folder[64];

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* The exit code of `softrnn eval ARGUMENTS` in the folder. */
static int run_eval(const char *arguments) {
    char command[1024];
    snprintf(command, sizeof command, "cd '%s' && '%s' eval %s >out 2>errors", folder,
             SOFTRNN_PROGRAM, arguments);
    const int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* True if stderr of the last run contains this. */
static bool said(const char *part) {
    sr_mapping errors;
    assert_int_equal(sr_mapping_open(&errors, path_of("errors")), SRNN_OK);
    const bool found = memmem(errors.data, errors.bytes, part, strlen(part));
    sr_mapping_close(&errors);
    return found;
}

/* The value of `member` printed by `softrnn eval --model model --json ARGUMENTS`. */
static double eval_number(const char *arguments, const char *member) {
    char whole[512];
    snprintf(whole, sizeof whole, "--model model --json %s", arguments);
    if (run_eval(whole) != 0)
        fail_msg("softrnn eval %s failed", whole);
    json_t *root = json_load_file(path_of("out"), 0, NULL);
    const json_t *number = json_object_get(root, member);
    if (!json_is_number(number))
        fail_msg("softrnn eval %s says nothing of %s", whole, member);
    const double value = json_number_value(number);
    json_decref(root);
    return value;
}

/* A synthetic task is endless: the requested number of batches is evaluated. */
static void tasks_have_no_end(void **state) {
    (void)state;
    const char task[] = "--data recall:pairs=2,vocab=257,length=12";
    char arguments[256];
    const double standard = eval_number(task, "targets");
    assert_true(standard > 0);
    snprintf(arguments, sizeof arguments, "%s --batches 3 --batch 4", task);
    const double few = eval_number(arguments, "targets");
    assert_true(few * (64 * 8) == standard * (3 * 4)); /* 64 batches of 8 rows if none are given */
    const double loss = eval_number(arguments, "loss");
    assert_true(loss > 0.1 && isfinite(loss));
    snprintf(arguments, sizeof arguments, "%s --batches 12 --batch 1", task);
    assert_true(fabs(eval_number(arguments, "loss") - loss) < 1e-6 * loss);
}

/* A softmax model can be evaluated with another attention that has the same tensors. */
static void attention_may_be_another(void **state) {
    (void)state;
    assert_int_equal(sr_file_replace(path_of("tried.txt"), "The cat sat on the mat.", 23), SRNN_OK);
    const char text[] = "--text tried.txt --tokenizer bytes";
    char arguments[160];
    const double loss = eval_number(text, "loss");
    snprintf(arguments, sizeof arguments, "%s --attention softmax", text);
    assert_true(eval_number(arguments, "loss") == loss);
    snprintf(arguments, sizeof arguments, "%s --attention order:24", text);
    assert_true(fabs(eval_number(arguments, "loss") - loss) < 1e-4 * loss);
    snprintf(arguments, sizeof arguments, "%s --attention order:1", text);
    assert_true(fabs(eval_number(arguments, "loss") - loss) > 1e-6 * loss);
    assert_int_equal(run_eval("--model model --text tried.txt --tokenizer bytes --attention gate"),
                     2);
    assert_true(said("softrnn train --model model --attention gate"));
    assert_int_equal(run_eval(
                         "--model model --text tried.txt --tokenizer bytes --attention sofmax"),
                     1);
    assert_true(said("did you mean 'softmax'"));
}

/* Each row of a file counts once, for any batch size. */
static void splits_count_once(void **state) {
    (void)state;
    char text[151] = "";
    for (size_t i = 0; i < sizeof text - 1; i++)
        text[i] = (char)('a' + sr_random_bits(5, 0, i) % 26);
    assert_int_equal(sr_file_replace(path_of("text.txt"), text, sizeof text - 1), SRNN_OK);
    const double targets =
        eval_number("--data text.txt --validation-share 0.8 --batch 1", "targets");
    const double loss = eval_number("--data text.txt --validation-share 0.8 --batch 1", "loss");
    assert_true(targets > 121 - 2 * POSITIONS && targets <= 122); /* 0.8 of the text, in rows */
    assert_int_equal(run_eval("--model model --data text.txt --validation-share 0"), 2);
    assert_true(eval_number("--data text.txt --validation-share 0 --split train", "targets") >
                150 - 2 * POSITIONS);
    for (int batch = 2; batch <= 20; batch += 6) {
        char arguments[96];
        snprintf(arguments, sizeof arguments, "--data text.txt --validation-share 0.8 --batch %d",
                 batch);
        assert_true(eval_number(arguments, "targets") == targets);
        assert_true(fabs(eval_number(arguments, "loss") - loss) < 1e-6 * loss);
    }
}

/* Perplexity and bits per byte follow from the loss. */
static void measures_agree(void **state) {
    (void)state;
    assert_int_equal(sr_file_replace(path_of("small.txt"), "The cat sat on the mat.", 23), SRNN_OK);
    const char text[] = "--text small.txt --tokenizer bytes";
    const double loss = eval_number(text, "loss");
    assert_true(fabs(eval_number(text, "perplexity") / exp(loss) - 1) < 1e-6);
    const double bits = loss * eval_number(text, "targets") / log(2) / 23;
    assert_true(fabs(eval_number(text, "bits_per_byte") / bits - 1) < 1e-6);
}

/* A text fed in pieces of any length has the loss of one row. */
static void pieces_carry_on(void **state) {
    (void)state;
    assert_int_equal(sr_file_replace(path_of("row.txt"), "a long row..", 12), SRNN_OK);
    static const char text[] = "--text row.txt --tokenizer bytes";
    static const char *const members[] = {"loss", "accuracy", "targets", "bits_per_byte"};
    for (int piece = 1; piece <= 13; piece += 4)
        for (int state_kind = 0; state_kind < 2; state_kind++)
            for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
                const char *attention = state_kind ? "--attention order:2" : "";
                char row[256], pieces[256];
                snprintf(row, sizeof row, "%s %s --batch 1", text, attention);
                snprintf(pieces, sizeof pieces, "%s %s --stream %d", text, attention, piece);
                const double want = eval_number(row, members[i]);
                assert_true(fabs(eval_number(pieces, members[i]) - want) <= 1e-6 * fabs(want));
            }
}

/* A text of bytes has a target for every byte but the first, for any row length, and bits per byte
 * are the total bits divided by the number of bytes. */
static void every_target_counts(void **state) {
    (void)state;
    assert_int_equal(sr_file_replace(path_of("odd.txt"), "seventeen letters", 17), SRNN_OK);
    for (int length = 1; length <= POSITIONS; length++) {
        char arguments[128];
        snprintf(arguments, sizeof arguments,
                 "--data odd.txt --validation-share 0 --split train --batch 2 --length %d", length);
        const double targets = eval_number(arguments, "targets");
        assert_true(targets == 16);
        const double bits = eval_number(arguments, "loss") * targets / log(2) / 16;
        assert_true(fabs(eval_number(arguments, "bits_per_byte") / bits - 1) < 1e-6);
    }
}

static void write_rows(const char *name, const float *ids, int count) {
    const sr_tensor tensor = {.name = "ids", .rank = 2, .shape = {1, count}, .data = ids};
    sr_safetensors_writer *writer;
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    assert_int_equal(sr_safetensors_writer_add(writer, &tensor), SRNN_OK);
    assert_int_equal(sr_safetensors_writer_write(writer, path_of(name)), SRNN_OK);
    sr_safetensors_writer_free(writer);
}

/* NaN is null in JSON; no targets and no tokens are errors. */
static void results_make_sense(void **state) {
    (void)state;
    const float good[4] = {1, 2, 3, 4}, none[4] = {1, -1, -1, -1}, half[4] = {1, 1.5f, 2, 3};
    write_rows("good", good, 4);
    write_rows("none", none, 4);
    write_rows("half", half, 4);
    assert_int_equal(run_eval("--model model --tokens good"), 0);
    assert_int_equal(run_eval("--model model --tokens none"), 2);
    assert_int_equal(run_eval("--model model --tokens half"), 1);
    assert_int_equal(run_eval("--model broken --tokens good --json"), 0);
    json_t *root = json_load_file(path_of("out"), 0, NULL);
    assert_true(json_is_null(json_object_get(root, "loss")));
    json_decref(root);
}

/* White space after the last word is not part of it. */
static void last_words_end_the_text(void **state) {
    (void)state;
    double loss[2];
    const char *const lines[] = {"{\"text\": \"to be or\"}", "{\"text\": \"to be or \\n \"}"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sr_file_replace(path_of("words"), lines[i], strlen(lines[i])), SRNN_OK);
        loss[i] = eval_number("--last-words words --tokenizer bytes", "loss");
    }
    assert_true(loss[0] == loss[1]);
}

/* Words that end in a space: that space belongs to the context. "a_" is a token of its own. */
static void words_may_end_in_a_space(void **state) {
    (void)state;
    static const char tokenizer[] =
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \" \": 2, \"a \": 3, "
        "\"b \": 4}, \"merges\": [[\"a\", \" \"], [\"b\", \" \"]]}}";
    static const char line[] = "{\"text\": \"a b a\"}";
    const float ids[3] = {3, 4, 0}; /* "a b " and the word */
    assert_int_equal(sr_file_replace(path_of("ending.json"), tokenizer, strlen(tokenizer)),
                     SRNN_OK);
    assert_int_equal(sr_file_replace(path_of("words"), line, strlen(line)), SRNN_OK);
    write_rows("ids", ids, 3);
    const double both = 2 * eval_number("--tokens ids", "loss");
    write_rows("ids", ids, 2);
    const double first = eval_number("--tokens ids", "loss");
    const double word = eval_number("--last-words words --tokenizer ending.json", "loss");
    assert_true(fabs(word - (both - first)) < 1e-5);
}

/* A text that is too long is reported with its line, and may be cut or skipped. */
static void long_texts_have_a_line(void **state) {
    (void)state;
    char lines[POSITIONS + 256];
    const int start = snprintf(lines, sizeof lines, "{\"text\": \"to be\"}\n{\"text\": \"");
    memset(lines + start, 'x', POSITIONS);
    snprintf(lines + start + POSITIONS, 32, " to be\"}\n");
    assert_int_equal(sr_file_replace(path_of("words"), lines, strlen(lines)), SRNN_OK);
    assert_int_equal(run_eval("--model model --last-words words --tokenizer bytes"), 1);
    assert_true(said("words: line 2: a text of"));
    assert_true(said("--longer cut or skip"));
    assert_true(eval_number("--last-words words --tokenizer bytes --longer cut", "targets") == 2);
    assert_true(eval_number("--last-words words --tokenizer bytes --longer cut", "cut") == 1);
    assert_true(eval_number("--last-words words --tokenizer bytes --longer skip", "targets") == 1);
    assert_int_equal(run_eval("--model model --text words --longer cut"), 2);
}

/* Options without effect for this kind of evaluation, and rows longer than the model. */
static void idle_options_are_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"--text small.txt --batches 1", "--batches goes with --data only"},
        {"--text small.txt --split train", "--split goes with --data only"},
        {"--text small.txt --layout packed", "--layout goes with --data"},
        {"--text small.txt --seed=2", "--seed goes with --data only"},
        {"--data text.txt --stream 4", "--stream goes with --text only"},
        {"--text small.txt --stream 4 --batch 2", "without --stream"},
        {"--text small.txt --stream 4 --length 8", "without --stream"},
        {"--tokens good --batch 2", "--batch goes with --text or --data only"},
        {"--last-words words --length 4", "--length goes with --text"},
        {"--data recall:pairs=2,vocab=257,length=12 --length 8", "recall:length="},
        {"--data recall:pairs=2,vocab=257,length=12 --layout packed", "not a task"},
        {"--text small.txt --length 1000", "--length 1000: the model has 12 positions"},
        {"--data text.txt --length 1000", "--length 1000: the model has 12 positions"}};
    char arguments[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(arguments, sizeof arguments, "--model model %s", cases[i][0]);
        assert_int_equal(run_eval(arguments), 2);
        if (!said(cases[i][1]))
            fail_msg("%s does not say %s", arguments, cases[i][1]);
    }
    assert_true(eval_number("--text small.txt --length 4 --batch 2", "loss") > 0);
    assert_int_equal(run_eval("--model model --text small.txt --bf16"), 0); /* on any machine */
}

static void wrong_usage(void **state) {
    (void)state;
    assert_int_equal(run_eval("--model model"), 2);
    assert_int_equal(run_eval("--model model --data recall --text a"), 2);
    assert_int_equal(run_eval("--model model --text a --dump-logits b"), 2);
    assert_int_equal(run_eval("--model model --text small.txt --stream 4"), 1);
    assert_true(said("the model 12 RoPE positions"));
    assert_int_equal(run_eval("--model nothing --data recall"), 1);
    assert_int_equal(run_eval("--model model --data nothing.txt"), 1);
    assert_int_equal(run_eval("--model model --data recall:pairs=2,vocab=999,length=12"), 2);
}

static int enter(void **state) {
    sr_backend *cpu;
    sr_model *model;
    sr_model_config config = {.V = BYTE_TOKENS,
                              .C = 8,
                              .F = 8,
                              .L = 1,
                              .H = 1,
                              .Hkv = 1,
                              .D = 8,
                              .positions = POSITIONS,
                              .norm_epsilon = 1e-5,
                              .rope_theta = 100,
                              .bos = -1,
                              .eos = -1};
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/softrnn-eval-XXXXXX");
    if (!mkdtemp(folder) ||
        sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}) != SRNN_OK ||
        sr_model_config_attention(&config, "softmax") != SRNN_OK ||
        sr_model_create(&model, cpu, &config) != SRNN_OK)
        return -1;
    for (size_t i = 0; i < model->table.numbers; i++)
        model->weights[i] = (float)(0.5 * sr_random_normal(3, 1, i));
    bool saved = sr_folder_make(path_of("model")) == SRNN_OK &&
                 sr_model_save(model, path_of("model"), SR_DTYPE_F32) == SRNN_OK;
    for (size_t i = 0; i < model->table.numbers; i++)
        model->weights[i] = NAN;
    saved = saved && sr_folder_make(path_of("broken")) == SRNN_OK &&
            sr_model_save(model, path_of("broken"), SR_DTYPE_F32) == SRNN_OK;
    sr_model_free(model);
    sr_model_config_free(&config);
    sr_backend_free(cpu);
    return saved ? 0 : -1;
}

static int leave(void **state) {
    (void)state;
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_have_no_end),        cmocka_unit_test(attention_may_be_another),
        cmocka_unit_test(splits_count_once),        cmocka_unit_test(measures_agree),
        cmocka_unit_test(pieces_carry_on),          cmocka_unit_test(every_target_counts),
        cmocka_unit_test(results_make_sense),       cmocka_unit_test(last_words_end_the_text),
        cmocka_unit_test(words_may_end_in_a_space), cmocka_unit_test(long_texts_have_a_line),
        cmocka_unit_test(idle_options_are_refused), cmocka_unit_test(wrong_usage),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
