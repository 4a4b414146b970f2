/* tape.c: reverse-mode differentiation in double. */
#include "verify/oracle/tape.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

typedef struct node {
    double value, derivative;
    /* one past its last edge and product; its own begin where those of the previous node end */
    int64_t past, past_product;
    bool rounds; /* its derivative is rounded to the tape's bits */
} node;

typedef struct edge {
    sr_term to;
    double partial;
} edge;

/* Two terms that are multiplied: each is the other's partial. Nearly everything on a tape is of
 * this kind, and an edge for each of the two would take four times as much memory. */
typedef struct product {
    sr_term a, b;
} product;

struct sr_tape {
    node *nodes;
    edge *edges;
    product *products;
    int64_t count, capacity;           /* of nodes */
    int64_t edge_count, edge_capacity; /* of edges */
    int64_t product_count, product_capacity;
    bool failed;
    int bits;     /* significant bits that numbers are rounded to; 0: no rounding */
    double scale; /* of numbers as they are rounded */
};

srnn_status sr_tape_create(sr_tape **tape) {
    return sr_alloc_zero((void **)tape, 1, sizeof **tape);
}

void sr_tape_free(sr_tape *tape) {
    if (!tape)
        return;
    free(tape->nodes);
    free(tape->edges);
    free(tape->products);
    free(tape);
}

void sr_tape_use_bits(sr_tape *tape, int bits, double scale) {
    tape->bits = bits;
    tape->scale = scale;
}

void sr_tape_clear(sr_tape *tape) {
    tape->count = tape->edge_count = tape->product_count = 0;
}

/* Doubles the capacity when it is full. */
static void *grow(sr_tape *tape, void *array, int64_t *capacity, size_t size) {
    const int64_t more = *capacity ? 2 * *capacity : 4096;
    void *larger = tape->failed ? NULL : realloc(array, (size_t)more * size);
    if (!larger) {
        tape->failed = true;
        return array;
    }
    *capacity = more;
    return larger;
}

static void append_edge(sr_tape *tape, sr_term to, double partial) {
    if (tape->edge_count == tape->edge_capacity)
        tape->edges = grow(tape, tape->edges, &tape->edge_capacity, sizeof *tape->edges);
    if (!tape->failed)
        tape->edges[tape->edge_count++] = (edge){to, partial};
}

static void append_product(sr_tape *tape, sr_term a, sr_term b) {
    if (tape->product_count == tape->product_capacity)
        tape->products =
            grow(tape, tape->products, &tape->product_capacity, sizeof *tape->products);
    if (!tape->failed)
        tape->products[tape->product_count++] = (product){a, b};
}

/* A term made of the edges and products appended since the previous term. */
static sr_term append_node(sr_tape *tape, double value) {
    if (tape->count == tape->capacity)
        tape->nodes = grow(tape, tape->nodes, &tape->capacity, sizeof *tape->nodes);
    if (tape->failed)
        return 0;
    tape->nodes[tape->count] =
        (node){.value = value, .past = tape->edge_count, .past_product = tape->product_count};
    return (sr_term)tape->count++;
}

sr_term sr_tape_number(sr_tape *tape, double value) {
    return append_node(tape, value);
}

double sr_tape_value(const sr_tape *tape, sr_term a) {
    return tape->failed ? 0 : tape->nodes[a].value;
}

sr_term sr_tape_function(sr_tape *tape, sr_term a, double value, double slope) {
    append_edge(tape, a, slope);
    return append_node(tape, value);
}

/* The nearest number with this many significant bits, ties to even; exponents are not limited. */
static double nearest(double x, int bits) {
    int exponent;
    const double fraction = frexp(x, &exponent);
    return isfinite(x) ? ldexp(rint(ldexp(fraction, bits)), exponent - bits) : x;
}

/* A number of the tape's bits stays what it is at any scale. */
static double rounded(const sr_tape *tape, double x) {
    const double own = nearest(x, tape->bits);
    return tape->scale == 1 || own == x ? own : nearest(tape->scale * x, tape->bits) / tape->scale;
}

static sr_term round_to(sr_tape *tape, sr_term a, double value) {
    const sr_term result = sr_tape_function(tape, a, value, 1);
    if (!tape->failed)
        tape->nodes[result].rounds = true;
    return result;
}

sr_term sr_tape_round(sr_tape *tape, sr_term a) {
    return tape->bits ? round_to(tape, a, rounded(tape, sr_tape_value(tape, a))) : a;
}

