/* splitter.c: the steps that cut a normalised text into pieces. */
#include "data/tokenizer/splitter.h"

#include "data/text/unicode.h"

#include <string.h>

srnn_status sr_splitter_add(sr_splitter *splitter, sr_split_step **step) {
    *step = NULL;
    if (splitter->count == SR_SPLIT_STEPS)
        return SR_FAIL(SRNN_ERR_LIMIT, "more than %d pre-tokenizers", SR_SPLIT_STEPS);
    *step = &splitter->steps[splitter->count++];
    return SRNN_OK;
}

srnn_status sr_splitter_add_gpt2(sr_splitter *splitter) {
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                               "|\\s+(?!\\S)|\\s+";
    sr_split_step *step;
    SR_TRY(sr_splitter_add(splitter, &step));
    return sr_pattern_create_regex(&step->pattern, gpt2, sizeof gpt2 - 1);
}

void sr_splitter_free(sr_splitter *splitter) {
    for (size_t i = 0; i < splitter->count; i++) {
        sr_pattern_free(splitter->steps[i].pattern);
        sr_bytes_free(&splitter->steps[i].mark);
    }
    splitter->count = 0;
}

typedef struct piece {
    const char *text;
    size_t bytes;
    bool first; /* the start of the whole text */
} piece;

static srnn_status run_from(sr_split_run *run, size_t index, piece whole);

/* Passes start .. end - 1 of `whole` to the next step. */
static srnn_status pass_on(sr_split_run *run, size_t index, piece whole, size_t start, size_t end) {
    piece part = {whole.text + start, end - start, whole.first && start == 0};
    return run_from(run, index + 1, part);
}

static bool joins(sr_split_behaviour behaviour, bool before_matched, bool matched) {
    switch (behaviour) {
    case SR_SPLIT_ISOLATED:
    case SR_SPLIT_REMOVED:
        return false;
    case SR_SPLIT_MERGED_WITH_PREVIOUS:
        return matched && !before_matched;
    case SR_SPLIT_MERGED_WITH_NEXT:
        return before_matched && !matched;
    case SR_SPLIT_CONTIGUOUS:
        return matched == before_matched;
    }
    return false;
}

/* The last part of a text, which may be joined with what follows it. */
typedef struct waiting {
    size_t start, end;
    bool there; /* set; a part may be empty */
    bool matched;
} waiting;

static srnn_status finish_part(sr_split_run *run, size_t index, piece whole, const waiting *last) {
    if (last->matched && run->splitter->steps[index].behaviour == SR_SPLIT_REMOVED)
        return SRNN_OK;
    return pass_on(run, index, whole, last->start, last->end);
}

static srnn_status next_part(sr_split_run *run, size_t index, piece whole, waiting *last,
                             size_t end, bool matched) {
    sr_split_behaviour behaviour = run->splitter->steps[index].behaviour;
    if (last->there && joins(behaviour, last->matched, matched)) {
        last->end = end;
        last->matched = matched;
        return SRNN_OK;
    }
    waiting before = *last;
    *last = (waiting){before.end, end, true, matched};
    return finish_part(run, index, whole, &before);
}

/* Cuts the part from .. to - 1, which is well-formed for the pattern. */
static srnn_status cut_stretch(sr_split_run *run, size_t index, piece whole, size_t from,
                               size_t to) {
    const sr_split_step *step = &run->splitter->steps[index];
    piece stretch = {whole.text + from, to - from, whole.first && from == 0};
    waiting last = {0};
    sr_search search;
    bool found = true;
    sr_search_start(&search, step->pattern, run->matcher, stretch.text, stretch.bytes);
    for (size_t at = 0; found;) {
        SR_TRY(sr_search_next(&search, &found));
        size_t start = found ? search.start : stretch.bytes;
        if (start > at)
            SR_TRY(next_part(run, index, stretch, &last, start, step->invert));
        if (found)
            SR_TRY(next_part(run, index, stretch, &last, search.end, !step->invert));
        at = search.end;
    }
    return finish_part(run, index, stretch, &last);
}

static srnn_status cut(sr_split_run *run, size_t index, piece whole) {
    bool any_bytes = run->valid || !sr_pattern_needs_utf8(run->splitter->steps[index].pattern);
    for (size_t at = 0; at < whole.bytes;) {
        size_t readable =
            any_bytes ? whole.bytes : sr_utf8_valid_prefix(whole.text + at, whole.bytes - at);
        if (readable)
            SR_TRY(cut_stretch(run, index, whole, at, at + readable));
        at += readable;
        if (at < whole.bytes) {
            SR_TRY(pass_on(run, index, whole, at, at + 1));
            at++;
        }
    }
    return SRNN_OK;
}

static srnn_status prefix_space(sr_split_run *run, size_t index, piece whole) {
    if (whole.text[0] == ' ')
        return run_from(run, index + 1, whole);
    sr_bytes *text = &run->texts[index];
    text->count = 0;
    SR_TRY(sr_bytes_append(text, " ", 1));
    SR_TRY(sr_bytes_append(text, whole.text, whole.bytes));
    return run_from(run, index + 1, (piece){text->data, text->count, whole.first});
}

static srnn_status mark_spaces(sr_split_run *run, size_t index, piece whole) {
    const sr_split_step *step = &run->splitter->steps[index];
    sr_bytes *text = &run->texts[index];
    text->count = 0;
    bool marked = whole.text[0] == ' ' || (whole.bytes >= step->mark.count &&
                                           !memcmp(whole.text, step->mark.data, step->mark.count));
    if (!marked &&
        (step->prepend == SR_PREPEND_ALWAYS || (step->prepend == SR_PREPEND_FIRST && whole.first)))
        SR_TRY(sr_bytes_append(text, step->mark.data, step->mark.count));
    for (size_t at = 0; at < whole.bytes;) {
        const char *space = memchr(whole.text + at, ' ', whole.bytes - at);
        size_t end = space ? (size_t)(space - whole.text) : whole.bytes;
        SR_TRY(sr_bytes_append(text, whole.text + at, end - at));
        if (space)
            SR_TRY(sr_bytes_append(text, step->mark.data, step->mark.count));
        at = end + 1;
    }
    return run_from(run, index + 1, (piece){text->data, text->count, whole.first});
}

static srnn_status run_from(sr_split_run *run, size_t index, piece whole) {
    if (whole.bytes == 0)
        return SRNN_OK;
    if (index == run->splitter->count)
        return run->take(run->context, whole.text, whole.bytes);
    switch (run->splitter->steps[index].kind) {
    case SR_SPLIT_PATTERN:
        return cut(run, index, whole);
    case SR_SPLIT_PREFIX_SPACE:
        return prefix_space(run, index, whole);
    case SR_SPLIT_MARK_SPACES:
        return mark_spaces(run, index, whole);
    }
    return SRNN_OK;
}

srnn_status sr_splitter_run(sr_split_run *run, const char *text, size_t bytes, bool first) {
    return run_from(run, 0, (piece){text, bytes, first});
}
