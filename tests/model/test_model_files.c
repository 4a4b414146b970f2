/* test_model_files.c: configurations and models round-trip through files, and bad files are
 * refused. */
#include "base/memory.h"
#include "files/file.h"
#include "files/safetensors.h"
#include "model/config/family.h"
#include "model/config/mlp.h"
#include "model/files/model_folder.h"
#include "model/layer/rope.h"
#include "small_model.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static sr_backend *cpu;
static char folder[64];

static void path_in(char path[256], const char *name) {
    snprintf(path, 256, "%s/%s", folder, name);
}

static void write_text(const char *name, const char *text) {
    char path[256];
    path_in(path, name);
    assert_int_equal(sr_file_replace(path, text, strlen(text)), SRNN_OK);
}

static void layers_have_their_own(void **state) {
    (void)state;
    sr_model_config config = {.L = 6};
    char *text;
    assert_int_equal(sr_model_config_attention(&config, "0-1:norm,2:score=exp,clamp=5,3-:order:2"),
                     SRNN_OK);
    assert_int_equal(config.attention[1].norm, SRNN_NORM_L2);
    assert_true(config.attention[2].clamp == 5);
    assert_int_equal(config.attention[5].order, 2);
    assert_int_equal(sr_model_config_attention_text(&text, &config), SRNN_OK);
    sr_model_config again = {.L = 6};
    assert_int_equal(sr_model_config_attention(&again, text), SRNN_OK);
    for (int layer = 0; layer < 6; layer++)
        assert_true(sr_attention_same(&config.attention[layer], &again.attention[layer]));
    free(text);
    const char *const wrong[] = {"0-1:norm", "0-9:norm", "0-3:norm,2-:softmax",
                                 "3-1:norm", "nonsense", "0-:nonsense",
                                 ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_not_equal(sr_model_config_attention(&again, wrong[i]), SRNN_OK);
    sr_model_config_free(&config);
    sr_model_config_free(&again);
}

/* Counts of layers are repeated until there are enough. */
static void patterns_of_layers(void **state) {
    (void)state;
    sr_model_config config = {.L = 6, .H = 4, .Hkv = 2, .D = 6};
    assert_int_equal(sr_model_config_attention(&config,
                                               "2*gated_delta_net,short_conv=3,1*softmax,clamp=5"),
                     SRNN_OK);
    for (int layer = 0; layer < 6; layer++) {
        assert_int_equal(config.attention[layer].write == SRNN_WRITE_DELTA, layer % 3 < 2);
        assert_int_equal(config.attention[layer].wiring.short_conv, layer % 3 < 2 ? 3 : 0);
        assert_true(config.attention[layer].clamp == (layer % 3 < 2 ? 0 : 5));
    }
    assert_int_equal(sr_model_config_attention(&config, "4*norm,3*softmax"), SRNN_OK);
    assert_int_equal(config.attention[5].norm, SRNN_NORM_NONE);
    static const char *const wrong[] = {"0*norm,1*softmax", "2*norm,3-:softmax",
                                        "0-2:norm,1*softmax", "2*", "2*nonsense"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(sr_model_config_attention(&config, wrong[i]), SRNN_ERR_FORMAT);
    sr_model_config_free(&config);
}

static void compare_models(const sr_model *a, const sr_model *b, double tolerance) {
    assert_int_equal(a->table.count, b->table.count);
    for (size_t i = 0; i < a->table.count; i++) {
        assert_string_equal(a->table.specs[i].name, b->table.specs[i].name);
        assert_true(small_error(b->weights + b->table.specs[i].start,
                                a->weights + a->table.specs[i].start,
                                a->table.specs[i].count) <= tolerance);
    }
}

static void folders_come_back(void **state) {
    (void)state;
    const sr_dtype types[] = {SR_DTYPE_F32, SR_DTYPE_BF16, SR_DTYPE_F16};
    const double tolerances[] = {0, 4e-3, 5e-4};
    const char *const variants[] = {"softmax", "gated_softmax_plusplus", "0:norm,1-:order:2",
                                    "linear_cosine"};
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        for (int type = 0; type < 3; type++) {
            sr_model *model =
                small_model(cpu, variants[v], v % 2 ? SR_MLP_GELU : SR_MLP_SWIGLU, v % 2, v == 2);
            sr_model *loaded;
            model->config.rope_scaling = (sr_rope_scaling){.kind = SR_ROPE_LLAMA3,
                                                           .factor = 8,
                                                           .low_frequency_factor = 1,
                                                           .high_frequency_factor = 4,
                                                           .original_positions = 16};
            assert_int_equal(sr_model_save(model, folder, types[type]), SRNN_OK);
            assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_OK);
            compare_models(model, loaded, tolerances[type]);
            assert_int_equal(loaded->config.mlp, model->config.mlp);
            assert_true(loaded->config.norm_epsilon == model->config.norm_epsilon);
            assert_true(loaded->config.rope_scaling.factor == 8);
            assert_int_equal(loaded->config.rope_scaling.original_positions, 16);
            assert_int_equal(loaded->config.eos, 2);
            for (int layer = 0; layer < 2; layer++)
                assert_true(sr_attention_same(&loaded->config.attention[layer],
                                              &model->config.attention[layer]));
            sr_model_free(model);
            sr_model_free(loaded);
        }
}

/* config.json of a saved model with one word changed. */
static void change_config(const char *from, const char *to) {
    char path[256], text[4096], changed[4096];
    path_in(path, "config.json");
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    text[fread(text, 1, sizeof text - 1, in)] = 0;
    fclose(in);
    const char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    write_text("config.json", changed);
}

/* Shapes are checked before a model is created, which would allocate the memory that config.json
 * implies. */
static void shapes_come_before_memory(void **state) {
    (void)state;
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, false);
    sr_model_config config;
    char vocabulary[64];
    snprintf(vocabulary, sizeof vocabulary, "\"vocab_size\": %d", model->config.V);
    assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
    assert_int_equal(sr_model_load_config(&config, folder), SRNN_OK);
    sr_model_config_free(&config);
    change_config(vocabulary, "\"vocab_size\": 16000000");
    assert_int_equal(sr_model_load_config(&config, folder), SRNN_ERR_FORMAT);
    char shapes[128];
    snprintf(shapes, sizeof shapes, "embed_tokens.weight has the shape (%d, %d), but",
             model->config.V, model->config.C);
    assert_non_null(strstr(srnn_error_detail(), shapes));
    assert_non_null(strstr(srnn_error_detail(), "requires (16000000, "));
    sr_model_free(model);
}

