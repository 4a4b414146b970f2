/* ring.c: keys and values, or queries, of the parts of a row visit other parts. */
#include "model/layer/context/ring.h"

#include "attention/earlier.h"
#include "base/memory.h"
#include "base/threads.h"
#include "model/layer/context/ring_steps.h"
#include "model/layer/context/sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* C of decays, (B, Hkv, T) or at an end of the rows (B, Hkv), and gradients of them. */
typedef struct part_decays {
    double *local, *local_end; /* counted from the part's first token */
    double *own;               /* from the first token of the rows' documents */
    double *before, *end;      /* of the document that continues, before the part, and at its end */
    double *other;             /* of the keys or queries of another part */
    double *d_own;             /* from pairs with other parts */
    double *d_before, *d_end;
    double *d_queries, *d_keys; /* of one call */
} part_decays;

/* Running sums of output gates, (B, H), of documents that continue: before the part, at its end;
 * and gradients of them. NULL where nothing needs them. */
typedef struct part_sums {
    double *before, *end, *d_before, *d_end;
} part_sums;

/* A block has rows of columns: K + V + G + C of keys, values, their gates and decays, Q + 1 + C of
 * queries, their positions and decays, S more of the gradients of their sums. */
struct sr_layer_ring {
    int64_t Q, K, V, G, S; /* columns of queries, keys, values, value gates, and sums (sums.h) */
    int64_t C;             /* of decays, a double for each head of keys, in two columns; or 0 */
    int64_t block;         /* K + V + G + C */
    int reach;             /* how many parts back a token sees at most */
    float *own;            /* this part's keys, values and gates */
    float *arrived;        /* those of an earlier part */
    float *d_sent[2];      /* their gradients; the last two are on their way */
    float *d_arrived;      /* of own ones, from a later part */
    float *visit[2];       /* this part's queries, and the second half of them */
    float *visitors;       /* those of a later part */
    float *returned[2];    /* their sums, or the gradients of queries; as d_sent */
    float *gathered;       /* the same of this part's, from an earlier one */
    float *d_queries;      /* (B*T, Q): what one call adds, */
    float *d_keys;         /* (B*T, block): and writes */
    void *sums;            /* of visitors, as forward saves them */
    int32_t *first;        /* (B*T), as in sr_earlier_keys */
    part_decays decays;
    part_sums sums_of_gates;
    size_t bytes;
    void *memory;
};

static circle circle_of(const sr_attention_layer *layer) {
    return (circle){layer->part.count, layer->ring->reach};
}

/* ---- memory */

static float *take(sr_layer_ring *ring, int64_t rows, int64_t columns) {
    enum { ALIGNMENT = 64 };
    char *at = ring->memory ? (char *)ring->memory + ring->bytes : NULL;
    const size_t size = (size_t)(rows * columns) * sizeof(float);
    ring->bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return (float *)(void *)at;
}

static void lay_out(sr_layer_ring *ring, const sr_attention_layer *layer) {
    const circle c = {layer->part.count, ring->reach};
    const int index = layer->part.index;
    const int64_t B = layer->B, block = ring->block, rows = B * layer->T;
    /* Blocks of other parts may have a token more; a row of zeros stands around them. */
    const int64_t longest = B * (layer->T + 1) + 2;
    const int64_t asked = ring->Q + 1 + ring->C + ring->S;
    const int64_t gradients = ring->Q + ring->C;
    const int64_t answer = ring->S > gradients ? ring->S : gradients;
    const bool helps = in_any_step(c, index, queries_in);
    const bool helped = in_any_step(c, index, helper_in);
    ring->bytes = 0;
    ring->own = take(ring, rows, block);
    ring->arrived = take(ring, longest, block);
    ring->d_arrived = take(ring, rows, block);
    ring->d_keys = take(ring, rows, block);
    ring->d_queries = take(ring, rows, ring->Q);
    ring->first = (int32_t *)(void *)take(ring, rows, 1);
    for (int i = 0; i < 2; i++) {
        ring->d_sent[i] = take(ring, longest, block);
        ring->visit[i] = take(ring, helped ? rows : 0, asked);
        ring->returned[i] = take(ring, helps ? longest : 0, answer);
    }
    ring->gathered = take(ring, helped ? rows : 0, answer);
    ring->visitors = take(ring, helps ? longest : 0, asked);
    part_decays *const d = &ring->decays;
    double **const of_tokens[] = {&d->local, &d->own,       &d->other,
                                  &d->d_own, &d->d_queries, &d->d_keys};
    double **const of_rows[] = {&d->local_end, &d->before, &d->end, &d->d_before, &d->d_end};
    for (size_t i = 0; i < sizeof of_tokens / sizeof *of_tokens; i++)
        *of_tokens[i] = (double *)(void *)take(ring, rows, ring->C);
    for (size_t i = 0; i < sizeof of_rows / sizeof *of_rows; i++)
        *of_rows[i] = (double *)(void *)take(ring, B, ring->C);
    part_sums *const sums_of = &ring->sums_of_gates;
    double **const of_gates[] = {&sums_of->before, &sums_of->end, &sums_of->d_before,
                                 &sums_of->d_end};
    for (size_t i = 0; i < sizeof of_gates / sizeof *of_gates; i++)
        *of_gates[i] = (double *)(void *)take(ring, B, sum_columns(&layer->plan->problem));
    const size_t sums = helps || helped ? srnn_plan_saved_bytes(layer->plan) : 0;
    ring->sums = take(ring, (int64_t)(sums / sizeof(float)), 1);
}

