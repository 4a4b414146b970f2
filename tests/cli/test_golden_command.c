/* test_golden_command.c: a folder as the reference saves it, evaluated and trained by the program,
 * gives the reference's logits and losses. */
#include "files/file.h"
#include "files/folder.h"
#include "golden.h"

#include <unistd.h>

enum { TOKENS = GOLDEN_B * GOLDEN_T, GOLDEN_MOST = 4096 };

static char folder[64];

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Runs `softrnn ...` inside the folder, on the device SOFTRNN_TEST_DEVICE if that is set; its
 * output goes to the file `out`. */
static void run_program(const char *arguments) {
    char command[1024];
    const char *device = getenv("SOFTRNN_TEST_DEVICE");
    snprintf(command, sizeof command, "cd '%s' && '%s' %s --device '%s' >out 2>errors", folder,
             SOFTRNN_PROGRAM, arguments, device ? device : "cpu");
    if (system(command) != 0)
        fail_msg("softrnn %s failed; its words are in %s", arguments, folder);
}

static golden_files files;

static void write_config(const golden_case *what) {
    char text[1024];
    const int length = snprintf(text, sizeof text,
                                "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_type\": "
                                "\"%s\",\n"
                                "\"bos_token_id\": 1, \"eos_token_id\": 2, \"hidden_act\": "
                                "\"silu\",\n"
                                "\"hidden_size\": %d, \"initializer_range\": 0.02, "
                                "\"intermediate_size\": %d,\n"
                                "\"max_position_embeddings\": 64, \"model_type\": \"llama\",\n"
                                "\"num_attention_heads\": %d, \"num_hidden_layers\": 1, "
                                "\"num_key_value_heads\": %d,\n"
                                "\"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, "
                                "\"rope_scaling\": null,\n"
                                "\"rope_theta\": 10000.0, \"tie_word_embeddings\": false,\n"
                                "\"torch_dtype\": \"float32\", \"use_cache\": true, "
                                "\"vocab_size\": %d}\n",
                                what->attention, GOLDEN_C, GOLDEN_F, what->H, what->H, GOLDEN_V);
    assert_int_equal(sr_file_replace(path_of("model/config.json"), text, (size_t)length), SRNN_OK);
}

/* The variant's weights under the reference's names. */
static void write_tensors(const sr_safetensors *file, const char *variant, const char *path) {
    sr_safetensors_writer *writer;
    const size_t skip = strlen(variant) + 1;
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    for (size_t i = 0; i < sr_safetensors_count(file); i++) {
        sr_tensor tensor = *sr_safetensors_at(file, i);
        if (strncmp(tensor.name, variant, skip - 1) != 0 || tensor.name[skip - 1] != '/')
            continue;
        tensor.name += skip;
        if (strncmp(tensor.name, "model.", 6) == 0 || strncmp(tensor.name, "lm_head.", 8) == 0)
            assert_int_equal(sr_safetensors_writer_add(writer, &tensor), SRNN_OK);
    }
    assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
    sr_safetensors_writer_free(writer);
}

/* All batches (steps, B, T+1), or the rows of the first (B, T+1). */
static void write_ids(const sr_safetensors *file, const char *variant, int rank, const char *path) {
    char key[128];
    sr_safetensors_writer *writer;
    snprintf(key, sizeof key, "%s/check.ids", variant);
    sr_tensor ids = *sr_safetensors_find(file, key);
    ids.name = "ids";
    if (rank == 2) {
        ids.rank = 2;
        ids.shape[0] = GOLDEN_B;
        ids.shape[1] = GOLDEN_T + 1;
    }
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    assert_int_equal(sr_safetensors_writer_add(writer, &ids), SRNN_OK);
    assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
    sr_safetensors_writer_free(writer);
}

static void check_logits(const sr_safetensors *file, const char *variant) {
    sr_safetensors *dumped;
    const sr_tensor *logits;
    float got[TOKENS * GOLDEN_V];
    float *want = golden_numbers(file, variant, "check.", "logits", TOKENS * GOLDEN_V);
    run_program("eval --model model --tokens rows.safetensors --dump-logits logits.safetensors");
    assert_int_equal(sr_safetensors_open(&dumped, path_of("logits.safetensors")), SRNN_OK);
    assert_int_equal(sr_safetensors_require(&logits, dumped, "logits"), SRNN_OK);
    assert_int_equal(logits->rank, 3);
    assert_int_equal(logits->shape[0], GOLDEN_B);
    assert_int_equal(logits->shape[1], GOLDEN_T);
    assert_int_equal(logits->shape[2], GOLDEN_V);
    sr_tensor_to_float(got, logits);
    const double error = golden_error(got, want, TOKENS * GOLDEN_V);
    if (!(error <= 1e-4))
        fail_msg("%s: logits are off by %.2e", variant, error);
    sr_safetensors_free(dumped);
    free(want);
}

/* The number after `"name": ` in the next line that has it. */
static double next_number(FILE *lines, const char *name) {
    char line[512], key[32];
    snprintf(key, sizeof key, "\"%s\":", name);
    while (fgets(line, sizeof line, lines)) {
        const char *at = strstr(line, key);
        if (at)
            return strtod(at + strlen(key), NULL);
    }
    fail_msg("no %s", key);
    return NAN;
}

static void check_evaluated_loss(double want) {
    run_program("eval --model model --tokens rows.safetensors --json");
    FILE *lines = fopen(path_of("out"), "r");
    assert_non_null(lines);
    assert_true(fabs(next_number(lines, "loss") - want) <= 1e-4);
    fclose(lines);
}