/* model.safetensors of a tied Llama with one layer, all zero: a hole in the file. */
static bool write_hole(int64_t V, int64_t C, int64_t F) {
    const struct {
        const char *name;
        int64_t rows, columns;
    } tensors[] = {{"embed_tokens", V, C},
                   {"layers.0.self_attn.q_proj", C, C},
                   {"layers.0.self_attn.k_proj", C, C},
                   {"layers.0.self_attn.v_proj", C, C},
                   {"layers.0.self_attn.o_proj", C, C},
                   {"layers.0.mlp.gate_proj", F, C},
                   {"layers.0.mlp.up_proj", F, C},
                   {"layers.0.mlp.down_proj", C, F},
                   {"layers.0.input_layernorm", C, 0},
                   {"layers.0.post_attention_layernorm", C, 0},
                   {"norm", C, 0}};
    char path[256], header[4096] = "";
    long long offset = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const long long rows = tensors[i].rows, columns = tensors[i].columns;
        const long long past = offset + 4 * rows * (columns ? columns : 1);
        char shape[64], *at = header + strlen(header);
        if (columns)
            snprintf(shape, sizeof shape, "%lld,%lld", rows, columns);
        else
            snprintf(shape, sizeof shape, "%lld", rows);
        snprintf(at, sizeof header - strlen(header),
                 "%s\"model.%s.weight\":{\"dtype\":\"F32\",\"shape\":[%s],"
                 "\"data_offsets\":[%lld,%lld]}",
                 i ? "," : "{", tensors[i].name, shape, offset, past);
        offset = past;
    }
    strcat(header, "}");
    const uint64_t length = strlen(header);
    path_in(path, "model.safetensors");
    FILE *file = fopen(path, "w");
    const bool written = file && fwrite(&length, sizeof length, 1, file) == 1 &&
                         fwrite(header, length, 1, file) == 1 && fflush(file) == 0 &&
                         ftruncate(fileno(file), (off_t)(8 + length) + offset) == 0;
    return file && fclose(file) == 0 && written;
}

/* A model of 275 GB is refused before any of it is allocated or read. */
static void larger_than_memory(void **state) {
    (void)state;
    sr_model *model;
    char path[256];
    write_text("config.json",
               "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\","
               " \"vocab_size\": 16777216, \"hidden_size\": 4096, \"intermediate_size\": 64,"
               " \"num_hidden_layers\": 1, \"num_attention_heads\": 32,"
               " \"num_key_value_heads\": 32, \"max_position_embeddings\": 128,"
               " \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", \"tie_word_embeddings\": true}");
    const bool possible = sr_memory_bytes() < 2.7e11 && write_hole(1 << 24, 4096, 64);
    const srnn_status status = possible ? sr_model_load(&model, cpu, folder) : SRNN_OK;
    path_in(path, "model.safetensors");
    unlink(path);
    if (!possible)
        skip();
    assert_int_equal(status, SRNN_ERR_MEMORY);
    assert_non_null(strstr(srnn_error_detail(), "nothing of it was read (this process may"));
}

/* The tensors of a saved model in two files and an index. */
static void write_shards(const sr_model *model) {
    char path[256];
    for (int half = 0; half < 2; half++) {
        sr_safetensors_writer *writer;
        assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
        for (size_t i = (size_t)half; i < model->table.count; i += 2) {
            const sr_tensor_spec *spec = &model->table.specs[i];
            sr_tensor tensor = {.name = spec->name, .rank = spec->rank};
            memcpy(tensor.shape, spec->shape, sizeof spec->shape);
            tensor.data = model->weights + spec->start;
            assert_int_equal(sr_safetensors_writer_add(writer, &tensor), SRNN_OK);
        }
        path_in(path, half ? "b.safetensors" : "a.safetensors");
        assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
        sr_safetensors_writer_free(writer);
    }
    path_in(path, "model.safetensors.index.json");
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out, "{\"weight_map\": {");
    for (size_t i = 0; i < model->table.count; i++)
        fprintf(out, "%s\"%s\": \"%c.safetensors\"", i ? ", " : "", model->table.specs[i].name,
                i % 2 ? 'b' : 'a');
    fprintf(out, "}}\n");
    fclose(out);
}

static void shards_are_found(void **state) {
    (void)state;
    char path[256];
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, true, false), *loaded;
    assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
    path_in(path, "model.safetensors");
    assert_int_equal(unlink(path), 0);
    write_shards(model);
    assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_OK);
    compare_models(model, loaded, 0);
    sr_model_free(loaded);
    write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../b.safetensors\"}}");
    assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_ERR_FORMAT);
    path_in(path, "model.safetensors.index.json");
    assert_int_equal(unlink(path), 0);
    sr_model_free(model);
}

static void llama2c_comes_back(void **state) {
    (void)state;
    char path[256];
    path_in(path, "model.bin");
    for (int tied = 0; tied < 2; tied++) {
        sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, tied), *loaded;
        model->config.rope_theta = 10000;
        assert_int_equal(sr_model_save_llama2c(model, path), SRNN_OK);
        assert_int_equal(sr_model_load_llama2c(&loaded, cpu, path), SRNN_OK);
        compare_models(model, loaded, 0);
        sr_model_free(loaded);
        assert_int_equal(truncate(path, 5000), 0);
        assert_int_equal(sr_model_load_llama2c(&loaded, cpu, path), SRNN_ERR_FORMAT);
        model->config.rope_theta = 5;
        assert_int_equal(sr_model_save_llama2c(model, path), SRNN_ERR_UNSUPPORTED);
        model->config.rope_theta = 10000;
        model->config.norm_epsilon = 1e-6;
        assert_int_equal(sr_model_save_llama2c(model, path), SRNN_ERR_UNSUPPORTED);
        sr_model_free(model);
    }
    write_text("model.bin", "this is not a model, and it is long enough to have a header");
    sr_model *loaded;
    assert_int_equal(sr_model_load_llama2c(&loaded, cpu, path), SRNN_ERR_FORMAT);
}