srnn_status sr_ring_create(sr_layer_ring **out, const sr_attention_layer *layer) {
    const sr_wire_place *places = layer->wiring.places;
    const sr_row_part *part = &layer->part;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **out));
    sr_layer_ring *ring = memory;
    *ring = (sr_layer_ring){.Q = places[SR_OPERAND_Q].at.count,
                            .K = places[SR_OPERAND_K].at.count,
                            .V = places[SR_OPERAND_V].at.count,
                            .G = places[SR_OPERAND_VALUE_GATE].at.count,
                            .S = sr_sums_columns(&layer->plan->problem),
                            .C = decay_columns(&layer->plan->problem),
                            .reach = reach_of(&layer->attention,
                                              shortest_part(part->T, part->count), part->count)};
    ring->block = ring->K + ring->V + ring->G + ring->C;
    lay_out(ring, layer);
    *out = ring;
    SR_TRY(sr_alloc_zero(&ring->memory, ring->bytes, 1));
    lay_out(ring, layer);
    if (ring->C)
        sr_plan_leave_decays(layer->plan, ring->decays.local, ring->decays.local_end);
    if (sum_columns(&layer->plan->problem))
        sr_plan_take_sums(layer->plan, ring->sums_of_gates.before, ring->sums_of_gates.d_before);
    return SRNN_OK;
}

void sr_ring_free(sr_layer_ring *ring) {
    if (!ring)
        return;
    free(ring->memory);
    free(ring);
}

size_t sr_ring_bytes(const sr_layer_ring *ring) {
    return ring->bytes;
}

/* ---- rows of tensors, whose heads stand side by side */

static float *row_of(srnn_tensor t, int64_t b, int64_t row) {
    return (float *)t.data + b * t.batch + row * t.time;
}

static void copy_row(float *to, const float *from, int64_t columns) {
    memcpy(to, from, (size_t)columns * sizeof *to);
}

static void add_row(float *to, const float *from, int64_t columns) {
    for (int64_t c = 0; c < columns; c++)
        to[c] += from[c];
}

/* Something that is done to each token of some rows, by all threads. */
typedef struct row_work row_work;
struct row_work {
    const sr_attention_layer *layer;
    void (*row)(const row_work *work, int64_t b, int64_t t);
    int64_t from, past; /* tokens of each row */
    int64_t counted;    /* the first of them that counts */
    float *to;          /* rows of columns, one for each of `tokens` tokens of a batch row */
    const float *block;
    int64_t columns, tokens, shift; /* shift: from a token to its place in the plan's rows */
    const srnn_operands *operands, *more;
    const sr_saved *sums;
};

static void do_row(void *context, int64_t n, int worker) {
    (void)worker;
    const row_work *work = context;
    const int64_t count = work->past - work->from;
    work->row(work, n / count, work->from + n % count);
}

static void do_rows(row_work work) {
    sr_parallel(do_row, &work, work.layer->B * (work.past - work.from),
                work.layer->backend->threads);
}

/* ---- decays */

static double *decay_at(const sr_attention_layer *layer, double *decays, int64_t b, int64_t h,
                        int64_t t) {
    return decays + (b * layer->problem.Hkv + h) * layer->T + t;
}

/* Those of token t of row b as columns, out of decays (B, Hkv, T), into them, and added. */
static void decays_out(const sr_attention_layer *layer, float *columns, double *decays, int64_t b,
                       int64_t t) {
    for (int64_t h = 0; layer->ring->C && h < layer->problem.Hkv; h++)
        memcpy(columns + 2 * h, decay_at(layer, decays, b, h, t), sizeof *decays);
}

static void decays_in(const sr_attention_layer *layer, double *decays, const float *columns,
                      int64_t b, int64_t t) {
    for (int64_t h = 0; layer->ring->C && h < layer->problem.Hkv; h++)
        memcpy(decay_at(layer, decays, b, h, t), columns + 2 * h, sizeof *decays);
}

static void decays_add(const sr_attention_layer *layer, const float *columns, int64_t b,
                       int64_t t) {
    double more;
    for (int64_t h = 0; layer->ring->C && h < layer->problem.Hkv; h++) {
        memcpy(&more, columns + 2 * h, sizeof more);
        *decay_at(layer, layer->ring->decays.d_own, b, h, t) += more;
    }
}

/* What one call gives to this part's decays. */
static void add_decays(const sr_attention_layer *layer, const double *more) {
    const int64_t count = layer->ring->C ? layer->B * layer->problem.Hkv * layer->T : 0;
    for (int64_t i = 0; i < count; i++)
        layer->ring->decays.d_own[i] += more[i];
}

/* The decays of the tokens of a block that the plan's have the places of, from .. past - 1. */
static void place_others(const sr_attention_layer *layer, const float *columns, int64_t stride,
                         int64_t tokens, int64_t shift, int64_t past) {
    double *const other = layer->ring->decays.other;
    if (!layer->ring->C)
        return;
    memset(other, 0, (size_t)(layer->B * layer->problem.Hkv * layer->T) * sizeof *other);
    for (int64_t b = 0; b < layer->B; b++)
        for (int64_t t = shift < 0 ? 0 : shift; t < past && t - shift < layer->T; t++)
            decays_in(layer, other, columns + (b * tokens + t) * stride, b, t - shift);
}

