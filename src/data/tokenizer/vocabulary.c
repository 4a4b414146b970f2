/* vocabulary.c: the texts of all tokens by id, and the ids by text. */
#include "data/tokenizer/vocabulary.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

uint64_t sr_hash_bytes(const char *data, size_t bytes) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)data[i]) * 0x100000001B3u;
    return hash;
}

srnn_status sr_vocabulary_create(sr_vocabulary *vocabulary, uint32_t size) {
    *vocabulary = (sr_vocabulary){0};
    if (size > SR_VOCABULARY_LIMIT)
        return SR_FAIL(SRNN_ERR_LIMIT, "token id %u is over the limit of %d", size - 1,
                       SR_VOCABULARY_LIMIT - 1);
    size_t slots = 16;
    while (slots < (size_t)size * 2)
        slots *= 2;
    SR_TRY(sr_alloc((void **)&vocabulary->start, size, sizeof *vocabulary->start));
    SR_TRY(sr_alloc_zero((void **)&vocabulary->length, size, sizeof *vocabulary->length));
    SR_TRY(sr_alloc((void **)&vocabulary->slots, slots, sizeof *vocabulary->slots));
    memset(vocabulary->start, 0xFF, size * sizeof *vocabulary->start);
    memset(vocabulary->slots, 0xFF, slots * sizeof *vocabulary->slots);
    vocabulary->size = size;
    vocabulary->mask = slots - 1;
    return SRNN_OK;
}

void sr_vocabulary_free(sr_vocabulary *vocabulary) {
    sr_bytes_free(&vocabulary->texts);
    free(vocabulary->start);
    free(vocabulary->length);
    free(vocabulary->slots);
    *vocabulary = (sr_vocabulary){0};
}

const char *sr_vocabulary_text(const sr_vocabulary *vocabulary, uint32_t id, size_t *bytes) {
    if (id >= vocabulary->size || vocabulary->start[id] == SIZE_MAX)
        return NULL;
    *bytes = vocabulary->length[id];
    return vocabulary->texts.data ? vocabulary->texts.data + vocabulary->start[id] : "";
}

/* The slot of this text, or the free slot where it belongs. */
static size_t slot_of(const sr_vocabulary *vocabulary, const char *text, size_t bytes) {
    uint64_t hash = sr_hash_bytes(text, bytes);
    size_t slot = (size_t)(hash ^ hash >> 32) & vocabulary->mask;
    for (;; slot = (slot + 1) & vocabulary->mask) {
        uint32_t id = vocabulary->slots[slot];
        if (id == UINT32_MAX)
            return slot;
        if (vocabulary->length[id] == bytes &&
            (bytes == 0 || !memcmp(vocabulary->texts.data + vocabulary->start[id], text, bytes)))
            return slot;
    }
}

srnn_status sr_vocabulary_add(sr_vocabulary *vocabulary, uint32_t id, const char *text,
                              size_t bytes) {
    if (vocabulary->start[id] != SIZE_MAX)
        return SR_FAIL(SRNN_ERR_FORMAT, "token id %u is given twice", id);
    if (bytes > UINT32_MAX)
        return SR_FAIL(SRNN_ERR_LIMIT, "token %u has a text of %zu bytes", id, bytes);
    size_t slot = slot_of(vocabulary, text, bytes);
    size_t start = vocabulary->texts.count;
    SR_TRY(sr_bytes_append(&vocabulary->texts, text, bytes));
    vocabulary->start[id] = start;
    vocabulary->length[id] = (uint32_t)bytes;
    if (vocabulary->slots[slot] == UINT32_MAX)
        vocabulary->slots[slot] = id;
    return SRNN_OK;
}

int64_t sr_vocabulary_find(const sr_vocabulary *vocabulary, const char *text, size_t bytes) {
    uint32_t id = vocabulary->slots[slot_of(vocabulary, text, bytes)];
    return id == UINT32_MAX ? -1 : (int64_t)id;
}