static void bad_configurations(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        "[]",
        "{\"vocab_size\": 5}",
        "{\"vocab_size\": \"many\"}",
        "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8, \"num_hidden_layers\": "
        "1,"
        " \"num_attention_heads\": 3, \"num_key_value_heads\": 2}",
        "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8, \"num_hidden_layers\": "
        "1,"
        " \"num_attention_heads\": 2, \"hidden_act\": \"relu\"}",
        "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8, \"num_hidden_layers\": "
        "1,"
        " \"num_attention_heads\": 2, \"rope_scaling\": {\"rope_type\": \"spiral\"}}",
        "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8, \"num_hidden_layers\": "
        "1,"
        " \"num_attention_heads\": 2, \"rope_scaling\": {\"rope_type\": \"yarn\", \"beta_slow\": "
        "-1}}",
        "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8, \"num_hidden_layers\": "
        "1,"
        " \"num_attention_heads\": 2, \"attention_type\": \"sofmax\"}",
        "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8,"
        " \"num_hidden_layers\": 99999999999, \"num_attention_heads\": 2}",
        "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8, \"num_hidden_layers\": "
        "0,"
        " \"num_attention_heads\": 0}",
    };
    char path[256];
    sr_model_config config;
    path_in(path, "config.json");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text("config.json", bad[i]);
        assert_int_not_equal(sr_model_config_read(&config, path), SRNN_OK);
    }
    write_text("config.json",
               "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8,"
               " \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"eos_token_id\": [4, 3]}");
    assert_int_equal(sr_model_config_read(&config, path), SRNN_OK);
    assert_int_equal(config.eos, 4);
    assert_int_equal(config.D, 4);
    sr_model_config_free(&config);
}

static srnn_status read_members(const char *members);

/* generation_config.json names tokens that end a text as well. */
static void stops_of_generation(void **state) {
    (void)state;
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, false), *loaded;
    char path[256];
    assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
    write_text("generation_config.json", "{\"eos_token_id\": [7, 9]}");
    assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_OK);
    for (int token = 0; token < 12; token++)
        assert_int_equal(sr_model_config_ends(&loaded->config, token),
                         token == model->config.eos || token == 7 || token == 9);
    sr_model_free(loaded);
    write_text("generation_config.json", "{\"eos_token_id\": \"end\"}");
    assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_ERR_FORMAT);
    path_in(path, "generation_config.json");
    unlink(path);
    sr_model_free(model);
}

/* What is missing is named, not only what there is. */
static void refusals_name_what_is_missing(void **state) {
    (void)state;
    static const struct {
        const char *members, *missing;
    } cases[] = {
        {"\"model_type\": \"phimoe\", \"num_local_experts\": 8", "mixture of experts"},
        {"\"model_type\": \"deepseek_v2\", \"kv_lora_rank\": 8", "multi-head latent attention"},
        {"\"model_type\": \"rwkv7\", \"decay_low_rank_dim\": 64", "MLP with a token shift"},
        {"\"model_type\": \"qwen3\", \"quantization_config\": {\"bits\": 4}", "quantised weights"},
        {"\"model_type\": \"qwen3\", \"num_key_value_heads\": 2, \"layer_types\": [\"conv\"]",
         "layers of type \"conv\""},
        {"\"model_type\": \"qwen3\", \"hidden_act\": \"mish\"", "hidden_act is mish"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_members(cases[i].members), SRNN_ERR_UNSUPPORTED);
        if (!strstr(srnn_error_detail(), cases[i].missing))
            fail_msg("%s: %s", cases[i].members, srnn_error_detail());
    }
}

/* A folder with weights that no model here reads, and a model larger than memory. */
static void unreadable_weights(void **state) {
    (void)state;
    sr_model *loaded;
    char path[256];
    path_in(path, "model.safetensors");
    unlink(path);
    write_text("config.json", "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8,"
                              " \"num_hidden_layers\": 1, \"num_attention_heads\": 2}");
    write_text("model.gguf", "GGUF");
    assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "GGUF"));
    path_in(path, "model.gguf");
    unlink(path);
}

/* A good configuration with further members. */
static srnn_status read_members(const char *members) {
    char text[1024], path[256];
    sr_model_config config;
    snprintf(text, sizeof text,
             "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8,"
             " \"num_hidden_layers\": 1, \"num_attention_heads\": 2,"
             " \"max_position_embeddings\": 64, %s}",
             members);
    write_text("config.json", text);
    path_in(path, "config.json");
    const srnn_status status = sr_model_config_read(&config, path);
    sr_model_config_free(&config);
    return status;
}

/* Experts of another type than softrnn writes are refused by name. */
static void wrong_experts(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"5", "count of"},
        {"{\"count\": \"3\"}", "count of"},
        {"{\"count\": 3, \"chosen\": 1.0}", "chosen of"},
        {"{\"count\": 3, \"chosen\": 1, \"width\": 8, \"shared_width\": 0, "
         "\"plain_layers\": {\"0\": 1}}",
         "plain_layers is not a list"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char members[512];
        snprintf(members, sizeof members, "\"softrnn_parts\": {\"experts\": %s}", cases[i][0]);
        assert_int_equal(read_members(members), SRNN_ERR_FORMAT);
        assert_non_null(strstr(srnn_error_detail(), cases[i][1]));
    }
}