/* Whether the document of token t of row b began before the part. */
static bool continues_at(const sr_attention_layer *layer, int64_t b, int64_t t) {
    return layer->positions[b * layer->T + t] > t;
}

/* The first token of the row's last document in the part. */
static int64_t last_start(const sr_attention_layer *layer, int64_t b) {
    const int64_t T = layer->T, start = T - 1 - layer->positions[b * T + T - 1];
    return start > 0 ? start : 0;
}

static srnn_status exchange_ends(const sr_attention_layer *layer, sr_neighbour to, double *ends,
                                 int64_t columns, bool sends) {
    const sr_row_part *part = &layer->part;
    const size_t bytes = (size_t)(layer->B * columns) * sizeof(float);
    if (!sr_row_part_has(part, to))
        return SRNN_OK;
    return sends ? part->send(part->context, sr_row_part_next(part, to), ends, bytes)
                 : part->receive(part->context, sr_row_part_next(part, to), ends, bytes);
}

/* Before the first call: running sums of output gates, from part to part. */
static srnn_status count_sums(const sr_attention_layer *layer, const srnn_operands *in) {
    const part_sums *d = &layer->ring->sums_of_gates;
    const int64_t columns = sum_columns(&layer->plan->problem), H = layer->problem.H, T = layer->T;
    if (!columns)
        return SRNN_OK;
    SR_TRY(layer->part.settle(layer->part.context, d->end));
    SR_TRY(exchange_ends(layer, SR_NEIGHBOUR_BEFORE, d->before, columns, false));
    for (int64_t b = 0; b < layer->B; b++)
        for (int64_t h = 0; h < H; h++) {
            double sum = continues_at(layer, b, T - 1) ? d->before[b * H + h] : 0.0;
            for (int64_t t = last_start(layer, b); t < T; t++)
                sum += exp((double)row_of(in->output_gate, b, t)[h * in->output_gate.head]);
            d->end[b * H + h] = sum;
        }
    return exchange_ends(layer, SR_NEIGHBOUR_AFTER, d->end, columns, true);
}

/* Their gradients, after backward's first call: what later parts give to the gates of the last
 * document, and what earlier parts get. */
static srnn_status sums_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                             const srnn_operands *in) {
    const part_sums *d = &layer->ring->sums_of_gates;
    const int64_t columns = sum_columns(&layer->plan->problem), H = layer->problem.H, T = layer->T;
    if (!columns)
        return SRNN_OK;
    memset(d->d_end, 0, (size_t)(layer->B * columns) * sizeof(float));
    SR_TRY(exchange_ends(layer, SR_NEIGHBOUR_AFTER, d->d_end, columns, false));
    for (int64_t b = 0; b < layer->B; b++)
        for (int64_t h = 0; h < H; h++) {
            const int64_t head = h * in->output_gate.head;
            const double later = d->d_end[b * H + h];
            for (int64_t t = last_start(layer, b); t < T; t++)
                row_of(gradients->output_gate, b, t)[h * gradients->output_gate.head] +=
                    (float)(later * exp((double)row_of(in->output_gate, b, t)[head]));
            if (continues_at(layer, b, T - 1))
                d->d_before[b * H + h] += later;
        }
    SR_TRY(exchange_ends(layer, SR_NEIGHBOUR_BEFORE, d->d_before, columns, true));
    return layer->part.settle(layer->part.context, d->d_before);
}

/* After a call with the part's own keys, which left its decays: counts them from where documents
 * begin, and tells the part after. */
static srnn_status count_decays(const sr_attention_layer *layer) {
    const part_decays *d = &layer->ring->decays;
    const int64_t heads = layer->problem.Hkv, T = layer->T;
    if (!layer->ring->C)
        return SRNN_OK;
    SR_TRY(layer->part.settle(layer->part.context, d->end));
    SR_TRY(exchange_ends(layer, SR_NEIGHBOUR_BEFORE, d->before, layer->ring->C, false));
    for (int64_t b = 0; b < layer->B; b++)
        for (int64_t h = 0; h < heads; h++) {
            const double before = d->before[b * heads + h];
            for (int64_t t = 0; t < T; t++)
                *decay_at(layer, d->own, b, h, t) = *decay_at(layer, d->local, b, h, t) +
                                                    (continues_at(layer, b, t) ? before : 0.0);
            d->end[b * heads + h] =
                d->local_end[b * heads + h] + (continues_at(layer, b, T - 1) ? before : 0.0);
        }
    return exchange_ends(layer, SR_NEIGHBOUR_AFTER, d->end, layer->ring->C, true);
}

