/* stream_decoder.c: reads the decoder of a tokenizer.json and applies it to every token. */
#include "data/tokenizer/steps.h"

#include "base/memory.h"
#include "data/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { STEP_LIMIT = 16, STRIP_LIMIT = 1024 };

typedef enum step_kind {
    STEP_BYTE_LEVEL = 0,
    STEP_REPLACE,
    STEP_BYTE_FALLBACK,
    STEP_STRIP, /* of every token */
} step_kind;

/* Texts belong to the JSON. */
typedef struct step {
    step_kind kind;
    const char *from, *to; /* REPLACE; from: STRIP */
    size_t from_bytes, to_bytes;
    bool dropped_first;  /* REPLACE: by the empty string in the first token of a text */
    int64_t start, stop; /* STRIP */
} step;

typedef struct reader {
    sr_decoding *decoding;
    step steps[STEP_LIMIT];
    size_t count;
    bool fused;         /* later steps apply to the whole text instead of tokens */
    bool first_differs; /* some step treats the first token differently */
} reader;

static srnn_status add_step(reader *to, step added, const char *type) {
    if (to->fused)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "decoder: \"%s\" after \"Fuse\" is not supported",
                       type);
    if (to->count == STEP_LIMIT)
        return SR_FAIL(SRNN_ERR_LIMIT, "more than %d decoders", STEP_LIMIT);
    to->steps[to->count++] = added;
    return SRNN_OK;
}

static srnn_status read_replace(reader *to, const json_t *json) {
    static const char *const allowed[] = {"type", "pattern", "content", NULL};
    static const char *const literal[] = {"String", NULL};
    static const char where[] = "decoder Replace";
    step replace = {.kind = STEP_REPLACE};
    const json_t *pattern = json_object_get(json, "pattern");
    SR_TRY(sr_json_check(json, where, allowed));
    SR_TRY(sr_json_check(pattern, where, literal));
    SR_TRY(sr_json_text(pattern, where, "String", &replace.from, &replace.from_bytes));
    SR_TRY(sr_json_text(json, where, "content", &replace.to, &replace.to_bytes));
    if (!replace.from || replace.from_bytes == 0 || !replace.to)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"pattern\" or \"content\" is missing", where);
    return add_step(to, replace, "Replace");
}

static srnn_status read_strip(reader *to, const json_t *json) {
    static const char *const allowed[] = {"type", "content", "start", "stop", NULL};
    static const char where[] = "decoder Strip";
    step strip = {.kind = STEP_STRIP};
    SR_TRY(sr_json_check(json, where, allowed));
    SR_TRY(sr_json_text(json, where, "content", &strip.from, &strip.from_bytes));
    SR_TRY(sr_json_count(json, where, "start", STRIP_LIMIT, &strip.start));
    SR_TRY(sr_json_count(json, where, "stop", STRIP_LIMIT, &strip.stop));
    if (!strip.from || strip.from_bytes == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"content\" is missing", where);
    if (!to->fused)
        return add_step(to, strip, "Strip");
    if (strip.stop != 0 || to->decoding->strip_count != 0)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s: stripping the end of a text, or twice, is not supported", where);
    to->decoding->strip_count = (size_t)strip.start;
    return sr_bytes_append(&to->decoding->strip, strip.from, strip.from_bytes);
}

static srnn_status read_metaspace(reader *to, const json_t *json) {
    static const char *const allowed[] = {"type",    "replacement",    "add_prefix_space",
                                          "str_rep", "prepend_scheme", "split",
                                          NULL};
    static const char where[] = "decoder Metaspace";
    step replace = {.kind = STEP_REPLACE, .to = " ", .to_bytes = 1};
    bool prefix = true;
    const char *scheme;
    size_t bytes;
    SR_TRY(sr_json_check(json, where, allowed));
    SR_TRY(sr_json_text(json, where, "replacement", &replace.from, &replace.from_bytes));
    SR_TRY(sr_json_bool(json, where, "add_prefix_space", &prefix));
    SR_TRY(sr_json_text(json, where, "prepend_scheme", &scheme, &bytes));
    if (!replace.from || replace.from_bytes == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"replacement\" is missing", where);
    if (to->count != 0)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s after another decoder is not supported", where);
    replace.dropped_first = scheme ? strcmp(scheme, "never") != 0 : prefix;
    to->first_differs = to->first_differs || replace.dropped_first;
    return add_step(to, replace, "Metaspace");
}