/* Members that change the model are refused by name, those without effect are not. */
static void foreign_members(void **state) {
    (void)state;
    static const char *const foreign[] = {
        "\"model_type\": \"bloom\"",        "\"sliding_window\": 4",
        "\"partial_rotary_factor\": 0.5",   "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
        "\"attn_logit_softcapping\": 50.0", "\"quantization_config\": {\"bits\": 4}",
        "\"num_local_experts\": 8",         "\"layer_types\": [\"sliding_attention\"]"};
    static const char *const fine[] = {
        "\"model_type\": \"llama\"",        "\"sliding_window\": null",
        "\"sliding_window\": 64",           "\"sliding_window\": 4, \"use_sliding_window\": false",
        "\"partial_rotary_factor\": 1.0",   "\"layer_types\": [\"full_attention\"]",
        "\"layer_types\": [\"attention\"]", "\"pretraining_tp\": 1, \"use_cache\": true",
        "\"something_new\": {\"a\": 1}"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        char name[64];
        assert_int_equal(read_members(foreign[i]), SRNN_ERR_UNSUPPORTED);
        sscanf(foreign[i], "\"%63[^\"]", name);
        if (strcmp(name, "rope_parameters") != 0)
            assert_non_null(strstr(srnn_error_detail(), name));
        assert_non_null(strstr(srnn_error_detail(), "config.json"));
    }
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++)
        assert_int_equal(read_members(fine[i]), SRNN_OK);
    assert_int_not_equal(read_members("\"head_dim\": -1"), SRNN_OK);
    assert_non_null(strstr(srnn_error_detail(), "config.json"));
    assert_int_not_equal(read_members("\"rope_scaling\": {\"rope_type\": \"llama3\","
                                      " \"original_max_position_embeddings\": -1e300}"),
                         SRNN_OK);
}