/* Adds the gradients of the decays' operands that follow from those of C. */
static srnn_status add_decay_gradients(const sr_attention_layer *layer,
                                       const srnn_operands *gradients, const srnn_operands *in,
                                       const void *saved) {
    const sr_layer_ring *ring = layer->ring;
    const int64_t heads = layer->problem.Hkv, T = layer->T;
    float *const numbers = ring->d_keys; /* (B*T, Hkv) */
    float *const a_log = ring->d_arrived, *const dt_bias = a_log + heads;
    const srnn_operands more = {
        .decay = {.data = numbers, .batch = T * heads, .head = 1, .time = heads},
        .a_log = gradients->a_log ? a_log : NULL,
        .dt_bias = gradients->dt_bias ? dt_bias : NULL};
    SR_TRY(sr_attention_decays_backward(layer->plan, &more, in, saved, ring->decays.d_own,
                                        ring->decays.d_end));
    for (int64_t b = 0; b < layer->B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < heads; h++)
                row_of(gradients->decay, b, t)[h * gradients->decay.head] +=
                    numbers[(b * T + t) * heads + h];
    for (int64_t h = 0; h < heads; h++) {
        if (gradients->a_log)
            ((float *)gradients->a_log)[h] += a_log[h];
        if (gradients->dt_bias)
            ((float *)gradients->dt_bias)[h] += dt_bias[h];
    }
    return SRNN_OK;
}

/* After all pairs: their gradients by C, with those that come from the part after, turn into those
 * of the decays; the part before gets its share. */
static srnn_status decays_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                               const srnn_operands *in, const void *saved) {
    const part_decays *d = &layer->ring->decays;
    const int64_t heads = layer->problem.Hkv, T = layer->T, ends = layer->B * heads;
    SR_TRY(layer->part.settle(layer->part.context, d->d_before));
    memset(d->d_end, 0, (size_t)ends * sizeof *d->d_end);
    SR_TRY(exchange_ends(layer, SR_NEIGHBOUR_AFTER, d->d_end, layer->ring->C, false));
    for (int64_t b = 0; b < layer->B; b++)
        for (int64_t h = 0; h < heads; h++) {
            double sum = continues_at(layer, b, T - 1) ? d->d_end[b * heads + h] : 0.0;
            for (int64_t t = 0; t < T && continues_at(layer, b, t); t++)
                sum += *decay_at(layer, d->d_own, b, h, t);
            d->d_before[b * heads + h] = sum;
        }
    SR_TRY(exchange_ends(layer, SR_NEIGHBOUR_BEFORE, d->d_before, layer->ring->C, true));
    return add_decay_gradients(layer, gradients, in, saved);
}

/* Heads of `width` numbers in rows of `columns`, `tokens` of them per row of the batch. */
static srnn_tensor heads_at(float *rows, int64_t columns, int64_t tokens, int64_t width) {
    return (srnn_tensor){.data = rows, .batch = tokens * columns, .head = width, .time = columns};
}

/* k, v and value gates of a block in place of the operands' own. */
static srnn_operands with_keys(const sr_attention_layer *layer, const srnn_operands *in,
                               float *block, int64_t tokens) {
    const sr_layer_ring *ring = layer->ring;
    srnn_operands out = *in;
    out.k = heads_at(block, ring->block, tokens, layer->problem.D);
    out.v = heads_at(block + ring->K, ring->block, tokens, layer->problem.Dv);
    if (ring->G)
        out.value_gate = heads_at(block + ring->K + ring->V, ring->block, tokens, 1);
    return out;
}

static srnn_operands with_queries(const sr_attention_layer *layer, const srnn_operands *in,
                                  float *block, int64_t columns, int64_t tokens) {
    srnn_operands out = *in;
    out.q = heads_at(block, columns, tokens, layer->problem.D);
    return out;
}

static void pack_own_row(const row_work *work, int64_t b, int64_t t) {
    const sr_attention_layer *layer = work->layer;
    const sr_layer_ring *ring = layer->ring;
    const srnn_operands *in = work->operands;
    float *const to = ring->own + (b * layer->T + t) * ring->block;
    copy_row(to, row_of(in->k, b, t), ring->K);
    copy_row(to + ring->K, row_of(in->v, b, t), ring->V);
    if (ring->G)
        copy_row(to + ring->K + ring->V, row_of(in->value_gate, b, t), ring->G);
    decays_out(layer, to + ring->K + ring->V + ring->G, ring->decays.own, b, t);
}

static void pack_own(const sr_attention_layer *layer, const srnn_operands *in) {
    do_rows((row_work){.layer = layer, .row = pack_own_row, .past = layer->T, .operands = in});
}

/* The queries from token `from` on, and what backward has left of their sums (NULL: forward). */
static void pack_visiting_row(const row_work *work, int64_t b, int64_t t) {
    const sr_attention_layer *layer = work->layer;
    const sr_layer_ring *ring = layer->ring;
    float *const to = work->to + (b * work->tokens + t - work->from) * work->columns;
    copy_row(to, row_of(work->operands->q, b, t), ring->Q);
    memcpy(to + ring->Q, &layer->positions[b * layer->T + t], sizeof *to);
    decays_out(layer, to + ring->Q + 1, ring->decays.own, b, t);
    if (work->sums)
        sr_sums_out(to + ring->Q + 1 + ring->C, work->sums, &layer->plan->problem, b, t);
}

static void pack_visit(const sr_attention_layer *layer, float *to, const srnn_operands *in,
                       int64_t from, const sr_saved *d_sums) {
    const sr_layer_ring *ring = layer->ring;
    do_rows((row_work){.layer = layer,
                       .row = pack_visiting_row,
                       .from = from,
                       .past = layer->T,
                       .to = to,
                       .columns = ring->Q + 1 + ring->C + (d_sums ? ring->S : 0),
                       .tokens = layer->T - from,
                       .operands = in,
                       .sums = d_sums});
}

