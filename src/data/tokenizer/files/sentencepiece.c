/* sentencepiece.c: reads a SentencePiece .model (protocol buffers) that holds a BPE. */
#include "data/tokenizer/parts.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static const char MARK[] = "\xE2\x96\x81"; /* ▁, which represents a space */

/* ---- Protocol buffers: a message is a list of numbered fields ---- */

typedef struct message {
    const unsigned char *data;
    size_t bytes;
} message;

typedef struct field {
    uint64_t number;
    unsigned wire; /* 0: value; 1: eight bytes; 2: content; 5: four bytes */
    uint64_t value;
    message content;
} field;

static srnn_status truncated(void) {
    return SR_FAIL(SRNN_ERR_FORMAT, "a message is cut off or is not a protocol buffer");
}

static srnn_status next_varint(message *from, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64 && from->bytes; shift += 7) {
        unsigned char byte = *from->data++;
        from->bytes--;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80))
            return SRNN_OK;
    }
    return truncated();
}

/* Takes the first field off a message that is not empty. */
static srnn_status next_field(message *from, field *next) {
    uint64_t tag, bytes = 0;
    SR_TRY(next_varint(from, &tag));
    *next = (field){.number = tag >> 3, .wire = tag & 7};
    if (next->wire == 0)
        return next_varint(from, &next->value);
    if (next->wire == 2)
        SR_TRY(next_varint(from, &bytes));
    else if (next->wire == 1)
        bytes = 8;
    else if (next->wire == 5)
        bytes = 4;
    else
        return truncated();
    if (bytes > from->bytes)
        return truncated();
    next->content = (message){from->data, (size_t)bytes};
    from->data += bytes;
    from->bytes -= (size_t)bytes;
    return SRNN_OK;
}

/* ---- The model ---- */

enum model_type { UNIGRAM = 1, BPE, WORD, CHAR };
enum piece_type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

typedef struct reader {
    message file;
    uint32_t pieces;
    bool add_prefix, collapse, escape, has_map;
    int64_t model_type, unknown, bos, eos;
    bool byte_fallback;
    message unknown_text;
    sr_tokenizer *tokenizer;
    float *scores;   /* (pieces) */
    bool *mergeable; /* (pieces) */
    sr_bytes text;
} reader;

static srnn_status read_trainer(reader *from, message trainer) {
    while (trainer.bytes) {
        field next;
        SR_TRY(next_field(&trainer, &next));
        int64_t value = (int32_t)next.value; /* ids are int32, -1: none */
        switch (next.number) {
        case 3:
            from->model_type = value;
            break;
        case 24:
            if (next.value)
                return SR_FAIL(SRNN_ERR_UNSUPPORTED, "treat_whitespace_as_suffix is not supported");
            break;
        case 35:
            from->byte_fallback = next.value != 0;
            break;
        case 40:
            from->unknown = value;
            break;
        case 41:
            from->bos = value;
            break;
        case 42:
            from->eos = value;
            break;
        case 44:
            from->unknown_text = next.content;
            break;
        }
    }
    return SRNN_OK;
}

static srnn_status read_normalizer(reader *from, message normalizer) {
    while (normalizer.bytes) {
        field next;
        SR_TRY(next_field(&normalizer, &next));
        switch (next.number) {
        case 2:
        case 6:
            from->has_map = from->has_map || next.content.bytes;
            break;
        case 3:
            from->add_prefix = next.value != 0;
            break;
        case 4:
            from->collapse = next.value != 0;
            break;
        case 5:
            from->escape = next.value != 0;
            break;
        }
    }
    return SRNN_OK;
}

static const char *type_name(int64_t type) {
    static const char *const names[] = {[UNIGRAM] = "unigram", [WORD] = "word", [CHAR] = "char"};
    return type >= UNIGRAM && type <= CHAR && names[type] ? names[type] : "newer";
}

