/* stream.c: one prompt and its continuation, up to a stop. */
#include "cli/model/stream.h"

#include <stdio.h>
#include <string.h>

srnn_status stream_open(stream *s, const sr_tokenizer *tokenizer, const char *const *stops) {
    *s = (stream){.stops = stops, .done = true};
    return sr_decoder_create(&s->decoder, tokenizer);
}

void stream_close(stream *s) {
    sr_decoder_free(s->decoder);
    sr_tokens_free(&s->prompt);
    sr_bytes_free(&s->text);
}

void stream_begin(stream *s, uint64_t number) {
    s->prompt.count = s->text.count = s->prompt_text = s->shown = 0;
    s->number = number;
    s->produced = 0;
    s->done = false;
}

srnn_status stream_prompt(stream *s, uint32_t token, bool silent) {
    SR_TRY(sr_tokens_push(&s->prompt, token));
    if (!silent)
        SR_TRY(sr_decoder_push(s->decoder, &s->text, token));
    s->prompt_text = s->text.count;
    return SRNN_OK;
}

/* The start of the first stop text after the prompt, or SIZE_MAX. */
static size_t find_stop(const stream *s) {
    size_t first = SIZE_MAX;
    for (int i = 0; i < STREAM_STOPS && s->stops[i]; i++) {
        const char *stop = s->stops[i];
        const char *at = s->text.count > s->prompt_text
                             ? memmem(s->text.data + s->prompt_text, s->text.count - s->prompt_text,
                                      stop, strlen(stop))
                             : NULL;
        if (*stop && at && (size_t)(at - s->text.data) < first)
            first = (size_t)(at - s->text.data);
    }
    return first;
}

srnn_status stream_end(stream *s) {
    s->done = true;
    return sr_decoder_finish(s->decoder, &s->text);
}

srnn_status stream_add(stream *s, uint32_t token) {
    SR_TRY(sr_decoder_push(s->decoder, &s->text, token));
    s->produced++;
    const size_t stop = find_stop(s);
    if (stop == SIZE_MAX)
        return SRNN_OK;
    SR_TRY(stream_end(s));
    s->text.count = stop;
    return SRNN_OK;
}

/* The number of bytes at the end of the text that could begin a stop text. */
static size_t held_back(const stream *s) {
    size_t held = 0;
    for (int i = 0; !s->done && i < STREAM_STOPS && s->stops[i]; i++) {
        const size_t length = strlen(s->stops[i]);
        for (size_t n = length > 0 ? length - 1 : 0; n > held; n--)
            if (n <= s->text.count && memcmp(s->text.data + s->text.count - n, s->stops[i], n) == 0)
                held = n;
    }
    return held;
}

void stream_show(stream *s, FILE *out) {
    const size_t end = s->text.count - held_back(s);
    if (end > s->shown) {
        fwrite(s->text.data + s->shown, 1, end - s->shown, out);
        s->shown = end;
    }
    fflush(out);
}