/* ---- blocks of other parts, which may have a token more or less than the plan */

/* Token `shift` of a block stands where the plan has its first; of the block, from .. past - 1 take
 * part in the call. Visiting queries before `from` are computed too, for kernels go by the first
 * query of a tile, but nothing comes of it. */
typedef struct view {
    int64_t shift, from, past;
} view;

enum { VIEWS = 2 };

/* All keys of a block end with the plan's last token. */
static int view_keys(view views[VIEWS], int64_t tokens, int64_t T) {
    views[0] = tokens > T ? (view){0, 0, T} : (view){tokens - T, 0, tokens};
    views[1] = (view){1, T, T + 1};
    return tokens > T ? 2 : 1;
}

static int view_queries(view views[VIEWS], int64_t tokens, int64_t T) {
    views[0] = (view){0, 0, tokens < T ? tokens : T};
    views[1] = (view){1, T, T + 1};
    return tokens > T ? 2 : 1;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x < high ? x : high;
}

/* A call with another part's keys, or its queries, whose decays are placed. */
static sr_earlier_keys with_decays(const sr_attention_layer *layer, int64_t gap,
                                   bool others_are_keys) {
    const part_decays *d = &layer->ring->decays;
    sr_earlier_keys keys = {.gap = gap, .first = layer->ring->first};
    if (!layer->ring->C)
        return keys;
    keys.query_decay = others_are_keys ? d->own : d->other;
    keys.key_decay = others_are_keys ? d->other : d->own;
    keys.d_query_decay = d->d_queries;
    keys.d_key_decay = d->d_keys;
    return keys;
}

/* Where keys of `block` stand that the first `queries` tokens of this part see. A document that
 * begins after them sees none. */
static sr_earlier_keys keys_of(const sr_attention_layer *layer, extent block, view v,
                               int64_t queries) {
    const int64_t T = layer->T, start = layer->part.first;
    for (int64_t row = 0; row < layer->B * T; row++) {
        const int64_t document = start + row % T - layer->positions[row] - block.start;
        const int64_t first = clamp(document, v.from, v.past);
        layer->ring->first[row] = (int32_t)(row % T < queries ? first - v.shift : T);
    }
    return with_decays(layer, start - block.start - v.shift, true);
}

/* The same of this part's keys and visiting queries. */
static sr_earlier_keys keys_for(const sr_attention_layer *layer, extent visitors, view v,
                                int64_t columns) {
    const sr_layer_ring *ring = layer->ring;
    const int64_t T = layer->T, start = layer->part.first;
    for (int64_t b = 0; b < layer->B; b++)
        for (int64_t t = 0; t < T; t++) {
            const int64_t row = t + v.shift;
            int32_t position = 0;
            int64_t first = T;
            if (row < v.past) {
                memcpy(&position, ring->visitors + (b * visitors.tokens + row) * columns + ring->Q,
                       sizeof position);
                first = clamp(visitors.start + row - position - start, 0, T);
            }
            ring->first[b * T + t] = (int32_t)first;
        }
    return with_decays(layer, visitors.start + v.shift - start, false);
}

/* ---- messages */

static srnn_status send(const sr_attention_layer *layer, int to, const float *rows, int64_t tokens,
                        int64_t columns) {
    return layer->part.send(layer->part.context, to, rows,
                            (size_t)(layer->B * tokens * columns) * sizeof *rows);
}

static srnn_status receive(const sr_attention_layer *layer, int from, float *rows, int64_t tokens,
                           int64_t columns) {
    return layer->part.receive(layer->part.context, from, rows,
                               (size_t)(layer->B * tokens * columns) * sizeof *rows);
}

/* What was sent from this buffer is not read any longer. */
static srnn_status settle(const sr_attention_layer *layer, const float *buffer) {
    return layer->part.settle(layer->part.context, buffer);
}

static srnn_status send_keys(const sr_attention_layer *layer, const srnn_operands *in) {
    const sr_layer_ring *ring = layer->ring;
    const circle c = circle_of(layer);
    SR_TRY(settle(layer, ring->own));
    pack_own(layer, in);
    for (int s = 1; 2 * s <= c.parts; s++) {
        const int reader = reader_in(c, layer->part.index, s);
        if (reader >= 0)
            SR_TRY(send(layer, reader, ring->own, layer->T, ring->block));
    }
    return SRNN_OK;
}

/* `d_sums`: as in pack_visit. */
static srnn_status send_queries(const sr_attention_layer *layer, const srnn_operands *in,
                                const sr_saved *d_sums) {
    const sr_layer_ring *ring = layer->ring;
    const circle c = circle_of(layer);
    bool packed[2] = {false, false};
    for (int s = 1; 2 * s <= c.parts; s++) {
        const int helper = helper_in(c, layer->part.index, s), half = is_halved(c, s);
        const extent sent = visiting((extent){0, layer->T}, half);
        if (helper < 0)
            continue;
        if (!packed[half])
            SR_TRY(settle(layer, ring->visit[half]));
        if (!packed[half])
            pack_visit(layer, ring->visit[half], in, sent.start, d_sums);
        packed[half] = true;
        SR_TRY(send(layer, helper, ring->visit[half], sent.tokens,
                    ring->Q + 1 + ring->C + (d_sums ? ring->S : 0)));
    }
    return SRNN_OK;
}

