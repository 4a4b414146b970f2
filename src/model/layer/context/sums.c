/* sums.c: what forward saves of one token, as a row of numbers. */
#include "model/layer/context/sums.h"

#include <math.h>
#include <string.h>

/* One head of one token. */
typedef struct head_sums {
    float *numerator; /* (Dv) */
    float *row_sum, *maximum;
} head_sums;

static head_sums in_arrays(const sr_saved *saved, const srnn_problem *p, int64_t b, int h,
                           int64_t t) {
    const int64_t at = sr_row_index(p, p->H, b, h, t);
    return (head_sums){(float *)saved->numerator + at * p->Dv, (float *)saved->row_sum + at,
                       (float *)saved->maximum + at};
}

static head_sums in_row(const float *row, const srnn_problem *p, int h) {
    float *const numbers = (float *)(uintptr_t)row;
    float *const statistics = numbers + (int64_t)p->H * p->Dv + h;
    return (head_sums){numbers + (int64_t)h * p->Dv, statistics, statistics + p->H};
}

static void copy(head_sums to, head_sums from, int Dv) {
    memcpy(to.numerator, from.numerator, (size_t)Dv * sizeof(float));
    *to.row_sum = *from.row_sum;
    *to.maximum = *from.maximum;
}

/* Both are times exp(-maximum). A maximum of -infinity is that of no keys, whose sums are 0. */
static void add(head_sums to, head_sums from, int Dv) {
    if (*from.maximum == -INFINITY)
        return;
    const float maximum = *from.maximum > *to.maximum ? *from.maximum : *to.maximum;
    const float kept = (float)exp((double)(*to.maximum - maximum));
    const float added = (float)exp((double)(*from.maximum - maximum));
    for (int d = 0; d < Dv; d++)
        to.numerator[d] = kept * to.numerator[d] + added * from.numerator[d];
    *to.row_sum = kept * *to.row_sum + added * *from.row_sum;
    *to.maximum = maximum;
}

void sr_sums_out(float *row, const sr_saved *saved, const srnn_problem *p, int64_t b, int64_t t) {
    for (int h = 0; h < p->H; h++)
        copy(in_row(row, p, h), in_arrays(saved, p, b, h, t), p->Dv);
}

void sr_sums_in(const sr_saved *saved, const float *row, const srnn_problem *p, int64_t b,
                int64_t t, bool counts) {
    for (int h = 0; h < p->H; h++) {
        const head_sums to = in_arrays(saved, p, b, h, t);
        copy(to, in_row(row, p, h), p->Dv);
        if (counts)
            continue;
        memset(to.numerator, 0, (size_t)p->Dv * sizeof *to.numerator);
        *to.row_sum = 0;
    }
}

void sr_sums_add(const sr_saved *saved, const float *row, const srnn_problem *p, int64_t b,
                 int64_t t) {
    for (int h = 0; h < p->H; h++)
        add(in_arrays(saved, p, b, h, t), in_row(row, p, h), p->Dv);
}
