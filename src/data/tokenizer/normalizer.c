/* normalizer.c: the steps that change a text before it is cut into pieces. */
#include "data/tokenizer/normalizer.h"

#include <string.h>

srnn_status sr_normalizer_add(sr_normalizer *normalizer, sr_normal_step **step) {
    *step = NULL;
    if (normalizer->count == SR_NORMAL_STEPS)
        return SR_FAIL(SRNN_ERR_LIMIT, "more than %d normalizers", SR_NORMAL_STEPS);
    *step = &normalizer->steps[normalizer->count++];
    return SRNN_OK;
}

void sr_normalizer_free(sr_normalizer *normalizer) {
    for (size_t i = 0; i < normalizer->count; i++) {
        sr_pattern_free(normalizer->steps[i].pattern);
        sr_bytes_free(&normalizer->steps[i].content);
    }
    normalizer->count = 0;
}

static srnn_status replace_stretch(sr_bytes *out, const sr_normal_step *step, sr_matcher *matcher,
                                   const char *text, size_t bytes) {
    sr_search search;
    bool found = true;
    sr_search_start(&search, step->pattern, matcher, text, bytes);
    for (size_t at = 0; found; at = search.end) {
        SR_TRY(sr_search_next(&search, &found));
        SR_TRY(sr_bytes_append(out, text + at, (found ? search.start : bytes) - at));
        if (found)
            SR_TRY(sr_bytes_append(out, step->content.data, step->content.count));
    }
    return SRNN_OK;
}

/* Regular expressions are applied to the well-formed parts only. */
static srnn_status replace(sr_bytes *out, const sr_normal_step *step, sr_matcher *matcher,
                           const char *text, size_t bytes) {
    if (!sr_pattern_needs_utf8(step->pattern))
        return replace_stretch(out, step, matcher, text, bytes);
    for (size_t at = 0; at < bytes;) {
        size_t valid = sr_utf8_valid_prefix(text + at, bytes - at);
        SR_TRY(replace_stretch(out, step, matcher, text + at, valid));
        at += valid;
        if (at < bytes)
            SR_TRY(sr_bytes_append(out, text + at++, 1));
    }
    return SRNN_OK;
}

/* SentencePiece reads a symbol or a character at a time, and skips spaces that follow another
 * space. It drops spaces at the end after they have become marks, and therefore also marks of the
 * text itself. */
static srnn_status collapse_spaces(sr_bytes *out, const sr_added *symbols, const char *text,
                                   size_t bytes) {
    SR_TRY(sr_bytes_reserve(out, bytes));
    bool after_space = true;
    for (size_t at = 0, end; at < bytes; at = end) {
        const size_t symbol = sr_added_prefix(symbols, text + at, bytes - at);
        end = at + (symbol ? symbol : 1);
        while (after_space && at < end && text[at] == ' ')
            at++;
        if (at == end)
            continue;
        memcpy(out->data + out->count, text + at, end - at);
        out->count += end - at;
        after_space = text[end - 1] == ' ';
    }
    for (;;) {
        if (out->count >= 1 && out->data[out->count - 1] == ' ')
            out->count--;
        else if (out->count >= 3 && memcmp(out->data + out->count - 3, "\xE2\x96\x81", 3) == 0)
            out->count -= 3;
        else
            return SRNN_OK;
    }
}

static srnn_status run_step(sr_bytes *out, const sr_normal_step *step, sr_matcher *matcher,
                            const char *text, size_t bytes) {
    switch (step->kind) {
    case SR_NORMAL_PREPEND:
        SR_TRY(sr_bytes_append(out, step->content.data, step->content.count));
        return sr_bytes_append(out, text, bytes);
    case SR_NORMAL_REPLACE:
        return replace(out, step, matcher, text, bytes);
    case SR_NORMAL_FORM:
        return sr_unicode_normalize(out, text, bytes, step->form);
    case SR_NORMAL_COLLAPSE_SPACES:
        return collapse_spaces(out, step->symbols, text, bytes);
    }
    return SRNN_OK;
}

srnn_status sr_normalizer_run(const sr_normalizer *normalizer, sr_matcher *matcher,
                              sr_bytes buffers[2], const char **text, size_t *bytes,
                              bool continues) {
    size_t ran = 0; /* each step reads the buffer that the one before it wrote */
    for (size_t i = 0; i < normalizer->count; i++) {
        const sr_normal_step *step = &normalizer->steps[i];
        if (*bytes == 0 || (continues && step->kind == SR_NORMAL_PREPEND))
            continue;
        sr_bytes *buffer = &buffers[ran++ & 1];
        buffer->count = 0;
        SR_TRY(run_step(buffer, step, matcher, *text, *bytes));
        *text = buffer->data;
        *bytes = buffer->count;
    }
    return SRNN_OK;
}
