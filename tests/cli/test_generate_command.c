/* test_generate_command.c: `softrnn generate`: batches of prompts, prefix tokens, stops. */
#include "base/random.h"
#include "data/tokenizer/tokenizer.h"
#include "files/file.h"
#include "files/folder.h"
#include "model/files/model_folder.h"
#include "model/pass.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTE_TOKENS = 257, OUTPUT = 4096 };

static const char *const prompts[] = {"Once upon a time", "A", "the dog", "x = "};
enum { PROMPTS = sizeof prompts / sizeof *prompts };

static char folder[64];

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Runs `softrnn generate --model model ARGUMENTS` in the folder and gives what it printed. */
static size_t generate(char *output, const char *arguments) {
    char command[1024];
    snprintf(command, sizeof command, "cd '%s' && '%s' generate --model model %s >out 2>errors",
             folder, SOFTRNN_PROGRAM, arguments);
    if (system(command) != 0)
        fail_msg("softrnn generate %s failed", arguments);
    FILE *file = fopen(path_of("out"), "rb");
    assert_non_null(file);
    const size_t length = fread(output, 1, OUTPUT - 1, file);
    fclose(file);
    output[length] = '\0';
    return length;
}

/* A model of bytes whose weights are large enough for its text not to repeat one letter. */
static sr_model *make_model(sr_backend *cpu, const char *attention) {
    sr_model_config config = {.V = BYTE_TOKENS,
                              .C = 16,
                              .F = 24,
                              .L = 2,
                              .H = 2,
                              .Hkv = 2,
                              .D = 8,
                              .positions = 48,
                              .norm_epsilon = 1e-5,
                              .rope_theta = 100,
                              .bos = -1,
                              .eos = -1};
    sr_model *model;
    assert_int_equal(sr_model_config_attention(&config, attention), SRNN_OK);
    assert_int_equal(sr_model_create(&model, cpu, &config), SRNN_OK);
    for (size_t i = 0; i < model->table.numbers; i++)
        model->weights[i] = (float)(0.5 * sr_random_normal(3, 1, i));
    assert_int_equal(sr_folder_make(path_of("model")), SRNN_OK);
    assert_int_equal(sr_model_save(model, path_of("model"), SR_DTYPE_F32), SRNN_OK);
    sr_model_config_free(&config);
    return model;
}

static void write_prompts(void) {
    char text[256] = "";
    for (size_t i = 0; i < PROMPTS; i++) {
        strcat(text, prompts[i]);
        strcat(text, "\n");
    }
    assert_int_equal(sr_file_replace(path_of("prompts"), text, strlen(text)), SRNN_OK);
}

static void prompts_side_by_side(void **state) {
    static const char *const variants[] = {"softmax", "linear_elu",
                                           "gated_softmax_plusplus_extratoks"};
    write_prompts();
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        char want[OUTPUT], got[OUTPUT], arguments[256];
        size_t length = 0;
        sr_model_free(make_model(*state, variants[v]));
        for (size_t i = 0; i < PROMPTS; i++) {
            snprintf(arguments, sizeof arguments, "--greedy --tokens 20 --prompt '%s'", prompts[i]);
            length += generate(want + length, arguments);
        }
        for (int batch = 1; batch <= 5; batch += 2) {
            snprintf(arguments, sizeof arguments,
                     "--greedy --tokens 20 --prompts prompts --batch %d --prefill-chunk %d", batch,
                     2 * batch - 1);
            assert_int_equal(generate(got, arguments), length);
            assert_memory_equal(got, want, length);
        }
    }
}

static int32_t most_probable(const float *logits) {
    int32_t best = 0;
    for (int32_t id = 1; id < BYTE_TOKENS; id++)
        if (logits[id] > logits[best])
            best = id;
    return best;
}

/* The first new token is what a whole row with three prefix tokens predicts, with BOS after them or
 * without. */
static void check_first_token(sr_backend *cpu, bool begin) {
    enum { FRONT = 3, MOST = 48 };
    char output[OUTPUT];
    int32_t ids[MOST] = {0};
    int count = FRONT;
    sr_tokenizer *bytes;
    sr_model *model = make_model(cpu, "softmax,prefix_tokens=3");
    assert_int_equal(sr_tokenizer_create_bytes(&bytes), SRNN_OK);
    assert_true(sr_tokenizer_bos(bytes) >= 0);
    if (begin)
        ids[count++] = (int32_t)sr_tokenizer_bos(bytes);
    sr_tokenizer_free(bytes);
    for (const char *at = prompts[0]; *at; at++)
        ids[count++] = (unsigned char)*at;
    const sr_pass_setup setup = {.B = 1, .T = count};
    float *logits = malloc((size_t)count * BYTE_TOKENS * sizeof *logits);
    sr_pass *pass;
    assert_non_null(logits);
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_logits(pass, logits, ids), SRNN_OK);
    const int32_t want = most_probable(logits + (size_t)(count - 1) * BYTE_TOKENS);
    const size_t length =
        generate(output, begin ? "--greedy --tokens 1 --prompt 'Once upon a time'"
                               : "--greedy --tokens 1 --no-begin --prompt 'Once upon a time'");
    assert_int_equal(length, strlen(prompts[0]) + 2);
    assert_int_equal((unsigned char)output[length - 2], want);
    sr_pass_free(pass);
    sr_model_free(model);
    free(logits);
}

