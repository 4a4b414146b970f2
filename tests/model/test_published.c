/* test_published.c: models of related systems as saved by their public code give its logits, are
 * saved under its names, and are refused by name if they differ.
 *
 * tests/crosscheck/systems.py made tests/inputs/published: configurations, names and shapes of
 * tensors, tokens and logits, Mamba-2's by transformers. Weights are a function of the names
 * (weight_of), there and here. */
#include "files/file.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "model/config/family.h"
#include "model/files/model_folder.h"
#include "model/session.h"
#include "small_model.h"

#include <stdio.h>
#include <unistd.h>

static const char *const models[] = {"mamba2",         "mamba2_groups",
                                     "mamba2_tied",    "gla",
                                     "gla_conv",       "gla_shared",
                                     "delta_net",      "delta_net_gate",
                                     "gated_deltanet", "gated_deltanet_shared"};
enum { MODELS = sizeof models / sizeof *models };

static sr_backend *cpu;
static char folder[64];

static void path_in(char path[256], const char *name) {
    snprintf(path, 256, "%s/%s", folder, name);
}

static json_t *record_of(const char *name) {
    char path[512];
    json_t *record;
    snprintf(path, sizeof path, "%s/published/%s.json", SOFTRNN_TEST_INPUTS, name);
    assert_int_equal(sr_json_load(&record, path, 0), SRNN_OK);
    return record;
}

/* ---- a folder as the public code writes it */

static float weight_of(const char *name, size_t i) {
    int phase = 0;
    for (const char *c = name; *c; c++)
        phase += (unsigned char)*c;
    return (float)(0.3 * sin(phase % 97 + 0.61 * (double)i) + (strstr(name, "norm") ? 1 : 0));
}

/* Returns the data, which the writer reads later; free() it. */
static float *add_tensor(sr_safetensors_writer *writer, const char *name, const json_t *shape) {
    sr_tensor tensor = {.name = name, .rank = (int)json_array_size(shape)};
    size_t count = 1;
    for (int d = 0; d < tensor.rank; d++) {
        tensor.shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
        count *= (size_t)tensor.shape[d];
    }
    float *numbers = malloc(count * sizeof *numbers);
    assert_non_null(numbers);
    for (size_t i = 0; i < count; i++)
        numbers[i] = weight_of(name, i);
    tensor.data = numbers;
    assert_int_equal(sr_safetensors_writer_add(writer, &tensor), SRNN_OK);
    return numbers;
}

static void write_config(const json_t *config) {
    char path[256], *text = json_dumps(config, 0);
    path_in(path, "config.json");
    assert_int_equal(sr_file_replace(path, text, strlen(text)), SRNN_OK);
    free(text);
}

static void write_weights(const json_t *record) {
    char path[256];
    sr_safetensors_writer *writer;
    const char *name;
    json_t *shape;
    float *numbers[64];
    size_t count = 0;
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    json_object_foreach(json_object_get(record, "tensors"), name, shape) {
        assert_true(count < sizeof numbers / sizeof *numbers);
        numbers[count++] = add_tensor(writer, name, shape);
    }
    path_in(path, "model.safetensors");
    assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
    sr_safetensors_writer_free(writer);
    while (count > 0)
        free(numbers[--count]);
}

static json_t *write_folder(const char *name) {
    json_t *record = record_of(name);
    write_config(json_object_get(record, "config"));
    write_weights(record);
    return record;
}

/* ---- logits */

enum { TOKENS = 13, WORDS = 11 };

static void read_record(int32_t *ids, float *logits, const json_t *record) {
    const json_t *rows = json_object_get(record, "logits");
    for (size_t t = 0; t < TOKENS; t++) {
        ids[t] = (int32_t)json_integer_value(json_array_get(json_object_get(record, "ids"), t));
        for (size_t v = 0; v < WORDS; v++)
            logits[t * WORDS + v] =
                (float)json_real_value(json_array_get(json_array_get(rows, t), v));
    }
}

/* As a whole, and fed in pieces as in generation. */
static void check_logits(sr_model *model, const json_t *record, const char *name) {
    const sr_pass_setup setup = {.B = 1, .T = TOKENS};
    float want[TOKENS * WORDS], got[TOKENS * WORDS];
    int32_t ids[TOKENS];
    sr_pass *pass;
    sr_session *session;
    assert_int_equal(model->config.V, WORDS);
    read_record(ids, want, record);
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_logits(pass, got, ids), SRNN_OK);
    sr_pass_free(pass);
    const double whole = small_error(got, want, TOKENS * WORDS);
    assert_int_equal(sr_session_create(&session, model, &(sr_session_setup){.B = 1, .T = 4}),
                     SRNN_OK);
    for (int t = 0, piece; t < TOKENS; t += piece) {
        piece = t % 3 == 0 && t + 4 <= TOKENS ? 4 : 1;
        assert_int_equal(sr_session_feed_all(session, got + t * WORDS, ids + t, piece), SRNN_OK);
    }
    sr_session_free(session);
    const double fed = small_error(got, want, TOKENS * WORDS);
    if (!(whole <= 1e-5) || !(fed <= 1e-5))
        fail_msg("%s: logits differ by %.1e, fed by pieces by %.1e", name, whole, fed);
}

