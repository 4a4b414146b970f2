/* steps.c: parses the normalizer, pre-tokenizer and post-processor of a tokenizer.json. */
#include "data/tokenizer/steps.h"

#include <string.h>

enum { NESTING_LIMIT = 8 }; /* nested sequences */

static srnn_status unsupported(const char *where, const char *type) {
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: the type \"%s\" is not supported", where, type);
}

/* The array `name` of a Sequence. */
static srnn_status sequence(const json_t **items, const json_t *json, const char *where,
                            const char *name, int depth) {
    const char *const allowed[] = {"type", name, NULL};
    SR_TRY(sr_json_check(json, where, allowed));
    *items = json_object_get(json, name);
    if (!json_is_array(*items))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"%s\" is not a list", where, name);
    if (depth > NESTING_LIMIT)
        return SR_FAIL(SRNN_ERR_LIMIT, "%s: more than %d sequences inside each other", where,
                       NESTING_LIMIT);
    return SRNN_OK;
}

static srnn_status read_pattern(sr_pattern **pattern, const json_t *json, const char *where) {
    static const char *const allowed[] = {"String", "Regex", NULL};
    const char *text, *expression;
    size_t text_bytes, expression_bytes;
    SR_TRY(sr_json_check(json, where, allowed));
    SR_TRY(sr_json_text(json, where, "String", &text, &text_bytes));
    SR_TRY(sr_json_text(json, where, "Regex", &expression, &expression_bytes));
    if (!text == !expression)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: a pattern is either a String or a Regex", where);
    return text ? sr_pattern_create_literal(pattern, text, text_bytes)
                : sr_pattern_create_regex(pattern, expression, expression_bytes);
}

/* ---- Normalizer ---- */

static srnn_status content_of(sr_bytes *content, const json_t *json, const char *name) {
    const char *text;
    size_t bytes;
    SR_TRY(sr_json_text(json, "normalizer", name, &text, &bytes));
    if (!text)
        return SR_FAIL(SRNN_ERR_FORMAT, "normalizer: \"%s\" is missing", name);
    return sr_bytes_append(content, text, bytes);
}

static srnn_status one_normalizer(sr_normalizer *normalizer, const json_t *json, const char *type) {
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    static const char *const prepend[] = {"type", "prepend", NULL};
    static const char *const replace[] = {"type", "pattern", "content", NULL};
    sr_normal_step *step;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(type, forms[i]) != 0)
            continue;
        SR_TRY(sr_normalizer_add(normalizer, &step));
        step->kind = SR_NORMAL_FORM;
        step->form = (sr_unicode_form)i;
        return SRNN_OK;
    }
    if (strcmp(type, "Prepend") == 0) {
        SR_TRY(sr_json_check(json, "normalizer Prepend", prepend));
        SR_TRY(sr_normalizer_add(normalizer, &step));
        return content_of(&step->content, json, "prepend");
    }
    if (strcmp(type, "Replace") == 0) {
        SR_TRY(sr_json_check(json, "normalizer Replace", replace));
        SR_TRY(sr_normalizer_add(normalizer, &step));
        step->kind = SR_NORMAL_REPLACE;
        const json_t *pattern = json_object_get(json, "pattern");
        SR_TRY(read_pattern(&step->pattern, pattern, "normalizer Replace"));
        if (sr_pattern_can_be_empty(step->pattern))
            return SR_FAIL(SRNN_ERR_UNSUPPORTED, "normalizer Replace: a pattern that may match "
                                                 "nothing at all is not supported");
        return content_of(&step->content, json, "content");
    }
    return unsupported("normalizer", type);
}

static srnn_status read_normalizer(sr_normalizer *normalizer, const json_t *json, int depth) {
    const char *type;
    SR_TRY(sr_json_type(json, "normalizer", &type));
    if (strcmp(type, "Sequence") != 0)
        return one_normalizer(normalizer, json, type);
    const json_t *items;
    SR_TRY(sequence(&items, json, "normalizer Sequence", "normalizers", depth));
    for (size_t i = 0; i < json_array_size(items); i++)
        SR_TRY(read_normalizer(normalizer, json_array_get(items, i), depth + 1));
    return SRNN_OK;
}

srnn_status sr_json_normalizer(sr_normalizer *normalizer, const json_t *json) {
    return !json || json_is_null(json) ? SRNN_OK : read_normalizer(normalizer, json, 0);
}

/* ---- Pre-tokenizer ---- */

