/* data.c: the rows of a run and their tokenizer. */
#include "train/run/data.h"

#include "base/hash.h"
#include "base/memory.h"
#include "data/rows/source_open.h"
#include "data/rows/synthetic.h"
#include "data/shards/manifest.h"
#include "data/tokenizer/tokenizer.h"
#include "files/path.h"
#include "train/batches.h"
#include "train/model_open.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- rows */

static srnn_status open_batches(sr_source **source, sr_run_settings *s) {
    if (*s->validation)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "validation %s: a run on --batches has no validation",
                       s->validation);
    SR_TRY(sr_batches_open(source, &s->B, s->batches));
    const int64_t held = (*source)->rows[SR_SPLIT_TRAIN] / s->B / s->accumulate;
    s->T = (*source)->T;
    s->steps = s->steps ? s->steps : held;
    if (s->steps <= held)
        return SRNN_OK;
    sr_source_free(*source);
    *source = NULL;
    return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: holds the batches of %lld steps, not of %lld",
                   s->batches, (long long)held, (long long)s->steps);
}

srnn_status sr_run_data_open(sr_source **source, sr_run_settings *s) {
    *source = NULL;
    if (*s->batches)
        return open_batches(source, s);
    if (!*s->data)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "no data: give --data or --batches");
    const sr_source_settings settings = {.seed = (uint64_t)s->seed,
                                         .T = s->T,
                                         .layout = (sr_token_layout)s->layout,
                                         .validation = *s->validation ? s->validation : NULL,
                                         .validation_share = s->validation_share,
                                         .validation_half = (sr_half)s->validation_half};
    SR_TRY(sr_source_open(source, s->data, &settings));
    s->T = (*source)->T; /* synthetic tasks fix the row length */
    return SRNN_OK;
}

/* ---- tokenizer */

static srnn_status of_shards(sr_run_settings *s) {
    char path[SR_PATH_BYTES];
    sr_manifest manifest;
    SR_TRY(sr_manifest_read(&manifest, s->data));
    srnn_status status = sr_path_join(path, s->data, manifest.tokenizer);
    if (status == SRNN_OK)
        status = sr_run_settings_text(&s->tokenizer,
                                      manifest.tokenizer_is_built_in ? manifest.tokenizer : path);
    sr_manifest_free(&manifest);
    return status;
}

/* The kind of --data. The tokens of a .bin file belong to a tokenizer that the file does not
 * name. */
typedef enum data_kind { DATA_UNNAMED, DATA_SHARDS, DATA_TEXT } data_kind;

static data_kind kind_of_data(const sr_run_settings *s) {
    struct stat facts;
    const size_t length = strlen(s->data);
    if (*s->batches || sr_synthetic_is(s->data) || stat(s->data, &facts) != 0 ||
        (length > 4 && strcmp(s->data + length - 4, ".bin") == 0))
        return DATA_UNNAMED;
    return S_ISDIR(facts.st_mode) ? DATA_SHARDS : DATA_TEXT;
}

static srnn_status of_data(sr_run_settings *s) {
    switch (kind_of_data(s)) {
    case DATA_UNNAMED:
        return SRNN_OK;
    case DATA_SHARDS:
        return of_shards(s);
    case DATA_TEXT:
        return sr_run_settings_text(&s->tokenizer, "bytes");
    }
    return SRNN_OK;
}

/* True if the vocabulary is the bytes in order: the built-in tokenizer, or a file that defines the
 * same. */
static srnn_status has_bytes(bool *bytes, const sr_tokenizer *tokenizer) {
    uint32_t ids[256];
    sr_bytes text = {0};
    *bytes = false;
    if (sr_tokenizer_vocab_size(tokenizer) != SR_BYTE_TOKENS)
        return SRNN_OK;
    for (uint32_t id = 0; id < 256; id++)
        ids[id] = id;
    const srnn_status status = sr_tokenizer_decode(tokenizer, &text, ids, 256);
    *bytes = status == SRNN_OK && text.count == 256;
    for (size_t i = 0; *bytes && i < 256; i++)
        *bytes = (unsigned char)text.data[i] == i;
    sr_bytes_free(&text);
    return status;
}

/* Text is read as bytes: a model with another tokenizer would see wrong tokens, and a byte model
 * saved with another tokenizer would be misread later. `what` says in words where the tokenizer was
 * named. */
static srnn_status check_text(const sr_run_settings *s, const char *tokenizer, const char *what) {
    sr_tokenizer *named;
    bool bytes = true;
    SR_TRY(sr_tokenizer_load(&named, tokenizer));
    const srnn_status status = kind_of_data(s) == DATA_TEXT ? has_bytes(&bytes, named) : SRNN_OK;
    sr_tokenizer_free(named);
    if (status == SRNN_OK && !bytes)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: text is read as bytes, not with %s %s; make tokens of it first: "
                       "softrnn data prepare --tokenizer %s --out tokens %s, then --data tokens",
                       s->data, what, tokenizer, tokenizer, s->data);
    return status;
}

/* The data's own tokenizer comes first. Text has none: there it is the model's. */
static srnn_status of_model(sr_run_settings *s) {
    char folder[SR_PATH_BYTES];
    SR_TRY(sr_model_tokenizer_path(folder, s->model));
    if (!*folder)
        return SRNN_OK;
    if (kind_of_data(s) == DATA_TEXT)
        return check_text(s, folder, "the tokenizer in");
    return *s->tokenizer ? SRNN_OK : sr_run_settings_text(&s->tokenizer, folder);
}

srnn_status sr_run_data_tokenizer(sr_run_settings *s) {
    if (*s->tokenizer)
        return check_text(s, s->tokenizer, "--tokenizer");
    SR_TRY(of_data(s));
    const bool settled = *s->tokenizer && kind_of_data(s) != DATA_TEXT;
    return *s->model && !settled ? of_model(s) : SRNN_OK;
}

/* ---- identity of the rows */

enum { SUM_ROWS = 4 };

srnn_status sr_run_data_sum(int64_t *sum, const sr_source *source) {
    const size_t T = (size_t)source->T;
    void *memory;
    SR_TRY(sr_alloc(&memory, T, 2 * sizeof(int32_t) + sizeof(int64_t)));
    sr_token_row row = {.starts = memory};
    row.ids = (int32_t *)(void *)(row.starts + T);
    row.targets = row.ids + T;
    uint64_t hash = sr_hash_add(SR_HASH_BEGIN, (uint64_t)source->sum);
    hash = sr_hash_add(hash, (uint64_t)source->vocab);
    hash = sr_hash_add(hash, (uint64_t)source->rows[SR_SPLIT_TRAIN]);
    srnn_status status = SRNN_OK;
    for (int64_t i = 0; i < SUM_ROWS && status == SRNN_OK; i++) {
        status = source->fill(source, &row, SR_SPLIT_TRAIN, i);
        for (size_t t = 0; t < T && status == SRNN_OK; t++)
            hash = sr_hash_add(sr_hash_add(hash, (uint64_t)row.ids[t]), (uint64_t)row.targets[t]);
    }
    free(memory);
    *sum = sr_hash_end(hash);
    return status;
}
