/* bpe.c: the tables of the merge machine. */
#include "data/tokenizer/bpe/bpe.h"

#include "base/memory.h"
#include "data/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { NEIGHBOUR_BITS = 18 }; /* 32 KiB: Llama-2 has some 15,000 neighbours */

static size_t table_size(size_t count) {
    size_t slots = 16;
    while (slots < count * 2)
        slots *= 2;
    return slots;
}

srnn_status sr_bpe_create(sr_bpe *bpe, uint32_t tokens, size_t pairs, size_t characters) {
    *bpe = (sr_bpe){.tokens = tokens, .unknown = SR_NO_SYMBOL};
    memset(bpe->byte_symbol, 0xFF, sizeof bpe->byte_symbol);
    memset(bpe->ascii_symbol, 0xFF, sizeof bpe->ascii_symbol);
    size_t slots = table_size(pairs);
    SR_TRY(sr_alloc((void **)&bpe->pairs, slots, sizeof *bpe->pairs));
    memset(bpe->pairs, 0xFF, slots * sizeof *bpe->pairs);
    bpe->pair_mask = slots - 1;
    slots = table_size(characters);
    SR_TRY(sr_alloc((void **)&bpe->characters, slots, sizeof *bpe->characters));
    memset(bpe->characters, 0xFF, slots * sizeof *bpe->characters);
    bpe->character_mask = slots - 1;
    SR_TRY(sr_alloc((void **)&bpe->plain_characters, characters, sizeof *bpe->plain_characters));
    return sr_alloc_zero((void **)&bpe->neighbours, (size_t)1 << (NEIGHBOUR_BITS - 6),
                         sizeof *bpe->neighbours);
}

void sr_bpe_free(sr_bpe *bpe) {
    free(bpe->characters);
    free(bpe->plain_characters);
    free(bpe->pairs);
    free(bpe->neighbours);
    *bpe = (sr_bpe){0};
}

static sr_bpe_pair *pair_slot(const sr_bpe *bpe, uint64_t key) {
    size_t slot = (size_t)(key * 0x9E3779B97F4A7C15u >> 32) & bpe->pair_mask;
    while (bpe->pairs[slot].key != key && bpe->pairs[slot].key != UINT64_MAX)
        slot = (slot + 1) & bpe->pair_mask;
    return &bpe->pairs[slot];
}

const sr_bpe_pair *sr_bpe_find_pair(const sr_bpe *bpe, uint32_t left, uint32_t right) {
    const sr_bpe_pair *pair = pair_slot(bpe, (uint64_t)left << 32 | right);
    return pair->key == UINT64_MAX ? NULL : pair;
}

void sr_bpe_add_pair(sr_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged) {
    uint64_t key = (uint64_t)left << 32 | right;
    sr_bpe_pair *pair = pair_slot(bpe, key);
    if (pair->key == key)
        return;
    *pair = (sr_bpe_pair){key, rank, merged};
    bpe->pair_count++;
}

static sr_bpe_character *character_slot(const sr_bpe *bpe, uint32_t character) {
    size_t slot = (character * 0x9E3779B1u >> 8) & bpe->character_mask;
    while (bpe->characters[slot].character != character &&
           bpe->characters[slot].character != UINT32_MAX)
        slot = (slot + 1) & bpe->character_mask;
    return &bpe->characters[slot];
}

uint32_t sr_bpe_character_symbol(const sr_bpe *bpe, uint32_t character) {
    if (character < 128)
        return bpe->ascii_symbol[character];
    return character_slot(bpe, character)->symbol; /* SR_NO_SYMBOL in a free slot */
}

void sr_bpe_add_character(sr_bpe *bpe, uint32_t character, uint32_t symbol) {
    sr_bpe_character *slot = character_slot(bpe, character);
    if (slot->character == character)
        return;
    *slot = (sr_bpe_character){character, symbol};
    bpe->character_count++;
    if (character < 128)
        bpe->ascii_symbol[character] = symbol;
}

static uint32_t neighbour_bit(uint32_t left, uint32_t right) {
    return (left * 0x9E3779B1u + right * 0x85EBCA77u) >> (32 - NEIGHBOUR_BITS);
}

bool sr_bpe_are_neighbours(const sr_bpe *bpe, uint32_t left, uint32_t right) {
    uint32_t bit = neighbour_bit(left, right);
    return bpe->neighbours[bit >> 6] >> (bit & 63) & 1;
}

void sr_bpe_note_neighbours(sr_bpe *bpe, const char *text, size_t bytes) {
    uint32_t left = UINT32_MAX;
    for (size_t at = 0; at < bytes;) {
        uint32_t character;
        size_t length = sr_utf8_decode(&character, text + at, bytes - at);
        if (length == 0)
            return;
        if (left != UINT32_MAX) {
            uint32_t bit = neighbour_bit(left, character);
            bpe->neighbours[bit >> 6] |= (uint64_t)1 << (bit & 63);
        }
        left = character;
        at += length;
    }
}