/* Everything except the pieces, which are only counted. */
static srnn_status read_settings(reader *from) {
    message rest = from->file;
    while (rest.bytes) {
        field next;
        SR_TRY(next_field(&rest, &next));
        if (next.number >= 1 && next.number <= 3 && next.wire != 2)
            return truncated();
        if (next.number == 1 && ++from->pieces > SR_VOCABULARY_LIMIT)
            return SR_FAIL(SRNN_ERR_LIMIT, "more than %d pieces", SR_VOCABULARY_LIMIT);
        if (next.number == 2)
            SR_TRY(read_trainer(from, next.content));
        if (next.number == 3)
            SR_TRY(read_normalizer(from, next.content));
    }
    if (from->pieces == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "there are no pieces: not a SentencePiece model");
    if (from->model_type != BPE)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "a %s model of SentencePiece; only its BPE models are read, which are "
                       "trained with --model_type=bpe",
                       type_name(from->model_type));
    if (from->has_map)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "a precompiled character map (normalisation such as nmt_nfkc) is not "
                       "supported; models trained with --normalization_rule_name=identity have "
                       "none");
    if (!from->escape)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "escape_whitespaces = false is not supported");
    return SRNN_OK;
}

/* The bytes a piece decodes to: spaces for marks. */
static srnn_status decode_marks(reader *from, uint32_t id, const char *text, size_t bytes) {
    from->text.count = 0;
    for (size_t at = 0; at < bytes;) {
        bool mark = bytes - at >= 3 && memcmp(text + at, MARK, 3) == 0;
        SR_TRY(sr_bytes_append(&from->text, mark ? " " : text + at, 1));
        at += mark ? 3 : 1;
    }
    return sr_id_texts_add(&from->tokenizer->decoding.ids, id, from->text.data, from->text.count);
}

static srnn_status add_piece(reader *from, uint32_t id, const char *text, size_t bytes,
                             uint64_t type) {
    sr_tokenizer *tokenizer = from->tokenizer;
    sr_added_token defined = {.id = id};
    int byte = sr_byte_of_token(text, bytes);
    char one = (char)byte;
    SR_TRY(sr_vocabulary_add(&tokenizer->vocabulary, id, text, bytes));
    from->mergeable[id] = type == NORMAL;
    switch (type) {
    case USER_DEFINED:
        SR_TRY(sr_added_add(&tokenizer->added_normalized, text, bytes, &defined));
        return decode_marks(from, id, text, bytes);
    case NORMAL:
        return decode_marks(from, id, text, bytes);
    case UNKNOWN:
        tokenizer->special[id] = true;
        from->unknown = id;
        return sr_id_texts_add(&tokenizer->decoding.ids, id, (const char *)from->unknown_text.data,
                               from->unknown_text.bytes);
    case CONTROL:
        tokenizer->special[id] = true;
        return sr_id_texts_add(&tokenizer->decoding.ids, id, NULL, 0);
    case BYTE:
        if (byte < 0)
            return SR_FAIL(SRNN_ERR_FORMAT, "piece %u is a byte but is not written <0x..>", id);
        return sr_id_texts_add(&tokenizer->decoding.ids, id, &one, 1);
    }
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "piece %u has the type %llu, which is not supported", id,
                   (unsigned long long)type);
}

static srnn_status read_piece(reader *from, uint32_t id, message piece) {
    message text = {0};
    uint64_t type = NORMAL;
    while (piece.bytes) {
        field next;
        SR_TRY(next_field(&piece, &next));
        if (next.number == 1 && next.wire == 2)
            text = next.content;
        if (next.number == 2 && next.wire == 5)
            memcpy(&from->scores[id], next.content.data, sizeof from->scores[id]);
        if (next.number == 3)
            type = next.value;
    }
    if (text.bytes == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "piece %u has no text", id);
    return add_piece(from, id, (const char *)text.data, text.bytes, type);
}

static srnn_status read_pieces(reader *from) {
    message rest = from->file;
    uint32_t id = 0;
    while (rest.bytes) {
        field next;
        SR_TRY(next_field(&rest, &next));
        if (next.number == 1)
            SR_TRY(read_piece(from, id++, next.content));
    }
    sr_added_finish(&from->tokenizer->added_normalized);
    return SRNN_OK;
}

