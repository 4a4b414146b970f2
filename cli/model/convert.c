/* convert.c: `softrnn convert`, between model formats. */
#include "cli/commands.h"
#include "cli/line/model_open.h"
#include "cli/line/options.h"
#include "data/tokenizer/files/copy.h"
#include "files/file.h"
#include "files/folder.h"
#include "model/config/family.h"
#include "train/run/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const type_words[] = {"float32", "bfloat16", "float16", NULL};
static const sr_dtype types[] = {SR_DTYPE_F32, SR_DTYPE_BF16, SR_DTYPE_F16};

/* The named tokenizer, or the one next to the model, or the built-in one. */
static srnn_status write_tokenizer(const char *out, const char *in, const char *tokenizer, int V) {
    char nearby[SR_PATH_BYTES];
    if (tokenizer)
        return sr_tokenizer_copy_into(out, tokenizer);
    SR_TRY(sr_model_tokenizer_path(nearby, in));
    if (*nearby)
        return sr_tokenizer_copy_into(out, nearby);
    return V == SR_BYTE_TOKENS ? sr_tokenizer_write_bytes(out) : SRNN_OK;
}

/* Says which other programs can load the folder. */
static srnn_status print_loaders(const sr_model_config *config, const char *out) {
    const sr_family *family;
    SR_TRY(sr_model_config_public(&family, config));
    if (family->loader)
        fprintf(stderr, "softrnn: %s: a %s, which %s loads too\n", out, family->architecture,
                family->loader);
    else
        fprintf(stderr,
                "softrnn: %s: model_type %s: transformers by itself refuses it, and loads it once "
                "softrnn.hf is imported (docs/PYTHON.md)\n",
                out, family->model_type);
    return SRNN_OK;
}

/* Says what a .bin file cannot store; none of it affects logits. */
static void print_losses(const sr_model *model, const char *out) {
    enum { BIN_BOS = 1, BIN_EOS = 2 };
    const sr_model_config *c = &model->config;
    fprintf(stderr, "softrnn: %s holds no tokenizer\n", out);
    if (c->bos != BIN_BOS || c->eos != BIN_EOS || c->other_end_count)
        fprintf(stderr,
                "softrnn: %s: llama2.c uses %d and %d as the first and last token of a text; the "
                "model has %d and %d\n",
                out, BIN_BOS, BIN_EOS, c->bos, c->eos);
}

/* The folder's lock file is not part of a model. */
static srnn_status remove_lock(const char *out) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, out, "lock"));
    return unlink(path) == 0
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_IO, "%s: cannot be removed: %s", path, strerror(errno));
}

/* What generation reads besides the model, where a folder has it. */
static srnn_status copy_companions(const char *out, const char *in) {
    static const char *const names[] = {"generation_config.json", "chat_template.jinja"};
    char from[SR_PATH_BYTES], to[SR_PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names && !sr_model_is_bin(in); i++) {
        sr_mapping file;
        SR_TRY(sr_path_join(from, in, names[i]));
        SR_TRY(sr_path_join(to, out, names[i]));
        if (access(from, F_OK) != 0)
            continue;
        SR_TRY(sr_mapping_open(&file, from));
        const srnn_status status = sr_file_replace(to, file.data, file.bytes);
        sr_mapping_close(&file);
        SR_TRY(status);
    }
    return SRNN_OK;
}

static srnn_status write_folder(const sr_model *model, const char *out, const char *in,
                                sr_dtype dtype, const char *tokenizer) {
    SR_TRY(sr_model_save_public(model, out, dtype));
    SR_TRY(copy_companions(out, in));
    SR_TRY(write_tokenizer(out, in, tokenizer, model->config.V));
    SR_TRY(print_loaders(&model->config, out));
    return remove_lock(out);
}

