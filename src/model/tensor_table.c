/* tensor_table.c: a list of learned tensors and their places in an arena. */
#include "model/tensor_table.h"

#include "base/random.h"
#include "base/threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tensors start on cache lines. */
enum { ALIGNMENT = 16 };

static srnn_status grow(sr_tensor_table *table) {
    if (table->count < table->capacity)
        return SRNN_OK;
    const size_t capacity = table->capacity ? 2 * table->capacity : 32;
    sr_tensor_spec *specs = realloc(table->specs, capacity * sizeof *specs);
    if (!specs)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a table of %zu tensors", capacity);
    table->specs = specs;
    table->capacity = capacity;
    return SRNN_OK;
}

srnn_status sr_tensor_table_add(sr_tensor_table *table, const sr_tensor_spec *spec) {
    SR_TRY(grow(table));
    sr_tensor_spec *row = &table->specs[table->count];
    *row = *spec;
    row->count = 1;
    bool fits = true;
    for (int i = 0; i < row->rank; i++)
        fits = fits && row->shape[i] > 0 &&
               !__builtin_mul_overflow(row->count, (size_t)row->shape[i], &row->count);
    row->start = table->numbers;
    size_t end;
    fits = fits && !__builtin_add_overflow(row->start, row->count + (ALIGNMENT - 1), &end) &&
           end < SIZE_MAX / 64;
    if (!fits)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: its size makes no sense", row->name);
    table->numbers = end / ALIGNMENT * ALIGNMENT;
    table->count++;
    return SRNN_OK;
}

void sr_tensor_table_free(sr_tensor_table *table) {
    free(table->specs);
    *table = (sr_tensor_table){0};
}

const sr_tensor_spec *sr_tensor_table_find(const sr_tensor_table *table, const char *name) {
    for (size_t i = 0; i < table->count; i++)
        if (strcmp(table->specs[i].name, name) == 0)
            return &table->specs[i];
    return NULL;
}

size_t sr_tensor_table_undecayed(sr_number_range *ranges, const sr_tensor_table *table) {
    size_t count = 0;
    for (size_t i = 0; i < table->count; i++) {
        const sr_tensor_spec *spec = &table->specs[i];
        const size_t end = i + 1 < table->count ? table->specs[i + 1].start : table->numbers;
        if (!spec->undecayed)
            continue;
        const bool follows = count && ranges[count - 1].end == (int64_t)spec->start;
        if (!follows)
            ranges[count++].first = (int64_t)spec->start;
        ranges[count - 1].end = (int64_t)end;
    }
    return count;
}

size_t sr_tensor_table_learned(const sr_tensor_table *table) {
    size_t learned = 0;
    for (size_t i = 0; i < table->count; i++)
        learned += table->specs[i].count;
    return learned;
}

/* Fowler, Noll and Vo's hash, 1a. */
static uint64_t hash_of(const char *name) {
    uint64_t hash = 0xcbf29ce484222325;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3;
    return hash;
}

/* Between low and high, never 0. */
static double between(double low, double high, double uniform) {
    return fmax(low + (high - low) * uniform, 1e-4);
}

/* softplus^-1 of a step between 0.001 and 0.1. */
static double time_step(double uniform) {
    const double step = exp(log(0.001) + (log(0.1) - log(0.001)) * uniform);
    return step + log(-expm1(-step));
}

static double on_curve(const sr_curve *c, size_t i, size_t count) {
    const double p = count > 1 ? (double)i / (double)(count - 1) : 0;
    const double z = c->width > 1 ? 2.0 * (double)(i % (size_t)c->width) / (c->width - 1) - 1 : 0;
    return c->from + c->linear * (p - 0.5) + c->zigzag * z * fabs(z) +
           (c->power != 0 ? c->power * pow(p, c->exponent) : 0);
}

