/* test_earlier.c: rows cut into parts, whose keys and values are added block after block: outputs
 * and gradients of whole rows, in several tiles. */
#include "attention/earlier.h"
#include "base/random.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 4, HKV = 2, D = 5, DV = 7, PART = 150, PARTS = 3, T = PART * PARTS };

/* Rows of documents that begin at a part's end, within it, and long before. */
static const int64_t documents[] = {0, 40, 290, 300, 431, T, T + 1, 2 * T};
static const int64_t rows[] = {0, T, 2 * T};

/* (B, heads, T, width) of the whole rows. */
typedef struct array {
    double *data;
    int64_t heads, width;
} array;

typedef struct arrays {
    array q, k, v, gate, o, d_o, d_q, d_k, d_v, d_gate;
} arrays;

static array array_of(int64_t heads, int64_t width, uint64_t stream, double size) {
    const int64_t count = B * heads * T * width;
    array a = {malloc((size_t)count * sizeof(double)), heads, width};
    for (int64_t i = 0; i < count; i++)
        a.data[i] = size * sr_random_normal(5, stream, (uint64_t)i);
    return a;
}

/* The keys of the middle part are short: its logits need no maximum where those of others do. */
static arrays make_arrays(double size) {
    arrays a = {.q = array_of(H, D, 1, size),
                .k = array_of(HKV, D, 2, 1),
                .v = array_of(HKV, DV, 3, 1),
                .gate = array_of(H, 1, 4, 1),
                .o = array_of(H, DV, 5, NAN),
                .d_o = array_of(H, DV, 6, 1),
                .d_q = array_of(H, D, 7, 0),
                .d_k = array_of(HKV, D, 8, 0),
                .d_v = array_of(HKV, DV, 9, 0),
                .d_gate = array_of(H, 1, 10, 0)};
    for (int64_t head = 0; head < B * HKV; head++)
        for (int64_t i = PART * D; i < 2 * PART * D; i++)
            a.k.data[head * T * D + i] *= 1e-3;
    return a;
}

static void free_arrays(arrays *a) {
    array *const all[] = {&a->q,   &a->k,   &a->v,   &a->gate, &a->o,
                          &a->d_o, &a->d_q, &a->d_k, &a->d_v,  &a->d_gate};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->data);
}

static srnn_tensor from(array a, int64_t token) {
    return (srnn_tensor){.data = a.data + token * a.width,
                         .batch = a.heads * T * a.width,
                         .head = T * a.width,
                         .time = a.width};
}

static srnn_operands operands(const arrays *a, int64_t queries, int64_t keys) {
    return (srnn_operands){.q = from(a->q, queries),
                           .k = from(a->k, keys),
                           .v = from(a->v, keys),
                           .output_gate = from(a->gate, queries)};
}

static srnn_operands gradients(const arrays *a, int64_t queries, int64_t keys) {
    return (srnn_operands){.q = from(a->d_q, queries),
                           .k = from(a->d_k, keys),
                           .v = from(a->d_v, keys),
                           .output_gate = from(a->d_gate, queries)};
}

static srnn_plan *plan_of(const char *attention, int length, const int64_t *offsets,
                          int64_t count) {
    srnn_plan *plan;
    srnn_problem problem = {.dtype = SRNN_F64,
                            .B = B,
                            .H = H,
                            .Hkv = HKV,
                            .T = length,
                            .D = D,
                            .Dv = DV,
                            .offsets = offsets,
                            .documents = count,
                            .form = SRNN_FORM_PARALLEL,
                            .threads = 2};
    assert_int_equal(srnn_attention_parse(&problem.attention, attention), SRNN_OK);
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
    return plan;
}

static void *saved_of(const srnn_plan *plan) {
    return aligned_alloc(64, (srnn_plan_saved_bytes(plan) + 63) / 64 * 64);
}

static void whole(arrays *a, const char *attention, const int64_t *offsets, int64_t count) {
    srnn_plan *plan = plan_of(attention, T, offsets, count);
    void *saved = saved_of(plan);
    const srnn_operands in = operands(a, 0, 0), out = gradients(a, 0, 0);
    assert_int_equal(srnn_attention_forward(plan, from(a->o, 0), &in, saved), SRNN_OK);
    assert_int_equal(srnn_attention_backward(plan, &out, from(a->d_o, 0), &in, saved), SRNN_OK);
    free(saved);
    srnn_plan_free(plan);
}

