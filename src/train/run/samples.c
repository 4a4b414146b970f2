/* samples.c: text that a finished run writes. */
#include "train/run/samples.h"

#include "base/memory.h"
#include "data/tokenizer/files/copy.h"
#include "data/tokenizer/tokenizer.h"
#include "files/json.h"
#include "model/sampler.h"
#include "model/session.h"

#include <stdlib.h>

/* Beginnings are equal for all runs of a task and seed: they come from the validation rows. */
enum { SAMPLES = 2, PROMPT_MOST = 48 };
static const double temperature = 0.8;

typedef struct writer {
    const sr_run_settings *settings;
    const sr_source *source;
    const sr_model *model;
    sr_tokenizer *tokenizer;
    sr_session *session;
    sr_sampler *sampler;
    float *logits;          /* (V) */
    int32_t *ids, *targets; /* (source->T): a validation row */
    int64_t *offsets;       /* (source->T + 1) */
} writer;

/* Bytes that are not UTF-8 are written as \xNN, NUL as a space. */
static srnn_status decode(json_t **text, const writer *w, const uint32_t *ids, size_t count) {
    sr_bytes bytes = {0};
    *text = NULL;
    srnn_status status = sr_tokenizer_decode(w->tokenizer, &bytes, ids, count);
    for (size_t i = 0; i < bytes.count; i++)
        bytes.data[i] = bytes.data[i] ? bytes.data[i] : ' ';
    if (status == SRNN_OK)
        status = sr_bytes_append(&bytes, "", 1);
    if (status == SRNN_OK)
        *text = sr_json_plain_text(bytes.data);
    sr_bytes_free(&bytes);
    return status;
}

/* The beginning of a row's first document, at most half of the row. */
static srnn_status read_prompt(const writer *w, int64_t row, sr_tokens *prompt) {
    sr_batch batch = {.B = 1, .ids = w->ids, .targets = w->targets, .offsets = w->offsets};
    SR_TRY(sr_source_batch(w->source, &batch, SR_SPLIT_VALIDATION, row));
    int64_t count = batch.documents > 1 ? batch.offsets[1] : w->source->T;
    count = count < (w->source->T + 1) / 2 ? count : (w->source->T + 1) / 2;
    count = count < PROMPT_MOST ? count : PROMPT_MOST;
    prompt->count = 0;
    for (int64_t t = 0; t < count; t++)
        SR_TRY(sr_tokens_push(prompt, (uint32_t)w->ids[t]));
    return SRNN_OK;
}

static srnn_status feed(const writer *w, int32_t id) {
    return sr_session_feed(w->session, w->logits, &id, 1);
}

/* Prefix tokens, the prompt, then what the model writes, as far as it has positions. */
static srnn_status continue_prompt(const writer *w, uint64_t number, const sr_tokens *prompt,
                                   sr_tokens *text) {
    const int front = w->source->exact ? 0 : sr_model_config_prefix_tokens(&w->model->config);
    const int64_t room = w->model->config.positions - front - (int64_t)prompt->count;
    text->count = 0;
    SR_TRY(sr_session_reset(w->session));
    for (int t = 0; t < front; t++)
        SR_TRY(feed(w, 0));
    for (size_t t = 0; t < prompt->count; t++)
        SR_TRY(feed(w, (int32_t)prompt->ids[t]));
    for (int64_t n = 0; n < w->settings->sample && n <= room; n++) {
        const int32_t id = sr_sampler_choose(w->sampler, w->logits, number, (uint64_t)n);
        SR_TRY(sr_tokens_push(text, (uint32_t)id));
        if (n < room)
            SR_TRY(feed(w, id));
    }
    return SRNN_OK;
}

static srnn_status add_sample(const writer *w, int number, json_t *list) {
    sr_tokens prompt = {0}, written = {0};
    json_t *begin = NULL, *text = NULL;
    srnn_status status = read_prompt(w, number, &prompt);
    if (status == SRNN_OK)
        status = continue_prompt(w, (uint64_t)number, &prompt, &written);
    if (status == SRNN_OK)
        status = decode(&begin, w, prompt.ids, prompt.count);
    if (status == SRNN_OK)
        status = decode(&text, w, written.ids, written.count);
    sr_tokens_free(&prompt);
    sr_tokens_free(&written);
    json_t *object = json_object();
    sr_json_set(object, "prompt", begin);
    sr_json_set(object, "text", text);
    sr_json_append(list, object);
    return status;
}

/* The run's tokenizer: its folder has a copy unless the tokenizer is built in. */
static const char *tokenizer_of(const sr_run_settings *settings, const char *folder) {
    return sr_tokenizer_is_in(folder) ? folder : settings->tokenizer;
}

static srnn_status fill(writer *w, sr_model *model, const char *folder) {
    const size_t T = (size_t)w->source->T;
    const sr_sampler_settings sampler = {.temperature = temperature,
                                         .seed = (uint64_t)w->settings->seed};
    void *memory;
    SR_TRY(sr_tokenizer_load(&w->tokenizer, tokenizer_of(w->settings, folder)));
    SR_TRY(sr_sampler_create(&w->sampler, &sampler, model->config.V));
    SR_TRY(sr_alloc(&memory, (size_t)model->config.V, sizeof *w->logits));
    w->logits = memory;
    SR_TRY(sr_alloc(&memory, T, sizeof *w->ids));
    w->ids = memory;
    SR_TRY(sr_alloc(&memory, T, sizeof *w->targets));
    w->targets = memory;
    SR_TRY(sr_alloc(&memory, T + 1, sizeof *w->offsets));
    w->offsets = memory;
    return sr_session_create(&w->session, model, &(sr_session_setup){.B = 1, .T = 1});
}

static void release(writer *w) {
    sr_session_free(w->session);
    sr_sampler_free(w->sampler);
    sr_tokenizer_free(w->tokenizer);
    free(w->logits);
    free(w->ids);
    free(w->targets);
    free(w->offsets);
}

srnn_status sr_run_samples_write(const sr_run_settings *settings, sr_model *model,
                                 const sr_source *source, const char *folder,
                                 const sr_ranks *ranks) {
    writer w = {.settings = settings, .source = source, .model = model};
    if (settings->sample == 0 || ranks->rank != 0 || !*tokenizer_of(settings, folder) ||
        source->rows[SR_SPLIT_VALIDATION] == 0)
        return SRNN_OK;
    json_t *root = json_object(), *list = json_array();
    sr_json_set(root, "temperature", json_real(temperature));
    sr_json_set(root, "samples", list);
    srnn_status status = fill(&w, model, folder);
    for (int n = 0; n < SAMPLES && status == SRNN_OK; n++)
        status = add_sample(&w, n, list);
    release(&w);
    if (status == SRNN_ERR_UNSUPPORTED) { /* the run is complete without its samples */
        sr_json_set(root, "message", sr_json_plain_text(srnn_error_detail()));
        status = SRNN_OK;
    }
    if (status != SRNN_OK) {
        json_decref(root);
        return status;
    }
    return sr_json_replace(root, folder, "samples.json", JSON_INDENT(2) | JSON_REAL_PRECISION(9));
}