static srnn_status build_machine(reader *from) {
    sr_tokenizer *tokenizer = from->tokenizer;
    sr_bpe *bpe = &tokenizer->bpe;
    if (from->unknown < 0 || from->unknown >= from->pieces)
        return SR_FAIL(SRNN_ERR_FORMAT, "there is no piece for unknown characters");
    SR_TRY(sr_bpe_create_scored(bpe, &tokenizer->vocabulary, from->scores, from->mergeable));
    bpe->unknown = (uint32_t)from->unknown;
    bpe->fuse_unknown = true;
    bpe->cuttable = true;
    for (uint32_t id = 0; from->byte_fallback && id < from->pieces; id++) {
        size_t bytes;
        const char *text = sr_vocabulary_text(&tokenizer->vocabulary, id, &bytes);
        int byte = sr_byte_of_token(text, bytes);
        if (byte >= 0 && !from->mergeable[id])
            bpe->byte_symbol[byte] = id;
    }
    return SRNN_OK;
}

static srnn_status build_normalizer(reader *from) {
    sr_normalizer *normalizer = &from->tokenizer->normalizer;
    sr_normal_step *step;
    if (from->collapse) {
        SR_TRY(sr_normalizer_add(normalizer, &step));
        step->kind = SR_NORMAL_COLLAPSE_SPACES;
        step->symbols = &from->tokenizer->added_normalized;
    }
    if (from->add_prefix) {
        SR_TRY(sr_normalizer_add(normalizer, &step));
        SR_TRY(sr_bytes_append(&step->content, " ", 1));
    }
    SR_TRY(sr_normalizer_add(normalizer, &step));
    step->kind = SR_NORMAL_REPLACE;
    SR_TRY(sr_bytes_append(&step->content, MARK, sizeof MARK - 1));
    return sr_pattern_create_literal(&step->pattern, " ", 1);
}

/* The first piece loses its mark; with `collapse` so do the following ones until some text was
 * produced. */
static srnn_status build_decoding(reader *from) {
    sr_decoding *decoding = &from->tokenizer->decoding;
    if (!from->add_prefix && !from->collapse)
        return SRNN_OK;
    decoding->strip_count = from->collapse ? SIZE_MAX : 1;
    SR_TRY(sr_bytes_append(&decoding->strip, " ", 1));
    return sr_bytes_append(&decoding->strip_mark, MARK, sizeof MARK - 1);
}

static srnn_status read_all(reader *from) {
    SR_TRY(read_settings(from));
    SR_TRY(sr_tokenizer_create(&from->tokenizer, "SentencePiece BPE", from->pieces));
    SR_TRY(sr_alloc_zero((void **)&from->scores, from->pieces, sizeof *from->scores));
    SR_TRY(sr_alloc_zero((void **)&from->mergeable, from->pieces, sizeof *from->mergeable));
    SR_TRY(read_pieces(from));
    SR_TRY(build_machine(from));
    SR_TRY(build_normalizer(from));
    SR_TRY(build_decoding(from));
    if (from->bos >= 0 && from->bos < from->pieces)
        from->tokenizer->bos = from->bos;
    if (from->eos >= 0 && from->eos < from->pieces)
        from->tokenizer->eos = from->eos;
    return SRNN_OK;
}

srnn_status sr_tokenizer_read_sentencepiece(sr_tokenizer **tokenizer, const char *data,
                                            size_t bytes, const char *name) {
    static const unsigned char unknown_text[] = " \xE2\x81\x87 ";
    *tokenizer = NULL;
    /* The defaults of the format. */
    reader from = {.file = {(const unsigned char *)data, bytes},
                   .add_prefix = true,
                   .collapse = true,
                   .escape = true,
                   .model_type = UNIGRAM,
                   .bos = 1,
                   .eos = 2,
                   .unknown_text = {unknown_text, sizeof unknown_text - 1}};
    srnn_status status = read_all(&from);
    free(from.scores);
    free(from.mergeable);
    sr_bytes_free(&from.text);
    if (status != SRNN_OK) {
        sr_tokenizer_free(from.tokenizer);
        return sr_fail_in(status, name);
    }
    from.tokenizer->hash = sr_hash_bytes(data, bytes);
    *tokenizer = from.tokenizer;
    return SRNN_OK;
}
