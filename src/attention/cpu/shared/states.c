/* states.c: the memory layout of states and their plain form, per number type and instruction set.
 *
 * In memory both kinds of state are padded for GEMMs, differently on each instruction set. The
 * plain form has no padding; per kv head it holds
 *     recurrent state   matrix (features, Dv), column (features) if row sums are needed, reference
 *     KV cache          keys (tokens, D), values (tokens, Dv), decay (tokens) if there is one;
 *                       of all tokens, or of those that the next token sees through a window */
#include "attention/cpu/chunked/chunked.h"
#include "attention/cpu/chunked/chunks.h"
#include "attention/cpu/flash/flash.h"
#include "attention/cpu/generic/kv_cache.h"
#include "attention/cpu/linear/linear.h"
#include "attention/cpu/shared/computes.h"
#include "attention/cpu/shared/tiles.h"

static int64_t heads_of(const srnn_problem *p) {
    return (int64_t)p->B * p->Hkv;
}

/* Append bytes to a plain block, or read them from it; return the position behind them. */
static char *put(char *plain, const void *from, size_t bytes) {
    memcpy(plain, from, bytes);
    return plain + bytes;
}

static const char *get(void *to, const char *plain, size_t bytes) {
    memcpy(to, plain, bytes);
    return plain + bytes;
}

/* ---- recurrent state ---- */

static bool decays(const srnn_problem *p) {
    return sr_operand_used(SR_OPERAND_DECAY, &p->attention);
}

static size_t recurrent_bytes(const srnn_problem *p, int64_t capacity) {
    (void)capacity;
    return chunked_state_bytes(p) * (size_t)heads_of(p);
}

static size_t recurrent_plain_bytes(const srnn_problem *p, int64_t position) {
    (void)position;
    const feature_basis basis = feature_basis_place(&p->attention, p->D, &(sr_layout){0});
    const size_t numbers =
        (size_t)state_rows(&basis) * (size_t)(p->Dv + sr_needs_row_sum(&p->attention));
    return (size_t)heads_of(p) * (numbers * sizeof(real) + (decays(p) ? sizeof(double) : 0));
}

static running_state state_at(char *memory, const srnn_problem *p, int64_t head, int64_t *rows) {
    feature_basis basis = feature_basis_place(&p->attention, p->D, &(sr_layout){0});
    sr_layout layout = {.base = memory + (size_t)head * chunked_state_bytes(p)};
    *rows = state_rows(&basis);
    return running_state_place(p, &basis, &layout);
}

static srnn_status recurrent_to_plain(char *plain, const sr_state_memory *from) {
    const srnn_problem *p = &from->plan->core;
    for (int64_t head = 0, rows; head < heads_of(p); head++) {
        running_state state = state_at(from->memory, p, head, &rows);
        for (int64_t m = 0; m < rows; m++)
            plain = put(plain, state.matrix + m * row_stride(p->Dv), (size_t)p->Dv * sizeof(real));
        if (sr_needs_row_sum(&p->attention))
            plain = put(plain, state.column, (size_t)rows * sizeof(real));
        if (decays(p))
            plain = put(plain, state.reference, sizeof(double));
    }
    return SRNN_OK;
}

static srnn_status recurrent_from_plain(const sr_state_memory *to, const char *plain) {
    const srnn_problem *p = &to->plan->core;
    for (int64_t head = 0, rows; head < heads_of(p); head++) {
        running_state state = state_at(to->memory, p, head, &rows);
        for (int64_t m = 0; m < rows; m++)
            plain = get(state.matrix + m * row_stride(p->Dv), plain, (size_t)p->Dv * sizeof(real));
        if (sr_needs_row_sum(&p->attention))
            plain = get(state.column, plain, (size_t)rows * sizeof(real));
        if (decays(p))
            plain = get(state.reference, plain, sizeof(double));
    }
    return SRNN_OK;
}

