/* fuzz_jsonl.c: any bytes as lines of JSON with documents in them. */
#include "data/shards/document_encoder.h"
#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* Reused: the encoder has a word cache of 2 MiB. */
    static sr_tokenizer *tokenizer;
    static sr_document_encoder *encoder;
    static const char *files[1];
    static const sr_document_rules rules = {.files = files,
                                            .field = "text",
                                            .replace_invalid = true,
                                            .end_token = -1};
    sr_document_reader *reader;
    sr_document_batch batch = {0};
    sr_tokens tokens = {0};
    files[0] = fuzz_file("text.jsonl", data, size);
    if (!tokenizer && sr_tokenizer_load(&tokenizer, "bytes") != SRNN_OK)
        abort();
    if (!encoder && sr_document_encoder_create(&encoder, tokenizer, &rules) != SRNN_OK)
        abort();
    if (sr_document_reader_create(&reader, files, 1, 1 << 16) == SRNN_OK) {
        while (sr_document_reader_next(reader, &batch) == SRNN_OK && batch.count > 0 &&
               sr_document_encoder_run(encoder, &tokens, &batch) == SRNN_OK) {
        }
        sr_document_reader_free(reader);
    }
    sr_document_batch_free(&batch);
    sr_tokens_free(&tokens);
    return 0;
}