/* Keys of another part, with a row of zeros before them. */
static srnn_status receive_keys(const sr_attention_layer *layer, float **block, int from,
                                extent at) {
    const int64_t columns = layer->ring->block;
    *block = layer->ring->arrived + columns;
    return receive(layer, from, *block, at.tokens, columns);
}

/* ---- forward */

static extent part_extent(const sr_attention_layer *layer, int part) {
    return extent_of(layer->part.T, part, layer->part.count);
}

static srnn_status attend_keys(const sr_attention_layer *layer, srnn_tensor o,
                               const srnn_operands *in, void *saved, int from, bool halved) {
    const extent at = part_extent(layer, from);
    const int64_t columns = layer->ring->block;
    const int64_t queries = halved ? layer->T / 2 : layer->T;
    view views[VIEWS];
    float *block;
    SR_TRY(receive_keys(layer, &block, from, at));
    const int count = queries ? view_keys(views, at.tokens, layer->T) : 0;
    for (int i = 0; i < count; i++) {
        const srnn_operands there =
            with_keys(layer, in, block + views[i].shift * columns, at.tokens);
        place_others(layer, block + columns - layer->ring->C, columns, at.tokens, views[i].shift,
                     at.tokens);
        const sr_earlier_keys keys = keys_of(layer, at, views[i], queries);
        SR_TRY(sr_attention_earlier_forward(layer->plan, o, &there, saved, &keys));
    }
    return SRNN_OK;
}

static void sums_out_row(const row_work *work, int64_t b, int64_t t) {
    sr_sums_out(work->to + (b * work->tokens + t) * work->columns, work->sums,
                &work->layer->plan->problem, b, t - work->shift);
}

static srnn_status attend_visitors(const sr_attention_layer *layer, const srnn_operands *in,
                                   int visitor, bool halved, int s) {
    const sr_layer_ring *ring = layer->ring;
    const extent at = visiting(part_extent(layer, visitor), halved);
    const int64_t columns = ring->Q + 1 + ring->C;
    const sr_saved sums = sr_plan_saved(layer->plan, ring->sums);
    float *const out = ring->returned[s % 2];
    view views[VIEWS];
    SR_TRY(receive(layer, visitor, ring->visitors, at.tokens, columns));
    SR_TRY(settle(layer, out));
    const int calls = view_queries(views, at.tokens, layer->T);
    for (int i = 0; i < calls; i++) {
        const view v = views[i];
        const srnn_operands there =
            with_queries(layer, in, ring->visitors + v.shift * columns, columns, at.tokens);
        place_others(layer, ring->visitors + ring->Q + 1, columns, at.tokens, v.shift, v.past);
        const sr_earlier_keys keys = keys_for(layer, at, v, columns);
        SR_TRY(sr_attention_visitors_forward(layer->plan, &there, ring->sums, &keys));
        do_rows((row_work){.layer = layer,
                           .row = sums_out_row,
                           .from = v.from,
                           .past = v.past,
                           .to = out,
                           .columns = ring->S,
                           .tokens = at.tokens,
                           .shift = v.shift,
                           .sums = &sums});
    }
    return send(layer, visitor, out, at.tokens, ring->S);
}

static void add_sums_row(const row_work *work, int64_t b, int64_t t) {
    sr_sums_add(work->sums, work->block + (b * work->tokens + t - work->from) * work->columns,
                &work->layer->plan->problem, b, t);
}

static srnn_status add_sums(const sr_attention_layer *layer, void *saved, int helper, bool halved) {
    const sr_layer_ring *ring = layer->ring;
    const extent sent = visiting((extent){0, layer->T}, halved);
    const sr_saved sums = sr_plan_saved(layer->plan, saved);
    SR_TRY(receive(layer, helper, ring->gathered, sent.tokens, ring->S));
    do_rows((row_work){.layer = layer,
                       .row = add_sums_row,
                       .from = sent.start,
                       .past = layer->T,
                       .block = ring->gathered,
                       .columns = ring->S,
                       .tokens = sent.tokens,
                       .sums = &sums});
    return SRNN_OK;
}

/* o of what is saved. */
static srnn_status finish(const sr_attention_layer *layer, srnn_tensor o, const srnn_operands *in,
                          void *saved) {
    const extent own = {layer->part.first - layer->T, layer->T};
    place_others(layer, NULL, 0, 0, 0, 0);
    const sr_earlier_keys none = keys_of(layer, own, (view){0, 0, layer->T}, 0);
    return sr_attention_earlier_forward(layer->plan, o, in, saved, &none);
}

srnn_status sr_ring_attend(const sr_attention_layer *layer, srnn_tensor o, const srnn_operands *in,
                           void *saved) {
    const circle c = circle_of(layer);
    const int index = layer->part.index;
    bool helped = false;
    const bool decays = layer->ring->C > 0; /* they are known after the own keys */
    SR_TRY(count_sums(layer, in));
    if (decays)
        SR_TRY(srnn_attention_forward(layer->plan, o, in, saved));
    SR_TRY(count_decays(layer));
    SR_TRY(send_keys(layer, in));
    SR_TRY(send_queries(layer, in, NULL));
    if (!decays)
        SR_TRY(srnn_attention_forward(layer->plan, o, in, saved));
    for (int s = 1; 2 * s <= c.parts; s++) {
        const int from = keys_in(c, index, s), visitor = queries_in(c, index, s);
        const int helper = helper_in(c, index, s);
        if (from >= 0)
            SR_TRY(attend_keys(layer, o, in, saved, from, is_halved(c, s)));
        if (visitor >= 0)
            SR_TRY(attend_visitors(layer, in, visitor, is_halved(c, s), s));
        if (helper >= 0)
            SR_TRY(add_sums(layer, saved, helper, is_halved(c, s)));
        helped = helped || helper >= 0;
    }
    return helped ? finish(layer, o, in, saved) : SRNN_OK;
}