/* The meaning of a window, and defaults of missing members, depend on the family. */
static void families_have_their_defaults(void **state) {
    (void)state;
    static const struct {
        const char *members;
        bool fine;
    } cases[] = {
        {"\"model_type\": \"mistral\", \"num_key_value_heads\": 2, \"sliding_window\": null", true},
        {"\"model_type\": \"mistral\", \"num_key_value_heads\": 2, \"sliding_window\": 64", true},
        {"\"model_type\": \"mistral\", \"num_key_value_heads\": 2, \"sliding_window\": 63", true},
        {"\"model_type\": \"mistral\", \"num_key_value_heads\": null", true}, /* a window of 4096 */
        {"\"model_type\": \"mistral\", \"num_key_value_heads\": 2, \"sliding_window\": 4, "
         "\"use_sliding_window\": false",
         true},
        {"\"model_type\": \"qwen2\", \"num_key_value_heads\": 2, \"sliding_window\": 4", true},
        {"\"model_type\": \"qwen2\", \"num_key_value_heads\": 2, \"sliding_window\": 4, "
         "\"use_sliding_window\": true, \"max_window_layers\": 0",
         true},
        {"\"model_type\": \"softrnn\"", true},
        {"\"model_type\": \"bloom\"", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(read_members(cases[i].members) == SRNN_OK, cases[i].fine);
    assert_int_equal(read_members("\"model_type\": \"bloom\""), SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "bloom"));
    assert_non_null(strstr(srnn_error_detail(), "qwen2"));
}

/* What a family's members mean: the layers, theta and scaling of RoPE, and the activation. */
static void read_meaning(char text[1024], const char *members) {
    char path[256], *layers;
    sr_model_config config;
    snprintf(text, 1024,
             "{\"vocab_size\": 5, \"hidden_size\": 8, \"intermediate_size\": 8, \"head_dim\": 4,"
             " \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 2,"
             " \"max_position_embeddings\": 64, \"model_type\": %s}",
             members);
    write_text("config.json", text);
    path_in(path, "config.json");
    if (sr_model_config_read(&config, path) != SRNN_OK) {
        snprintf(text, 1024, "%s", srnn_error_detail());
        return;
    }
    assert_int_equal(sr_model_config_attention_text(&layers, &config), SRNN_OK);
    const sr_rope_scaling *scaling = &config.rope_scaling;
    snprintf(text, 1024,
             "%s theta=%g scaling=%d original=%d fractional=%d activation=%s eos=%d and %d more",
             layers, config.rope_theta, (int)scaling->kind, (int)scaling->original_positions,
             (int)scaling->fractional, sr_config_activation_word(config.activation), config.eos,
             config.other_end_count);
    free(layers);
    sr_model_config_free(&config);
}

static void members_mean_what_transformers_says(void **state) {
    (void)state;
    static const struct {
        const char *members, *meaning;
    } cases[] = {
        {"\"gemma3_text\", \"sliding_window\": 64, \"rope_local_base_freq\": 77, "
         "\"layer_types\": [\"sliding_attention\", \"full_attention\"]",
         "rope_theta=77"},
        {"\"gemma3_text\", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}, "
         "\"layer_types\": [\"sliding_attention\", \"full_attention\"], \"rope_parameters\": "
         "{\"sliding_attention\": {\"rope_theta\": 5}, \"full_attention\": {\"rope_theta\": 9}}",
         "rope_theta=5,"},
        {"\"olmo_hybrid\", \"layer_types\": [\"linear_attention\", \"full_attention\"], "
         "\"rope_parameters\": {\"rope_theta\": null, \"rope_type\": \"default\"}",
         "1-1:score=exp,position=none,"},
        {"\"olmo_hybrid\"", "1-1:score=exp"},
        {"\"qwen3_5_text\", \"hidden_act\": \"gelu\"", "with silu alone"},
        {"\"mistral\", \"sliding_window\": 4, "
         "\"layer_types\": [\"attention\", \"sliding_attention\"]",
         "0-0:score=exp,1-1:score=exp,window=4"},
        {"\"gemma\", \"hidden_act\": \"gelu\"", "activation=gelu_pytorch_tanh"},
        {"\"llama\", \"hidden_act\": \"swish\"", "activation=silu"},
        {"\"apertus\", \"rope_theta\": 7", "theta=1.2e+07 scaling=2"},
        {"\"apertus\", \"rope_parameters\": null", "theta=1.2e+07 scaling=2"},
        {"\"apertus\", \"rope_theta\": 7, \"rope_scaling\": {\"rope_type\": \"linear\"}",
         "theta=7 scaling=1"},
        {"\"llama\", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, "
         "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 7}",
         "theta=10000 scaling=1"},
        {"\"qwen3\", \"rope_theta\": 9, \"rope_scaling\": {\"rope_type\": \"linear\"}, "
         "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 7}",
         "theta=9 scaling=1"},
        {"\"llama\", \"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 10}", "theta=10000 "},
        {"\"hunyuan_v1_dense\", \"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 10}",
         "theta=1e+06 "},
        {"\"llama\", \"rope_scaling\": 3", "rope_scaling is not an object"},
        {"\"qwen3\", \"rope_parameters\": []", "rope_parameters is not an object"},
        {"\"smollm3\", \"no_rope_layers\": [1]", "no_rope_layers is not a list"},
        {"\"smollm3\", \"no_rope_layers\": 1", "no_rope_layers is not a list"},
        {"\"granite\", \"embedding_multiplier\": 0", "embedding_multiplier is not above 0"},
        {"\"granite\", \"logits_scaling\": -8", "logits_scaling is not above 0"},
        {"\"gemma2\", \"attn_logit_softcapping\": -1", "attn_logit_softcapping is not above 0"},
        {"\"olmo_hybrid\", \"linear_key_head_dim\": 2147483647", "linear_key_head_dim makes no"},
        {"\"gemma\", \"hidden_act\": null", "activation=gelu_pytorch_tanh"},
        {"\"gemma3_text\", \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2, "
         "\"rope_theta\": 7}",
         "theta=1e+06 scaling=0"},
        {"\"olmo3\", \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2, "
         "\"rope_theta\": 7}",
         "theta=500000 scaling=0"},
        {"\"olmo3\", \"rope_theta\": 9, \"rope_local_base_freq\": 77, \"sliding_window\": 4",
         "rope_theta=500000"}, /* windowed layers have a theta of their own, which no member says */
        {"\"qwen3\", \"original_max_position_embeddings\": 16, \"rope_scaling\": {\"type\": "
         "\"llama3\", \"original_max_position_embeddings\": 32}",
         "original=16"}, /* transformers prefers the model's member */
        {"\"olmo3\", \"original_max_position_embeddings\": 16, \"rope_scaling\": {\"type\": "
         "\"yarn\", \"factor\": 2, \"original_max_position_embeddings\": 32}",
         "original=32"}, /* but for an object of one type of layer */
        {"\"qwen3\", \"rope_scaling\": {\"type\": \"yarn\", \"truncate\": false}", "fractional=1"},
        {"\"olmo3\", \"rope_scaling\": {\"type\": \"yarn\", \"truncate\": false}", "fractional=0"},
        {"\"gemma3_text\", \"rope_parameters\": {\"truncate\": false, \"full_attention\": "
         "{\"type\": \"yarn\"}}",
         "fractional=1"},
        {"\"qwen3\", \"per_layer_config\": {\"1\": {\"head_dim\": 8}}", "members of their own"},
        {"\"llama\", \"per_layer_config\": {\"1\": {\"head_dim\": 8}}", "per_layer_config changes"},
        {"\"gemma3_text\", \"attn_logit_softcapping\": 50",
         "score=exp,qk_norm=head,"}, /* stored by transformers, not applied */
        {"\"phi3\", \"rope_scaling\": {\"type\": \"yarn\", \"short_factor\": [1, 2], "
         "\"long_factor\": [3, 4]}",
         "scaling=4"},
        {"\"phi3\", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}", "must be longrope"},
        {"\"phi3\", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], "
         "\"long_factor\": [3]}",
         "one number for each angle"},
        {"\"llama\", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2, 3]}",
         "one number for each angle"},
        {"\"phi3\", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 0]}",
         "short_factor above 0"},
        {"\"kimi_linear\", \"first_k_dense_replace\": 2, \"linear_attn_config\": {\"head_dim\": 6, "
         "\"num_heads\": 3, \"short_conv_kernel_size\": 5}",
         "short_conv=5"},
        {"\"kimi_linear\", \"first_k_dense_replace\": 2, \"linear_attn_config\": "
         "{\"full_attn_layers\": [2], \"kda_layers\": [1]}",
         "multi-head latent attention"},
        {"\"kimi_linear\"", "mixture of experts"},
        {"\"kimi_linear\", \"first_k_dense_replace\": 2, \"linear_attn_config\": "
         "{\"full_attn_layers\": [], \"kda_layers\": [1]}",
         "neither in full_attn_layers nor in kda_layers"},
        {"\"kimi_linear\", \"first_k_dense_replace\": 2, \"linear_attn_config\": "
         "{\"full_attn_layers\": [0], \"kda_layers\": [1, 2]}",
         "must list layers by their number"},
        {"\"kimi_linear\", \"first_k_dense_replace\": 2, \"linear_attn_config\": "
         "{\"full_attn_layers\": [3], \"kda_layers\": [1, 2]}",
         "must list layers by their number"},
        {"\"kimi_linear\", \"first_k_dense_replace\": 2, \"linear_attn_config\": "
         "{\"full_attn_layers\": [2], \"kda_layers\": [1, 2]}",
         "decay"},
        {"\"smollm3\", \"use_sliding_window\": false, \"sliding_window\": 9, \"layer_types\": "
         "[\"full_attention\", \"sliding_attention\"]",
         "window=9"},
        {"\"qwen2_moe\", \"sliding_window\": 9, \"layer_types\": "
         "[\"full_attention\", \"sliding_attention\"]",
         "needs use_sliding_window"},
        {"\"mixtral\", \"num_local_experts\": 2000", "experts is 2000; it must be 1 to 1024"},
        {"\"mixtral\", \"num_local_experts\": \"8\"", "num_local_experts is not a whole number"},
        {"\"qwen3_moe\", \"num_experts\": -1", "num_experts is below 0"},
        {"\"qwen3_moe\", \"num_experts_per_tok\": 129", "experts of a token is 129"},
        {"\"lfm2\", \"full_attn_idxs\": [1]", "layer=conv"},
        {"\"lfm2\", \"full_attn_idxs\": [0]", "qk_norm=head"},
        {"\"lfm2\", \"block_multiple_of\": 0", "intermediate_size is 0"},
        {"\"falcon_h1\"", "score=exp+score=linear"},
        {"\"falcon_h1\", \"mamba_d_ssm\": 1000", "is not mamba_n_heads times mamba_d_head"},
        {"\"falcon_h1\", \"time_step_limit\": [0.001, 0.1]", "must be [0, Infinity]"},
        {"\"falcon_h1\", \"hidden_act\": \"gelu\"", "hidden_act must be silu"},
        {"\"falcon_h1\", \"ssm_multipliers\": [1, 2]", "ssm_multipliers is not a list"},
        {"\"falcon_h1\", \"mlp_multipliers\": [1, 0]", "mlp_multipliers has something other"},
        {"\"gemma\"", " eos=1"},
        {"\"gemma\", \"eos_token_id\": null", " eos=-1"},
        {"\"glm4\"", " eos=151329 and 2 more"},
        {"\"glm\", \"eos_token_id\": null", " eos=151329 and 2 more"},
        {"\"glm\", \"eos_token_id\": 7", " eos=7 and 0 more"},
        {"\"llama\"", " eos=2 and 0 more"},
        {"\"qwen3\"", " eos=-1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        read_meaning(text, cases[i].members);
        if (!strstr(text, cases[i].meaning))
            fail_msg("%s: %s", cases[i].members, text);
    }
}

/* Numbers of xIELU that files hold are those that are computed with, in the type of the file. */
static void constants_are_compared(void **state) {
    (void)state;
    static const struct {
        sr_dtype dtype;
        uint32_t bits;
        bool right;
    } cases[] = {{SR_DTYPE_F32, 0xb58637bd, true},  /* -1e-6 */
                 {SR_DTYPE_F32, 0xb5863700, false}, /* near it */
                 {SR_DTYPE_BF16, 0xb586, true},     {SR_DTYPE_BF16, 0xb587, false},
                 {SR_DTYPE_F16, 0x8011, true},      {SR_DTYPE_F16, 0x8012, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sr_tensor tensor = {.name = "model.layers.0.mlp.act_fn.eps",
                                  .dtype = cases[i].dtype,
                                  .data = &cases[i].bits};
        char path[256], text[1024];
        sr_safetensors_writer *writer;
        sr_model *model;
        read_meaning(text, "\"apertus\"");
        path_in(path, "model.safetensors");
        assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
        assert_int_equal(sr_safetensors_writer_add(writer, &tensor), SRNN_OK);
        assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
        sr_safetensors_writer_free(writer);
        assert_int_not_equal(sr_model_load(&model, cpu, folder), SRNN_OK);
        const char *why = cases[i].right ? "the files hold no" : "act_fn.eps is not -1e-06";
        if (!strstr(srnn_error_detail(), why))
            fail_msg("case %zu: %s", i, srnn_error_detail());
        unlink(path);
    }
}

static bool config_holds(const char *part) {
    char path[256];
    sr_mapping file;
    path_in(path, "config.json");
    assert_int_equal(sr_mapping_open(&file, path), SRNN_OK);
    const bool found = memmem(file.data, file.bytes, part, strlen(part));
    sr_mapping_close(&file);
    return found;
}

/* A model that transformers would compute differently must not be declared a Llama. */
static void what_is_no_llama_says_so(void **state) {
    (void)state;
    static const struct {
        const char *attention;
        sr_mlp mlp;
        bool qkv_bias, o_bias, mlp_bias;
        const char *type;
    } cases[] = {
        {"softmax", SR_MLP_SWIGLU, false, false, false, "llama"},
        {"softmax", SR_MLP_SWIGLU, true, true, true, "llama"},
        {"softmax", SR_MLP_SWIGLU, true, false, false, "qwen2"},
        {"softmax", SR_MLP_SWIGLU, true, false, true, "softrnn"},
        {"softmax", SR_MLP_SWIGLU, false, true, false, "softrnn"},
        {"softmax", SR_MLP_GELU, false, false, false, "softrnn"},
        {"norm", SR_MLP_SWIGLU, false, false, false, "softrnn"},
        {"0:softmax,1-:order:2", SR_MLP_SWIGLU, false, false, false, "softrnn"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_model *model = small_model(cpu, cases[i].attention, cases[i].mlp, false, false), *loaded;
        sr_model_config config;
        char part[64];
        assert_int_equal(sr_model_config_copy(&config, &model->config), SRNN_OK);
        config.qkv_bias = cases[i].qkv_bias;
        config.o_bias = cases[i].o_bias;
        config.mlp_bias = cases[i].mlp_bias;
        sr_model_free(model);
        assert_int_equal(sr_model_create(&model, cpu, &config), SRNN_OK);
        assert_int_equal(sr_model_initialise(model, 0.02, 1), SRNN_OK);
        assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
        snprintf(part, sizeof part, "\"model_type\": \"%s\"", cases[i].type);
        assert_true(config_holds(part));
        assert_int_equal(config_holds("LlamaForCausalLM"), strcmp(cases[i].type, "llama") == 0);
        assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_OK);
        compare_models(model, loaded, 0);
        sr_model_free(loaded);
        sr_model_free(model);
        sr_model_config_free(&config);
    }
    /* As earlier versions wrote it. */
    assert_int_equal(read_members("\"model_type\": \"llama\", \"softrnn_attention\": "
                                  "\"score=exp,normaliser=none,norm=l2\""),
                     SRNN_OK);
}

/* Nor softmax with keys or values of another width than head_dim, which no Llama has. */
static void other_widths_are_no_llama(void **state) {
    (void)state;
    static const sr_layer_sizes given[] = {{.D = 10}, {.Dv = 10}};
    char path[256];
    path_in(path, "other.bin");
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, false), *loaded;
        sr_model_config config;
        assert_int_equal(sr_model_config_copy(&config, &model->config), SRNN_OK);
        sr_model_free(model);
        config.given = given[i];
        config.rope_theta = 10000;
        assert_int_equal(sr_model_config_attention(&config, "softmax"), SRNN_OK);
        assert_int_equal(sr_model_create(&model, cpu, &config), SRNN_OK);
        assert_int_equal(sr_model_initialise(model, 0.02, 1), SRNN_OK);
        assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
        assert_true(config_holds("\"model_type\": \"softrnn\""));
        assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_OK);
        compare_models(model, loaded, 0);
        assert_int_equal(sr_model_save_llama2c(model, path), SRNN_ERR_UNSUPPORTED);
        sr_model_free(loaded);
        sr_model_free(model);
        sr_model_config_free(&config);
    }
}