static void logits_are_theirs(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        sr_model *model;
        json_t *record = write_folder(models[i]);
        assert_int_equal(sr_model_load(&model, cpu, folder), SRNN_OK);
        check_logits(model, record, models[i]);
        sr_model_free(model);
        json_decref(record);
    }
}

/* ---- written again */

/* The file has the record's tensors, bit by bit, and nothing else. */
static void check_tensors(const json_t *record) {
    char path[256];
    sr_safetensors *file;
    const json_t *tensors = json_object_get(record, "tensors");
    path_in(path, "model.safetensors");
    assert_int_equal(sr_safetensors_open(&file, path), SRNN_OK);
    assert_int_equal(sr_safetensors_count(file), json_object_size(tensors));
    for (size_t i = 0; i < sr_safetensors_count(file); i++) {
        const sr_tensor *tensor = sr_safetensors_at(file, i);
        assert_non_null(json_object_get(tensors, tensor->name));
        for (size_t n = 0; n < tensor->count; n++)
            assert_true(((const float *)tensor->data)[n] == weight_of(tensor->name, n));
    }
    sr_safetensors_free(file);
}

static void written_as_they_were(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        sr_model *model, *own, *again;
        json_t *record = write_folder(models[i]);
        assert_int_equal(sr_model_load(&model, cpu, folder), SRNN_OK);
        assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
        assert_int_equal(sr_model_load(&own, cpu, folder), SRNN_OK);
        assert_null(own->config.names);
        check_logits(own, record, models[i]);
        assert_int_equal(sr_model_save_public(own, folder, SR_DTYPE_F32), SRNN_OK);
        check_tensors(record);
        assert_int_equal(sr_model_load(&again, cpu, folder), SRNN_OK);
        assert_non_null(again->config.names);
        check_logits(again, record, models[i]);
        assert_int_equal(sr_model_load_weights(own, folder),
                         SRNN_OK); /* a folder with other names */
        check_logits(own, record, models[i]);
        sr_model_free(again), sr_model_free(own), sr_model_free(model);
        json_decref(record);
    }
}

/* What no public model computes keeps softrnn's own names. */
static void others_keep_their_names(void **state) {
    (void)state;
    static const struct {
        const char *attention;
        sr_mlp mlp;
    } cases[] = {{"mamba2", SR_MLP_SWIGLU}, /* theirs has no MLP */
                 {"mamba2,scale=inverse_sqrt", SR_MLP_NONE},
                 {"gla", SR_MLP_GELU},
                 {"gla,norm_epsilon=0.001", SR_MLP_SWIGLU}, /* other norms have another */
                 {"0:delta_net,1:gated_delta_net", SR_MLP_SWIGLU}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_model *loaded, *model = small_model(cpu, cases[i].attention, cases[i].mlp, false, false);
        assert_int_equal(sr_model_save_public(model, folder, SR_DTYPE_F32), SRNN_OK);
        assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_OK);
        assert_null(loaded->config.names);
        assert_int_equal(loaded->config.mlp, cases[i].mlp);
        sr_model_free(loaded), sr_model_free(model);
    }
}

/* ---- models that are refused */

