/* head.c: errors of one head's weights and outputs when the series of exp is truncated. */
#include "analysis/truncated/head.h"

#include <math.h>
#include <string.h>

/* Below this the plain sum of the series loses digits that matter; above this exp overflows. */
static const double cancels = -8, overflows = 690;

/* Terms of the series below this fraction of exp(x) are negligible. */
static const double vanishes = 1e-20;

/* Reciprocals, and the last term computed: if |x| is at most the order, later ones are
 * negligible. */
enum { FAR = 3 * SR_TAYLOR_ORDER_MAX };
typedef struct reciprocals {
    double of[FAR + 1]; /* from 1 on */
    int far;
} reciprocals;

const char *sr_centre_name(sr_centre centre) {
    switch (centre) {
    case SR_CENTRE_ZERO:
        return "zero";
    case SR_CENTRE_HEAD_MEAN:
        return "head mean";
    case SR_CENTRE_HEAD_MIDDLE:
        return "head middle";
    case SR_CENTRE_ROW_MEAN:
        return "row mean";
    case SR_CENTRE_ROW_MIDDLE:
        return "row middle";
    case SR_CENTRES:
        break;
    }
    return "";
}

int sr_centre_count(const srnn_attention *attention) {
    return sr_row_scale_invariant(attention) ? SR_CENTRES : 1;
}

int sr_cut_order(int cut) {
    enum { FINE = 32, COARSE = 64 };
    const int fine = FINE / 2, coarse = fine + (COARSE - FINE) / 4;
    if (cut == 0)
        return 1;
    if (cut <= fine)
        return 2 * cut;
    return cut <= coarse ? FINE + 4 * (cut - fine) : COARSE + 8 * (cut - coarse);
}

int sr_cut_count(int most_order) {
    int count = 0;
    while (count < SR_CUTS && sr_cut_order(count) <= most_order)
        count++;
    return count;
}

/* Scratch: the table of T_N, and arrays of one row. */
typedef struct parts {
    double *table;              /* (cuts, count) */
    double *x, *term, *sum;     /* (count) each */
    double *weights;            /* (count) untruncated */
    double *output, *truncated; /* (D) each */
} parts;

size_t sr_truncation_scratch(int count, int D, int most_order) {
    return (size_t)count * (size_t)(sr_cut_count(most_order) + 4) + 2 * (size_t)D;
}

static parts parts_of(double *scratch, const sr_truncation_row *row, int cuts) {
    const size_t count = (size_t)row->facts.count;
    double *x = scratch + count * (size_t)cuts;
    return (parts){.table = scratch,
                   .x = x,
                   .term = x + count,
                   .sum = x + 2 * count,
                   .weights = x + 3 * count,
                   .output = x + 4 * count,
                   .truncated = x + 4 * count + row->facts.D};
}

/* table (cuts) of one column, for x far below zero: orders from |x| on are exp(x) minus the rest of
 * the series, whose terms alternate and decrease. The rest is summed from its negligible terms
 * upwards. */
static void mend(double *table, int stride, double x, int cuts, const reciprocals *one_by) {
    const double whole = exp(x), enough = vanishes * whole, inverse_x = 1 / x;
    double term = 1, rest = 0;
    int n = 0, cut = cuts - 1;
    if (sr_cut_order(cut) < -x)
        return;
    while (n < one_by->far && (n < -x || fabs(term) > enough))
        term *= x * one_by->of[++n];
    for (; cut >= 0 && sr_cut_order(cut) >= -x; n--) {
        for (; cut >= 0 && sr_cut_order(cut) >= n && sr_cut_order(cut) >= -x; cut--)
            table[(size_t)cut * (size_t)stride] = whole - rest;
        rest += term;
        term *= n * inverse_x;
    }
}

/* p->table = T_N(p->x) for all cuts. */
static void fill_table(const parts *p, int count, int most_order) {
    const int cuts = sr_cut_count(most_order);
    const int far = 3 * most_order > most_order + 48 ? 3 * most_order : most_order + 48;
    reciprocals one_by;
    one_by.far = far < FAR ? far : FAR;
    for (int n = 1; n <= one_by.far; n++)
        one_by.of[n] = 1.0 / n;
    for (int j = 0; j < count; j++)
        p->term[j] = p->sum[j] = 1;
    for (int n = 1, cut = 0; n <= most_order; n++) {
        for (int j = 0; j < count; j++) {
            p->term[j] *= p->x[j] * one_by.of[n];
            p->sum[j] += p->term[j];
        }
        if (cut < cuts && n == sr_cut_order(cut))
            memcpy(p->table + (size_t)count * (size_t)cut++, p->sum,
                   (size_t)count * sizeof *p->sum);
    }
    for (int j = 0; j < count; j++)
        if (p->x[j] < cancels)
            mend(p->table + j, count, p->x[j], cuts, &one_by);
}

/* out (D) = the layer's output for these weights. */
static void mix(double *out, const double *weights, double row_sum, const sr_truncation_row *row) {
    const int D = row->facts.D;
    for (int d = 0; d < D; d++)
        out[d] = 0;
    for (int j = 0; j < row->facts.count; j++)
        for (int d = 0; d < D; d++)
            out[d] += weights[j] * row->v[(size_t)j * (size_t)D + (size_t)d];
    sr_row_finish(out, &row->facts, row_sum);
}

