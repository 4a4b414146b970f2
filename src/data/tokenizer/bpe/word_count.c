/* word_count.c: counts the words of a text. */
#include "data/tokenizer/bpe/word_count.h"

#include "base/memory.h"
#include "base/threads.h"
#include "data/text/unicode.h"
#include "data/tokenizer/added.h"
#include "data/tokenizer/splitter.h"
#include "data/tokenizer/vocabulary.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 20 };

/* ---- The table ---- */

static srnn_status grow(sr_word_counts *counts) {
    size_t slots = counts->slots ? (counts->mask + 1) * 2 : 1024;
    size_t *grown;
    SR_TRY(sr_alloc_zero((void **)&grown, slots, sizeof *grown));
    sr_word *words = realloc(counts->words, slots / 2 * sizeof *words);
    if (!words) {
        free(grown);
        return SR_FAIL(SRNN_ERR_MEMORY, "could not allocate %zu words", slots / 2);
    }
    free(counts->slots);
    counts->slots = grown;
    counts->mask = slots - 1;
    counts->words = words;
    counts->capacity = slots / 2;
    for (size_t i = 0; i < counts->count; i++) {
        size_t slot = (size_t)words[i].hash & counts->mask;
        while (counts->slots[slot])
            slot = (slot + 1) & counts->mask;
        counts->slots[slot] = i + 1;
    }
    return SRNN_OK;
}

srnn_status sr_word_counts_add(sr_word_counts *counts, const char *word, size_t bytes,
                               int64_t times) {
    if (counts->count == counts->capacity)
        SR_TRY(grow(counts));
    uint64_t hash = sr_hash_bytes(word, bytes);
    hash ^= hash >> 32;
    size_t slot = (size_t)hash & counts->mask;
    for (; counts->slots[slot]; slot = (slot + 1) & counts->mask) {
        sr_word *found = &counts->words[counts->slots[slot] - 1];
        if (found->hash == hash && found->bytes == bytes &&
            !memcmp(counts->texts.data + found->start, word, bytes)) {
            found->count += times;
            return SRNN_OK;
        }
    }
    size_t start = counts->texts.count;
    SR_TRY(sr_bytes_append(&counts->texts, word, bytes));
    counts->words[counts->count++] = (sr_word){start, bytes, hash, times};
    counts->slots[slot] = counts->count;
    return SRNN_OK;
}

void sr_word_counts_free(sr_word_counts *counts) {
    sr_bytes_free(&counts->texts);
    free(counts->words);
    free(counts->slots);
    *counts = (sr_word_counts){0};
}

/* ---- Counting ---- */

typedef struct worker {
    sr_word_counts counts;
    sr_split_run split;
    srnn_status status; /* the first failure and its message */
    char detail[256];
} worker;

typedef struct counting {
    const sr_word_counting *how;
    sr_splitter splitter;
    sr_added special;
    sr_text *chunks; /* (count) */
    size_t count, capacity;
    worker *workers;
    int worker_count;
    int64_t done; /* chunks */
} counting;

static srnn_status add_chunk(counting *run, const char *data, size_t bytes) {
    if (bytes == 0)
        return SRNN_OK;
    if (run->count == run->capacity) {
        size_t capacity = run->capacity ? run->capacity * 2 : 64;
        sr_text *chunks = realloc(run->chunks, capacity * sizeof *chunks);
        if (!chunks)
            return SR_FAIL(SRNN_ERR_MEMORY, "could not allocate %zu chunks", capacity);
        run->chunks = chunks;
        run->capacity = capacity;
    }
    run->chunks[run->count++] = (sr_text){data, bytes};
    return SRNN_OK;
}

/* No word contains a visible ASCII character followed by a space or a line end, so a cut between
 * them changes no word. */
