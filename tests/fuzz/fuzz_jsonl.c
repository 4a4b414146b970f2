/* fuzz_jsonl.c: any bytes as lines of JSON with documents in them. */
#include "data/shards/document_encoder.h"
#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sr_tokenizer *tokenizer;
    const char *const files[] = {fuzz_file("text.jsonl", data, size)};
    const sr_document_rules rules = {
        .files = files, .field = "text", .replace_invalid = true, .end_token = -1};
    sr_document_reader *reader;
    sr_document_encoder *encoder;
    sr_document_batch batch = {0};
    sr_tokens tokens = {0};
    if (!tokenizer && sr_tokenizer_load(&tokenizer, "bytes") != SRNN_OK)
        abort();
    if (sr_document_encoder_create(&encoder, tokenizer, &rules) != SRNN_OK)
        abort();
    if (sr_document_reader_create(&reader, files, 1, 1 << 16) == SRNN_OK) {
        while (sr_document_reader_next(reader, &batch) == SRNN_OK && batch.count > 0 &&
               sr_document_encoder_run(encoder, &tokens, &batch) == SRNN_OK) {
        }
        sr_document_reader_free(reader);
    }
    sr_document_batch_free(&batch);
    sr_tokens_free(&tokens);
    sr_document_encoder_free(encoder);
    return 0;
}
