/* bench_tokenizer.c: times encoding and training; one JSON line per case.
 *
 *     bench_tokenizer encode TOKENIZER TEXT THREADS
 *     bench_tokenizer train VOCAB TEXT THREADS
 *
 * TEXT holds documents separated by <|endoftext|>. A text that does not survive encoding and
 * decoding is not timed. With several threads, one thread is timed alternately: the speed of
 * machines varies over minutes, so only alternating timings can be compared. */
#include "base/clock.h"
#include "base/threads.h"
#include "data/tokenizer/bpe/train.h"
#include "data/tokenizer/tokenizer.h"
#include "files/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5, DOCUMENTS_MAX = 1 << 16, THREADS_MAX = 256 };

static const char separator[] = "<|endoftext|>";

typedef struct bench {
    const sr_tokenizer *tokenizer;
    sr_text documents[DOCUMENTS_MAX];
    sr_tokens tokens[DOCUMENTS_MAX];
    int64_t count;
    size_t bytes;
    sr_encoder *encoders[THREADS_MAX];
} bench;

static void check(srnn_status status) {
    if (status == SRNN_OK)
        return;
    fprintf(stderr, "bench_tokenizer: %s\n", srnn_error_detail());
    exit(1);
}

static void cut_documents(bench *run, const sr_mapping *file) {
    const char *text = (const char *)file->data, *end = text + file->bytes;
    while (text < end && run->count < DOCUMENTS_MAX) {
        const char *next = memmem(text, (size_t)(end - text), separator, sizeof separator - 1);
        size_t bytes = (size_t)((next ? next : end) - text);
        run->documents[run->count++] = (sr_text){text, bytes};
        run->bytes += bytes;
        text += bytes + (next ? sizeof separator - 1 : 0);
    }
}

static void encode_document(void *context, int64_t task, int worker) {
    bench *run = context;
    run->tokens[task].count = 0;
    check(sr_encoder_encode(run->encoders[worker], &run->tokens[task], run->documents[task].data,
                            run->documents[task].bytes));
}

/* Encoders are recreated for each repeat: their caches start empty. */
static double encode_all(bench *run, int threads) {
    double start = sr_clock_seconds();
    for (int i = 0; i < threads; i++)
        check(sr_encoder_create(&run->encoders[i], run->tokenizer));
    sr_parallel(encode_document, run, run->count, threads);
    double taken = sr_clock_seconds() - start;
    for (int i = 0; i < threads; i++)
        sr_encoder_free(run->encoders[i]);
    return taken;
}

static void check_decoding(const bench *run) {
    sr_bytes decoded = {0};
    for (int64_t i = 0; i < run->count; i++) {
        const sr_text *document = &run->documents[i];
        decoded.count = 0;
        check(sr_tokenizer_decode(run->tokenizer, &decoded, run->tokens[i].ids,
                                  run->tokens[i].count));
        if (decoded.count != document->bytes ||
            (decoded.count && memcmp(decoded.data, document->data, decoded.count) != 0))
            check(sr_fail(SRNN_ERR_FORMAT, "document %lld does not come back", (long long)i));
    }
    sr_bytes_free(&decoded);
}

static void print_encoding(const bench *run, const char *name, int threads, double seconds_taken) {
    size_t tokens = 0;
    for (int64_t i = 0; i < run->count; i++)
        tokens += run->tokens[i].count;
    printf("{\"case\": \"encode\", \"program\": \"softrnn\", \"tokenizer\": \"%s\", \"threads\": "
           "%d, \"bytes\": %zu, \"tokens\": %zu, \"seconds\": %.4f, \"megabytes_per_second\": "
           "%.2f}\n",
           name, threads, run->bytes, tokens, seconds_taken,
           1e-6 * (double)run->bytes / seconds_taken);
}

static void time_encoding(bench *run, const char *name, int threads) {
    sr_tokenizer *tokenizer;
    check(sr_tokenizer_load(&tokenizer, name));
    run->tokenizer = tokenizer;
    encode_all(run, threads);
    check_decoding(run);
    const int counts[2] = {1, threads};
    double best[2] = {1e30, 1e30};
    for (int i = 0; i < REPEATS; i++)
        for (int c = threads == 1; c < 2; c++) {
            const double taken = encode_all(run, counts[c]);
            best[c] = taken < best[c] ? taken : best[c];
        }
    for (int c = threads == 1; c < 2; c++)
        print_encoding(run, name, counts[c], best[c]);
    for (int64_t i = 0; i < run->count; i++)
        sr_tokens_free(&run->tokens[i]);
    sr_tokenizer_free(tokenizer);
}

static void time_training(const bench *run, uint32_t vocab, int threads) {
    static const char *const special[] = {separator};
    const sr_bpe_training training = {.vocab = vocab,
                                      .text = {.texts = run->documents,
                                               .text_count = (size_t)run->count,
                                               .special = special,
                                               .special_count = 1,
                                               .threads = threads}};
    double best = 1e30;
    for (int i = 0; i < REPEATS; i++) {
        sr_bytes json = {0};
        double start = sr_clock_seconds();
        check(sr_bpe_train(&json, &training));
        double taken = sr_clock_seconds() - start;
        best = taken < best ? taken : best;
        sr_bytes_free(&json);
    }
    printf("{\"case\": \"train\", \"program\": \"softrnn\", \"vocab\": %u, \"threads\": %d, "
           "\"bytes\": %zu, \"seconds\": %.4f, \"megabytes_per_second\": %.2f}\n",
           vocab, threads, run->bytes, best, 1e-6 * (double)run->bytes / best);
}

int main(int argc, char **argv) {
    static bench run;
    sr_mapping file;
    int threads = argc == 5 ? atoi(argv[4]) : 0;
    if (threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "bench_tokenizer encode TOKENIZER TEXT THREADS\n"
                        "bench_tokenizer train VOCAB TEXT THREADS\n");
        return 2;
    }
    check(sr_mapping_open(&file, argv[3]));
    cut_documents(&run, &file);
    if (strcmp(argv[1], "train") == 0)
        time_training(&run, (uint32_t)atoi(argv[2]), threads);
    else
        time_encoding(&run, argv[2], threads);
    sr_mapping_close(&file);
    return 0;
}