/* Files already in the folder would be mixed with the model, or be overwritten. */
static srnn_status check_empty(const char *out) {
    char run[SR_PATH_BYTES], config[SR_PATH_BYTES];
    sr_names names;
    SR_TRY(sr_path_join(run, out, "run.yaml"));
    SR_TRY(sr_path_join(config, out, "config.json"));
    SR_TRY(sr_folder_list(&names, out));
    size_t count = names.count;
    for (size_t i = 0; i < names.count; i++)
        count -= strcmp(names.names[i], "lock") == 0; /* locking detects whether it is held */
    sr_names_free(&names);
    if (count == 0)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT,
                   "--out %s: this folder holds %s; name a new or empty folder, or remove this one",
                   out,
                   access(run, F_OK) == 0      ? "a run"
                   : access(config, F_OK) == 0 ? "a model"
                                               : "other files");
}

/* Removes an incomplete folder: it was new or empty, and would block the next attempt. */
static srnn_status fill_folder(const sr_model *model, const char *out, const char *in,
                               sr_dtype dtype, const char *tokenizer) {
    char why[512];
    const srnn_status status = write_folder(model, out, in, dtype, tokenizer);
    if (status == SRNN_OK)
        return status;
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    sr_folder_remove(out); /* the original error is reported */
    return SR_FAIL(status, "%s", why);
}

/* If two processes use the same folder one writes it, and the other fails with the reason. */
static srnn_status write_model(const sr_model *model, const char *out, const char *in,
                               sr_dtype dtype, const char *tokenizer) {
    int lock;
    if (sr_model_is_bin(out)) {
        SR_TRY(sr_model_save_llama2c(model, out));
        print_losses(model, out);
        return SRNN_OK;
    }
    SR_TRY(sr_folders_make(out));
    SR_TRY(sr_folder_lock(&lock, out, 0));
    srnn_status status = check_empty(out);
    if (status == SRNN_OK)
        status = fill_folder(model, out, in, dtype, tokenizer);
    else
        (void)remove_lock(out);
    sr_folder_unlock(lock);
    return status;
}

static srnn_status check_tokenizer(const char *name) {
    sr_tokenizer *tokenizer;
    SR_TRY(sr_tokenizer_load(&tokenizer, name));
    sr_tokenizer_free(tokenizer);
    return SRNN_OK;
}

static srnn_status convert(const char *in, const char *out, sr_dtype dtype, const char *tokenizer) {
    sr_backend *backend;
    sr_model *model;
    if (!sr_model_is_bin(out))
        SR_TRY(check_empty(out));
    if (tokenizer)
        SR_TRY(check_tokenizer(tokenizer));
    SR_TRY(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}));
    srnn_status status = model_open(&model, backend, in, NULL);
    if (status == SRNN_OK) {
        status = write_model(model, out, in, dtype, tokenizer);
        sr_model_free(model);
    }
    sr_backend_free(backend);
    return status;
}

int command_convert(int argc, char **argv) {
    const char *in = NULL, *out = NULL, *tokenizer = NULL;
    int type = 0;
    const command_option options[] = {
        OPTION_TEXT("--in", &in, "FROM",
                    "a folder in Hugging Face layout, a run, or a llama2.c .bin"),
        OPTION_TEXT("--out", &out, "TO",
                    "a folder to be made (or an empty one), or a file that ends in .bin"),
        OPTION_TEXT("--tokenizer", &tokenizer, "FILE",
                    "a tokenizer to copy into the folder; else that of FROM, or the bytes"),
        OPTION_CHOICE("--type", &type, type_words, "TYPE", "float32, bfloat16 or float16"),
    };
    const command_line line = {
        .usage = "softrnn convert --in FROM --out TO [options]",
        .purpose = "A model in another format: Hugging Face folders (one file or sharded) and "
                   "llama2.c's .bin.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .examples =
            "  softrnn convert --in stories260K.bin --out stories --tokenizer tok512.model\n"
            "  softrnn convert --in runs/norm --out norm-bf16 --type bfloat16\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (!in || !out)
        return command_refuse("convert needs %s", in ? "--out TO" : "--in FROM");
    if (sr_model_is_bin(out) && (type || tokenizer))
        return command_refuse("a .bin file holds float32 and no tokenizer: leave out %s",
                              type ? "--type" : "--tokenizer");
    return command_report(convert(in, out, types[type], tokenizer));
}
