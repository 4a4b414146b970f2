/* tokenizer_samples.c: small tokenizers in every format, made in memory. */
#include "tokenizer_samples.h"

#include "data/tokenizer/bpe/train.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

const char *const sample_pieces[] = {"_a", "ab", "_ab", "bc", "abc", "cc", "__",
                                     "ca", "_",  "a",   "b",  "c",   "d",  "ef"};

static void put(sr_bytes *out, const void *data, size_t bytes) {
    assert_int_equal(sr_bytes_append(out, data, bytes), SRNN_OK);
}

static void put_text(sr_bytes *out, const char *text) {
    put(out, text, strlen(text));
}

void sample_spaced(sr_bytes *out, const char *text, const char *space) {
    for (; *text; text++)
        put(out, *text == '_' ? space : text, *text == '_' ? strlen(space) : 1);
}

/* Token `id` of the samples; *byte is its byte, or -1. */
static void token_text(sr_bytes *text, uint32_t id, const char *space, int *byte) {
    static const char *const control[] = {"<unk>", "<s>", "</s>"};
    char hex[8];
    text->count = 0;
    *byte = id >= 3 && id < SAMPLE_FIRST ? (int)id - 3 : -1;
    snprintf(hex, sizeof hex, "<0x%02X>", (unsigned)(*byte & 0xFF));
    if (id < 3)
        put_text(text, control[id]);
    else if (*byte >= 0)
        put_text(text, hex);
    else
        sample_spaced(text, sample_pieces[id - SAMPLE_FIRST], space);
}

static float score_of(uint32_t id) {
    return id < SAMPLE_FIRST ? 0 : -(float)(id - SAMPLE_FIRST);
}

static void put_byte(sr_bytes *out, int byte) {
    char one = (char)byte;
    put(out, &one, 1);
}

static void put_piece(sr_bytes *file, const char *text, size_t bytes, float score, int type) {
    put_byte(file, 1 << 3 | 2);
    put_byte(file, (int)bytes + 9);
    put_byte(file, 1 << 3 | 2);
    put_byte(file, (int)bytes);
    put(file, text, bytes);
    put_byte(file, 2 << 3 | 5);
    put(file, &score, sizeof score);
    put_byte(file, 3 << 3);
    put_byte(file, type);
}

void sample_sentencepiece_file(sr_bytes *file) {
    static const unsigned char trainer[] = {2 << 3 | 2, 5, 3 << 3, 2, 0x98, 0x02, 1};
    static const unsigned char normalizer[] = {3 << 3 | 2, 2, 4 << 3, 0};
    sr_bytes text = {0};
    for (uint32_t id = 0; id < SAMPLE_FIRST + SAMPLE_PIECES; id++) {
        int byte;
        token_text(&text, id, "\xE2\x96\x81", &byte);
        put_piece(file, text.data, text.count, score_of(id),
                  id == 0     ? 2
                  : id < 3    ? 3
                  : byte >= 0 ? 6
                              : 1);
    }
    put(file, trainer, sizeof trainer);
    put(file, normalizer, sizeof normalizer);
    sr_bytes_free(&text);
}

void sample_sentencepiece_symbol_file(sr_bytes *file, const char *symbol) {
    static const unsigned char normalizer[] = {3 << 3 | 2, 2, 4 << 3, 1};
    sample_sentencepiece_file(file);
    put_piece(file, symbol, strlen(symbol), 0, 4);
    put(file, normalizer, sizeof normalizer);
}

void sample_llama2c_file(sr_bytes *file) {
    sr_bytes text = {0};
    uint32_t longest = 6;
    put(file, &longest, sizeof longest);
    for (uint32_t id = 0; id < SAMPLE_FIRST + SAMPLE_PIECES; id++) {
        int byte;
        float score = score_of(id);
        token_text(&text, id, " ", &byte);
        uint32_t bytes = (uint32_t)text.count;
        put(file, &score, sizeof score);
        put(file, &bytes, sizeof bytes);
        put(file, text.data, text.count);
    }
    sr_bytes_free(&text);
}

