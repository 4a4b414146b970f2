/* json.c: reads a Hugging Face tokenizer.json. */
#include "data/tokenizer/steps.h"

#include "base/memory.h"
#include "data/text/unicode.h"
#include "files/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const json_t *model, *vocab, *merges, *added;
    sr_tokenizer *tokenizer;
    bool *is_added;     /* (size) */
    int64_t next_added; /* the next id for a token that is not in the model */
    bool byte_level, byte_fallback;
    bool has_bytes, lacks_bytes; /* some bytes of UTF-8 have a token, some have none */
    sr_bytes joined;             /* both halves of a merge */
} reader;

static srnn_status read_id(int64_t *id, const json_t *json, const char *where) {
    *id = 0;
    if (!json_is_integer(json) || json_integer_value(json) < 0 ||
        json_integer_value(json) >= SR_VOCABULARY_LIMIT)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: a token id is not a number from 0 to %d", where,
                       SR_VOCABULARY_LIMIT - 1);
    *id = json_integer_value(json);
    return SRNN_OK;
}

/* One more than the largest id. */
static srnn_status count_ids(const reader *from, uint32_t *size) {
    int64_t most = -1, id;
    *size = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)from->vocab, key, value) {
        SR_TRY(read_id(&id, value, "model vocab"));
        most = id > most ? id : most;
    }
    for (size_t i = 0; i < json_array_size(from->added); i++) {
        SR_TRY(read_id(&id, json_object_get(json_array_get(from->added, i), "id"), "added_tokens"));
        most = id > most ? id : most;
    }
    if (most < 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "the vocabulary is empty");
    *size = (uint32_t)(most + 1);
    return SRNN_OK;
}

static srnn_status find_parts(reader *from, const json_t *root) {
    static const char *const top[] = {"version",        "added_tokens",
                                      "normalizer",     "pre_tokenizer",
                                      "post_processor", "decoder",
                                      "model",          NULL};
    static const char *const fields[] = {"type",
                                         "dropout",
                                         "unk_token",
                                         "continuing_subword_prefix",
                                         "fuse_unk",
                                         "byte_fallback",
                                         "ignore_merges",
                                         "end_of_word_suffix",
                                         "vocab",
                                         "merges",
                                         NULL};
    SR_TRY(sr_json_check(root, "the file", top));
    from->model = json_object_get(root, "model");
    from->added = json_object_get(root, "added_tokens");
    const char *type;
    size_t type_bytes;
    SR_TRY(sr_json_text(from->model, "model", "type", &type, &type_bytes));
    if (type && strcmp(type, "BPE") != 0) /* missing in older files */
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "model: the type \"%s\" is not supported", type);
    SR_TRY(sr_json_check(from->model, "model", fields));
    from->vocab = json_object_get(from->model, "vocab");
    from->merges = json_object_get(from->model, "merges");
    if (!json_is_object(from->vocab) || !json_is_array(from->merges))
        return SR_FAIL(SRNN_ERR_FORMAT, "model: \"vocab\" or \"merges\" is missing");
    if (from->added && !json_is_null(from->added) && !json_is_array(from->added))
        return SR_FAIL(SRNN_ERR_FORMAT, "\"added_tokens\" is not a list");
    return SRNN_OK;
}

/* Settings that would change ids and are not implemented. */
static srnn_status refuse_settings(const json_t *model) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "model: \"dropout\" is not supported");
    for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++) {
        const char *text;
        size_t bytes;
        SR_TRY(sr_json_text(model, "model", affixes[i], &text, &bytes));
        if (bytes)
            return SR_FAIL(SRNN_ERR_UNSUPPORTED, "model: \"%s\" is not supported", affixes[i]);
    }
    return SRNN_OK;
}

static srnn_status read_vocabulary(reader *from) {
    sr_vocabulary *vocabulary = &from->tokenizer->vocabulary;
    const char *text;
    size_t bytes;
    json_t *id;
    json_object_keylen_foreach((json_t *)from->vocab, text, bytes, id)
        SR_TRY(sr_vocabulary_add(vocabulary, (uint32_t)json_integer_value(id), text, bytes));
    return SRNN_OK;
}

/* ---- The merge machine ---- */