/* ---- backward */

/* What one call is about. */
typedef struct back {
    const sr_attention_layer *layer;
    const srnn_operands *gradients, *in;
    srnn_tensor d_o;
    const void *saved;
} back;

static void add_query_row(const row_work *work, int64_t b, int64_t t) {
    add_row(row_of(work->operands->q, b, t), row_of(work->more->q, b, t), work->layer->ring->Q);
}

static void key_gradients_row(const row_work *work, int64_t b, int64_t t) {
    const sr_attention_layer *layer = work->layer;
    const sr_layer_ring *ring = layer->ring;
    float *const to = work->to + (b * work->tokens + t) * ring->block;
    copy_row(to, ring->d_keys + (b * layer->T + t - work->shift) * ring->block,
             ring->block - ring->C);
    decays_out(layer, to + ring->block - ring->C, ring->decays.d_keys, b, t - work->shift);
}

/* The gradients of the keys of an earlier part, which go to it. */
static srnn_status keys_back(const back *b, int from, bool halved, int s) {
    const sr_attention_layer *layer = b->layer;
    const sr_layer_ring *ring = layer->ring;
    const extent at = part_extent(layer, from);
    const int64_t T = layer->T, columns = ring->block, queries = halved ? T / 2 : T;
    float *const sent = ring->d_sent[s % 2];
    view views[VIEWS];
    float *block;
    SR_TRY(receive_keys(layer, &block, from, at));
    SR_TRY(settle(layer, sent));
    memset(sent, 0, (size_t)(layer->B * at.tokens * columns) * sizeof *sent);
    const int count = queries ? view_keys(views, at.tokens, T) : 0;
    for (int i = 0; i < count; i++) {
        const view v = views[i];
        const srnn_operands there = with_keys(layer, b->in, block + v.shift * columns, at.tokens);
        const srnn_operands keys = with_keys(layer, b->gradients, ring->d_keys, T);
        const srnn_operands out = with_queries(layer, &keys, ring->d_queries, ring->Q, T);
        place_others(layer, block + columns - ring->C, columns, at.tokens, v.shift, at.tokens);
        const sr_earlier_keys where = keys_of(layer, at, v, queries);
        SR_TRY(sr_attention_earlier_backward(layer->plan, &out, b->d_o, &there, b->saved, &where));
        add_decays(layer, ring->decays.d_queries);
        do_rows((row_work){.layer = layer,
                           .row = add_query_row,
                           .past = queries,
                           .operands = b->gradients,
                           .more = &out});
        do_rows((row_work){.layer = layer,
                           .row = key_gradients_row,
                           .from = v.from,
                           .past = v.past,
                           .to = sent,
                           .tokens = at.tokens,
                           .shift = v.shift});
    }
    return send(layer, from, sent, at.tokens, columns);
}

static void add_keys_row(const row_work *work, int64_t b, int64_t t) {
    const sr_layer_ring *ring = work->layer->ring;
    const srnn_operands *to = work->operands, *from = work->more;
    add_row(row_of(to->k, b, t), row_of(from->k, b, t), ring->K);
    add_row(row_of(to->v, b, t), row_of(from->v, b, t), ring->V);
    if (ring->G)
        add_row(row_of(to->value_gate, b, t), row_of(from->value_gate, b, t), ring->G);
}

/* Gradients of this part's keys and values, of which `block` has what others saw. */
static void add_keys(const back *b, float *block) {
    const sr_attention_layer *layer = b->layer;
    const srnn_operands from = with_keys(layer, b->gradients, block, layer->T);
    do_rows((row_work){.layer = layer,
                       .row = add_keys_row,
                       .past = layer->T,
                       .operands = b->gradients,
                       .more = &from});
}

/* What a visiting query's backward needs of its sums; queries before the view's first count
 * nothing. */
static void sums_in_row(const row_work *work, int64_t b, int64_t t) {
    const float *row = work->block + (b * work->tokens + t) * work->columns;
    sr_sums_in(work->sums, row + work->columns - work->layer->ring->S, &work->layer->plan->problem,
               b, t - work->shift, t >= work->counted);
}

static void query_gradients_row(const row_work *work, int64_t b, int64_t t) {
    const sr_attention_layer *layer = work->layer;
    const sr_layer_ring *ring = layer->ring;
    float *const to = work->to + (b * work->tokens + t) * work->columns;
    copy_row(to, ring->d_queries + (b * layer->T + t - work->shift) * ring->Q, ring->Q);
    decays_out(layer, to + ring->Q, ring->decays.d_queries, b, t - work->shift);
}

