/* prepare.c: text files to a folder of token shards. */
#include "data/shards/prepare.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/shards/document_encoder.h"
#include "data/shards/manifest.h"
#include "data/shards/shard_set.h"
#include "data/text/pipeline.h"
#include "data/tokenizer/files/copy.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/path.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HASH_DIGITS = 16 };
#define STANDARD_SHARD_TOKENS   ((int64_t)100000000)
#define STANDARD_DOCUMENT_BYTES ((int64_t)256 << 20)
/* A buffer that one long document grew beyond this is freed. */
#define MOST_RETAINED_BYTES ((size_t)8 << 20)
/* Separates the choice of validation documents from other uses of the same seed. */
static const uint64_t split_stream = 0x73706c6974;

typedef struct batch_slot {
    sr_document_batch batch;
    sr_tokens tokens;
    int64_t read_bytes; /* of the inputs, when this batch was read */
} batch_slot;

typedef struct preparation {
    sr_prepare_settings settings; /* with the defaults filled in */
    sr_tokenizer *tokenizer;
    sr_tokenizer_copy tokenizer_copy;
    sr_document_rules rules;
    sr_document_reader *reader;
    sr_document_encoder **encoders; /* (threads) */
    batch_slot *slots;              /* (slot_count) */
    int slot_count;
    sr_shard_set *set;
    int lock;        /* of the folder; -1: none */
    bool overwrites; /* the folder had data before */
    json_t *inputs;  /* for the manifest */
    sr_prepare_progress progress;
} preparation;

/* ---- Before the work */

static srnn_status measure_inputs(preparation *work) {
    work->inputs = json_array();
    for (int i = 0; i < work->settings.input_count; i++) {
        const char *name = work->settings.inputs[i];
        struct stat facts;
        if (stat(name, &facts) != 0)
            return SR_FAIL(SRNN_ERR_IO, "%s: cannot open: %s", name, strerror(errno));
        if (S_ISDIR(facts.st_mode))
            return SR_FAIL(SRNN_ERR_IO, "%s: is a folder; name the files in it", name);
        size_t length = strlen(name);
        if (length > 4 && strcmp(name + length - 4, ".bin") == 0)
            return SR_FAIL(SRNN_ERR_ARGUMENT,
                           "%s: a .bin file holds tokens, not text; it can be used as data as it "
                           "is",
                           name);
        work->progress.input_bytes += facts.st_size;
        if (!sr_text_is_utf8(name, strlen(name)))
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: the name is not UTF-8", name);
        sr_json_append(work->inputs,
                       json_pack("{s:s, s:I}", "file", name, "bytes", (json_int_t)facts.st_size));
    }
    return sr_json_complete(work->inputs, "the list of inputs");
}

static srnn_status prepare_folder(preparation *work) {
    const sr_prepare_settings *settings = &work->settings;
    const char *folder = settings->folder;
    SR_TRY(sr_folder_make(folder));
    SR_TRY(sr_folder_lock(&work->lock, folder, 0));
    work->overwrites = sr_path_has(folder, SR_MANIFEST_NAME);
    if (work->overwrites && !settings->overwrite)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: already holds prepared data; choose another folder, or overwrite it",
                       folder);
    return sr_shard_set_remove(folder);
}

static srnn_status create_workers(preparation *work) {
    sr_prepare_settings *settings = &work->settings;
    int workers = settings->threads;
    work->rules = (sr_document_rules){
        .files = settings->inputs,
        .field = settings->field,
        .replace_invalid = settings->replace_invalid,
        .end_token = settings->without_end ? -1 : sr_tokenizer_eos(work->tokenizer),
    };
    SR_TRY(sr_alloc_zero((void **)&work->encoders, (size_t)workers, sizeof *work->encoders));
    for (int i = 0; i < workers; i++)
        SR_TRY(sr_document_encoder_create(&work->encoders[i], work->tokenizer, &work->rules));
    SR_TRY(sr_alloc_zero((void **)&work->slots, (size_t)workers * 2 + 2, sizeof *work->slots));
    work->slot_count = workers * 2 + 2;
    const sr_shard_settings shards = {
        .vocab = sr_tokenizer_vocab_size(work->tokenizer),
        .end_token = work->rules.end_token,
        .tokenizer_hash = sr_tokenizer_hash(work->tokenizer),
    };
    SR_TRY(sr_document_reader_create(&work->reader, settings->inputs, settings->input_count,
                                     (size_t)settings->document_bytes));
    return sr_shard_set_create(&work->set, settings->folder, settings->shard_tokens, &shards);
}