static void prefix_tokens_come_first(void **state) {
    check_first_token(*state, true);
    check_first_token(*state, false);
}

/* A stop text ends the text before itself, also where the prompt has it. */
static void stops_end_the_text(void **state) {
    char whole[OUTPUT], cut[OUTPUT], arguments[128];
    sr_model_free(make_model(*state, "softmax"));
    const size_t length = generate(whole, "--temperature 2 --top-p 1 --tokens 30 --prompt A");
    size_t at = 1;
    while (at < length && !(whole[at] >= 'B' && whole[at] <= 'Z'))
        at++;
    if (at == length)
        fail_msg("the text has no letter to stop at");
    snprintf(arguments, sizeof arguments,
             "--temperature 2 --top-p 1 --tokens 30 --prompt A --stop '%c'", whole[at]);
    assert_int_equal(generate(cut, arguments), at + 1);
    assert_memory_equal(cut, whole, at);
}

static bool said(const char *text) {
    char errors[OUTPUT];
    FILE *file = fopen(path_of("errors"), "rb");
    assert_non_null(file);
    errors[fread(errors, 1, OUTPUT - 1, file)] = '\0';
    fclose(file);
    return strstr(errors, text) != NULL;
}

/* With RoPE the text ends at the model's last position, which is reported; without it there is no
 * limit. */
static void texts_say_why_they_end(void **state) {
    char output[OUTPUT];
    sr_model_free(make_model(*state, "softmax"));
    generate(output, "--greedy --tokens 10 --prompt A");
    assert_false(said("positions"));
    generate(output, "--greedy --tokens 100 --prompt A");
    assert_true(said("48 positions"));
    sr_model_free(make_model(*state, "softmax,position=none"));
    assert_true(generate(output, "--temperature 2 --top-p 1 --tokens 100 --stats --prompt A") > 60);
    assert_false(said("positions"));
    assert_true(said("1 by --tokens"));
    assert_true(said("seconds: device"));
}

/* --top-k alone disables --top-p; a | may be part of a stop text; too many stops are refused. */
static void options_do_what_they_say(void **state) {
    char one[OUTPUT], other[OUTPUT], command[512];
    sr_model_free(make_model(*state, "softmax"));
    generate(one, "--temperature 3 --top-k 200 --tokens 40 --prompt A");
    generate(other, "--temperature 3 --top-k 200 --top-p 1 --tokens 40 --prompt A");
    assert_string_equal(one, other);
    generate(other, "--temperature 3 --top-k 200 --tokens 40 --prompt A --stop 'not\\|here|nor'");
    assert_string_equal(one, other);
    generate(other, "--temperature 3 --top-k 200 --tokens 40 --prompt A --attention softmax");
    assert_string_equal(one, other);
    generate(other, "--temperature 3 --top-k 200 --tokens 40 --prompt A --attention order:1");
    assert_string_not_equal(one, other);
    static const char *const refused[] = {"--prompt a --prompts prompts",
                                          "--stop '1|2|3|4|5|6|7|8|9|a|b|c|d|e|f|g|h'"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(command, sizeof command, "cd '%s' && '%s' generate --model model %s >out 2>errors",
                 folder, SOFTRNN_PROGRAM, refused[i]);
        const int status = system(command);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    }
    /* The message names softmax's form as this command does. */
    snprintf(command, sizeof command,
             "cd '%s' && ! '%s' generate --model model --form state 2>errors && "
             "grep -q -- '--form state: .* (--form cache)' errors",
             folder, SOFTRNN_PROGRAM);
    assert_int_equal(system(command), 0);
}

/* Without a fixed-size state a request for it fails; nothing else does. */
static void states_that_grow_are_refused(void **state) {
    static const char *const growing[] = {"softmax", "avey_causal,chunk=4,chunks=2"};
    char output[OUTPUT], command[512];
    for (size_t i = 0; i < sizeof growing / sizeof *growing; i++) {
        sr_model_free(make_model(*state, growing[i]));
        generate(output, "--greedy --tokens 4 --prompt A --form auto");
        generate(output, "--greedy --tokens 4 --prompt A --form cache");
        snprintf(command, sizeof command,
                 "cd '%s' && '%s' generate --model model --form state --tokens 4 --prompt A >out "
                 "2>errors",
                 folder, SOFTRNN_PROGRAM);
        const int status = system(command);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        assert_true(said("no fixed-size state"));
    }
}

static int enter(void **state) {
    sr_backend *cpu;
    snprintf(folder, sizeof folder, "/tmp/softrnn-generate-XXXXXX");
    if (!mkdtemp(folder) ||
        sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}) != SRNN_OK)
        return -1;
    *state = cpu;
    return 0;
}

static int leave(void **state) {
    sr_backend_free(*state);
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_side_by_side),     cmocka_unit_test(prefix_tokens_come_first),
        cmocka_unit_test(stops_end_the_text),       cmocka_unit_test(texts_say_why_they_end),
        cmocka_unit_test(options_do_what_they_say), cmocka_unit_test(states_that_grow_are_refused),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