const sr_state_kernel SR_ISA_REAL(sr_state_recurrent) = {
    .dtype = SR_REAL_DTYPE,
    .recurrent = true,
    .computes = SR_CPU_SERIES SR_CPU_PLAIN_PAIRS SR_CPU_ROWS,
    .bytes = recurrent_bytes,
    .scratch = chunked_forward_scratch,
    .feed = chunked_feed,
    .plain_bytes = recurrent_plain_bytes,
    .to_plain = recurrent_to_plain,
    .from_plain = recurrent_from_plain,
};

/* ---- recurrent state of linear scores: as above, for every level, and C of the last token ---- */

static size_t linear_bytes(const srnn_problem *p, int64_t capacity) {
    (void)capacity;
    return linear_state_bytes(p) * (size_t)heads_of(p);
}

static size_t linear_plain_bytes(const srnn_problem *p, int64_t position) {
    (void)position;
    const size_t columns = (size_t)(p->Dv + sr_needs_row_sum(&p->attention));
    return (size_t)heads_of(p) * ((size_t)(linear_levels(p) * p->D) * columns * sizeof(real) +
                                  (size_t)linear_decays(p) * sizeof(double));
}

/* Row m of the matrices of all levels. */
static real *linear_row(const linear_state *state, const srnn_problem *p, int64_t m) {
    return state->matrix + m / p->D * linear_matrix(p) + m % p->D * row_stride(p->Dv);
}

/* Its factor, or NULL. */
static real *linear_row_scale(const linear_state *state, const srnn_problem *p, int64_t m) {
    return state->scale ? state->scale + m / p->D * row_stride(p->D) + m % p->D : NULL;
}

/* The row with its factor, and what the last token adds to it; where one of these is 0, the other
 * numbers of its product may be any. */
static char *put_linear_row(char *plain, const linear_state *state, const srnn_problem *p,
                            int64_t m) {
    const real *row = linear_row(state, p, m), *scale = linear_row_scale(state, p, m);
    if (!scale)
        return put(plain, row, (size_t)p->Dv * sizeof(real));
    const real key = m < p->D ? state->last_key[m] : 0;
    for (int64_t d = 0; d < p->Dv; d++) {
        const real last = key == 0 ? 0 : key * state->last_value[d];
        const real x = (*scale == 0 ? 0 : *scale * row[d]) + last;
        plain = put(plain, &x, sizeof x);
    }
    return plain;
}

static linear_state linear_at(char *memory, const srnn_problem *p, int64_t head) {
    sr_layout layout = {.base = memory + (size_t)head * linear_state_bytes(p)};
    return linear_state_place(p, &layout);
}

static srnn_status linear_to_plain(char *plain, const sr_state_memory *from) {
    const srnn_problem *p = &from->plan->core;
    const int64_t levels = linear_levels(p), rows = levels * p->D;
    for (int64_t head = 0; head < heads_of(p); head++) {
        const linear_state state = linear_at(from->memory, p, head);
        for (int64_t m = 0; m < rows; m++)
            plain = put_linear_row(plain, &state, p, m);
        for (int64_t n = 0; sr_needs_row_sum(&p->attention) && n < levels; n++)
            plain = put(plain, state.column + n * row_stride(p->D), (size_t)p->D * sizeof(real));
        plain = put(plain, state.reference, (size_t)linear_decays(p) * sizeof(double));
    }
    return SRNN_OK;
}

static srnn_status linear_from_plain(const sr_state_memory *to, const char *plain) {
    const srnn_problem *p = &to->plan->core;
    const int64_t levels = linear_levels(p), rows = levels * p->D;
    for (int64_t head = 0; head < heads_of(p); head++) {
        const linear_state state = linear_at(to->memory, p, head);
        for (int64_t m = 0; m < rows; m++) {
            plain = get(linear_row(&state, p, m), plain, (size_t)p->Dv * sizeof(real));
            if (state.scale)
                *linear_row_scale(&state, p, m) = 1;
        }
        for (int64_t n = 0; sr_needs_row_sum(&p->attention) && n < levels; n++)
            plain = get(state.column + n * row_stride(p->D), plain, (size_t)p->D * sizeof(real));
        if (state.scale)
            memset(state.last_key, 0, (size_t)p->D * sizeof(real));
        plain = get(state.reference, plain, (size_t)linear_decays(p) * sizeof(double));
    }
    return SRNN_OK;
}