/* The tensors of a tied model, with a head that equals the embedding, except for `change` in one
 * element. */
static void write_with_head(const sr_model *model, float change) {
    char path[256];
    sr_safetensors_writer *writer;
    float head[23 * 24];
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    for (size_t i = 0; i <= model->table.count; i++) {
        const bool own = i < model->table.count;
        const sr_tensor_spec *spec =
            own ? &model->table.specs[i]
                : sr_tensor_table_find(&model->table, "model.embed_tokens.weight");
        sr_tensor tensor = {.name = own ? spec->name : "lm_head.weight", .rank = spec->rank};
        memcpy(tensor.shape, spec->shape, sizeof spec->shape);
        tensor.data = model->weights + spec->start;
        if (!own) {
            assert_int_equal(spec->count, sizeof head / sizeof *head);
            memcpy(head, tensor.data, sizeof head);
            head[7] += change;
            tensor.data = head;
        }
        assert_int_equal(sr_safetensors_writer_add(writer, &tensor), SRNN_OK);
    }
    path_in(path, "model.safetensors");
    assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
    sr_safetensors_writer_free(writer);
}

/* transformers does not tie a head that differs, whatever config.json says. */
static void a_head_that_differs_is_kept(void **state) {
    (void)state;
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, true), *loaded;
    for (int differs = 0; differs < 2; differs++) {
        assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
        write_with_head(model, differs ? 1.0f : 0.0f);
        assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_OK);
        assert_int_equal(loaded->config.tied, !differs);
        assert_int_equal(loaded->config.head_kept, differs);
        const sr_tensor_spec *head = sr_tensor_table_find(&loaded->table, "lm_head.weight");
        const sr_tensor_spec *embedding =
            sr_tensor_table_find(&model->table, "model.embed_tokens.weight");
        assert_int_equal(head != NULL, differs);
        if (head)
            assert_true(loaded->weights[head->start + 7] ==
                        model->weights[embedding->start + 7] + 1.0f);
        sr_model_free(loaded);
    }
    sr_model_free(model);
}