static srnn_status visitors_back(const back *b, int visitor, bool halved, int s) {
    const sr_attention_layer *layer = b->layer;
    const sr_layer_ring *ring = layer->ring;
    const extent at = visiting(part_extent(layer, visitor), halved);
    const int64_t T = layer->T, columns = ring->Q + 1 + ring->C + ring->S;
    const int64_t answer = ring->Q + ring->C;
    const sr_saved sums = sr_plan_saved(layer->plan, ring->sums);
    float *const out = ring->returned[s % 2];
    view views[VIEWS];
    SR_TRY(receive(layer, visitor, ring->visitors, at.tokens, columns));
    SR_TRY(settle(layer, out));
    const int calls = view_queries(views, at.tokens, T);
    for (int i = 0; i < calls; i++) {
        const view v = views[i];
        const srnn_operands there =
            with_queries(layer, b->in, ring->visitors + v.shift * columns, columns, at.tokens);
        const srnn_operands keys = with_keys(layer, b->gradients, ring->d_keys, T);
        const srnn_operands wanted = with_queries(layer, &keys, ring->d_queries, ring->Q, T);
        do_rows((row_work){.layer = layer,
                           .row = sums_in_row,
                           .from = v.shift,
                           .past = v.past,
                           .counted = v.from,
                           .block = ring->visitors,
                           .columns = columns,
                           .tokens = at.tokens,
                           .shift = v.shift,
                           .sums = &sums});
        place_others(layer, ring->visitors + ring->Q + 1, columns, at.tokens, v.shift, v.past);
        const sr_earlier_keys where = keys_for(layer, at, v, columns);
        SR_TRY(sr_attention_visitors_backward(layer->plan, &wanted, &there, ring->sums, &where));
        add_keys(b, ring->d_keys);
        add_decays(layer, ring->decays.d_keys);
        do_rows((row_work){.layer = layer,
                           .row = query_gradients_row,
                           .from = v.from,
                           .past = v.past,
                           .to = out,
                           .columns = answer,
                           .tokens = at.tokens,
                           .shift = v.shift});
    }
    return send(layer, visitor, out, at.tokens, answer);
}

static void gathered_row(const row_work *work, int64_t b, int64_t t) {
    const int64_t Q = work->layer->ring->Q;
    const float *row = work->block + (b * work->tokens + t - work->from) * work->columns;
    add_row(row_of(work->operands->q, b, t), row, Q);
    decays_add(work->layer, row + Q, b, t);
}

static srnn_status add_queries(const back *b, int helper, bool halved) {
    const sr_attention_layer *layer = b->layer;
    const sr_layer_ring *ring = layer->ring;
    const extent sent = visiting((extent){0, layer->T}, halved);
    const int64_t columns = ring->Q + ring->C;
    SR_TRY(receive(layer, helper, ring->gathered, sent.tokens, columns));
    do_rows((row_work){.layer = layer,
                       .row = gathered_row,
                       .from = sent.start,
                       .past = layer->T,
                       .block = ring->gathered,
                       .columns = columns,
                       .tokens = sent.tokens,
                       .operands = b->gradients});
    return SRNN_OK;
}

static srnn_status step_back(const back *b, int s) {
    const sr_attention_layer *layer = b->layer;
    const circle c = circle_of(layer);
    const int index = layer->part.index, from = keys_in(c, index, s);
    const int visitor = queries_in(c, index, s), reader = reader_in(c, index, s);
    const int helper = helper_in(c, index, s);
    if (from >= 0)
        SR_TRY(keys_back(b, from, is_halved(c, s), s));
    if (visitor >= 0)
        SR_TRY(visitors_back(b, visitor, is_halved(c, s), s));
    if (reader >= 0) {
        float *const block = layer->ring->d_arrived;
        SR_TRY(receive(layer, reader, block, layer->T, layer->ring->block));
        add_keys(b, block);
        for (int64_t row = 0; row < layer->B * layer->T; row++)
            decays_add(layer, block + (row + 1) * layer->ring->block - layer->ring->C,
                       row / layer->T, row % layer->T);
    }
    return helper >= 0 ? add_queries(b, helper, is_halved(c, s)) : SRNN_OK;
}

srnn_status sr_ring_attend_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                                srnn_tensor d_o, const srnn_operands *in, const void *saved) {
    const back b = {layer, gradients, in, d_o, saved};
    const circle c = circle_of(layer);
    sr_layer_ring *ring = layer->ring;
    const bool decays = ring->C > 0;
    const bool helped = in_any_step(c, layer->part.index, helper_in);
    const sr_saved d_sums = sr_plan_saved(layer->plan, ring->sums);
    SR_TRY(count_sums(layer, in));
    if (!decays)
        SR_TRY(send_keys(layer, in));
    SR_TRY(helped ? sr_attention_sums_backward(layer->plan, gradients, d_o, in, saved, ring->sums)
                  : srnn_attention_backward(layer->plan, gradients, d_o, in, saved));
    SR_TRY(count_decays(layer));
    if (decays)
        SR_TRY(send_keys(layer, in));
    if (helped)
        SR_TRY(send_queries(layer, in, &d_sums));
    memset(ring->decays.d_own, 0, (size_t)(layer->B * layer->T * ring->C) * sizeof(float));
    for (int s = 1; 2 * s <= c.parts; s++)
        SR_TRY(step_back(&b, s));
    SR_TRY(sums_back(layer, gradients, in));
    return decays ? decays_back(layer, gradients, in, saved) : SRNN_OK;
}