/* The start of each token's document in its row. */
static void starts_of(int64_t *starts, const int64_t *offsets, int64_t count) {
    for (int64_t n = 0; n < count; n++)
        for (int64_t i = offsets[n]; i < offsets[n + 1]; i++)
            starts[i] = offsets[n] - i / T * T;
}

/* Documents of one part. */
static int64_t part_offsets(int64_t *offsets, const int64_t *starts, int part) {
    int64_t count = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < PART; t++)
            if (t == 0 || starts[b * T + part * PART + t] == part * PART + t)
                offsets[count++] = b * PART + t;
    offsets[count] = (int64_t)B * PART;
    return count;
}

static sr_earlier_keys keys_of(int32_t *first, const int64_t *starts, int part, int other) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < PART; t++) {
            const int64_t start = starts[b * T + part * PART + t] - (int64_t)other * PART;
            first[b * PART + t] = (int32_t)(start < 0 ? 0 : start < PART ? start : PART);
        }
    return (sr_earlier_keys){.gap = (int64_t)(part - other) * PART, .first = first};
}

static void add(array to, array what) {
    for (int64_t i = 0; i < B * to.heads * T * to.width; i++)
        to.data[i] += what.data[i];
}

static void clear(array a) {
    memset(a.data, 0, (size_t)(B * a.heads * T * a.width) * sizeof(double));
}

/* Sums of all rows, added to what is saved. */
static void add_sums(const sr_saved *to, const sr_saved *what) {
    double *const maximum = to->maximum, *const other = what->maximum;
    for (int64_t row = 0; row < (int64_t)B * H * PART; row++) {
        const double most = fmax(maximum[row], other[row]);
        const double scale = exp(maximum[row] - most), added = exp(other[row] - most);
        if (other[row] == -INFINITY)
            continue;
        double *const sums[] = {(double *)to->numerator + row * DV, (double *)to->row_sum + row};
        const double *const more[] = {(double *)what->numerator + row * DV,
                                      (double *)what->row_sum + row};
        for (int n = 0; n < 2; n++)
            for (int d = 0; d < (n ? 1 : DV); d++)
                sums[n][d] = scale * sums[n][d] + added * more[n][d];
        maximum[row] = most;
    }
}

/* A part with its plan and what forward saved. */
typedef struct part_plan {
    int part;
    srnn_plan *plan;
    void *saved;
} part_plan;

/* The part's queries visit the keys of the part `other`, which has a plan of its own. */
static srnn_plan *host_of(const char *attention, const int64_t *starts, int other) {
    int64_t offsets[B * PART + 1];
    const int64_t count = part_offsets(offsets, starts, other);
    return plan_of(attention, PART, offsets, count);
}

static void visit(arrays *a, const char *attention, const int64_t *starts, int other,
                  const part_plan *own_plan) {
    int32_t first[B * PART];
    const int part = own_plan->part;
    srnn_plan *plan = own_plan->plan;
    void *saved = own_plan->saved;
    srnn_plan *host = host_of(attention, starts, other);
    void *alone = saved_of(host);
    const sr_saved sums = sr_plan_saved(plan, saved), more = sr_plan_saved(host, alone);
    const srnn_operands there = operands(a, (int64_t)part * PART, (int64_t)other * PART);
    const srnn_operands own = operands(a, (int64_t)part * PART, (int64_t)part * PART);
    sr_earlier_keys keys = keys_of(first, starts, part, other);
    assert_int_equal(sr_attention_visitors_forward(host, &there, alone, &keys), SRNN_OK);
    add_sums(&sums, &more);
    for (int64_t row = 0; row < B * PART; row++)
        first[row] = PART; /* no keys: the outputs of what is saved */
    assert_int_equal(sr_attention_earlier_forward(plan, from(a->o, (int64_t)part * PART), &own,
                                                  saved, &keys),
                     SRNN_OK);
    free(alone);
    srnn_plan_free(host);
}

static void visit_back(arrays *a, const char *attention, const int64_t *starts, int part, int other,
                       const void *d_saved) {
    int32_t first[B * PART];
    srnn_plan *host = host_of(attention, starts, other);
    const srnn_operands there = operands(a, (int64_t)part * PART, (int64_t)other * PART);
    const srnn_operands out = gradients(a, (int64_t)part * PART, (int64_t)other * PART);
    const sr_earlier_keys keys = keys_of(first, starts, part, other);
    assert_int_equal(sr_attention_visitors_backward(host, &out, &there, d_saved, &keys), SRNN_OK);
    srnn_plan_free(host);
}

/* One part's outputs, and what it adds to the gradients of all. Pairs with the part before are
 * computed where its queries are, with others where the keys are. */
