/* pattern.c: finds a literal text or a regular expression in text. */
#include "data/text/pattern.h"

#include "base/memory.h"
#include "data/text/pattern_translate.h"
#include "data/text/unicode_newer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* Limit on backtracking. A text may need one step for each of its bytes; many more mean that the
 * expression is pathological. */
enum { MATCH_LIMIT = 10000000, MATCH_LIMIT_PER_BYTE = 16 };
enum { JIT_STACK_START = 32 << 10, JIT_STACK_LIMIT = 4 << 20 };

struct sr_pattern {
    sr_bytes literal; /* when code is NULL */
    pcre2_code *code;
    pcre2_code *newer; /* for texts with characters newer than the library's Unicode, or NULL */
    bool can_be_empty; /* it can match the empty string */
};

struct sr_matcher {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack; /* NULL where PCRE2 was built without its compiler */
};

srnn_status sr_pattern_create_literal(sr_pattern **pattern, const char *text, size_t bytes) {
    *pattern = NULL;
    if (bytes == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "an empty pattern matches nothing");
    sr_pattern *made;
    SR_TRY(sr_alloc_zero((void **)&made, 1, sizeof *made));
    srnn_status status = sr_bytes_append(&made->literal, text, bytes);
    if (status != SRNN_OK)
        sr_pattern_free(made);
    else
        *pattern = made;
    return status;
}

static srnn_status compile(pcre2_code **code, const sr_bytes *expression) {
    int error;
    PCRE2_SIZE where;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
    /* Multiline, because ^ and $ always match at lines in Oniguruma. */
    *code = pcre2_compile((PCRE2_SPTR)expression->data, expression->count,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &where, context);
    pcre2_compile_context_free(context);
    if (!*code) {
        PCRE2_UCHAR message[128];
        pcre2_get_error_message(error, message, sizeof message);
        return SR_FAIL(SRNN_ERR_FORMAT, "wrong regular expression \"%.*s\": %s at byte %zu",
                       (int)(expression->count < 200 ? expression->count : 200), expression->data,
                       (const char *)message, (size_t)where);
    }
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* failure only makes matching slower */
    return SRNN_OK;
}

static bool has_jit(void) {
    uint32_t jit = 0;
    return pcre2_config(PCRE2_CONFIG_JIT, &jit) == 0 && jit;
}

static bool library_is_old(void) {
    char version[32] = "";
    if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL) <= (int)sizeof version)
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    return strtol(version, NULL, 10) < SR_NEWER_UNICODE;
}

static srnn_status translate(pcre2_code **code, sr_translating *how, const char *expression,
                             size_t bytes) {
    sr_bytes translated = {0};
    srnn_status status = sr_pattern_translate(&translated, how, expression, bytes);
    if (status == SRNN_OK)
        status = compile(code, &translated);
    sr_bytes_free(&translated);
    return status;
}

/* Properties extended by ranges are slow, and few texts need them. */
static srnn_status translate_both(sr_pattern *pattern, const char *expression, size_t bytes) {
    sr_translating how = {.old = library_is_old()};
    SR_TRY(translate(&pattern->code, &how, expression, bytes));
    uint32_t empty = 0;
    pcre2_pattern_info(pattern->code, PCRE2_INFO_MATCHEMPTY, &empty);
    pattern->can_be_empty = empty != 0;
    how.newer = true;
    return how.grown ? translate(&pattern->newer, &how, expression, bytes) : SRNN_OK;
}

srnn_status sr_pattern_create_regex(sr_pattern **pattern, const char *expression, size_t bytes) {
    *pattern = NULL;
    if (bytes == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "an empty regular expression matches nothing");
    sr_pattern *made;
    SR_TRY(sr_alloc_zero((void **)&made, 1, sizeof *made));
    srnn_status status = translate_both(made, expression, bytes);
    if (status != SRNN_OK)
        sr_pattern_free(made);
    else
        *pattern = made;
    return status;
}