static srnn_status read_byte_level(sr_splitter *splitter, const json_t *json) {
    static const char *const allowed[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                          NULL};
    static const char where[] = "pre_tokenizer ByteLevel";
    bool prefix_space = true, use_regex = true;
    SR_TRY(sr_json_check(json, where, allowed));
    SR_TRY(sr_json_bool(json, where, "add_prefix_space", &prefix_space));
    SR_TRY(sr_json_bool(json, where, "use_regex", &use_regex));
    sr_split_step *step;
    if (prefix_space) {
        SR_TRY(sr_splitter_add(splitter, &step));
        step->kind = SR_SPLIT_PREFIX_SPACE;
    }
    return use_regex ? sr_splitter_add_gpt2(splitter) : SRNN_OK;
}

static srnn_status read_split(sr_splitter *splitter, const json_t *json) {
    static const char *const allowed[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const behaviours[] = {"Isolated", "Removed", "MergedWithPrevious",
                                             "MergedWithNext", "Contiguous"};
    static const char where[] = "pre_tokenizer Split";
    const char *behaviour;
    size_t bytes;
    sr_split_step *step;
    SR_TRY(sr_json_check(json, where, allowed));
    SR_TRY(sr_splitter_add(splitter, &step));
    SR_TRY(read_pattern(&step->pattern, json_object_get(json, "pattern"), where));
    SR_TRY(sr_json_bool(json, where, "invert", &step->invert));
    SR_TRY(sr_json_text(json, where, "behavior", &behaviour, &bytes));
    if (!behaviour)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"behavior\" is missing", where);
    for (size_t i = 0; i < sizeof behaviours / sizeof *behaviours; i++) {
        if (strcmp(behaviour, behaviours[i]) == 0) {
            step->behaviour = (sr_split_behaviour)i;
            return SRNN_OK;
        }
    }
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: the behavior \"%s\" is not supported", where,
                   behaviour);
}

static srnn_status read_digits(sr_splitter *splitter, const json_t *json) {
    static const char *const allowed[] = {"type", "individual_digits", NULL};
    bool individual = false;
    sr_split_step *step;
    SR_TRY(sr_json_check(json, "pre_tokenizer Digits", allowed));
    SR_TRY(sr_json_bool(json, "pre_tokenizer Digits", "individual_digits", &individual));
    SR_TRY(sr_splitter_add(splitter, &step));
    step->behaviour = individual ? SR_SPLIT_ISOLATED : SR_SPLIT_CONTIGUOUS;
    /* The characters that are numeric in Rust: Unicode 17. */
    static const char numeric[] = "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]";
    return sr_pattern_create_regex(&step->pattern, numeric, sizeof numeric - 1);
}

static srnn_status read_prepend_scheme(sr_split_prepend *prepend, const json_t *json) {
    static const char *const schemes[] = {"always", "first", "never"};
    static const char where[] = "pre_tokenizer Metaspace";
    const char *scheme;
    size_t bytes;
    bool add_prefix_space = true;
    SR_TRY(sr_json_text(json, where, "prepend_scheme", &scheme, &bytes));
    SR_TRY(sr_json_bool(json, where, "add_prefix_space", &add_prefix_space));
    if (!scheme) {
        *prepend = add_prefix_space ? SR_PREPEND_ALWAYS : SR_PREPEND_NEVER;
        return SRNN_OK;
    }
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        if (strcmp(scheme, schemes[i]) == 0) {
            *prepend = (sr_split_prepend)i;
            return SRNN_OK;
        }
    }
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: the prepend_scheme \"%s\" is not supported", where,
                   scheme);
}

static srnn_status read_metaspace(sr_splitter *splitter, const json_t *json) {
    static const char *const allowed[] = {"type",    "replacement",    "add_prefix_space",
                                          "str_rep", "prepend_scheme", "split",
                                          NULL};
    static const char where[] = "pre_tokenizer Metaspace";
    const char *mark;
    size_t bytes;
    bool split = true;
    sr_split_step *step;
    SR_TRY(sr_json_check(json, where, allowed));
    SR_TRY(sr_json_text(json, where, "replacement", &mark, &bytes));
    SR_TRY(sr_json_bool(json, where, "split", &split));
    if (!mark || bytes == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"replacement\" is missing", where);
    SR_TRY(sr_splitter_add(splitter, &step));
    step->kind = SR_SPLIT_MARK_SPACES;
    SR_TRY(sr_bytes_append(&step->mark, mark, bytes));
    SR_TRY(read_prepend_scheme(&step->prepend, json));
    if (!split)
        return SRNN_OK;
    SR_TRY(sr_splitter_add(splitter, &step));
    step->behaviour = SR_SPLIT_MERGED_WITH_NEXT;
    return sr_pattern_create_literal(&step->pattern, mark, bytes);
}

