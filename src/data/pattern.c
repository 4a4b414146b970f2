/* pattern.c: finds a literal text or a regular expression in text. */
#include "data/pattern.h"

#include "base/memory.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* Going back once costs one; a text may need it for each of its bytes, and more says that the
 * expression is a trap. */
enum { MATCH_LIMIT = 10000000, MATCH_LIMIT_PER_BYTE = 16 };
enum { JIT_STACK_START = 32 << 10, JIT_STACK_LIMIT = 4 << 20 };

struct sr_pattern {
    sr_bytes literal; /* when code is NULL */
    pcre2_code *code;
};

struct sr_matcher {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
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

/* What stands for a class escape inside [ ], and whether it may stand there; PCRE2's own \s and \w
 * differ from those of the files in a few characters. NULL: the escape stays. */
static const char *class_escape(char letter) {
    switch (letter) {
    case 's':
        return "\\p{White_Space}";
    case 'S':
        return "\\P{White_Space}";
    case 'w':
        return "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    }
    return NULL;
}

static srnn_status translate_escape(sr_bytes *out, const char *escape, bool in_class) {
    static const char kept[] = "dDrntvfxAzZRX";
    char letter = escape[1];
    const char *class = class_escape(letter);
    bool letter_or_digit = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                           (letter >= '0' && letter <= '9');
    if (!class && letter_or_digit && !strchr(kept, letter) && !(letter == 'W' && !in_class))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "\\%c in a regular expression is not supported",
                       letter);
    if (!class && letter != 'W')
        return sr_bytes_append(out, escape, 2);
    if (in_class || letter == 's' || letter == 'S')
        return sr_bytes_append(out, class, strlen(class));
    class = class_escape('w');
    SR_TRY(sr_bytes_append(out, letter == 'W' ? "[^" : "[", letter == 'W' ? 2 : 1));
    SR_TRY(sr_bytes_append(out, class, strlen(class)));
    return sr_bytes_append(out, "]", 1);
}

/* Properties, \p{L}, are the same for both. */
static size_t property_length(const char *expression, size_t bytes) {
    if (bytes < 4 || (expression[1] != 'p' && expression[1] != 'P') || expression[2] != '{')
        return 0;
    const char *end = memchr(expression, '}', bytes);
    return end ? (size_t)(end - expression) + 1 : 0;
}

/* Groups and repeats that Oniguruma and PCRE2 read differently. */
static srnn_status refuse_foreign(const char *expression, size_t bytes) {
    if (bytes >= 3 && expression[0] == '(' && expression[1] == '?' &&
        !strchr(":=!<>i-", expression[2]))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "(?%c in a regular expression is not supported",
                       expression[2]);
    if (bytes >= 2 && expression[0] == '}' && expression[1] == '+')
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "}+ in a regular expression is not supported");
    return SRNN_OK;
}

/* Oniguruma's way of writing to PCRE2's. */
static srnn_status translate(sr_bytes *out, const char *expression, size_t bytes) {
    bool in_class = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = expression[i];
        if (c == '\\') {
            if (i + 1 == bytes)
                return SR_FAIL(SRNN_ERR_FORMAT, "a regular expression ends in \\");
            size_t property = property_length(expression + i, bytes - i);
            if (property)
                SR_TRY(sr_bytes_append(out, expression + i, property));
            else
                SR_TRY(translate_escape(out, expression + i, in_class));
            i += property ? property - 1 : 1;
            continue;
        }
        if (!in_class)
            SR_TRY(refuse_foreign(expression + i, bytes - i));
        if (in_class && (c == '[' || (c == '&' && i + 1 < bytes && expression[i + 1] == '&')))
            return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                           "a class inside a class of a regular expression is not supported");
        if (c == '[')
            in_class = true;
        else if (c == ']')
            in_class = false;
        SR_TRY(sr_bytes_append(out, &c, 1));
    }
    return SRNN_OK;
}

static srnn_status compile(pcre2_code **code, const sr_bytes *expression) {
    int error;
    PCRE2_SIZE where;
    /* Multiline, for ^ and $ always mean lines in Oniguruma. */
    *code = pcre2_compile((PCRE2_SPTR)expression->data, expression->count,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &where, NULL);
    if (!*code) {
        PCRE2_UCHAR message[128];
        pcre2_get_error_message(error, message, sizeof message);
        return SR_FAIL(SRNN_ERR_FORMAT, "wrong regular expression \"%.*s\": %s at byte %zu",
                       (int)(expression->count < 200 ? expression->count : 200), expression->data,
                       (const char *)message, (size_t)where);
    }
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* without it matching is slow, yet right */
    return SRNN_OK;
}

srnn_status sr_pattern_create_regex(sr_pattern **pattern, const char *expression, size_t bytes) {
    *pattern = NULL;
    if (bytes == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "an empty regular expression matches nothing");
    sr_pattern *made;
    SR_TRY(sr_alloc_zero((void **)&made, 1, sizeof *made));
    sr_bytes translated = {0};
    srnn_status status = translate(&translated, expression, bytes);
    if (status == SRNN_OK)
        status = compile(&made->code, &translated);
    sr_bytes_free(&translated);
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
    sr_bytes_free(&pattern->literal);
    free(pattern);
}

bool sr_pattern_needs_utf8(const sr_pattern *pattern) {
    return pattern->code != NULL;
}

srnn_status sr_matcher_create(sr_matcher **matcher) {
    *matcher = NULL;
    sr_matcher *made;
    SR_TRY(sr_alloc_zero((void **)&made, 1, sizeof *made));
    made->match = pcre2_match_data_create(1, NULL);
    made->context = pcre2_match_context_create(NULL);
    made->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    if (!made->match || !made->context || !made->stack) {
        sr_matcher_free(made);
        return SR_FAIL(SRNN_ERR_MEMORY, "could not allocate memory for regular expressions");
    }
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

srnn_status sr_pattern_find(const sr_pattern *pattern, sr_matcher *matcher, const char *text,
                            size_t bytes, size_t from, size_t *start, size_t *end) {
    *start = *end = bytes + 1;
    if (from >= bytes)
        return SRNN_OK;
    if (!pattern->code) {
        const char *found =
            memmem(text + from, bytes - from, pattern->literal.data, pattern->literal.count);
        if (found) {
            *start = (size_t)(found - text);
            *end = *start + pattern->literal.count;
        }
        return SRNN_OK;
    }
    uint64_t limit = MATCH_LIMIT + (uint64_t)bytes * MATCH_LIMIT_PER_BYTE;
    pcre2_set_match_limit(matcher->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    int matched =
        pcre2_match(pattern->code, (PCRE2_SPTR)text, bytes, from,
                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, matcher->match, matcher->context);
    if (matched == PCRE2_ERROR_NOMATCH)
        return SRNN_OK;
    if (matched < 0)
        return match_failed(matched);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(matcher->match);
    *start = range[0];
    *end = range[1];
    return SRNN_OK;
}