void sr_pattern_free(sr_pattern *pattern) {
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    pcre2_code_free(pattern->newer);
    sr_bytes_free(&pattern->literal);
    free(pattern);
}

bool sr_pattern_needs_utf8(const sr_pattern *pattern) {
    return pattern->code != NULL;
}

bool sr_pattern_can_be_empty(const sr_pattern *pattern) {
    return pattern->can_be_empty;
}

srnn_status sr_matcher_create(sr_matcher **matcher) {
    *matcher = NULL;
    sr_matcher *made;
    SR_TRY(sr_alloc_zero((void **)&made, 1, sizeof *made));
    made->match = pcre2_match_data_create(1, NULL);
    made->context = pcre2_match_context_create(NULL);
    const bool compiles = has_jit();
    if (compiles)
        made->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    if (!made->match || !made->context || (compiles && !made->stack)) {
        sr_matcher_free(made);
        return SR_FAIL(SRNN_ERR_MEMORY, "could not allocate memory for regular expressions");
    }
    if (made->stack)
        pcre2_jit_stack_assign(made->context, NULL, made->stack);
    *matcher = made;
    return SRNN_OK;
}

void sr_matcher_free(sr_matcher *matcher) {
    if (!matcher)
        return;
    pcre2_match_data_free(matcher->match);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    free(matcher);
}

static srnn_status match_failed(int error) {
    PCRE2_UCHAR message[128];
    pcre2_get_error_message(error, message, sizeof message);
    return SR_FAIL(SRNN_ERR_LIMIT, "a regular expression of the tokenizer gave up on the text: %s",
                   (const char *)message);
}

void sr_search_start(sr_search *search, const sr_pattern *pattern, sr_matcher *matcher,
                     const char *text, size_t bytes) {
    *search = (sr_search){.pattern = pattern, .matcher = matcher, .text = text, .bytes = bytes};
    search->newer = pattern->newer && sr_newer_in(text, bytes);
    uint64_t limit = MATCH_LIMIT + (uint64_t)bytes * MATCH_LIMIT_PER_BYTE;
    search->limit = limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX;
}

static bool find_literal(sr_search *search) {
    const sr_bytes *literal = &search->pattern->literal;
    const char *found = memmem(search->text + search->from, search->bytes - search->from,
                               literal->data, literal->count);
    if (!found)
        return false;
    search->start = (size_t)(found - search->text);
    search->end = search->start + literal->count;
    return true;
}

static srnn_status find_regex(sr_search *search, bool *found) {
    const sr_pattern *pattern = search->pattern;
    sr_matcher *matcher = search->matcher;
    pcre2_set_match_limit(matcher->context, search->limit);
    int matched = pcre2_match(search->newer ? pattern->newer : pattern->code,
                              (PCRE2_SPTR)search->text, search->bytes, search->from,
                              PCRE2_NO_UTF_CHECK, matcher->match, matcher->context);
    *found = matched >= 0;
    if (matched < 0)
        return matched == PCRE2_ERROR_NOMATCH ? SRNN_OK : match_failed(matched);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(matcher->match);
    search->start = range[0];
    search->end = range[1];
    return SRNN_OK;
}

/* The length of the character at `from`; 1 past the end. */
static size_t step(const sr_search *search) {
    size_t length = 1;
    while (search->from + length < search->bytes &&
           (search->text[search->from + length] & 0xC0) == 0x80)
        length++;
    return length;
}

srnn_status sr_search_next(sr_search *search, bool *found) {
    size_t last = search->any ? search->end : SIZE_MAX;
    *found = false;
    while (search->from < search->bytes + search->pattern->can_be_empty) {
        if (search->pattern->code)
            SR_TRY(find_regex(search, found));
        else
            *found = find_literal(search);
        if (!*found)
            return SRNN_OK;
        search->from = search->end;
        search->any = true;
        if (search->end > search->start || search->end != last)
            return SRNN_OK;
        search->from += step(search);
        *found = false;
    }
    return SRNN_OK;
}