static srnn_status read_one(reader *to, const json_t *json) {
    const char *type;
    SR_TRY(sr_json_type(json, "decoder", &type));
    if (strcmp(type, "ByteLevel") == 0)
        return add_step(to, (step){.kind = STEP_BYTE_LEVEL}, type);
    if (strcmp(type, "ByteFallback") == 0)
        return add_step(to, (step){.kind = STEP_BYTE_FALLBACK}, type);
    if (strcmp(type, "Replace") == 0)
        return read_replace(to, json);
    if (strcmp(type, "Strip") == 0)
        return read_strip(to, json);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(to, json);
    if (strcmp(type, "Fuse") == 0) {
        to->fused = true;
        return SRNN_OK;
    }
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "decoder: the type \"%s\" is not supported", type);
}

static srnn_status read_steps(reader *to, const json_t *json) {
    static const char *const allowed[] = {"type", "decoders", NULL};
    const char *type;
    SR_TRY(sr_json_type(json, "decoder", &type));
    if (strcmp(type, "Sequence") != 0)
        return read_one(to, json);
    SR_TRY(sr_json_check(json, "decoder Sequence", allowed));
    const json_t *items = json_object_get(json, "decoders");
    if (!json_is_array(items))
        return SR_FAIL(SRNN_ERR_FORMAT, "decoder Sequence: \"decoders\" is not a list");
    for (size_t i = 0; i < json_array_size(items); i++)
        SR_TRY(read_one(to, json_array_get(items, i)));
    return SRNN_OK;
}

/* ---- Applying the steps to one token: from `in`, appended to `out` ---- */

/* One byte per character; the text unchanged if a character represents no byte. */
static srnn_status decode_byte_level(sr_bytes *out, const sr_bytes *in) {
    size_t before = out->count, length;
    for (size_t at = 0; at < in->count; at += length) {
        uint32_t character;
        length = sr_utf8_decode(&character, in->data + at, in->count - at);
        int byte = length ? sr_byte_of_character(character) : -1;
        if (byte < 0) {
            out->count = before;
            return sr_bytes_append(out, in->data, in->count);
        }
        char one = (char)byte;
        SR_TRY(sr_bytes_append(out, &one, 1));
    }
    return SRNN_OK;
}

static srnn_status decode_replace(sr_bytes *out, const step *replace, const sr_bytes *in,
                                  bool first) {
    for (size_t at = 0; at < in->count;) {
        const char *found =
            memmem(in->data + at, in->count - at, replace->from, replace->from_bytes);
        size_t end = found ? (size_t)(found - in->data) : in->count;
        SR_TRY(sr_bytes_append(out, in->data + at, end - at));
        if (found && !(first && replace->dropped_first))
            SR_TRY(sr_bytes_append(out, replace->to, replace->to_bytes));
        at = end + replace->from_bytes;
    }
    return SRNN_OK;
}

static srnn_status decode_strip(sr_bytes *out, const step *strip, const sr_bytes *in) {
    size_t from = 0, to = in->count, bytes = strip->from_bytes;
    for (int64_t i = 0; i < strip->start && to - from >= bytes; i++) {
        if (memcmp(in->data + from, strip->from, bytes) != 0)
            break;
        from += bytes;
    }
    for (int64_t i = 0; i < strip->stop && to - from >= bytes; i++) {
        if (memcmp(in->data + to - bytes, strip->from, bytes) != 0)
            break;
        to -= bytes;
    }
    return to > from ? sr_bytes_append(out, in->data + from, to - from) : SRNN_OK;
}