/* What fills one tensor; its numbers are independent of each other, so the threads share them. */
typedef struct sr_filling {
    float *out;
    const sr_tensor_spec *spec;
    double range;
    uint64_t seed, stream;
} sr_filling;

enum { BLOCK = 1 << 15 };

static float initial_number(const sr_filling *f, size_t i) {
    const sr_tensor_spec *spec = f->spec;
    switch (spec->initialiser) {
    case SR_INIT_CONSTANT:
        return (float)spec->size;
    case SR_INIT_NORMAL:
        return (float)(f->range * sr_random_normal(f->seed, f->stream, i));
    case SR_INIT_NORMAL_OF:
        return (float)(spec->size * sr_random_normal(f->seed, f->stream, i));
    case SR_INIT_UNIFORM:
        return (float)(spec->size * (2.0 * sr_random_uniform(f->seed, f->stream, i) - 1.0));
    case SR_INIT_LOG_UNIFORM:
        return (float)log(between(spec->low, spec->size, sr_random_uniform(f->seed, f->stream, i)));
    case SR_INIT_LOG_COUNT:
        return (float)log((double)i + 1);
    case SR_INIT_ORTHOGONAL: /* as it begins */
        return (float)sr_random_normal(f->seed, f->stream, i);
    case SR_INIT_SHIFT:
        return (float)(1 - pow((double)i / (double)spec->count, spec->low));
    case SR_INIT_CURVE:
        return (float)on_curve(&spec->curve, i, spec->count);
    case SR_INIT_TIME_STEP:
        return (float)time_step(sr_random_uniform(f->seed, f->stream, i));
    }
    return 0;
}

/* Rows of `step` 1 and stride `next`, or columns: of length `size` at right angles, by Gram and
 * Schmidt's method, twice for the digits. */
static void make_orthogonal(float *out, const sr_tensor_spec *spec) {
    const bool rows = spec->shape[0] <= spec->shape[1];
    const size_t vectors = (size_t)(rows ? spec->shape[0] : spec->shape[1]);
    const size_t length = (size_t)(rows ? spec->shape[1] : spec->shape[0]);
    const size_t next = rows ? length : 1, step = rows ? 1 : vectors;
    for (size_t v = 0; v < vectors; v++) {
        float *own = out + v * next;
        for (size_t pass = 0; pass < 2 * v; pass++) {
            const float *other = out + pass % v * next; /* of length 1 until the end */
            double along = 0;
            for (size_t i = 0; i < length; i++)
                along += (double)own[i * step] * (double)other[i * step];
            for (size_t i = 0; i < length; i++)
                own[i * step] = (float)((double)own[i * step] - along * (double)other[i * step]);
        }
        double square = 0;
        for (size_t i = 0; i < length; i++)
            square += (double)own[i * step] * (double)own[i * step];
        for (size_t i = 0; i < length; i++)
            own[i * step] = (float)((double)own[i * step] / sqrt(square));
    }
    for (size_t i = 0; i < spec->count; i++)
        out[i] *= (float)spec->size;
}

static void fill_block(void *context, int64_t block, int worker) {
    const sr_filling *f = context;
    (void)worker;
    const size_t first = (size_t)block * BLOCK, end = first + BLOCK;
    for (size_t i = first; i < end && i < f->spec->count; i++)
        f->out[i] = initial_number(f, i);
}

void sr_tensor_initialise(float *out, const sr_tensor_spec *spec, double range, uint64_t seed,
                          int threads) {
    sr_filling filling = {
        .out = out, .spec = spec, .range = range, .seed = seed, .stream = hash_of(spec->name)};
    const double operations = 100.0 * (double)spec->count;
    sr_parallel(fill_block, &filling, (int64_t)((spec->count + BLOCK - 1) / BLOCK),
                sr_workers_worth(operations, sr_thread_count(threads)));
    if (spec->initialiser == SR_INIT_ORTHOGONAL)
        make_orthogonal(out, spec);
}
