/* tokens.c: a text in the teacher's tokens. */
#include "distil/tokens.h"

#include "data/rows/source.h"
#include "data/rows/synthetic.h"
#include "data/shards/prepare.h"
#include "data/tokenizer/tokenizer.h"
#include "files/file.h"
#include "files/path.h"
#include "train/model_open.h"

#include <string.h>
#include <sys/stat.h>

static bool is_text(const char *where) {
    struct stat facts;
    const size_t length = strlen(where);
    return *where && !sr_synthetic_is(where) && stat(where, &facts) == 0 &&
           S_ISREG(facts.st_mode) && !(length > 4 && strcmp(where + length - 4, ".bin") == 0);
}

/* name = the given tokenizer or that in the teacher's folder; "": none, or the bytes. */
static srnn_status find_tokenizer(char name[SR_PATH_BYTES], const sr_run_settings *s) {
    sr_tokenizer *tokenizer;
    SR_TRY(*s->tokenizer ? sr_path_print(name, "%s", s->tokenizer)
                         : sr_model_tokenizer_path(name, s->teacher));
    if (!*name)
        return SRNN_OK;
    SR_TRY(sr_tokenizer_load(&tokenizer, name));
    if (sr_tokenizer_vocab_size(tokenizer) == SR_BYTE_TOKENS)
        *name = '\0';
    sr_tokenizer_free(tokenizer);
    return SRNN_OK;
}

/* One text to one folder. */
static srnn_status prepare(sr_prepare_progress *done, const sr_run_settings *s,
                           const char *tokenizer, const char *text, const char *folder,
                           double validation) {
    const sr_prepare_settings settings = {.tokenizer = tokenizer,
                                          .folder = folder,
                                          .inputs = &text,
                                          .input_count = 1,
                                          .field = "text",
                                          .validation = validation,
                                          .seed = (uint64_t)s->seed,
                                          .overwrite = true,
                                          .threads = s->threads};
    return sr_prepare(&settings, done);
}

/* Whether a text can be cut in two as it is: it is neither compressed nor JSON. */
static bool is_plain(const char *text) {
    static const char *const others[] = {".gz", ".zst", ".xz", ".jsonl", ".ndjson"};
    const size_t length = strlen(text);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (length > strlen(others[i]) && strcmp(text + length - strlen(others[i]), others[i]) == 0)
            return false;
    return true;
}

/* Writes the two parts of a text, the last `share` of it being the second, which begins a line. */
static srnn_status cut(const char *text, double share, const char *first, const char *second) {
    sr_mapping file;
    SR_TRY(sr_mapping_open(&file, text));
    size_t at = (size_t)((double)file.bytes * (1 - share));
    while (at < file.bytes && at > 0 && file.data[at - 1] != '\n')
        at++;
    srnn_status status = sr_file_replace(first, file.data, at);
    if (status == SRNN_OK)
        status = sr_file_replace(second, file.data + at, file.bytes - at);
    sr_mapping_close(&file);
    return status;
}

static srnn_status prepare_parts(sr_run_settings *s, const char *tokenizer, const char *tokens) {
    char first[SR_PATH_BYTES], second[SR_PATH_BYTES], validation[SR_PATH_BYTES];
    SR_TRY(sr_path_join(first, tokens, "train.txt"));
    SR_TRY(sr_path_join(second, tokens, "validation.txt"));
    SR_TRY(sr_path_join(validation, tokens, "validation"));
    SR_TRY(cut(s->data, s->validation_share, first, second));
    SR_TRY(prepare(NULL, s, tokenizer, first, tokens, 0));
    SR_TRY(prepare(NULL, s, tokenizer, second, validation, 0));
    return sr_run_settings_text(&s->validation, validation);
}

srnn_status sr_distil_tokens(sr_run_settings *s, const char *folder) {
    char name[SR_PATH_BYTES], tokens[SR_PATH_BYTES];
    sr_prepare_progress done;
    if (!is_text(s->data))
        return SRNN_OK;
    SR_TRY(find_tokenizer(name, s));
    if (!*name)
        return SRNN_OK;
    if (*s->validation)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "a text that validates is not put into the teacher's tokens: prepare both "
                       "with softrnn data prepare, or leave --validation out for a share of %s",
                       s->data);
    SR_TRY(sr_path_join(tokens, folder, "tokens"));
    SR_TRY(prepare(&done, s, name, s->data, tokens, s->validation_share));
    if (done.documents[SR_SPLIT_VALIDATION] == 0 && s->validation_share > 0 && is_plain(s->data))
        SR_TRY(prepare_parts(s, name, tokens));
    return sr_run_settings_text(&s->data, tokens);
}
