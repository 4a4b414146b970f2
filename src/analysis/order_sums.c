/* order_sums.c: statistics of one head's logits, accumulated row by row. */
#include "analysis/order_sums.h"

#include <math.h>

/* Vectors of eight; the compiler maps them to the machine's. */
enum { LANES = 8 };
typedef double lanes __attribute__((vector_size(LANES * sizeof(double))));

/* Powers of numbers below 1 start from here, to use the whole range of double. */
#define START 0x1p900
static const int start_exponent = 900;

int sr_order_sums_scratch(int count) {
    return 2 * ((count + LANES - 1) / LANES * LANES);
}

/* Moments by rows (Chan, Golub and LeVeque): stable, and one division a row. */
static void add_moments(sr_order_sums *sums, const double *x, int count) {
    double sum = 0, squares = 0, least = x[0], most = x[0];
    for (int j = 0; j < count; j++) {
        sum += x[j];
        least = x[j] < least ? x[j] : least;
        most = x[j] > most ? x[j] : most;
    }
    const double mean = sum / count;
    for (int j = 0; j < count; j++)
        squares += (x[j] - mean) * (x[j] - mean);
    const double before = (double)sums->pairs, all = before + count, apart = mean - sums->mean;
    sums->mean += apart * count / all;
    sums->squares += squares + apart * apart * before * count / all;
    sums->least = sums->pairs && sums->least < least ? sums->least : least;
    sums->most = sums->pairs && sums->most > most ? sums->most : most;
    sums->pairs += count;
    sums->rows++;
}

/* If this row has larger logits than before, rescales the sums exactly. */
static void widen(sr_order_sums *sums, const double *x, int count, int orders) {
    double largest = 0;
    int exponent;
    for (int j = 0; j < count; j++)
        largest = fabs(x[j]) > largest ? fabs(x[j]) : largest;
    frexp(largest, &exponent);
    if (largest == 0 || (sums->rows > 0 && exponent <= sums->exponent))
        return;
    for (int n = 1; n <= orders; n++) {
        sums->plain[n] = ldexp(sums->plain[n], n * (sums->exponent - exponent));
        sums->weighted[n] = ldexp(sums->weighted[n], n * (sums->exponent - exponent));
    }
    sums->exponent = exponent;
}

/* weights (count) = softmax of x, at most `most`. */
static void softmax(double *weights, const double *x, int count, double most) {
    double largest = x[0], sum = 0;
    for (int j = 1; j < count; j++)
        largest = x[j] > largest ? x[j] : largest;
    largest = largest > most ? most : largest;
    for (int j = 0; j < count; j++)
        sum += weights[j] = exp((x[j] > most ? most : x[j]) - largest);
    for (int j = 0; j < count; j++)
        weights[j] /= sum;
}

static void add_logs(sr_order_sums *sums, const double *x, const double *weights, int count) {
    for (int j = 0; j < count; j++) {
        const double size = log(fabs(x[j]));
        sums->logs += size;
        sums->weighted_logs += weights[j] > 0 ? weights[j] * size : 0;
    }
}

static double sum_of(const lanes *x) {
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += (*x)[lane];
    return sum;
}

/* Adds the powers 1 .. orders of `small` (blocks of lanes, each number at most 1), plain and
 * weighted. */
static void add_powers(sr_order_sums *sums, const lanes *small, lanes *weights, lanes *powers,
                       int blocks, int orders) {
    for (int n = 1; n <= orders; n++) {
        lanes plain = {0}, weighted = {0};
        for (int block = 0; block < blocks; block++) {
            powers[block] *= small[block];
            plain += powers[block];
            weighted += powers[block] * weights[block];
        }
        sums->plain[n] += sum_of(&plain);
        sums->weighted[n] += sum_of(&weighted);
    }
}

void sr_order_sums_add(sr_order_sums *sums, const double *x, int count, double clamp, int orders,
                       double *scratch) {
    enum { TILE = 32 }; /* blocks whose powers stay in the L1 cache */
    const int padded = sr_order_sums_scratch(count) / 2;
    double *small = scratch, *weights = scratch + padded;
    widen(sums, x, count, orders);
    const double scale = ldexp(1, -sums->exponent);
    softmax(weights, x, count, clamp > 0 ? clamp : INFINITY);
    for (int j = 0; j < count; j++)
        small[j] = scale * fabs(x[j]);
    for (int j = count; j < padded; j++)
        small[j] = weights[j] = 0;
    add_logs(sums, x, weights, count);
    for (int j = 0; j < padded; j += TILE * LANES) {
        const int left = (padded - j) / LANES, blocks = left < TILE ? left : TILE;
        lanes powers[TILE];
        for (int block = 0; block < blocks; block++)
            powers[block] = (lanes){0} + START;
        add_powers(sums, (const lanes *)(const void *)(small + j), (lanes *)(void *)(weights + j),
                   powers, blocks, orders);
    }
    sr_histogram_add(&sums->histogram, x, count);
    add_moments(sums, x, count);
}

double sr_order_sums_deviation(const sr_order_sums *sums) {
    return sums->pairs > 0 ? sqrt(sums->squares / (double)sums->pairs) : 0;
}

/* log of a mean of powers: of `sum` over `count` pairs or rows. Exponents of two are summed as
 * integers, to lose no digits. */
static double log_mean(const sr_order_sums *sums, double sum, double count, int n) {
    int exponent;
    const double fraction = frexp(sum / count, &exponent);
    return log(fraction) + (double)(exponent - start_exponent + n * sums->exponent) * M_LN2 -
           lgamma((double)n + 1);
}

double sr_order_size_of(const sr_order_sums *sums, sr_order_size size, int n) {
    const double pairs = (double)sums->pairs, rows = (double)sums->rows;
    if (n == 0)
        return 0;
    switch (size) {
    case SR_SIZE_LOG_MEAN:
        return log_mean(sums, sums->plain[n], pairs, n);
    case SR_SIZE_LOG_MEAN_WEIGHTED:
        return log_mean(sums, sums->weighted[n], rows, n);
    case SR_SIZE_MEAN_LOG:
        return n * (sums->logs / pairs) - lgamma((double)n + 1);
    case SR_SIZE_MEAN_LOG_WEIGHTED:
        return n * (sums->weighted_logs / rows) - lgamma((double)n + 1);
    case SR_ORDER_SIZES:
        break;
    }
    return NAN;
}

double sr_order_size_reference(const sr_order_sums *sums, int n, int64_t square_pairs) {
    const double share = (double)sums->pairs / (double)square_pairs;
    if (n == 0)
        return 1;
    return n == 1 ? sums->mean * share : exp(sr_order_size_of(sums, SR_SIZE_LOG_MEAN, n)) * share;
}

int sr_order_dominant(const sr_order_sums *sums, sr_order_size size, int orders) {
    int dominant = 0;
    for (int n = 1; n <= orders; n++)
        if (sr_order_size_of(sums, size, n) > sr_order_size_of(sums, size, dominant))
            dominant = n;
    return dominant;
}