static void check_losses(const sr_safetensors *file, const char *variant) {
    float *want = golden_numbers(file, variant, "check.", "losses", GOLDEN_STEPS);
    check_evaluated_loss((double)want[0]);
    run_program("train --out run --model model --batches batches.safetensors --steps 3 "
                "--schedule constant --warmup 0 --clip 0 --learning-rate 1e-3 --beta1 0.9 "
                "--beta2 0.999 --epsilon 1e-7 --weight-decay 0.01");
    FILE *lines = fopen(path_of("run/metrics.jsonl"), "r");
    assert_non_null(lines);
    for (int step = 0; step < GOLDEN_STEPS; step++) {
        const double loss = next_number(lines, "loss");
        if (!(fabs(loss - (double)want[step]) <= 1e-4))
            fail_msg("%s: loss %d is %f, not %f", variant, step + 1, loss, (double)want[step]);
    }
    fclose(lines);
    free(want);
    assert_int_equal(sr_folder_remove(path_of("run")), SRNN_OK);
}

static void check_folder(const sr_safetensors *file, const golden_case *what) {
    write_config(what);
    write_tensors(file, what->name, path_of("model/model.safetensors"));
    write_ids(file, what->name, 2, path_of("rows.safetensors"));
    write_ids(file, what->name, 3, path_of("batches.safetensors"));
    check_logits(file, what->name);
    check_losses(file, what->name);
}

static void reference_folders(void **state) {
    (void)state;
    for (size_t v = 0; v < GOLDEN_VARIANTS; v++)
        check_folder(files.variants,
                     &(golden_case){golden_variants[v], golden_variants[v], GOLDEN_H});
}

/* GPUs have no kernels for the systems. */
static void skip_on_device(void) {
    if (getenv("SOFTRNN_TEST_DEVICE"))
        skip();
}

static void system_folders(void **state) {
    (void)state;
    skip_on_device();
    for (size_t n = 0; n < GOLDEN_SYSTEMS; n++)
        check_folder(files.systems, &golden_systems[n]);
}

/* A layer's weights with x and dy in the command's format. */
static void write_layer(const golden_case *what, const char *path) {
    char key[256], heads[16];
    sr_safetensors_writer *writer;
    snprintf(key, sizeof key, "%s/model.layers.0.self_attn.", what->name);
    snprintf(heads, sizeof heads, "%d", what->H);
    const size_t skip = strlen(what->name) + 1, length = strlen(key);
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    for (size_t i = 0; i < sr_safetensors_count(files.systems); i++) {
        sr_tensor tensor = *sr_safetensors_at(files.systems, i);
        if (strncmp(tensor.name, key, length) != 0)
            continue;
        tensor.name += skip;
        assert_int_equal(sr_safetensors_writer_add(writer, &tensor), SRNN_OK);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof key, "%s/attn.%s", what->name, i ? "dy" : "x");
        sr_tensor tensor = *sr_safetensors_find(files.systems, key);
        tensor.name = i ? "dy" : "x";
        assert_int_equal(sr_safetensors_writer_add(writer, &tensor), SRNN_OK);
    }
    assert_int_equal(sr_safetensors_writer_metadata(writer, "num_attention_heads", heads), SRNN_OK);
    assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
    sr_safetensors_writer_free(writer);
}

static void check_tensor(const golden_case *what, const sr_tensor *got, const char *prefix,
                         const char *name) {
    float numbers[GOLDEN_MOST];
    assert_true(got->count <= GOLDEN_MOST);
    float *want = golden_numbers(files.systems, what->name, prefix, name, got->count);
    sr_tensor_to_float(numbers, got);
    const double error = golden_error(numbers, want, got->count);
    if (!(error <= 2e-4))
        fail_msg("%s: %s%s is off by %.2e", what->name, prefix, name, error);
    free(want);
}

static void systems_attend(void **state) {
    static const char weights[] = "d.model.layers.0.self_attn.";
    (void)state;
    skip_on_device();
    for (size_t n = 0; n < GOLDEN_SYSTEMS - 1; n++) {
        const golden_case *what = &golden_systems[n];
        sr_safetensors *out;
        char command[256];
        write_layer(what, path_of("layer.safetensors"));
        snprintf(command, sizeof command,
                 "attend --attention %s --in layer.safetensors --out out.safetensors --backward",
                 what->attention);
        run_program(command);
        assert_int_equal(sr_safetensors_open(&out, path_of("out.safetensors")), SRNN_OK);
        for (size_t i = 0; i < sr_safetensors_count(out); i++) {
            const sr_tensor *got = sr_safetensors_at(out, i);
            const bool weight = strncmp(got->name, weights, strlen(weights)) == 0;
            check_tensor(what, got, weight ? "attn.grad." : "attn.",
                         weight ? got->name + strlen(weights) : got->name);
        }
        sr_safetensors_free(out);
    }
}

static int enter(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/softrnn-golden-XXXXXX");
    if (!mkdtemp(folder) || golden_open(&files) || sr_folder_make(path_of("model")) != SRNN_OK)
        return -1;
    return 0;
}

static int leave(void **state) {
    (void)state;
    golden_close(&files);
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reference_folders),
                                       cmocka_unit_test(system_folders),
                                       cmocka_unit_test(systems_attend)};
    return cmocka_run_group_tests(tests, enter, leave);
}