static void pickled_weights_are_named(void **state) {
    (void)state;
    char path[256];
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, false), *loaded;
    assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
    path_in(path, "model.safetensors");
    assert_int_equal(unlink(path), 0);
    write_text("pytorch_model.bin", "pickled");
    assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "pytorch_model.bin"));
    assert_non_null(strstr(srnn_error_detail(), "save_pretrained"));
    path_in(path, "pytorch_model.bin");
    assert_int_equal(unlink(path), 0);
    sr_model_free(model);
}

/* The model's tensors and one more of this name and type. */
static void write_with(const sr_model *model, const char *name, sr_dtype dtype) {
    char path[256];
    const int32_t numbers[24] = {0};
    sr_safetensors_writer *writer;
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        sr_tensor tensor = {.name = spec->name,
                            .rank = spec->rank,
                            .data = model->weights + spec->start};
        memcpy(tensor.shape, spec->shape, sizeof spec->shape);
        if (strcmp(spec->name, name) != 0)
            assert_int_equal(sr_safetensors_writer_add(writer, &tensor), SRNN_OK);
    }
    const sr_tensor more = {
        .name = name, .dtype = dtype, .rank = 1, .shape = {24}, .data = numbers};
    assert_int_equal(sr_safetensors_writer_add(writer, &more), SRNN_OK);
    path_in(path, "model.safetensors");
    assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
    sr_safetensors_writer_free(writer);
}

/* An unexpected tensor is refused by name, but not a buffer or a tensor outside the model. */
static void foreign_tensors(void **state) {
    (void)state;
    static const struct {
        const char *name;
        sr_dtype dtype;
        bool fine;
    } cases[] = {
        {"model.layers.0.self_attn.q_norm.weight", SR_DTYPE_F32, false},
        {"model.layers.1.self_attn.out_gate_proj.bias", SR_DTYPE_F32, false},
        {"model.layers.1.mlp.up_proj.bias", SR_DTYPE_F32, false},
        {"model.norm.bias", SR_DTYPE_F32, false},
        {"lm_head.bias", SR_DTYPE_F32, false},
        {"model.norm.weight", SR_DTYPE_I32, false},
        {"model.norm.weight", SR_DTYPE_F32, true},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", SR_DTYPE_F32, true},
        {"model.layers.1.self_attn.abs_pos_enc.pe", SR_DTYPE_F32, true},
        {"value_head.weight", SR_DTYPE_F32, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, false), *loaded;
        assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
        write_with(model, cases[i].name, cases[i].dtype);
        const srnn_status status = sr_model_load(&loaded, cpu, folder);
        assert_int_equal(status, cases[i].fine ? SRNN_OK : SRNN_ERR_UNSUPPORTED);
        if (!cases[i].fine)
            assert_non_null(strstr(srnn_error_detail(), cases[i].name));
        sr_model_free(loaded);
        sr_model_free(model);
    }
}

