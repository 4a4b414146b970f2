/* ring.c: keys and values of the earlier parts of a row, block after block. */
#include "model/layer/context/ring.h"

#include "attention/earlier.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* A block holds the keys and values of a part: rows (B*T) of K + V numbers. */
struct sr_layer_ring {
    int64_t rows, Q, K, V; /* tokens; columns of queries, keys and values */
    int blocks, next;      /* earlier parts that this one sees, and the part after */
    float *own;            /* this part's block */
    float *arrived[2];     /* earlier ones, alternating: one is computed while it is sent on */
    float *d_sent[2];      /* gradients of earlier blocks */
    float *d_arrived;      /* of a block, from the parts after */
    float *d_queries;      /* (rows, Q): what one block adds */
    int32_t *first;        /* (rows), as in sr_earlier_keys */
    size_t bytes;
    void *memory;
};

int sr_ring_blocks(const srnn_attention *a, int index, int tokens) {
    const int64_t window = a->window;
    if (!window)
        return index;
    const int64_t seen = window < 2 ? 0 : (window - 2) / tokens + 1;
    return seen < index ? (int)seen : index;
}

/* ---- memory */

static float *take(sr_layer_ring *ring, int64_t columns) {
    enum { ALIGNMENT = 64 };
    char *at = ring->memory ? (char *)ring->memory + ring->bytes : NULL;
    const size_t size = (size_t)(ring->rows * columns) * sizeof(float);
    ring->bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return (float *)(void *)at;
}

static void lay_out(sr_layer_ring *ring) {
    const int64_t block = ring->K + ring->V;
    ring->bytes = 0;
    ring->own = take(ring, block);
    for (int i = 0; i < 2; i++) {
        ring->arrived[i] = take(ring, block);
        ring->d_sent[i] = take(ring, block);
    }
    ring->d_arrived = take(ring, block);
    ring->d_queries = take(ring, ring->Q);
    ring->first = (int32_t *)(void *)take(ring, 1);
}

srnn_status sr_ring_create(sr_layer_ring **out, const sr_attention_layer *layer) {
    const sr_wire_place *places = layer->wiring.places;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **out));
    sr_layer_ring *ring = memory;
    *ring = (sr_layer_ring){.rows = (int64_t)layer->B * layer->T,
                            .Q = places[SR_OPERAND_Q].at.count,
                            .K = places[SR_OPERAND_K].at.count,
                            .V = places[SR_OPERAND_V].at.count};
    const int index = layer->part.index;
    ring->blocks = sr_ring_blocks(&layer->attention, index, layer->T);
    ring->next =
        index + 1 < layer->part.count ? sr_ring_blocks(&layer->attention, index + 1, layer->T) : 0;
    lay_out(ring);
    *out = ring;
    SR_TRY(sr_alloc(&ring->memory, ring->bytes, 1));
    lay_out(ring);
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

/* ---- blocks */

static size_t block_bytes(const sr_layer_ring *ring) {
    return (size_t)(ring->rows * (ring->K + ring->V)) * sizeof(float);
}

/* Rows of a tensor of a layer, whose heads stand side by side, or of a block. */
static float *row_of(srnn_tensor t, int64_t row) {
    return (float *)t.data + row * t.time;
}

static void copy_rows(srnn_tensor to, srnn_tensor from, int64_t rows, int64_t columns) {
    for (int64_t row = 0; row < rows; row++)
        memcpy(row_of(to, row), row_of(from, row), (size_t)columns * sizeof(float));
}

static void add_rows(srnn_tensor to, srnn_tensor from, int64_t rows, int64_t columns) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < columns; c++)
            row_of(to, row)[c] += row_of(from, row)[c];
}

/* Heads of `width` numbers in the columns of rows with this stride, from `first` on. */
static srnn_tensor heads_at(float *rows, int64_t first, int64_t stride, int64_t T, int64_t width) {
    return (srnn_tensor){.data = rows + first, .batch = T * stride, .head = width, .time = stride};
}

/* k and v of a block in place of the operands' own. */
static srnn_operands with_block(const sr_attention_layer *layer, const srnn_operands *in,
                                float *block) {
    const sr_layer_ring *ring = layer->ring;
    srnn_operands out = *in;
    out.k = heads_at(block, 0, ring->K + ring->V, layer->T, layer->problem.D);
    out.v = heads_at(block, ring->K, ring->K + ring->V, layer->T, layer->problem.Dv);
    return out;
}

static void pack_own(const sr_attention_layer *layer, const srnn_operands *in) {
    const sr_layer_ring *ring = layer->ring;
    const srnn_operands own = with_block(layer, in, ring->own);
    copy_rows(own.k, in->k, ring->rows, ring->K);
    copy_rows(own.v, in->v, ring->rows, ring->V);
}