static srnn_status cut_stretch(counting *run, const char *data, size_t bytes) {
    size_t start = 0;
    for (size_t at = CHUNK_BYTES; at < bytes; at++) {
        bool visible = data[at - 1] > ' ' && data[at - 1] < 0x7F;
        if (!visible || (data[at] != ' ' && data[at] != '\n'))
            continue;
        SR_TRY(add_chunk(run, data + start, at - start));
        start = at;
        at += CHUNK_BYTES;
    }
    return add_chunk(run, data + start, bytes - start);
}

static srnn_status cut_texts(counting *run) {
    for (size_t i = 0; i < run->how->text_count; i++) {
        const sr_text *text = &run->how->texts[i];
        sr_added_match match = {0};
        size_t done = 0;
        while (sr_added_next(&run->special, text->data, text->bytes, &match)) {
            SR_TRY(cut_stretch(run, text->data + done, match.start - done));
            done = match.end;
        }
        SR_TRY(cut_stretch(run, text->data + done, text->bytes - done));
    }
    return SRNN_OK;
}

static srnn_status take_word(void *context, const char *word, size_t bytes) {
    worker *mine = context;
    return sr_word_counts_add(&mine->counts, word, bytes, 1);
}

static void count_chunk(void *context, int64_t task, int number) {
    counting *run = context;
    worker *mine = &run->workers[number];
    const sr_text *chunk = &run->chunks[task];
    if (mine->status != SRNN_OK)
        return;
    mine->split.valid = sr_utf8_valid_prefix(chunk->data, chunk->bytes) == chunk->bytes;
    mine->status = sr_splitter_run(&mine->split, chunk->data, chunk->bytes, false);
    if (mine->status != SRNN_OK)
        strncpy(mine->detail, srnn_error_detail(), sizeof mine->detail - 1);
    int64_t done = __atomic_add_fetch(&run->done, 1, __ATOMIC_RELAXED);
    if (run->how->progress && number == 0)
        run->how->progress(run->how->context, "counting words", done, (int64_t)run->count);
}

static srnn_status prepare(counting *run) {
    sr_added_token plain = {0};
    SR_TRY(sr_splitter_add_gpt2(&run->splitter));
    for (size_t i = 0; i < run->how->special_count; i++)
        SR_TRY(sr_added_add(&run->special, run->how->special[i], strlen(run->how->special[i]),
                            &plain));
    sr_added_finish(&run->special);
    SR_TRY(cut_texts(run));
    int threads = sr_thread_count(run->how->threads);
    SR_TRY(sr_alloc_zero((void **)&run->workers, (size_t)threads, sizeof *run->workers));
    run->worker_count = threads;
    for (int i = 0; i < threads; i++) {
        worker *mine = &run->workers[i];
        mine->split.splitter = &run->splitter;
        mine->split.take = take_word;
        mine->split.context = mine;
        SR_TRY(sr_matcher_create(&mine->split.matcher));
    }
    return SRNN_OK;
}

static srnn_status collect(sr_word_counts *counts, const counting *run) {
    for (int i = 0; i < run->worker_count; i++) {
        const worker *from = &run->workers[i];
        if (from->status != SRNN_OK)
            return SR_FAIL(from->status, "%s", from->detail);
        for (size_t w = 0; w < from->counts.count; w++) {
            const sr_word *word = &from->counts.words[w];
            SR_TRY(sr_word_counts_add(counts, from->counts.texts.data + word->start, word->bytes,
                                      word->count));
        }
    }
    return SRNN_OK;
}

srnn_status sr_word_counts_run(sr_word_counts *counts, const sr_word_counting *how) {
    counting run = {.how = how};
    srnn_status status = prepare(&run);
    if (status == SRNN_OK) {
        sr_parallel(count_chunk, &run, (int64_t)run.count, run.worker_count);
        status = collect(counts, &run);
    }
    for (int i = 0; i < run.worker_count; i++) {
        sr_matcher_free(run.workers[i].split.matcher);
        sr_word_counts_free(&run.workers[i].counts);
    }
    free(run.workers);
    free(run.chunks);
    sr_added_free(&run.special);
    sr_splitter_free(&run.splitter);
    return status;
}