static double sum_of(const double *x, int count) {
    double sum = 0;
    for (int j = 0; j < count; j++)
        sum += x[j];
    return sum;
}

static double middle_of(const double *s, int count) {
    double least = s[0], most = s[0];
    for (int j = 1; j < count; j++) {
        least = s[j] < least ? s[j] : least;
        most = s[j] > most ? s[j] : most;
    }
    return (least + most) / 2;
}

static double centre_of(sr_centre centre, const sr_truncation_row *row) {
    switch (centre) {
    case SR_CENTRE_ZERO:
        return 0;
    case SR_CENTRE_HEAD_MEAN:
        return row->head_mean;
    case SR_CENTRE_HEAD_MIDDLE:
        return row->head_middle;
    case SR_CENTRE_ROW_MEAN:
        return sum_of(row->s, row->facts.count) / row->facts.count;
    case SR_CENTRE_ROW_MIDDLE:
        return middle_of(row->s, row->facts.count);
    case SR_CENTRES:
        break;
    }
    return NAN;
}

/* The normalisation that makes weights comparable: their sum if only ratios matter, else the
 * layer's denominator. */
static double unit_of(const sr_row_facts *facts, double row_sum) {
    return sr_row_scale_invariant(facts->attention) ? row_sum : sr_row_denominator(facts, row_sum);
}

/* The untruncated weights and output. */
static void fill_whole(const parts *p, const sr_truncation_row *row) {
    const int count = row->facts.count;
    const srnn_attention *a = row->facts.attention;
    double shift = 0;
    if (sr_row_scale_invariant(a)) {
        shift = row->s[0];
        for (int j = 1; j < count; j++)
            shift = row->s[j] > shift ? row->s[j] : shift;
        shift = a->clamp > 0 && shift > a->clamp ? a->clamp : shift;
    }
    for (int j = 0; j < count; j++)
        p->weights[j] = sr_row_weight(a, row->s[j], shift);
    const double row_sum = sum_of(p->weights, count);
    mix(p->output, p->weights, row_sum, row);
    const double unit = unit_of(&row->facts, row_sum);
    for (int j = 0; j < count; j++)
        p->weights[j] /= unit;
}

static void add_cut(double *weights, double *outputs, const parts *p, const double *table,
                    const sr_truncation_row *row) {
    const double row_sum = sum_of(table, row->facts.count), unit = unit_of(&row->facts, row_sum);
    double differences = 0;
    for (int j = 0; j < row->facts.count; j++) {
        const double apart = table[j] / unit - p->weights[j];
        differences += apart * apart;
    }
    *weights += unit != 0 ? differences : INFINITY;
    mix(p->truncated, table, row_sum, row);
    differences = 0;
    for (int d = 0; d < row->facts.D; d++)
        differences += (p->truncated[d] - p->output[d]) * (p->truncated[d] - p->output[d]);
    *outputs += unit != 0 ? differences : INFINITY;
}

/* False if a logit is so far from the centre that exp overflows. */
static bool shift(const parts *p, const sr_truncation_row *row, double centre) {
    bool fits = true;
    for (int j = 0; j < row->facts.count; j++) {
        p->x[j] = row->s[j] - centre;
        fits = fits && fabs(p->x[j]) < overflows;
    }
    return fits;
}

void sr_truncation_add(sr_truncation *sums, const sr_truncation_row *row, int most_order,
                       double *scratch) {
    const int cuts = sr_cut_count(most_order), count = row->facts.count;
    const parts p = parts_of(scratch, row, cuts);
    fill_whole(&p, row);
    for (int j = 0; j < count; j++)
        sums->weights_size += p.weights[j] * p.weights[j];
    for (int d = 0; d < row->facts.D; d++)
        sums->outputs_size += p.output[d] * p.output[d];
    for (int centre = 0; centre < sr_centre_count(row->facts.attention); centre++) {
        const bool fits = shift(&p, row, centre_of((sr_centre)centre, row));
        if (fits)
            fill_table(&p, count, most_order);
        for (int cut = 0; cut < cuts; cut++) {
            if (fits)
                add_cut(&sums->weights[centre][cut], &sums->outputs[centre][cut], &p,
                        p.table + (size_t)cut * (size_t)count, row);
            else
                sums->weights[centre][cut] = sums->outputs[centre][cut] = INFINITY;
        }
    }
}

void sr_truncation_output(double *out, const sr_truncation_row *row, sr_centre centre, int order,
                          double *scratch) {
    const int last = sr_cut_count(order) - 1, count = row->facts.count;
    const parts p = parts_of(scratch, row, last + 1);
    if (shift(&p, row, centre_of(centre, row))) {
        fill_table(&p, count, order);
        const double *table = p.table + (size_t)last * (size_t)count;
        mix(out, table, sum_of(table, count), row);
        return;
    }
    for (int d = 0; d < row->facts.D; d++)
        out[d] = NAN;
}

double sr_truncation_error(double differences, double size) {
    return size > 0 ? sqrt(differences / size) : differences > 0 ? INFINITY : 0;
}

int sr_order_needed(const double *errors, int cuts, double tolerance) {
    int needed = -1;
    for (int cut = cuts - 1; cut >= 0 && errors[cut] <= tolerance; cut--)
        needed = sr_cut_order(cut);
    return needed;
}
