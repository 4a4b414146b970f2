/* decoder.c: token ids to text, in whole characters. */
#include "data/tokenizer/parts.h"

#include "base/memory.h"
#include "data/text/unicode.h"

#include <stdlib.h>
#include <string.h>

struct sr_decoder {
    const sr_tokenizer *tokenizer;
    bool started;      /* an id was pushed */
    size_t strip_left; /* copies of the strip text that may still be dropped */
    size_t held_count;
    char held[3]; /* the bytes of an incomplete character */
};

static void start(sr_decoder *decoder) {
    decoder->started = false;
    decoder->strip_left = decoder->tokenizer->decoding.strip_count;
    decoder->held_count = 0;
}

srnn_status sr_decoder_create(sr_decoder **decoder, const sr_tokenizer *tokenizer) {
    *decoder = NULL;
    sr_decoder *made;
    SR_TRY(sr_alloc_zero((void **)&made, 1, sizeof *made));
    made->tokenizer = tokenizer;
    start(made);
    *decoder = made;
    return SRNN_OK;
}

void sr_decoder_free(sr_decoder *decoder) {
    free(decoder);
}

static bool starts_with(const char *text, size_t bytes, const sr_bytes *start) {
    return bytes >= start->count &&
           (start->count == 0 || memcmp(text, start->data, start->count) == 0);
}

/* Bytes after `from` are new: removes the prefix that a text must not start with. */
static void strip_start(sr_decoder *decoder, sr_bytes *text, size_t from, uint32_t id) {
    const sr_decoding *decoding = &decoder->tokenizer->decoding;
    const sr_bytes *strip = &decoding->strip;
    size_t bytes;
    const char *written = sr_vocabulary_text(&decoder->tokenizer->vocabulary, id, &bytes);
    bool marked = starts_with(written, bytes, &decoding->strip_mark);
    while (decoder->strip_left && text->count > from) {
        size_t more = text->count - from;
        if (!marked || !starts_with(text->data + from, more, strip)) {
            decoder->strip_left = 0;
            return;
        }
        memmove(text->data + from, text->data + from + strip->count, more - strip->count);
        text->count -= strip->count;
        decoder->strip_left--;
        marked = decoding->strip_mark.count == 0;
    }
}

static srnn_status append_token(sr_decoder *decoder, sr_bytes *text, uint32_t id) {
    const sr_decoding *decoding = &decoder->tokenizer->decoding;
    const bool first = !decoder->started;
    const sr_id_texts *all = first && decoding->first.start ? &decoding->first : &decoding->ids;
    decoder->started = true;
    if (!first && decoding->spaced)
        SR_TRY(sr_bytes_append(text, " ", 1));
    const size_t from = all->start[id], bytes = all->start[id + 1] - from;
    return bytes ? sr_bytes_append(text, all->texts.data + from, bytes) : SRNN_OK;
}

srnn_status sr_decoder_push(sr_decoder *decoder, sr_bytes *text, uint32_t id) {
    size_t unused;
    if (!sr_vocabulary_text(&decoder->tokenizer->vocabulary, id, &unused))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "there is no token %u: the tokenizer has %u", id,
                       decoder->tokenizer->vocabulary.size);
    size_t from = text->count;
    SR_TRY(sr_bytes_append(text, decoder->held, decoder->held_count));
    SR_TRY(append_token(decoder, text, id));
    strip_start(decoder, text, from, id);
    decoder->held_count = 0;
    if (text->count > from)
        decoder->held_count = sr_utf8_cut_suffix(text->data + from, text->count - from);
    text->count -= decoder->held_count;
    if (decoder->held_count)
        memcpy(decoder->held, text->data + text->count, decoder->held_count);
    return SRNN_OK;
}

srnn_status sr_decoder_finish(sr_decoder *decoder, sr_bytes *text) {
    srnn_status status = sr_bytes_append(text, decoder->held, decoder->held_count);
    start(decoder);
    return status;
}

srnn_status sr_tokenizer_decode(const sr_tokenizer *tokenizer, sr_bytes *text, const uint32_t *ids,
                                size_t count) {
    sr_decoder decoder = {.tokenizer = tokenizer};
    start(&decoder);
    for (size_t i = 0; i < count; i++)
        SR_TRY(sr_decoder_push(&decoder, text, ids[i]));
    return sr_decoder_finish(&decoder, text);
}