static void one_part(arrays *a, arrays *sum, const char *attention, const int64_t *starts,
                     int part) {
    int64_t offsets[B * PART + 1];
    int32_t first[B * PART];
    const int64_t own = (int64_t)part * PART, count = part_offsets(offsets, starts, part);
    srnn_plan *plan = plan_of(attention, PART, offsets, count);
    void *saved = saved_of(plan), *d_saved = saved_of(plan);
    const srnn_operands in = operands(a, own, own);
    assert_int_equal(srnn_attention_forward(plan, from(a->o, own), &in, saved), SRNN_OK);
    for (int other = part - 1; other >= 0; other--) {
        const sr_earlier_keys keys = keys_of(first, starts, part, other);
        const srnn_operands there = operands(a, own, (int64_t)other * PART);
        if (other < part - 1) {
            visit(a, attention, starts, other, &(part_plan){part, plan, saved});
            continue;
        }
        if (sr_attention_earlier_forward(plan, from(a->o, own), &there, saved, &keys) != SRNN_OK)
            fail_msg("%s: %s", attention, srnn_error_detail());
    }
    for (int other = part; other >= 0; other--) {
        const sr_earlier_keys keys = keys_of(first, starts, part, other);
        const srnn_operands there = operands(a, own, (int64_t)other * PART);
        const srnn_operands out = gradients(a, own, (int64_t)other * PART);
        clear(a->d_q), clear(a->d_k), clear(a->d_v), clear(a->d_gate);
        if (other < part - 1)
            visit_back(a, attention, starts, part, other, d_saved);
        else
            assert_int_equal(other == part
                                 ? sr_attention_sums_backward(plan, &out, from(a->d_o, own), &in,
                                                              saved, d_saved)
                                 : sr_attention_earlier_backward(plan, &out, from(a->d_o, own),
                                                                 &there, saved, &keys),
                             SRNN_OK);
        add(sum->d_q, a->d_q), add(sum->d_k, a->d_k), add(sum->d_v, a->d_v);
        if (other == part) /* the others write the same once more */
            add(sum->d_gate, a->d_gate);
    }
    free(saved);
    free(d_saved);
    srnn_plan_free(plan);
}

static double distance(array got, array want) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < B * got.heads * T * got.width; i++) {
        difference += pow(got.data[i] - want.data[i], 2);
        size += pow(want.data[i], 2);
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

static void check(const char *attention, double size, const int64_t *offsets, int64_t count) {
    int64_t starts[B * T];
    arrays want = make_arrays(size), got = make_arrays(size), sum = make_arrays(size);
    starts_of(starts, offsets, count);
    whole(&want, attention, offsets, count);
    for (int part = 0; part < PARTS; part++)
        one_part(&got, &sum, attention, starts, part);
    const double errors[] = {distance(got.o, want.o), distance(sum.d_q, want.d_q),
                             distance(sum.d_k, want.d_k), distance(sum.d_v, want.d_v),
                             distance(sum.d_gate, want.d_gate)};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (!(errors[i] < 1e-11))
            fail_msg("%s, q %g times as large: result %zu is off by %.3g", attention, size, i,
                     errors[i]);
    free_arrays(&want);
    free_arrays(&got);
    free_arrays(&sum);
}

static void blocks_add_up(void **state) {
    (void)state;
    static const char *const variants[] = {
        "softmax",
        "softmax,window=2",
        "softmax,window=97",
        "softmax,window=151",
        "softmax,window=280,cap=3",
        "softmax,sink=zero",
        "sigmoid",
        "softmax,output_gate",
        "softmax,norm=l2,normaliser=none",
    };
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        for (double size = 1; size < 400; size *= 19) { /* bounded logits, and such as overflow */
            check(variants[i], size, rows, 2);
            check(variants[i], size, documents, 7);
        }
}

static void others_are_refused(void **state) {
    (void)state;
    static const char *const refused[] = {"rat", "gated_softmax_plusplus_mamba"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        srnn_plan *plan = plan_of(refused[i], PART, NULL, 0);
        assert_int_equal(sr_plan_check_earlier(plan), SRNN_ERR_UNSUPPORTED);
        srnn_plan_free(plan);
    }
    srnn_plan *plan = plan_of("softmax", PART, NULL, 0);
    const sr_earlier_keys near = {.gap = PART - 1};
    assert_int_equal(sr_attention_earlier_forward(plan, (srnn_tensor){0}, NULL, plan, &near),
                     SRNN_ERR_ARGUMENT);
    srnn_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_add_up),
        cmocka_unit_test(others_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