static srnn_status decode_fallback(sr_bytes *out, const sr_bytes *in) {
    int byte = in->count ? sr_byte_of_token(in->data, in->count) : -1;
    char one = (char)byte;
    return byte < 0 ? sr_bytes_append(out, in->data, in->count) : sr_bytes_append(out, &one, 1);
}

static srnn_status apply(sr_bytes *out, const step *applied, const sr_bytes *in, bool first) {
    switch (applied->kind) {
    case STEP_BYTE_LEVEL:
        return decode_byte_level(out, in);
    case STEP_REPLACE:
        return decode_replace(out, applied, in, first);
    case STEP_BYTE_FALLBACK:
        return decode_fallback(out, in);
    case STEP_STRIP:
        return decode_strip(out, applied, in);
    }
    return SRNN_OK;
}

/* Added tokens that were searched in the normalised text are decoded from their normal form. */
static srnn_status find_normal_forms(const sr_bytes ***forms, const sr_tokenizer *tokenizer) {
    const sr_added *added = &tokenizer->added_normalized;
    SR_TRY(sr_alloc_zero((void **)forms, tokenizer->vocabulary.size, sizeof **forms));
    for (size_t i = 0; i < added->count; i++)
        (*forms)[added->tokens[i].id] = &added->tokens[i].text;
    return SRNN_OK;
}

/* Context for decoding all tokens of a text. */
typedef struct decode_run {
    const sr_tokenizer *tokenizer;
    const bool *is_added;   /* (size) */
    const sr_bytes **forms; /* (size) NULL: the text in the vocabulary */
    const reader *from;
    sr_bytes texts[2];
} decode_run;

static srnn_status decode_id(sr_id_texts *out, decode_run *run, uint32_t id, bool first) {
    size_t bytes = 0, current = 0;
    const char *text = sr_vocabulary_text(&run->tokenizer->vocabulary, id, &bytes);
    const sr_bytes *form = run->forms[id];
    sr_bytes *texts = run->texts;
    texts[0].count = 0;
    SR_TRY(form ? sr_bytes_append(&texts[0], form->data, form->count)
                : sr_bytes_append(&texts[0], text, bytes));
    for (size_t i = 0; i < run->from->count; i++) {
        if (run->from->steps[i].kind == STEP_BYTE_LEVEL && run->is_added[id])
            continue;
        texts[!current].count = 0;
        SR_TRY(apply(&texts[!current], &run->from->steps[i], &texts[current], first));
        current = !current;
    }
    return sr_id_texts_add(out, id, texts[current].data, texts[current].count);
}

static srnn_status decode_all(sr_decoding *decoding, decode_run *run) {
    const uint32_t size = run->tokenizer->vocabulary.size;
    SR_TRY(find_normal_forms(&run->forms, run->tokenizer));
    for (uint32_t id = 0; id < size; id++)
        SR_TRY(decode_id(&decoding->ids, run, id, false));
    if (!run->from->first_differs)
        return SRNN_OK;
    SR_TRY(sr_alloc_zero((void **)&decoding->first.start, (size_t)size + 1,
                         sizeof *decoding->first.start));
    for (uint32_t id = 0; id < size; id++)
        SR_TRY(decode_id(&decoding->first, run, id, true));
    return SRNN_OK;
}

srnn_status sr_json_decoder(sr_tokenizer *tokenizer, const bool *is_added, const json_t *json) {
    reader from = {.decoding = &tokenizer->decoding};
    decode_run run = {.tokenizer = tokenizer, .is_added = is_added, .from = &from};
    if (json && !json_is_null(json))
        SR_TRY(read_steps(&from, json));
    else
        tokenizer->decoding.spaced = true;
    srnn_status status = decode_all(&tokenizer->decoding, &run);
    free(run.forms);
    sr_bytes_free(&run.texts[0]);
    sr_bytes_free(&run.texts[1]);
    return status;
}
