/* tape.c: reverse-mode differentiation in double. */
#include "verify/oracle/tape.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

typedef struct node {
    double value, derivative;
    int64_t past; /* one past its last edge; its edges begin where those of the previous node end */
    bool rounds;  /* its derivative is rounded to the tape's bits */
} node;

typedef struct edge {
    sr_term to;
    double partial;
} edge;

struct sr_tape {
    node *nodes;
    edge *edges;
    int64_t count, capacity;           /* of nodes */
    int64_t edge_count, edge_capacity; /* of edges */
    bool failed;
    int bits; /* significant bits that numbers are rounded to; 0: no rounding */
};

srnn_status sr_tape_create(sr_tape **tape) {
    return sr_alloc_zero((void **)tape, 1, sizeof **tape);
}

void sr_tape_free(sr_tape *tape) {
    if (!tape)
        return;
    free(tape->nodes);
    free(tape->edges);
    free(tape);
}

void sr_tape_use_bits(sr_tape *tape, int bits) {
    tape->bits = bits;
}

void sr_tape_clear(sr_tape *tape) {
    tape->count = tape->edge_count = 0;
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

/* A term made of the edges appended since the previous term. */
static sr_term append_node(sr_tape *tape, double value) {
    if (tape->count == tape->capacity)
        tape->nodes = grow(tape, tape->nodes, &tape->capacity, sizeof *tape->nodes);
    if (tape->failed)
        return 0;
    tape->nodes[tape->count] = (node){value, 0, tape->edge_count, false};
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

static sr_term round_to(sr_tape *tape, sr_term a, double value) {
    const sr_term rounded = sr_tape_function(tape, a, value, 1);
    if (!tape->failed)
        tape->nodes[rounded].rounds = true;
    return rounded;
}

sr_term sr_tape_round(sr_tape *tape, sr_term a) {
    return tape->bits ? round_to(tape, a, nearest(sr_tape_value(tape, a), tape->bits)) : a;
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
    const double x = sr_tape_value(tape, a), y = sr_tape_value(tape, b);
    return combine(tape, (edge){a, y}, (edge){b, x}, x * y);
}

sr_term sr_tape_divide(sr_tape *tape, sr_term a, sr_term b) {
    const double x = sr_tape_value(tape, a), y = sr_tape_value(tape, b);
    return combine(tape, (edge){a, 1 / y}, (edge){b, -x / y / y}, x / y);
}

sr_term sr_tape_dot(sr_tape *tape, sr_terms a, sr_terms b, int64_t count) {
    double sum = 0;
    for (int64_t n = 0; n < count; n++) {
        const sr_term x = a.first[n * a.stride], y = b.first[n * b.stride];
        append_edge(tape, x, sr_tape_value(tape, y));
        append_edge(tape, y, sr_tape_value(tape, x));
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
        const double derivative = tape->nodes[n].rounds ? nearest(whole, tape->bits) : whole;
        const int64_t from = n > 0 ? tape->nodes[n - 1].past : 0;
        for (int64_t e = from; e < tape->nodes[n].past; e++)
            tape->nodes[tape->edges[e].to].derivative += derivative * tape->edges[e].partial;
    }
    return SRNN_OK;
}

double sr_tape_derivative(const sr_tape *tape, sr_term a) {
    return tape->nodes[a].derivative;
}