/* ---- The work */

static srnn_status read_slot(void *context, int index, bool *end) {
    preparation *work = context;
    batch_slot *slot = &work->slots[index];
    SR_TRY(sr_document_reader_next(work->reader, &slot->batch));
    slot->read_bytes = sr_document_reader_position(work->reader);
    *end = slot->batch.count == 0;
    return SRNN_OK;
}

static srnn_status encode_slot(void *context, int index, int worker) {
    preparation *work = context;
    batch_slot *slot = &work->slots[index];
    return sr_document_encoder_run(work->encoders[worker], &slot->tokens, &slot->batch);
}

static sr_split choose_split(const preparation *work, int64_t document) {
    double draw = sr_random_uniform(work->settings.seed, split_stream, (uint64_t)document);
    return draw < work->settings.validation ? SR_SPLIT_VALIDATION : SR_SPLIT_TRAIN;
}

static srnn_status write_document(preparation *work, const sr_document *document,
                                  const uint32_t *ids, size_t count) {
    sr_prepare_progress *progress = &work->progress;
    progress->text_bytes += (int64_t)document->bytes;
    if (count == 0) {
        progress->empty_documents++;
        return SRNN_OK;
    }
    sr_split split = choose_split(work, document->number);
    progress->documents[split]++;
    progress->tokens[split] += (int64_t)count;
    return sr_shard_set_append(work->set, split, ids, count);
}

static void drop_large_buffers(batch_slot *slot) {
    if (slot->batch.text.capacity > MOST_RETAINED_BYTES)
        sr_document_batch_free(&slot->batch);
    if (slot->tokens.capacity > MOST_RETAINED_BYTES)
        sr_tokens_free(&slot->tokens);
}

static srnn_status write_slot(void *context, int index) {
    preparation *work = context;
    batch_slot *slot = &work->slots[index];
    size_t begin = 0;
    for (size_t n = 0; n < slot->batch.count; n++) {
        const sr_document *document = &slot->batch.documents[n];
        const size_t count = document->token_end - begin;
        SR_TRY(write_document(work, document, slot->tokens.ids + begin, count));
        begin = document->token_end;
    }
    drop_large_buffers(slot);
    work->progress.read_bytes = slot->read_bytes;
    const sr_prepare_settings *settings = &work->settings;
    if (settings->progress && !settings->progress(settings->context, &work->progress))
        return SR_FAIL(SRNN_ERR_INTERRUPTED, "stopped; %s holds no data", settings->folder);
    return SRNN_OK;
}

/* ---- After the work */

static json_t *describe(const preparation *work, json_t *shards) {
    const sr_prepare_settings *settings = &work->settings;
    char hash[HASH_DIGITS + 1];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)sr_tokenizer_hash(work->tokenizer));
    json_t *tokenizer =
        json_pack("{s:s, s:b, s:s, s:s, s:I, s:I}", "file", work->tokenizer_copy.name, "built_in",
                  work->tokenizer_copy.source == NULL, "kind", sr_tokenizer_kind(work->tokenizer),
                  "hash", hash, "vocabulary", (json_int_t)sr_tokenizer_vocab_size(work->tokenizer),
                  "end_of_document", (json_int_t)work->rules.end_token);
    json_t *how =
        json_pack("{s:s, s:f, s:I, s:I, s:I, s:b, s:s}", "field", settings->field, "validation",
                  settings->validation, "seed", (json_int_t)settings->seed, "shard_tokens",
                  (json_int_t)settings->shard_tokens, "document_bytes",
                  (json_int_t)settings->document_bytes, "end_of_document", !settings->without_end,
                  "invalid", settings->replace_invalid ? "replace" : "stop");
    json_t *splits = json_object();
    for (sr_split split = SR_SPLIT_TRAIN; split < SR_SPLITS; split++)
        sr_json_set(splits, sr_split_name(split),
                    json_pack("{s:I, s:I}", "tokens", (json_int_t)work->progress.tokens[split],
                              "documents", (json_int_t)work->progress.documents[split]));
    return json_pack("{s:s, s:i, s:o, s:o, s:O, s:o, s:I, s:I, s:O}", "format", "softrnn data",
                     "version", 1, "tokenizer", tokenizer, "settings", how, "inputs", work->inputs,
                     "splits", splits, "text_bytes", (json_int_t)work->progress.text_bytes,
                     "empty_documents", (json_int_t)work->progress.empty_documents, "shards",
                     shards);
}