/* The files state the type of the weights and all end-of-text tokens. */
static void configurations_are_complete(void **state) {
    (void)state;
    static const char *const names[] = {"\"float32\"", "\"bfloat16\"", "\"float16\""};
    const sr_dtype types[] = {SR_DTYPE_F32, SR_DTYPE_BF16, SR_DTYPE_F16};
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, false), *loaded;
    model->config.other_ends[0] = 7;
    model->config.other_end_count = 1;
    for (int i = 0; i < 3; i++) {
        char path[256];
        sr_mapping config;
        assert_int_equal(sr_model_save(model, folder, types[i]), SRNN_OK);
        path_in(path, "config.json");
        assert_int_equal(sr_mapping_open(&config, path), SRNN_OK);
        assert_non_null(memmem(config.data, config.bytes, names[i], strlen(names[i])));
        sr_mapping_close(&config);
        assert_int_equal(sr_model_load(&loaded, cpu, folder), SRNN_OK);
        assert_true(sr_model_config_ends(&loaded->config, 2));
        assert_true(sr_model_config_ends(&loaded->config, 7));
        assert_false(sr_model_config_ends(&loaded->config, 1));
        sr_model_free(loaded);
    }
    sr_model_free(model);
}

static void rope_scalings(void **state) {
    (void)state;
    enum { D = 4, P = 3 };
    float plain[P * D], scaled[P * D];
    sr_rope_table(plain, P, D, 100, &(sr_rope_scaling){0});
    sr_rope_table(scaled, P, D, 100, &(sr_rope_scaling){.kind = SR_ROPE_LINEAR, .factor = 2});
    assert_true(fabsf(scaled[2 * D] - plain[D]) <
                1e-6f); /* position 2 at half speed is position 1 */
    assert_true(fabsf(plain[D + 3] - sinf(0.1f)) < 1e-6f);
    /* Rotations over 100 positions: 15.9 (unchanged) and 1.59 (between 1 and 4: partly slowed). */
    sr_rope_table(scaled, P, D, 100,
                  &(sr_rope_scaling){.kind = SR_ROPE_LLAMA3,
                                     .factor = 8,
                                     .low_frequency_factor = 1,
                                     .high_frequency_factor = 4,
                                     .original_positions = 100});
    assert_true(fabsf(scaled[D] - plain[D]) < 1e-6f);
    const double turns = 100 * 0.1 / (2 * acos(-1)), smooth = (turns - 1) / 3;
    assert_true(fabs((double)scaled[D + 3] - sin(0.1 * ((1 - smooth) / 8 + smooth))) < 1e-6);
}

/* Angles per position and their scale, as computed by transformers 5 for D 16 and theta 100. */
static void yarn_is_that_of_transformers(void **state) {
    (void)state;
    enum { D = 16, HALF = 8 };
    static const struct {
        const char *members;
        double amplitude, frequency[HALF];
    } cases[] = {
        {"\"factor\": 4.0, \"original_max_position_embeddings\": 64",
         1.138629436111989,
         {1, 0.477990121, 0.221359432, 0.0978053659, 0.0399999991, 0.0140585322, 0.00790569466,
          0.00444569858}},
        {"\"factor\": 4.0, \"original_max_position_embeddings\": 64, \"beta_fast\": 8.0, "
         "\"beta_slow\": 2.0, \"truncate\": false, \"mscale\": 0.7, \"mscale_all_dim\": 1.2",
         0.9405715251010841,
         {1, 0.460702717, 0.160589159, 0.0444569848, 0.0250000004, 0.0140585322, 0.00790569466,
          0.00444569858}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024], path[256];
        float row[D];
        sr_model_config config;
        snprintf(text, sizeof text,
                 "{\"vocab_size\": 5, \"hidden_size\": 16, \"intermediate_size\": 8,"
                 " \"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"rope_theta\": 100.0,"
                 " \"max_position_embeddings\": 256,"
                 " \"rope_scaling\": {\"rope_type\": \"yarn\", %s}}",
                 cases[i].members);
        write_text("config.json", text);
        path_in(path, "config.json");
        for (int again = 0; again < 2; again++) { /* also as written by softrnn */
            assert_int_equal(sr_model_config_read(&config, path), SRNN_OK);
            sr_rope_rows(row, 1, 1, D, config.rope_theta, &config.rope_scaling);
            for (int c = 0; c < HALF; c++) {
                const double angle = atan2((double)row[HALF + c], (double)row[c]);
                const double size = hypot((double)row[HALF + c], (double)row[c]);
                assert_true(fabs(angle / cases[i].frequency[c] - 1) < 1e-5);
                assert_true(fabs(size / cases[i].amplitude - 1) < 1e-6);
            }
            assert_int_equal(sr_model_config_write(&config, sr_family_of(&config), SR_DTYPE_F32,
                                                   path),
                             SRNN_OK);
            sr_model_config_free(&config);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_have_their_own),
        cmocka_unit_test(patterns_of_layers),
        cmocka_unit_test(stops_of_generation),
        cmocka_unit_test(refusals_name_what_is_missing),
        cmocka_unit_test(folders_come_back),
        cmocka_unit_test(shards_are_found),
        cmocka_unit_test(shapes_come_before_memory),
        cmocka_unit_test(larger_than_memory),
        cmocka_unit_test(llama2c_comes_back),
        cmocka_unit_test(other_widths_are_no_llama),
        cmocka_unit_test(bad_configurations),
        cmocka_unit_test(rope_scalings),
        cmocka_unit_test(yarn_is_that_of_transformers),
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(members_mean_what_transformers_says),
        cmocka_unit_test(constants_are_compared),
        cmocka_unit_test(what_is_no_llama_says_so),
        cmocka_unit_test(a_head_that_differs_is_kept),
        cmocka_unit_test(unreadable_weights),
        cmocka_unit_test(pickled_weights_are_named),
        cmocka_unit_test(wrong_experts),
        cmocka_unit_test(foreign_members),
        cmocka_unit_test(foreign_tensors),
        cmocka_unit_test(configurations_are_complete),
    };
    snprintf(folder, sizeof folder, "/tmp/softrnn-model-XXXXXX");
    if (!mkdtemp(folder) ||
        sr_backend_create(&cpu, &(sr_backend_settings){.threads = 0}) != SRNN_OK)
        return 1;
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sr_backend_free(cpu);
    static const char *const names[] = {"config.json", "model.safetensors", "a.safetensors",
                                        "b.safetensors", "model.bin"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        path_in(path, names[i]);
        unlink(path);
    }
    rmdir(folder);
    return failures;
}