/* Where the keys of the part `back` parts before stand. A document that begins in this part, or
 * between, sees none of them. */
static sr_earlier_keys keys_before(const sr_attention_layer *layer, int back) {
    const int64_t T = layer->T, gap = back * T;
    for (int64_t row = 0; row < layer->ring->rows; row++) {
        const int64_t start = gap + row % T - layer->positions[row];
        layer->ring->first[row] = (int32_t)(start < 0 ? 0 : start < T ? start : T);
    }
    return (sr_earlier_keys){gap, layer->ring->first};
}

/* ---- messages */

static srnn_status send(const sr_attention_layer *layer, sr_neighbour to, const float *block) {
    return layer->part.send(layer->part.context, to, block, block_bytes(layer->ring));
}

static srnn_status receive(const sr_attention_layer *layer, sr_neighbour from, float *block) {
    return layer->part.receive(layer->part.context, from, block, block_bytes(layer->ring));
}

/* What was sent from the buffers is not read any longer. */
static srnn_status settle(const sr_attention_layer *layer) {
    return layer->part.settle(layer->part.context);
}

static srnn_status begin(const sr_attention_layer *layer, const srnn_operands *in) {
    SR_TRY(settle(layer));
    pack_own(layer, in);
    return layer->ring->next > 0 ? send(layer, SR_NEIGHBOUR_AFTER, layer->ring->own) : SRNN_OK;
}

/* *block = that of the part `back` parts before, which the part after receives too if it sees
 * it. */
static srnn_status next_block(const sr_attention_layer *layer, float **block, int back) {
    *block = layer->ring->arrived[back % 2];
    if (back > 2)
        SR_TRY(settle(layer));
    SR_TRY(receive(layer, SR_NEIGHBOUR_BEFORE, *block));
    return back < layer->ring->next ? send(layer, SR_NEIGHBOUR_AFTER, *block) : SRNN_OK;
}

/* ---- attention */

srnn_status sr_ring_attend(const sr_attention_layer *layer, srnn_tensor o, const srnn_operands *in,
                           void *saved) {
    SR_TRY(begin(layer, in));
    SR_TRY(srnn_attention_forward(layer->plan, o, in, saved));
    for (int back = 1; back <= layer->ring->blocks; back++) {
        float *block;
        SR_TRY(next_block(layer, &block, back));
        const srnn_operands there = with_block(layer, in, block);
        const sr_earlier_keys keys = keys_before(layer, back);
        SR_TRY(sr_attention_earlier_forward(layer->plan, o, &there, saved, &keys));
    }
    return SRNN_OK;
}

/* Adds what the parts after give to the gradients of a block's keys and values. */
static srnn_status add_arrived(const sr_attention_layer *layer, const srnn_operands *to) {
    const sr_layer_ring *ring = layer->ring;
    SR_TRY(receive(layer, SR_NEIGHBOUR_AFTER, ring->d_arrived));
    const srnn_operands from = with_block(layer, to, ring->d_arrived);
    add_rows(to->k, from.k, ring->rows, ring->K);
    add_rows(to->v, from.v, ring->rows, ring->V);
    return SRNN_OK;
}

/* The gradients of the block that is `back` parts before, which go to its part. */
static srnn_status block_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                              srnn_tensor d_o, const srnn_operands *in, const void *saved,
                              int back) {
    const sr_layer_ring *ring = layer->ring;
    float *block, *d_block = ring->d_sent[back % 2];
    SR_TRY(next_block(layer, &block, back));
    const srnn_operands there = with_block(layer, in, block);
    srnn_operands out = with_block(layer, gradients, d_block);
    const sr_earlier_keys keys = keys_before(layer, back);
    out.q = heads_at(ring->d_queries, 0, ring->Q, layer->T, layer->problem.D);
    SR_TRY(sr_attention_earlier_backward(layer->plan, &out, d_o, &there, saved, &keys));
    add_rows(gradients->q, out.q, ring->rows, ring->Q);
    if (back == 1 && ring->next > 0)
        SR_TRY(add_arrived(layer, gradients)); /* those of the own block come first */
    if (back < ring->next)
        SR_TRY(add_arrived(layer, &out));
    return send(layer, SR_NEIGHBOUR_BEFORE, d_block);
}

srnn_status sr_ring_attend_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                                srnn_tensor d_o, const srnn_operands *in, const void *saved) {
    SR_TRY(begin(layer, in));
    SR_TRY(srnn_attention_backward(layer->plan, gradients, d_o, in, saved));
    for (int back = 1; back <= layer->ring->blocks; back++)
        SR_TRY(block_back(layer, gradients, d_o, in, saved, back));
    return layer->ring->blocks == 0 && layer->ring->next > 0 ? add_arrived(layer, gradients)
                                                             : SRNN_OK;
}