void sample_json_file(sr_bytes *file) {
    sr_bytes text = {0};
    put_text(file, "{\"added_tokens\": ["
                   "{\"id\": 0, \"content\": \"<unk>\", \"special\": true, \"normalized\": false},"
                   "{\"id\": 1, \"content\": \"<s>\", \"special\": true, \"normalized\": false},"
                   "{\"id\": 2, \"content\": \"</s>\", \"special\": true, \"normalized\": false}],"
                   "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": ["
                   "{\"type\": \"Prepend\", \"prepend\": \"\xE2\x96\x81\"},"
                   "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": "
                   "\"\xE2\x96\x81\"}]}, \"pre_tokenizer\": null, \"post_processor\": null,"
                   "\"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
                   "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\xE2\x96\x81\"}, "
                   "\"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"},"
                   "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]},"
                   "\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": true,"
                   "\"byte_fallback\": true, \"vocab\": {");
    for (uint32_t id = 0; id < SAMPLE_FIRST + SAMPLE_PIECES; id++) {
        int byte;
        char number[16];
        token_text(&text, id, "\xE2\x96\x81", &byte);
        snprintf(number, sizeof number, "\": %u", id);
        put_text(file, id ? ", \"" : "\"");
        put(file, text.data, text.count);
        put_text(file, number);
    }
    sr_bytes merges = {0};
    sample_spaced(&merges,
                  "}, \"merges\": [\"_ a\", \"a b\", \"_a b\", \"_ ab\", \"b c\", \"a bc\", "
                  "\"ab c\", \"c c\", \"_ _\", \"c a\"]}}",
                  "\xE2\x96\x81");
    put(file, merges.data, merges.count);
    /* "byte_fallback" and similar names contain an underscore: only merges were spaced. */
    sr_bytes_free(&merges);
    sr_bytes_free(&text);
}

void sample_byte_level_file(sr_bytes *file) {
    static const char text[] =
        "The quick brown fox jumps over the lazy dog. It's the dog's day, isn't it? We'll see.\n"
        "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Съешь же ещё этих "
        "мягких французских булок.\n\n    return 0;  1234567890 3.14159 😀😀 日本語日本語\n"
        "the the the there then them these this that those fox foxes boxes over over and over\n";
    static const char *const special[] = {"<|endoftext|>", "<|sep|>"};
    const sr_text texts[] = {{text, sizeof text - 1}};
    const sr_bpe_training training = {
        .vocab = 400,
        .text = {.texts = texts, .text_count = 1, .special = special, .special_count = 2}};
    assert_int_equal(sr_bpe_train(file, &training), SRNN_OK);
}

void sample_frame_file(sr_bytes *file, const char *fields) {
    put_text(file, "{");
    put_text(file, fields);
    put_text(file, ", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, "
                   "\"\xC4\xA0\": 3, \"1\": 4, \"\xE2\x96\x81\": 5}, \"merges\": [[\"a\", "
                   "\"b\"]]}}");
}

typedef srnn_status read_function(sr_tokenizer **, const char *, size_t, const char *);

static sr_tokenizer *read_sample(void (*write)(sr_bytes *), read_function *read) {
    sr_bytes file = {0};
    sr_tokenizer *tokenizer;
    write(&file);
    srnn_status status = read(&tokenizer, file.data, file.count, "sample");
    sr_bytes_free(&file);
    if (status != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    return tokenizer;
}

sr_tokenizer *sample_sentencepiece(void) {
    return read_sample(sample_sentencepiece_file, sr_tokenizer_read_sentencepiece);
}

sr_tokenizer *sample_llama2c(void) {
    return read_sample(sample_llama2c_file, sr_tokenizer_read_llama2c);
}

sr_tokenizer *sample_json(void) {
    return read_sample(sample_json_file, sr_tokenizer_read_json);
}

sr_tokenizer *sample_byte_level(void) {
    return read_sample(sample_byte_level_file, sr_tokenizer_read_json);
}