static srnn_status read_pair(const json_t *item, const char *half[2], size_t bytes[2]) {
    if (json_is_array(item) && json_array_size(item) == 2) {
        for (size_t i = 0; i < 2; i++) {
            half[i] = json_string_value(json_array_get(item, i));
            bytes[i] = json_string_length(json_array_get(item, i));
        }
        return half[0] && half[1] ? SRNN_OK : SR_FAIL(SRNN_ERR_FORMAT, "a merge is not text");
    }
    const char *text = json_string_value(item);
    size_t whole = json_string_length(item);
    const char *space = text ? memchr(text, ' ', whole) : NULL;
    if (!space || memchr(space + 1, ' ', whole - (size_t)(space + 1 - text)))
        return SR_FAIL(SRNN_ERR_FORMAT, "a merge is not two tokens with a space between them");
    half[0] = text;
    bytes[0] = (size_t)(space - text);
    half[1] = space + 1;
    bytes[1] = whole - bytes[0] - 1;
    return SRNN_OK;
}

static srnn_status add_merge(reader *from, uint32_t rank, const json_t *item) {
    sr_tokenizer *tokenizer = from->tokenizer;
    const char *half[2];
    size_t bytes[2];
    SR_TRY(read_pair(item, half, bytes));
    from->joined.count = 0;
    int64_t ids[3];
    for (size_t i = 0; i < 2; i++) {
        SR_TRY(sr_bytes_append(&from->joined, half[i], bytes[i]));
        ids[i] = sr_vocabulary_find(&tokenizer->vocabulary, half[i], bytes[i]);
    }
    ids[2] = sr_vocabulary_find(&tokenizer->vocabulary, from->joined.data, from->joined.count);
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "merge %u uses or makes a token that is not in the "
                       "vocabulary",
                       rank);
    for (size_t i = 0; i < 3; i++)
        if (ids[i] == tokenizer->bpe.unknown)
            return SR_FAIL(SRNN_ERR_UNSUPPORTED, "merge %u with the unk_token is not supported",
                           rank);
    sr_bpe_add_pair(&tokenizer->bpe, (uint32_t)ids[0], (uint32_t)ids[1], rank, (uint32_t)ids[2]);
    if (!from->byte_level)
        sr_bpe_note_neighbours(&tokenizer->bpe, from->joined.data, from->joined.count);
    return SRNN_OK;
}

static void add_bytes(reader *from) {
    sr_tokenizer *tokenizer = from->tokenizer;
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        size_t bytes = from->byte_level
                           ? sr_utf8_encode(text, sr_character_of_byte((unsigned char)byte))
                           : (size_t)snprintf(text, sizeof text, "<0x%02X>", byte);
        int64_t id = sr_vocabulary_find(&tokenizer->vocabulary, text, bytes);
        if (id >= 0 && (from->byte_level || from->byte_fallback))
            tokenizer->bpe.byte_symbol[byte] = (uint32_t)id;
        bool in_utf8 = byte < 0xC0 || (byte >= 0xC2 && byte <= 0xF4);
        from->has_bytes |= id >= 0;
        from->lacks_bytes |= id < 0 && in_utf8;
    }
}

static void add_characters(const reader *from) {
    sr_bpe *bpe = &from->tokenizer->bpe;
    const char *text;
    size_t bytes;
    json_t *id;
    uint32_t character;
    json_object_keylen_foreach((json_t *)from->vocab, text, bytes, id) {
        if (bytes && sr_utf8_decode(&character, text, bytes) == bytes)
            sr_bpe_add_character(bpe, character, (uint32_t)json_integer_value(id));
    }
}

static srnn_status read_unknown(reader *from) {
    sr_tokenizer *tokenizer = from->tokenizer;
    const char *text;
    size_t bytes;
    SR_TRY(sr_json_text(from->model, "model", "unk_token", &text, &bytes));
    if (!text)
        return SRNN_OK;
    if (bytes == 0 && from->byte_level && !from->lacks_bytes)
        return SRNN_OK; /* in older files nothing is unknown */
    int64_t id = sr_vocabulary_find(&tokenizer->vocabulary, text, bytes);
    if (id < 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "model: the unk_token \"%s\" is not in the vocabulary",
                       text);
    tokenizer->bpe.unknown = (uint32_t)id;
    uint32_t character;
    if (bytes && sr_utf8_decode(&character, text, bytes) == bytes)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "model: the unk_token \"%s\", which is a character, is not supported", text);
    return SRNN_OK;
}