const sr_state_kernel SR_ISA_REAL(sr_state_linear) = {
    .dtype = SR_REAL_DTYPE,
    .recurrent = true,
    .computes = SR_CPU_LINEAR,
    .bytes = linear_bytes,
    .scratch = linear_forward_scratch,
    .feed = linear_feed,
    .plain_bytes = linear_plain_bytes,
    .to_plain = linear_to_plain,
    .from_plain = linear_from_plain,
};

/* ---- KV cache ---- */

/* The first of `position` tokens that the cache still holds. */
static int64_t first_cached(const srnn_problem *p, int64_t position) {
    return position - sr_keys_seen(&p->attention, position);
}

static size_t kv_cache_bytes(const srnn_problem *p, int64_t capacity) {
    sr_layout layout = {0};
    for (int64_t head = 0; head < heads_of(p); head++)
        kv_cache_head_place(p, capacity, &layout);
    return layout.used;
}

static size_t kv_cache_plain_bytes(const srnn_problem *p, int64_t position) {
    size_t token = (size_t)(p->D + p->Dv) * sizeof(real) + (decays(p) ? sizeof(double) : 0);
    return (size_t)heads_of(p) * (size_t)sr_keys_seen(&p->attention, position) * token;
}

static srnn_status kv_cache_to_plain(char *plain, const sr_state_memory *from) {
    const srnn_problem *p = &from->plan->core;
    const int64_t past = from->position, first = first_cached(p, past);
    sr_layout layout = {.base = from->memory};
    int64_t stride = row_stride(TILE);
    for (int64_t head = 0; head < heads_of(p); head++) {
        packed_head cache = kv_cache_head_place(p, from->capacity, &layout);
        for (int64_t t = first; t < past; t++)
            for (int64_t d = 0; d < p->D; d++)
                plain =
                    put(plain,
                        cache.keys + (packed_tile(&cache, t / TILE) * p->D + d) * stride + t % TILE,
                        sizeof(real));
        for (int64_t t = first; t < past; t++)
            plain = put(plain, cache.values + packed_row(&cache, t) * row_stride(p->Dv),
                        (size_t)p->Dv * sizeof(real));
        for (int64_t t = first; cache.decay && t < past; t++)
            plain = put(plain, cache.decay + packed_row(&cache, t), sizeof(double));
    }
    return SRNN_OK;
}

static srnn_status kv_cache_from_plain(const sr_state_memory *to, const char *plain) {
    const srnn_problem *p = &to->plan->core;
    const int64_t past = to->position, first = first_cached(p, past);
    sr_layout layout = {.base = to->memory};
    for (int64_t head = 0; head < heads_of(p); head++) {
        packed_head cache = kv_cache_head_place(p, to->capacity, &layout);
        cache.key_norm[packed_tile(&cache, first / TILE)] = 0; /* the tile's first keys are
                                                                * missing */
        for (int64_t t = first; t < past; t++) {
            _Alignas(64) real row[SR_HEAD_SIZE_MAX]; /* largest_norm loads it in vectors */
            plain = get(row, plain, (size_t)p->D * sizeof(real));
            packed_head_keep_keys(&cache, p, row, p->D, t, 1);
        }
        for (int64_t t = first; t < past; t++)
            plain = get(cache.values + packed_row(&cache, t) * row_stride(p->Dv), plain,
                        (size_t)p->Dv * sizeof(real));
        for (int64_t t = first; cache.decay && t < past; t++)
            plain = get(cache.decay + packed_row(&cache, t), plain, sizeof(double));
    }
    return SRNN_OK;
}

