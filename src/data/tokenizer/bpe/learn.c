/* learn.c: learns BPE merges from word counts.
 *
 * Words are rows of token ids. Every pair of adjacent ids has a count and the list of words it
 * occurs in; a heap yields the next pair to merge. A merge changes only the counts of neighbouring
 * pairs. */
#include "data/tokenizer/bpe/learn.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct pair {
    uint32_t left, right;
    int64_t count;
    bool touched;    /* its count changed in this merge */
    sr_tokens words; /* indices of words it occurs or occurred in, increasing */
} pair;

typedef struct candidate {
    int64_t count;
    uint32_t pair;
} candidate;

typedef struct learner {
    sr_vocabulary *vocabulary;
    const sr_word_counts *words;
    sr_ties ties;
    sr_tokens ids;    /* all words, one after the other */
    size_t *start;    /* (words) into ids */
    uint32_t *length; /* (words) shrinks with every merge */
    pair *pairs;      /* (pair_count) */
    size_t pair_count, pair_capacity;
    uint32_t *slots; /* (mask + 1) pair number + 1, hashed by ids; 0: free */
    size_t mask;
    candidate *heap; /* best first; an entry is stale if the pair's count has changed */
    size_t heap_count, heap_capacity;
    sr_tokens touched; /* pairs whose count changed in this merge */
    sr_bytes joined;
} learner;

/* ---- Pairs ---- */

static size_t hash_pair(uint32_t left, uint32_t right) {
    uint64_t key = (uint64_t)left << 32 | right;
    return (size_t)(key * 0x9E3779B97F4A7C15u >> 32);
}

static srnn_status grow_pairs(learner *run) {
    size_t slots = run->slots ? (run->mask + 1) * 2 : 1024;
    uint32_t *grown;
    if (slots / 2 >= UINT32_MAX)
        return SR_FAIL(SRNN_ERR_LIMIT, "too many different pairs to train on");
    SR_TRY(sr_alloc_zero((void **)&grown, slots, sizeof *grown));
    pair *pairs = realloc(run->pairs, slots / 2 * sizeof *pairs);
    if (!pairs) {
        free(grown);
        return SR_FAIL(SRNN_ERR_MEMORY, "could not allocate %zu pairs", slots / 2);
    }
    free(run->slots);
    run->slots = grown;
    run->mask = slots - 1;
    run->pairs = pairs;
    run->pair_capacity = slots / 2;
    for (size_t i = 0; i < run->pair_count; i++) {
        size_t slot = hash_pair(pairs[i].left, pairs[i].right) & run->mask;
        while (run->slots[slot])
            slot = (slot + 1) & run->mask;
        run->slots[slot] = (uint32_t)(i + 1);
    }
    return SRNN_OK;
}

/* The number of a pair, which is added if new. */
static srnn_status find_pair(learner *run, uint32_t *number, uint32_t left, uint32_t right) {
    *number = 0;
    if (run->pair_count == run->pair_capacity)
        SR_TRY(grow_pairs(run));
    size_t slot = hash_pair(left, right) & run->mask;
    for (; run->slots[slot]; slot = (slot + 1) & run->mask) {
        *number = run->slots[slot] - 1;
        if (run->pairs[*number].left == left && run->pairs[*number].right == right)
            return SRNN_OK;
    }
    *number = (uint32_t)run->pair_count++;
    run->pairs[*number] = (pair){.left = left, .right = right};
    run->slots[slot] = *number + 1;
    return SRNN_OK;
}

/* A word has gained (times > 0) or lost a pair. */
static srnn_status change_pair(learner *run, uint32_t left, uint32_t right, uint32_t word,
                               int64_t times) {
    uint32_t number;
    SR_TRY(find_pair(run, &number, left, right));
    pair *changed = &run->pairs[number];
    changed->count += times * run->words->words[word].count;
    if (times > 0 &&
        (changed->words.count == 0 || changed->words.ids[changed->words.count - 1] != word))
        SR_TRY(sr_tokens_push(&changed->words, word));
    if (changed->touched)
        return SRNN_OK;
    changed->touched = true;
    return sr_tokens_push(&run->touched, number);
}

/* ---- The heap ---- */