/* If some characters become bytes and others the unknown token, their order would be lost. */
static srnn_status check_fallback(const reader *from) {
    bool mixed = from->lacks_bytes && from->has_bytes;
    bool unknown = from->tokenizer->bpe.unknown != SR_NO_SYMBOL;
    if (from->byte_fallback && mixed && (from->byte_level || unknown))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "model: \"byte_fallback\" with some bytes missing in the vocabulary is not "
                       "supported");
    return SRNN_OK;
}

static srnn_status read_model(reader *from) {
    sr_tokenizer *tokenizer = from->tokenizer;
    sr_bpe *bpe = &tokenizer->bpe;
    size_t merges = json_array_size(from->merges);
    size_t characters = from->byte_level ? 0 : json_object_size(from->vocab);
    if (merges >= UINT32_MAX)
        return SR_FAIL(SRNN_ERR_LIMIT, "%zu merges are too many", merges);
    SR_TRY(refuse_settings(from->model));
    SR_TRY(sr_bpe_create(bpe, tokenizer->vocabulary.size, merges, characters));
    bpe->byte_level = from->byte_level;
    SR_TRY(sr_json_bool(from->model, "model", "fuse_unk", &bpe->fuse_unknown));
    SR_TRY(sr_json_bool(from->model, "model", "ignore_merges", &bpe->ignore_merges));
    SR_TRY(sr_json_bool(from->model, "model", "byte_fallback", &from->byte_fallback));
    add_bytes(from);
    SR_TRY(read_unknown(from));
    SR_TRY(check_fallback(from));
    if (!from->byte_level)
        add_characters(from);
    for (size_t i = 0; i < merges; i++)
        SR_TRY(add_merge(from, (uint32_t)i, json_array_get(from->merges, i)));
    /* If unknown characters are dropped their neighbours may merge: no cuts then. */
    bpe->cuttable = !from->byte_level && !bpe->ignore_merges && bpe->unknown != SR_NO_SYMBOL;
    return SRNN_OK;
}

/* ---- Added tokens ---- */

static srnn_status register_added(reader *from, const json_t *item) {
    static const char *const allowed[] = {"id",     "content",    "single_word", "lstrip",
                                          "rstrip", "normalized", "special",     NULL};
    sr_tokenizer *tokenizer = from->tokenizer;
    SR_TRY(sr_json_check(item, "added_tokens", allowed));
    uint32_t id = (uint32_t)json_integer_value(json_object_get(item, "id"));
    const char *text;
    size_t bytes;
    SR_TRY(sr_json_text(item, "added_tokens", "content", &text, &bytes));
    if (!text)
        return SR_FAIL(SRNN_ERR_FORMAT, "added_tokens: token %u has no content", id);
    int64_t known = sr_vocabulary_find(&tokenizer->vocabulary, text, bytes);
    if (known >= 0 && known != id)
        return SR_FAIL(SRNN_ERR_FORMAT, "added_tokens: \"%s\" has the ids %u and %lld", text, id,
                       (long long)known);
    if (known < 0 && id != from->next_added)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "added_tokens: \"%s\" has the id %u instead of the next one, %lld, which "
                       "other programs give it",
                       text, id, (long long)from->next_added);
    if (known < 0) {
        SR_TRY(sr_vocabulary_add(&tokenizer->vocabulary, id, text, bytes));
        tokenizer->added_only[id] = true;
    }
    from->next_added = id >= from->next_added ? (int64_t)id + 1 : from->next_added;
    from->is_added[id] = true;
    return sr_json_bool(item, "added_tokens", "special", &tokenizer->special[id]);
}

static srnn_status look_for_added(reader *from, sr_matcher *matcher, sr_bytes buffers[2],
                                  const json_t *item) {
    sr_tokenizer *tokenizer = from->tokenizer;
    sr_added_token token = {.id = (uint32_t)json_integer_value(json_object_get(item, "id"))};
    bool special = tokenizer->special[token.id], normalized = !special;
    const char *text;
    size_t bytes;
    SR_TRY(sr_json_text(item, "added_tokens", "content", &text, &bytes));
    SR_TRY(sr_json_bool(item, "added_tokens", "single_word", &token.single_word));
    SR_TRY(sr_json_bool(item, "added_tokens", "lstrip", &token.strip_left));
    SR_TRY(sr_json_bool(item, "added_tokens", "rstrip", &token.strip_right));
    SR_TRY(sr_json_bool(item, "added_tokens", "normalized", &normalized));
    if (!normalized)
        return sr_added_add(&tokenizer->added, text, bytes, &token);
    SR_TRY(sr_normalizer_run(&tokenizer->normalizer, matcher, buffers, &text, &bytes, false));
    return sr_added_add(&tokenizer->added_normalized, text, bytes, &token);
}