static srnn_status finish(preparation *work) {
    const int64_t *documents = work->progress.documents;
    if (documents[SR_SPLIT_TRAIN] + documents[SR_SPLIT_VALIDATION] == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s%s: no document with text in it",
                       work->settings.inputs[0], work->settings.input_count > 1 ? " .." : "");
    json_t *shards;
    SR_TRY(sr_shard_set_finish(work->set, &shards));
    bool stale = work->overwrites && !work->tokenizer_copy.source;
    srnn_status status =
        stale ? sr_tokenizer_copy_remove(work->settings.folder)
              : sr_tokenizer_copy_write(&work->tokenizer_copy, work->settings.folder);
    if (status == SRNN_OK)
        status = sr_json_replace(describe(work, shards), work->settings.folder, SR_MANIFEST_NAME,
                                 JSON_INDENT(2));
    json_decref(shards);
    return status;
}

static srnn_status work_through(preparation *work) {
    SR_TRY(create_workers(work));
    const sr_pipeline pipeline = {
        .read = read_slot,
        .work = encode_slot,
        .write = write_slot,
        .context = work,
        .slots = work->slot_count,
        .workers = work->settings.threads,
    };
    SR_TRY(sr_pipeline_run(&pipeline));
    return finish(work);
}

static srnn_status prepare(preparation *work) {
    SR_TRY(sr_tokenizer_load(&work->tokenizer, work->settings.tokenizer));
    SR_TRY(sr_tokenizer_copy_find(&work->tokenizer_copy, work->settings.tokenizer));
    SR_TRY(measure_inputs(work));
    SR_TRY(prepare_folder(work));
    srnn_status status = work_through(work);
    if (status != SRNN_OK) {
        char *detail = strdup(srnn_error_detail());
        sr_shard_set_free(work->set);
        work->set = NULL;
        sr_shard_set_remove(work->settings.folder);
        status = SR_FAIL(status, "%s", detail ? detail : "no memory");
        free(detail);
    }
    return status;
}

static void work_free(preparation *work) {
    for (int i = 0; work->encoders && i < work->settings.threads; i++)
        sr_document_encoder_free(work->encoders[i]);
    for (int i = 0; i < work->slot_count; i++) {
        sr_document_batch_free(&work->slots[i].batch);
        sr_tokens_free(&work->slots[i].tokens);
    }
    free(work->encoders);
    free(work->slots);
    sr_shard_set_free(work->set);
    sr_document_reader_free(work->reader);
    sr_tokenizer_free(work->tokenizer);
    free(work->tokenizer_copy.source);
    json_decref(work->inputs);
    sr_folder_unlock(work->lock);
}

static srnn_status check(const sr_prepare_settings *settings) {
    if (settings->input_count < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "there is no file to prepare");
    if (!(settings->validation >= 0 && settings->validation <= 1))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a validation share of %g is not between 0 and 1",
                       settings->validation);
    if (settings->shard_tokens < 0 || settings->document_bytes < 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a limit is negative");
    return SRNN_OK;
}

srnn_status sr_prepare(const sr_prepare_settings *settings, sr_prepare_progress *done) {
    SR_TRY(check(settings));
    preparation work = {.settings = *settings, .lock = -1};
    sr_prepare_settings *filled = &work.settings;
    filled->threads = sr_thread_count(filled->threads);
    if (!filled->field)
        filled->field = "text";
    if (filled->shard_tokens == 0)
        filled->shard_tokens = STANDARD_SHARD_TOKENS;
    if (filled->document_bytes == 0)
        filled->document_bytes = STANDARD_DOCUMENT_BYTES;
    srnn_status status = prepare(&work);
    if (done)
        *done = work.progress;
    work_free(&work);
    return status;
}