sr_term sr_tape_round_back(sr_tape *tape, sr_term a) {
    return tape->bits ? round_to(tape, a, sr_tape_value(tape, a)) : a;
}

sr_term sr_tape_affine(sr_tape *tape, sr_term a, double factor, double constant) {
    return sr_tape_function(tape, a, factor * sr_tape_value(tape, a) + constant, factor);
}

static sr_term combine(sr_tape *tape, edge a, edge b, double value) {
    append_edge(tape, a.to, a.partial);
    append_edge(tape, b.to, b.partial);
    return append_node(tape, value);
}

sr_term sr_tape_add(sr_tape *tape, sr_term a, sr_term b) {
    return combine(tape, (edge){a, 1}, (edge){b, 1},
                   sr_tape_value(tape, a) + sr_tape_value(tape, b));
}

sr_term sr_tape_subtract(sr_tape *tape, sr_term a, sr_term b) {
    return combine(tape, (edge){a, 1}, (edge){b, -1},
                   sr_tape_value(tape, a) - sr_tape_value(tape, b));
}

sr_term sr_tape_multiply(sr_tape *tape, sr_term a, sr_term b) {
    append_product(tape, a, b);
    return append_node(tape, sr_tape_value(tape, a) * sr_tape_value(tape, b));
}

sr_term sr_tape_divide(sr_tape *tape, sr_term a, sr_term b) {
    const double x = sr_tape_value(tape, a), y = sr_tape_value(tape, b);
    return combine(tape, (edge){a, 1 / y}, (edge){b, -x / y / y}, x / y);
}

sr_term sr_tape_dot(sr_tape *tape, sr_terms a, sr_terms b, int64_t count) {
    double sum = 0;
    for (int64_t n = 0; n < count; n++) {
        const sr_term x = a.first[n * a.stride], y = b.first[n * b.stride];
        append_product(tape, x, y);
        sum += sr_tape_value(tape, x) * sr_tape_value(tape, y);
    }
    return append_node(tape, sum);
}

sr_term sr_tape_sum(sr_tape *tape, sr_terms a, int64_t count) {
    double sum = 0;
    for (int64_t n = 0; n < count; n++) {
        append_edge(tape, a.first[n * a.stride], 1);
        sum += sr_tape_value(tape, a.first[n * a.stride]);
    }
    return append_node(tape, sum);
}

sr_term sr_tape_decayed_dot(sr_tape *tape, sr_decayed terms, int64_t count) {
    double sum = 0;
    for (int64_t n = 0; n < count; n++) {
        const double a = sr_tape_value(tape, terms.a[n]), b = sr_tape_value(tape, terms.b[n]);
        const double factor =
            exp(sr_tape_value(tape, terms.up[n]) - sr_tape_value(tape, terms.down[n]));
        append_edge(tape, terms.a[n], b * factor);
        append_edge(tape, terms.b[n], a * factor);
        append_edge(tape, terms.up[n], a * b * factor);
        append_edge(tape, terms.down[n], -a * b * factor);
        sum += a * b * factor;
    }
    return append_node(tape, sum);
}

srnn_status sr_tape_backward(sr_tape *tape, const sr_term *outputs, const double *weights,
                             int64_t count) {
    if (tape->failed)
        return SR_FAIL(SRNN_ERR_MEMORY, "the oracle: no memory for %lld operations",
                       (long long)tape->count);
    for (int64_t n = 0; n < tape->count; n++)
        tape->nodes[n].derivative = 0;
    for (int64_t n = 0; n < count; n++)
        tape->nodes[outputs[n]].derivative += weights[n];
    for (int64_t n = tape->count - 1; n >= 0; n--) {
        const double whole = tape->nodes[n].derivative;
        if (whole == 0)
            continue; /* no output depends on it, though a partial may be infinite */
        const double derivative = tape->nodes[n].rounds ? rounded(tape, whole) : whole;
        const node before = n > 0 ? tape->nodes[n - 1] : (node){0};
        for (int64_t e = before.past; e < tape->nodes[n].past; e++)
            tape->nodes[tape->edges[e].to].derivative += derivative * tape->edges[e].partial;
        for (int64_t p = before.past_product; p < tape->nodes[n].past_product; p++) {
            node *a = &tape->nodes[tape->products[p].a], *b = &tape->nodes[tape->products[p].b];
            a->derivative += derivative * b->value;
            b->derivative += derivative * a->value;
        }
    }
    return SRNN_OK;
}

double sr_tape_derivative(const sr_tape *tape, sr_term a) {
    return tape->nodes[a].derivative;
}
