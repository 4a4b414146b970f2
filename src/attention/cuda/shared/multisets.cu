/* multisets.cu: the table of features of a power series. */
#include "attention/cuda/shared/multisets.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"
#include "equation/facts.h"

#include <math.h>

enum { THREADS = 256 };

/* C(n + k - 1, k): multisets of k out of n. */
SR_BOTH double multisets(int n, int k) {
    double result = 1;
    for (int i = 1; i <= k; i++)
        result = result * (double)(n + i - 1) / (double)i;
    return result;
}

sr_feature_table sr_feature_table_place(const srnn_problem *p, sr_layout *layout) {
    sr_feature_table table = {};
    table.highest = sr_highest_order(&p->attention);
    for (int n = 0; n <= table.highest; n++)
        if (sr_has_order(&p->attention, n))
            table.count += (int64_t)(multisets(p->D, n) + 0.5);
    const size_t count = (size_t)table.count;
    table.scale = (float *)sr_layout_take(layout, count, sizeof *table.scale);
    table.order = (uint8_t *)sr_layout_take(layout, count, 1);
    table.variable = (uint8_t *)sr_layout_take(layout, count * (size_t)(table.highest + 1), 1);
    return table;
}

/* The table of features. A thread owns feature m: it computes order and indices from m (features of
 * one order are sorted by their smallest index, then by the rest as features of the order below
 * that begin there or later) and stores scale, order and indices; nothing is shared. `lowest`: the
 * first order that is present; a power counts all orderings of its factors. */
__global__ void fill_table(const sr_feature_table table, int lowest, int D, bool power) {
    const int64_t m = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (m >= table.count)
        return;
    double left = (double)m;
    int order = lowest;
    for (; left >= multisets(D, order); order++)
        left -= multisets(D, order);
    double weight = 1; /* 1 / product of the factorials of the multiplicities, or orderings */
    int from = 0, repeated = 0;
    for (int n = 0; n < order; n++) {
        int i = from;
        for (; left >= multisets(D - i, order - n - 1); i++)
            left -= multisets(D - i, order - n - 1);
        repeated = n > 0 && i == from ? repeated + 1 : 1;
        weight *= (power ? (double)(n + 1) : 1.0) / (double)repeated;
        table.variable[m * (table.highest + 1) + n] = (uint8_t)i;
        from = i;
    }
    table.order[m] = (uint8_t)order;
    table.scale[m] = (float)sqrt(weight);
}

static int lowest_order(const srnn_attention *a) {
    int n = 0;
    while (!sr_has_order(a, n))
        n++;
    return n;
}

srnn_status sr_feature_table_fill(const sr_feature_table &table, const srnn_problem *p,
                                  cudaStream_t stream) {
    const srnn_attention *a = &p->attention;
    SR_CUDA(sr_launch(fill_table, dim3((unsigned)((table.count + THREADS - 1) / THREADS)),
                      dim3(THREADS), 0, stream, table, lowest_order(a), p->D,
                      a->score == SRNN_SCORE_POWER));
    return SRNN_OK;
}