const sr_state_kernel SR_ISA_REAL(sr_state_kv_cache) = {
    .dtype = SR_REAL_DTYPE,
    .recurrent = false,
    .computes = SR_CPU_SCORES SR_CPU_BAND SR_CPU_PLAIN_PAIRS SR_CPU_ROWS,
    .bytes = kv_cache_bytes,
    .scratch = flash_feed_scratch,
    .feed = flash_feed,
    .plain_bytes = kv_cache_plain_bytes,
    .to_plain = kv_cache_to_plain,
    .from_plain = kv_cache_from_plain,
};

/* ---- KV cache of the generic kernel: per kv head keys, rotated keys if they differ, values, then
 * decay, beta and u if the variant has them, of all entries ---- */

/* One array of an entry. */
typedef struct entry_part {
    void *data;
    size_t bytes; /* of one entry */
} entry_part;

enum { ENTRY_PARTS = 6 };

static void list_parts(entry_part parts[ENTRY_PARTS], const kv_cache_rows *rows,
                       const srnn_problem *p) {
    const size_t key = (size_t)p->D * sizeof(real), value = (size_t)p->Dv;
    const size_t delta = p->attention.write == SRNN_WRITE_DELTA;
    const bool rotated = p->attention.position == SRNN_POSITION_ROPE_FEATURES;
    const entry_part all[ENTRY_PARTS] = {
        {rows->keys, key},
        {rows->rotated, rotated ? key : 0},
        {rows->values, value * sizeof(real)},
        {rows->decay, (size_t)linear_decays(p) * sizeof(double)},
        {rows->beta, delta * sizeof(real)},
        {rows->u, delta * value * sizeof(double)},
    };
    memcpy(parts, all, sizeof all);
}

static size_t rows_bytes(const srnn_problem *p, int64_t capacity) {
    sr_layout layout = {0};
    SR_ISA_REAL(sr_kv_cache_place)(p, capacity, &layout);
    return layout.used * (size_t)heads_of(p);
}

static size_t rows_plain_bytes(const srnn_problem *p, int64_t position) {
    entry_part parts[ENTRY_PARTS];
    size_t entry = 0;
    list_parts(parts, &(kv_cache_rows){0}, p);
    for (int n = 0; n < ENTRY_PARTS; n++)
        entry += parts[n].bytes;
    return (size_t)heads_of(p) * (size_t)SR_ISA_REAL(sr_kv_cache_entries)(p, position) * entry;
}

/* Copies each array of each head, in order, to `out` or from `in`. */
static void copy_rows(const sr_state_memory *state, char *out, const char *in) {
    const srnn_problem *p = &state->plan->core;
    const int64_t entries = SR_ISA_REAL(sr_kv_cache_entries)(p, state->position);
    const int64_t first = first_cached(p, state->position);
    sr_layout layout = {.base = state->memory};
    for (int64_t head = 0; head < heads_of(p); head++) {
        const kv_cache_rows rows = SR_ISA_REAL(sr_kv_cache_place)(p, state->capacity, &layout);
        entry_part parts[ENTRY_PARTS];
        list_parts(parts, &rows, p);
        for (int n = 0; n < ENTRY_PARTS; n++)
            for (int64_t i = 0; i < entries; i++) {
                const size_t bytes = parts[n].bytes;
                char *entry =
                    (char *)parts[n].data + (size_t)((first + i) % state->capacity) * bytes;
                if (out)
                    out = put(out, entry, bytes);
                else
                    in = get(entry, in, bytes);
            }
    }
}

static srnn_status rows_to_plain(char *plain, const sr_state_memory *from) {
    copy_rows(from, plain, NULL);
    return SRNN_OK;
}

static srnn_status rows_from_plain(const sr_state_memory *to, const char *plain) {
    copy_rows(to, NULL, plain);
    return SRNN_OK;
}

const sr_state_kernel SR_ISA_REAL(sr_state_rows) = {
    .dtype = SR_REAL_DTYPE,
    .recurrent = false,
    .computes = SR_CPU_CACHED,
    .bytes = rows_bytes,
    .scratch = kv_cache_feed_scratch,
    .feed = kv_cache_feed,
    .plain_bytes = rows_plain_bytes,
    .to_plain = rows_to_plain,
    .from_plain = rows_from_plain,
};