static srnn_status read_pre_tokenizer(sr_splitter *splitter, bool *byte_level, const json_t *json,
                                      int depth) {
    const char *type;
    SR_TRY(sr_json_type(json, "pre_tokenizer", &type));
    if (*byte_level)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "pre_tokenizer: \"%s\" after \"ByteLevel\" is not supported", type);
    if (strcmp(type, "ByteLevel") == 0) {
        *byte_level = true;
        return read_byte_level(splitter, json);
    }
    if (strcmp(type, "Split") == 0)
        return read_split(splitter, json);
    if (strcmp(type, "Digits") == 0)
        return read_digits(splitter, json);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(splitter, json);
    if (strcmp(type, "Sequence") != 0)
        return unsupported("pre_tokenizer", type);
    const json_t *items;
    SR_TRY(sequence(&items, json, "pre_tokenizer Sequence", "pretokenizers", depth));
    for (size_t i = 0; i < json_array_size(items); i++)
        SR_TRY(read_pre_tokenizer(splitter, byte_level, json_array_get(items, i), depth + 1));
    return SRNN_OK;
}

srnn_status sr_json_pre_tokenizer(sr_splitter *splitter, bool *byte_level, const json_t *json) {
    *byte_level = false;
    return !json || json_is_null(json) ? SRNN_OK
                                       : read_pre_tokenizer(splitter, byte_level, json, 0);
}

/* ---- Post-processor ---- */

/* The id of the special token that a template names. */
static srnn_status template_id(int64_t *id, const json_t *special, const json_t *item) {
    *id = -1;
    const char *name = json_string_value(json_object_get(item, "id"));
    const json_t *ids = name ? json_object_get(json_object_get(special, name), "ids") : NULL;
    const json_t *first = json_array_get(ids, 0);
    if (!json_is_integer(first) || json_array_size(ids) != 1)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "post_processor TemplateProcessing: a special token without exactly one id");
    *id = json_integer_value(first);
    return SRNN_OK;
}

static srnn_status read_template(sr_tokenizer *tokenizer, const json_t *json) {
    static const char *const allowed[] = {"type", "single", "pair", "special_tokens", NULL};
    static const char where[] = "post_processor TemplateProcessing";
    SR_TRY(sr_json_check(json, where, allowed));
    const json_t *single = json_object_get(json, "single");
    if (!json_is_array(single))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"single\" is not a list", where);
    bool after = false;
    int before = 0;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *special = json_object_get(item, "SpecialToken");
        if (!special && !json_object_get(item, "Sequence"))
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: neither SpecialToken nor Sequence", where);
        if (!special) {
            after = true;
            continue;
        }
        int64_t id;
        SR_TRY(template_id(&id, json_object_get(json, "special_tokens"), special));
        if (id < 0 || id >= tokenizer->vocabulary.size)
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: there is no token %lld", where, (long long)id);
        *(after ? &tokenizer->eos : &tokenizer->bos) = id;
        before += !after;
    }
    if (before > 1)
        tokenizer->bos = SR_SEVERAL;
    return SRNN_OK;
}

static srnn_status read_post_processor(sr_tokenizer *tokenizer, const json_t *json, int depth) {
    const char *type;
    SR_TRY(sr_json_type(json, "post_processor", &type));
    if (strcmp(type, "ByteLevel") == 0) /* changes offsets, which are not used, and no ids */
        return SRNN_OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(tokenizer, json);
    if (strcmp(type, "Sequence") != 0)
        return unsupported("post_processor", type);
    const json_t *items;
    SR_TRY(sequence(&items, json, "post_processor Sequence", "processors", depth));
    for (size_t i = 0; i < json_array_size(items); i++)
        SR_TRY(read_post_processor(tokenizer, json_array_get(items, i), depth + 1));
    return SRNN_OK;
}

srnn_status sr_json_post_processor(sr_tokenizer *tokenizer, const json_t *json) {
    return !json || json_is_null(json) ? SRNN_OK : read_post_processor(tokenizer, json, 0);
}