static int compare_texts(const sr_vocabulary *vocabulary, uint32_t a, uint32_t b) {
    size_t a_bytes = 0, b_bytes = 0;
    const char *a_text = sr_vocabulary_text(vocabulary, a, &a_bytes);
    const char *b_text = sr_vocabulary_text(vocabulary, b, &b_bytes);
    int order = memcmp(a_text, b_text, a_bytes < b_bytes ? a_bytes : b_bytes);
    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

/* True if pair a is merged before pair b; a != b. */
static bool goes_first(const learner *run, uint32_t a, uint32_t b) {
    switch (run->ties) {
    case SR_TIES_IDS:
        return a < b;
    case SR_TIES_TEXT:
        return compare_texts(run->vocabulary, a, b) > 0;
    }
    return false;
}

static bool better(const learner *run, const candidate *a, const candidate *b) {
    if (a->count != b->count)
        return a->count > b->count;
    const pair *x = &run->pairs[a->pair], *y = &run->pairs[b->pair];
    return x->left != y->left ? goes_first(run, x->left, y->left)
                              : goes_first(run, x->right, y->right);
}

static srnn_status heap_push(learner *run, candidate added) {
    if (run->heap_count == run->heap_capacity) {
        size_t capacity = run->heap_capacity ? run->heap_capacity * 2 : 1024;
        candidate *heap = realloc(run->heap, capacity * sizeof *heap);
        if (!heap)
            return SR_FAIL(SRNN_ERR_MEMORY, "could not allocate %zu candidates", capacity);
        run->heap = heap;
        run->heap_capacity = capacity;
    }
    size_t at = run->heap_count++;
    for (; at > 0 && better(run, &added, &run->heap[(at - 1) / 2]); at = (at - 1) / 2)
        run->heap[at] = run->heap[(at - 1) / 2];
    run->heap[at] = added;
    return SRNN_OK;
}

static candidate heap_pop(learner *run) {
    candidate top = run->heap[0], moving = run->heap[--run->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < run->heap_count; at = child) {
        if (child + 1 < run->heap_count && better(run, &run->heap[child + 1], &run->heap[child]))
            child++;
        if (!better(run, &run->heap[child], &moving))
            break;
        run->heap[at] = run->heap[child];
    }
    run->heap[at] = moving;
    return top;
}

/* Pushes the changed pairs with their new counts. */
static srnn_status offer_touched(learner *run) {
    for (size_t i = 0; i < run->touched.count; i++) {
        uint32_t number = run->touched.ids[i];
        run->pairs[number].touched = false;
        if (run->pairs[number].count > 0)
            SR_TRY(heap_push(run, (candidate){run->pairs[number].count, number}));
    }
    run->touched.count = 0;
    return SRNN_OK;
}

/* ---- Learning ---- */

static srnn_status load_words(learner *run, const uint32_t byte_ids[256]) {
    const sr_word_counts *words = run->words;
    if (words->count >= UINT32_MAX)
        return SR_FAIL(SRNN_ERR_LIMIT, "%zu different words are too many", words->count);
    SR_TRY(sr_alloc((void **)&run->start, words->count, sizeof *run->start));
    SR_TRY(sr_alloc((void **)&run->length, words->count, sizeof *run->length));
    SR_TRY(sr_tokens_reserve(&run->ids, words->texts.count));
    for (size_t i = 0; i < words->count; i++) {
        const sr_word *word = &words->words[i];
        if (word->bytes > UINT32_MAX)
            return SR_FAIL(SRNN_ERR_LIMIT, "a word of %zu bytes is too long", word->bytes);
        run->start[i] = run->ids.count;
        run->length[i] = (uint32_t)word->bytes;
        for (size_t b = 0; b < word->bytes; b++)
            run->ids.ids[run->ids.count++] =
                byte_ids[(unsigned char)words->texts.data[word->start + b]];
        const uint32_t *ids = run->ids.ids + run->start[i];
        for (size_t b = 0; b + 1 < word->bytes; b++)
            SR_TRY(change_pair(run, ids[b], ids[b + 1], (uint32_t)i, 1));
    }
    return offer_touched(run);
}

/* Replaces the pair in one word, from left to right, and updates the counts of neighbouring
 * pairs. */
static srnn_status merge_word(learner *run, uint32_t word, uint32_t left, uint32_t right,
                              uint32_t merged) {
    uint32_t *ids = run->ids.ids + run->start[word], length = run->length[word], written = 0;
    for (uint32_t i = 0; i < length; i++) {
        if (ids[i] != left || i + 1 == length || ids[i + 1] != right) {
            ids[written++] = ids[i];
            continue;
        }
        SR_TRY(change_pair(run, left, right, word, -1));
        if (written > 0) {
            SR_TRY(change_pair(run, ids[written - 1], left, word, -1));
            SR_TRY(change_pair(run, ids[written - 1], merged, word, 1));
        }
        if (i + 2 < length) {
            SR_TRY(change_pair(run, right, ids[i + 2], word, -1));
            SR_TRY(change_pair(run, merged, ids[i + 2], word, 1));
        }
        ids[written++] = merged;
        i++;
    }
    run->length[word] = written;
    return SRNN_OK;
}

static srnn_status merge_pair(learner *run, uint32_t number, uint32_t merged) {
    uint32_t left = run->pairs[number].left, right = run->pairs[number].right;
    sr_tokens words = run->pairs[number].words; /* the array of pairs may be reallocated
                                                 * meanwhile */
    run->pairs[number].words = (sr_tokens){0};
    srnn_status status = SRNN_OK;
    for (size_t i = 0; status == SRNN_OK && i < words.count; i++)
        status = merge_word(run, words.ids[i], left, right, merged);
    sr_tokens_free(&words);
    return status == SRNN_OK ? offer_touched(run) : status;
}

/* The id of the concatenated text: new, unless there is such a token. */
static srnn_status join_tokens(learner *run, uint32_t *merged, uint32_t *next, const pair *best) {
    const uint32_t halves[2] = {best->left, best->right};
    *merged = *next;
    run->joined.count = 0;
    for (size_t i = 0; i < 2; i++) {
        size_t bytes = 0;
        const char *text = sr_vocabulary_text(run->vocabulary, halves[i], &bytes);
        SR_TRY(sr_bytes_append(&run->joined, text, bytes));
    }
    int64_t known = sr_vocabulary_find(run->vocabulary, run->joined.data, run->joined.count);
    if (known >= 0) {
        *merged = (uint32_t)known;
        return SRNN_OK;
    }
    return sr_vocabulary_add(run->vocabulary, (*next)++, run->joined.data, run->joined.count);
}

static srnn_status add_merge(sr_merges *merges, size_t *capacity, const pair *best) {
    if (merges->count == *capacity) {
        *capacity = *capacity ? *capacity * 2 : 1024;
        void *pairs = realloc(merges->pairs, *capacity * sizeof *merges->pairs);
        if (!pairs)
            return SR_FAIL(SRNN_ERR_MEMORY, "could not allocate %zu merges", *capacity);
        merges->pairs = pairs;
    }
    merges->pairs[merges->count][0] = best->left;
    merges->pairs[merges->count++][1] = best->right;
    return SRNN_OK;
}

static srnn_status learn(learner *run, sr_merges *merges, uint32_t next,
                         const sr_bpe_learning *learning) {
    size_t capacity = 0;
    while (next < run->vocabulary->size && run->heap_count) {
        candidate top = heap_pop(run);
        pair best = run->pairs[top.pair];
        if (best.count != top.count)
            continue;
        uint32_t merged;
        SR_TRY(add_merge(merges, &capacity, &best));
        SR_TRY(join_tokens(run, &merged, &next, &best));
        SR_TRY(merge_pair(run, top.pair, merged));
        if (learning->progress && next % 256 == 0)
            learning->progress(learning->context, "merging", next, run->vocabulary->size);
    }
    return SRNN_OK;
}

srnn_status sr_bpe_learn(sr_merges *merges, sr_vocabulary *vocabulary, uint32_t next,
                         const sr_bpe_learning *learning) {
    *merges = (sr_merges){0};
    learner run = {.vocabulary = vocabulary, .words = learning->words, .ties = learning->ties};
    srnn_status status = load_words(&run, learning->byte_ids);
    if (status == SRNN_OK)
        status = learn(&run, merges, next, learning);
    for (size_t i = 0; i < run.pair_count; i++)
        sr_tokens_free(&run.pairs[i].words);
    free(run.pairs);
    free(run.slots);
    free(run.heap);
    free(run.start);
    free(run.length);
    sr_tokens_free(&run.ids);
    sr_tokens_free(&run.touched);
    sr_bytes_free(&run.joined);
    if (status != SRNN_OK) {
        free(merges->pairs);
        *merges = (sr_merges){0};
    }
    return status;
}