static void differences_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *member, *value;
    } cases[] = {
        {"mamba2", "hidden_act", "\"gelu\""},
        {"mamba2", "time_step_limit", "[0.0, 0.1]"},
        {"mamba2", "time_step_limit", "[0.001, {\"__float__\": \"Infinity\"}]"},
        {"mamba2", "time_step_limit", "7"},
        {"mamba2", "dt_limit", "[0.01, 0.1]"}, /* flash-linear-attention's own Mamba-2 */
        {"mamba2", "norm_before_gate", "true"},
        {"mamba2", "rmsnorm", "false"},
        {"mamba2", "D_has_hdim", "true"},
        {"mamba2", "norm_eps", "1e-3"},
        {"mamba2", "quantization_config", "{\"bits\": 4}"},
        {"gla", "feature_map", "\"relu\""},
        {"gla", "use_output_gate", "false"},
        {"gla", "clamp_min", "-3.0"},
        {"gla", "elementwise_affine", "false"},
        {"gla", "fuse_norm", "false"},
        {"gla", "use_gv", "true"},
        {"gla", "hidden_act", "\"gelu\""},
        {"gla", "attn", "{\"layers\": [1]}"},
        {"gla", "attnres_block_size", "2"},
        {"delta_net", "use_short_conv", "false"},
        {"delta_net", "allow_neg_eigval", "true"},
        {"delta_net", "use_beta", "false"},
        {"delta_net", "use_output_norm", "false"},
        {"delta_net", "qk_norm", "\"sum\""},
        {"delta_net", "qk_activation", "\"relu\""},
        {"gated_deltanet", "allow_neg_eigval", "true"},
        {"gated_deltanet", "use_short_conv", "false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_model *model;
        json_t *record = write_folder(cases[i].model), *config = json_object_get(record, "config");
        json_object_set_new(config, cases[i].member,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        write_config(config);
        assert_int_equal(sr_model_load(&model, cpu, folder), SRNN_ERR_UNSUPPORTED);
        assert_non_null(strstr(srnn_error_detail(), cases[i].member));
        json_decref(record);
    }
}

static void nonsense_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *member, *value;
    } cases[] = {
        {"mamba2", "expand", "3"},           {"mamba2", "num_heads", "5"},
        {"mamba2", "num_heads", "0"},        {"mamba2", "state_size", "-4"},
        {"mamba2", "n_groups", "3"},         {"mamba2", "n_groups", "null"}, /* which says 8 */
        {"mamba2", "conv_kernel", "-1"},     {"mamba2", "layer_norm_epsilon", "\"x\""},
        {"gla", "num_heads", "5"},           {"gla", "num_heads", "0"},
        {"gla", "num_kv_heads", "7"},        {"gla", "expand_k", "1e300"},
        {"gla", "use_short_conv", "true"},   {"gla_conv", "use_short_conv", "false"},
        {"gla", "expand_v", "-1"},           {"gla", "hidden_size", "2147483647"},
        {"delta_net", "conv_size", "1.5"},   {"delta_net", "use_gate", "1"},
        {"gated_deltanet", "head_dim", "0"}, {"gated_deltanet", "num_v_heads", "3"},
        {"gated_deltanet", "expand_v", "0"}, {"gated_deltanet", "num_hidden_layers", "0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_model *model;
        json_t *record = write_folder(cases[i].model), *config = json_object_get(record, "config");
        json_object_set_new(config, cases[i].member,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        write_config(config);
        if (sr_model_load(&model, cpu, folder) == SRNN_OK)
            fail_msg("%s with %s %s is read", cases[i].model, cases[i].member, cases[i].value);
        json_decref(record);
    }
}

/* int(12 * 32.125 * 2 / 3) = 257, then rounded up to a multiple of 256; 2 int(12 * 32.125) / 3
 * would give 256. */
static void width_of_the_mlp(void **state) {
    (void)state;
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    sr_model *model;
    json_t *record = record_of("gla"), *config = json_object_get(record, "config");
    json_object_del(config, "intermediate_size");
    json_object_set_new(config, "hidden_ratio", json_real(32.125));
    for (int n = 0; n < 6; n++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.mlp.%s.weight", n / 3, names[n % 3]);
        json_object_set_new(json_object_get(record, "tensors"), name,
                            n % 3 == 2 ? json_pack("[ii]", 12, 512) : json_pack("[ii]", 512, 12));
    }
    write_config(config);
    write_weights(record);
    if (sr_model_load(&model, cpu, folder) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    sr_model_free(model);
    json_decref(record);
}

/* A tensor that would be ignored, and one that softrnn has but the public model does not. */
static void tensors_without_a_place(void **state) {
    (void)state;
    static const struct {
        const char *model, *name;
    } cases[] = {{"mamba2", "backbone.layers.0.mixer.q_norm.weight"},
                 {"mamba2", "backbone.layers.1.input_layernorm.weight"},
                 {"gla", "model.layers.0.attn.q_conv1d.weight"},
                 {"gla", "model.layers.0.self_attn.q_proj.weight"},
                 {"delta_net", "lm_head.bias"},
                 {"gated_deltanet", "model.layers.1.attn.D"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_model *model;
        json_t *record = record_of(cases[i].model);
        json_object_set_new(json_object_get(record, "tensors"), cases[i].name,
                            json_pack("[i]", 12));
        write_config(json_object_get(record, "config"));
        write_weights(record);
        assert_int_equal(sr_model_load(&model, cpu, folder), SRNN_ERR_UNSUPPORTED);
        assert_non_null(strstr(srnn_error_detail(), cases[i].name));
        json_decref(record);
    }
}

/* Tensors of other sizes than config.json says, or with biases that it excludes, are refused
 * instead of being inferred from shapes. */
static void shapes_do_not_overrule(void **state) {
    (void)state;
    sr_model *model;
    json_t *record = record_of("mamba2");
    for (int layer = 0; layer < 2; layer++) {
        char name[64];
        snprintf(name, sizeof name, "backbone.layers.%d.mixer.out_proj.bias", layer);
        json_object_set_new(json_object_get(record, "tensors"), name, json_pack("[i]", 12));
    }
    write_config(json_object_get(record, "config")); /* use_bias: false */
    write_weights(record);
    assert_int_equal(sr_model_load(&model, cpu, folder), SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "out_proj.bias"));
    json_decref(record);
    record = write_folder("gla");
    json_object_set_new(json_object_get(record, "config"), "num_heads", json_integer(1));
    write_config(json_object_get(record, "config"));
    assert_int_not_equal(sr_model_load(&model, cpu, folder), SRNN_OK);
    assert_non_null(strstr(srnn_error_detail(), "model.layers.0.attn.g_norm_swish_gate"));
    json_decref(record);
}

/* As older versions of transformers wrote it, which is not valid JSON. */
static void infinity_is_read(void **state) {
    (void)state;
    static const char text[] =
        "{\"model_type\": \"mamba2\", \"n_groups\": 1, \"vocab_size\": 11, \"hidden_size\": 12,"
        " \"num_hidden_layers\": 2, \"num_heads\": 4, \"head_dim\": 6, \"state_size\": 5,"
        " \"note\": \"\\\" Infinity\", \"time_step_limit\": [0.0, Infinity]}";
    char path[256];
    sr_model_config config;
    path_in(path, "config.json");
    assert_int_equal(sr_file_replace(path, text, strlen(text)), SRNN_OK);
    assert_int_equal(sr_model_config_read(&config, path), SRNN_OK);
    assert_int_equal(config.attention[1].wiring.short_conv, 4);
    sr_model_config_free(&config);
}

/* Widths that are not integer multiples of the model's, and epsilons with many digits, round-trip
 * through the file. */
static void uneven_sizes_come_back(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int C, heads, key, value;
    } cases[] = {{"mamba2", 28, 3, 5, 14}, {"gla", 49, 3, 1, 2}, {"gated_deltanet", 24, 2, 49, 33}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_model_config first, again;
        char path[256];
        json_t *record = record_of(cases[i].model), *config = json_object_get(record, "config");
        write_config(config);
        path_in(path, "config.json");
        assert_int_equal(sr_model_config_read(&first, path), SRNN_OK);
        first.C = cases[i].C;
        first.norm_epsilon = 1.0 / 3 * 1e-5;
        for (int layer = 0; layer < first.L; layer++) {
            first.sizes[layer].H = cases[i].heads;
            first.sizes[layer].Hkv = strcmp(cases[i].model, "mamba2") == 0 ? 1 : cases[i].heads;
            first.sizes[layer].D = cases[i].key;
            first.sizes[layer].Dv = cases[i].value;
        }
        const sr_family *family = sr_family_named(json_object_get(config, "model_type"));
        assert_int_equal(sr_model_config_write(&first, family, SR_DTYPE_F32, path), SRNN_OK);
        assert_int_equal(sr_model_config_read(&again, path), SRNN_OK);
        assert_int_equal(again.sizes[0].H, cases[i].heads);
        assert_int_equal(again.sizes[0].D, cases[i].key);
        assert_int_equal(again.sizes[0].Dv, cases[i].value);
        assert_true(again.norm_epsilon == first.norm_epsilon);
        sr_model_config_free(&first);
        sr_model_config_free(&again);
        json_decref(record);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uneven_sizes_come_back),  cmocka_unit_test(logits_are_theirs),
        cmocka_unit_test(written_as_they_were),    cmocka_unit_test(others_keep_their_names),
        cmocka_unit_test(differences_are_refused), cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(tensors_without_a_place), cmocka_unit_test(shapes_do_not_overrule),
        cmocka_unit_test(infinity_is_read),        cmocka_unit_test(width_of_the_mlp),
    };
    snprintf(folder, sizeof folder, "/tmp/softrnn-published-XXXXXX");
    if (!mkdtemp(folder) ||
        sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}) != SRNN_OK)
        return 1;
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        path_in(path, names[i]);
        unlink(path);
    }
    rmdir(folder);
    sr_backend_free(cpu);
    return failures;
}
