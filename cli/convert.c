/* convert.c: `softrnn convert`, between model formats. */
#include "commands.h"
#include "data/tokenizer_copy.h"
#include "model_open.h"
#include "options.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const type_words[] = {"float32", "bfloat16", "float16", NULL};
static const sr_dtype types[] = {SR_DTYPE_F32, SR_DTYPE_BF16, SR_DTYPE_F16};

static srnn_status copy_tokenizer(const char *folder, const char *name) {
    sr_tokenizer_copy copy;
    SR_TRY(sr_tokenizer_copy_find(&copy, name));
    const srnn_status status = copy.source ? sr_tokenizer_copy_write(&copy, folder) : SRNN_OK;
    free(copy.source);
    return status;
}

static srnn_status write_model(const sr_model *model, const char *out, sr_dtype dtype,
                               const char *tokenizer) {
    const size_t length = strlen(out);
    if (length > 4 && strcmp(out + length - 4, ".bin") == 0)
        return sr_model_save_llama2c(model, out);
    (void)mkdir(out, 0777); /* if it cannot be made, saving says why */
    SR_TRY(sr_model_save(model, out, dtype));
    return tokenizer ? copy_tokenizer(out, tokenizer) : SRNN_OK;
}

static srnn_status convert(const char *in, const char *out, sr_dtype dtype, const char *tokenizer) {
    sr_backend *backend;
    sr_model *model;
    SR_TRY(sr_backend_cpu_create(&backend, 1));
    srnn_status status = model_open(&model, backend, in);
    if (status == SRNN_OK) {
        status = write_model(model, out, dtype, tokenizer);
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
        OPTION_TEXT("--out", &out, "TO", "a folder to be made, or a file that ends in .bin"),
        OPTION_TEXT("--tokenizer", &tokenizer, "FILE", "a tokenizer to copy into the folder"),
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
    return command_report(convert(in, out, types[type], tokenizer));
}
