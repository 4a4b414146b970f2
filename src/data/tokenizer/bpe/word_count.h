/* word_count.h: counts the words of a text. */
#ifndef SR_DATA_TOKENIZER_BPE_WORD_COUNT_H
#define SR_DATA_TOKENIZER_BPE_WORD_COUNT_H

#include "data/text/buffer.h"

typedef struct sr_word {
    size_t start; /* offset in texts */
    size_t bytes;
    uint64_t hash;
    int64_t count;
} sr_word;

/* { 0 } is empty. */
typedef struct sr_word_counts {
    sr_bytes texts;
    sr_word *words; /* (count) in the order of their first appearance */
    size_t count, capacity;
    size_t *slots; /* (mask + 1) word number + 1, hashed; 0: free */
    size_t mask;
} sr_word_counts;

/* Adds `times` occurrences of a word. */
srnn_status sr_word_counts_add(sr_word_counts *counts, const char *word, size_t bytes,
                               int64_t times);
void sr_word_counts_free(sr_word_counts *counts);

/* A stretch of text, borrowed. */
typedef struct sr_text {
    const char *data;
    size_t bytes;
} sr_text;

/* Called from time to time, from the calling thread or another. */
typedef void sr_progress(void *context, const char *phase, int64_t done, int64_t total);

typedef struct sr_word_counting {
    const sr_text *texts; /* (text_count) */
    size_t text_count;
    const char *const *special; /* (special_count) texts that separate words and are not words */
    size_t special_count;
    int threads;           /* 0: all cores; the counts do not depend on it */
    sr_progress *progress; /* may be NULL */
    void *context;
} sr_word_counting;

/* Counts the words of the texts after GPT-2's splitting. */
srnn_status sr_word_counts_run(sr_word_counts *counts, const sr_word_counting *how);

#endif