static srnn_status look_for_all(reader *from) {
    sr_matcher *matcher;
    sr_bytes buffers[2] = {{0}};
    SR_TRY(sr_matcher_create(&matcher));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; status == SRNN_OK && i < json_array_size(from->added); i++)
        status = look_for_added(from, matcher, buffers, json_array_get(from->added, i));
    sr_added_finish(&from->tokenizer->added);
    sr_added_finish(&from->tokenizer->added_normalized);
    sr_bytes_free(&buffers[0]);
    sr_bytes_free(&buffers[1]);
    sr_matcher_free(matcher);
    return status;
}

/* The first of these names that is a special token, unless the file names it. */
static void guess_id(const sr_tokenizer *tokenizer, int64_t *id, const char *const *names) {
    for (; *id == -1 && *names; names++) {
        int64_t found = sr_vocabulary_find(&tokenizer->vocabulary, *names, strlen(*names));
        if (found >= 0 && tokenizer->special[found])
            *id = found;
    }
}

static void guess_ends(sr_tokenizer *tokenizer) {
    static const char *const starts[] = {"<s>",   "<|begin_of_text|>", "<|startoftext|>",
                                         "<bos>", "<|endoftext|>",     NULL};
    static const char *const ends[] = {"</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>", NULL};
    guess_id(tokenizer, &tokenizer->bos, starts);
    guess_id(tokenizer, &tokenizer->eos, ends);
}

static srnn_status read_all(reader *from, const json_t *root) {
    uint32_t size;
    SR_TRY(find_parts(from, root));
    SR_TRY(count_ids(from, &size));
    SR_TRY(sr_tokenizer_create(&from->tokenizer, "BPE", size));
    sr_tokenizer *tokenizer = from->tokenizer;
    SR_TRY(sr_alloc_zero((void **)&from->is_added, size, sizeof *from->is_added));
    SR_TRY(read_vocabulary(from));
    SR_TRY(sr_json_normalizer(&tokenizer->normalizer, json_object_get(root, "normalizer")));
    SR_TRY(sr_json_pre_tokenizer(&tokenizer->splitter, &from->byte_level,
                                 json_object_get(root, "pre_tokenizer")));
    if (from->byte_level)
        tokenizer->kind = "byte-level BPE";
    SR_TRY(read_model(from)); /* before the added tokens, which are not part of it */
    from->next_added = (int64_t)json_object_size(from->vocab);
    for (size_t i = 0; i < json_array_size(from->added); i++)
        SR_TRY(register_added(from, json_array_get(from->added, i)));
    SR_TRY(look_for_all(from));
    SR_TRY(sr_json_post_processor(tokenizer, json_object_get(root, "post_processor")));
    SR_TRY(sr_json_decoder(tokenizer, from->is_added, json_object_get(root, "decoder")));
    guess_ends(tokenizer);
    return SRNN_OK;
}

srnn_status sr_tokenizer_read_json(sr_tokenizer **tokenizer, const char *data, size_t bytes,
                                   const char *name) {
    *tokenizer = NULL;
    json_error_t error;
    json_t *root;
    if (!sr_json_scan(&root, &error, data, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL))
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to read it", name);
    if (!root && json_error_code(&error) == json_error_null_byte_in_key)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s: line %d: a token with the character U+0000 is not supported", name,
                       error.line);
    if (!root)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: not JSON: %s at line %d", name, error.text,
                       error.line);
    reader from = {0};
    srnn_status status = read_all(&from, root);
    json_decref(root);
    free(from.is_added);
    sr_bytes_free(&from.joined);
    if (status != SRNN_OK) {
        sr_tokenizer_free(from.tokenizer);
        return sr_fail_in(status, name);
    }
    from.tokenizer->hash = sr_hash_bytes(data, bytes);
    *tokenizer = from.tokenizer;
    return SRNN_OK;
}
