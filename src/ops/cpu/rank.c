/* rank.c: Avey's ranker: which earlier chunks precede a chunk in its context, and their weights. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>
#include <string.h>

static const double SMALL = 1e-8; /* added to lengths and to the divisor */

typedef struct job {
    const sr_ranking *r;
    float *out, *d_e;
    const float *d_out;
    double *lengths; /* (B * N * chunk) of e */
    double *scores;  /* (B, N) of the query chunk */
    int *taken;      /* (B, chunks - 1) */
} job;

static int64_t tokens(const sr_ranking *r) {
    return r->N * r->chunk;
}

static size_t length_count(const sr_ranking *r) {
    return (size_t)(r->B * tokens(r));
}

size_t sr_cpu_rank_bytes(const sr_backend *backend, const sr_ranking *r) {
    (void)backend;
    return (length_count(r) + (size_t)(r->B * r->N)) * sizeof(double) +
           (size_t)(r->B * r->chunks) * sizeof(int);
}

static const float *row_of(const job *j, int64_t b, int64_t t) {
    return j->r->e + (b * j->r->stride + t) * j->r->C;
}

static float *gradient_of(const job *j, int64_t b, int64_t t) {
    return j->d_e + (b * j->r->stride + t) * j->r->C;
}

static double dot(const float *x, const float *y, int64_t n) {
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += (double)x[c] * (double)y[c];
    return sum;
}

static double inverse_length(const job *j, int64_t b, int64_t t) {
    return 1.0 / (j->lengths[b * tokens(j->r) + t] + SMALL);
}

/* The token of chunk p that is nearest to token t. */
static int64_t nearest(const job *j, int64_t b, int64_t t, int64_t p, double *cosine) {
    const int64_t c = j->r->chunk;
    int64_t best = p * c;
    *cosine = -INFINITY;
    for (int64_t other = p * c; other < (p + 1) * c; other++) {
        const double here = dot(row_of(j, b, t), row_of(j, b, other), j->r->C) *
                            inverse_length(j, b, t) * inverse_length(j, b, other);
        if (here > *cosine) {
            *cosine = here;
            best = other;
        }
    }
    return best;
}

/* The first token of the query chunk of chunk n. */
static int64_t asking(const job *j, int64_t n) {
    return (j->r->causal ? n - 1 : n) * j->r->chunk;
}

/* A chunk's scores of all earlier ones, and the chunks it selects, in order of time; returns their
 * number. */
static int choose(const job *j, int64_t b, int64_t n) {
    const sr_ranking *r = j->r;
    double *scores = j->scores + b * j->r->N;
    int *taken = j->taken + b * r->chunks, count = 0;
    const int most = n < r->chunks - 1 ? (int)n : r->chunks - 1;
    for (int64_t p = 0; p < n; p++) {
        scores[p] = 0;
        for (int64_t t = asking(j, n); t < asking(j, n) + r->chunk; t++) {
            double cosine;
            nearest(j, b, t, p, &cosine);
            scores[p] += cosine;
        }
    }
    for (int64_t p = 0; p < n; p++) { /* those that fewer than `most` others exceed */
        int better = 0;
        for (int64_t other = 0; other < n; other++)
            better += scores[other] > scores[p] || (scores[other] == scores[p] && other < p);
        if (better < most)
            taken[count++] = (int)p;
    }
    return count;
}

/* The chunk whose score is the divisor. */
static int divisor_of(const job *j, int64_t b, int count) {
    const double *scores = j->scores + b * j->r->N;
    const int *taken = j->taken + b * j->r->chunks;
    int best = taken[0]; /* the oldest */
    for (int i = 1; j->r->causal && i < count; i++)
        best = scores[taken[i]] > scores[best] ? taken[i] : best;
    return best;
}

static void rank_one(void *context, int64_t b, int worker) {
    (void)worker;
    const job *j = context;
    const sr_ranking *r = j->r;
    const int64_t chunk = r->chunk * j->r->C;
    for (int64_t n = j->r->first; n < j->r->N; n++) {
        float *to = j->out + (b * (j->r->N - j->r->first) + n - j->r->first) * r->chunks * chunk;
        const int count = choose(j, b, n);
        const int *taken = j->taken + b * r->chunks;
        memset(to, 0, (size_t)((r->chunks - 1 - count) * chunk) * sizeof *to);
        to += (r->chunks - 1 - count) * chunk;
        for (int i = 0; i < count; i++, to += chunk) {
            const double *scores = j->scores + b * j->r->N;
            const double weight = scores[taken[i]] / (scores[divisor_of(j, b, count)] + SMALL);
            const float *from = row_of(j, b, (int64_t)taken[i] * r->chunk);
            for (int64_t c = 0; c < chunk; c++)
                to[c] = (float)(weight * (double)from[c]);
        }
        memcpy(to, row_of(j, b, n * r->chunk), (size_t)chunk * sizeof *to);
    }
}

/* Adds `share` times the gradient of the cosine of tokens t and other to that of t. */
static void cosine_back(const job *j, int64_t b, int64_t t, int64_t other, double share) {
    const int64_t C = j->r->C;
    const float *x = row_of(j, b, t), *y = row_of(j, b, other);
    float *d_x = gradient_of(j, b, t);
    const double length = j->lengths[b * tokens(j->r) + t];
    const double mine = inverse_length(j, b, t), theirs = inverse_length(j, b, other);
    const double along = length > 0 ? dot(x, y, C) * mine * mine * theirs / length : 0;
    for (int64_t c = 0; c < C; c++)
        d_x[c] += (float)(share * ((double)y[c] * mine * theirs - along * (double)x[c]));
}

static void score_back(const job *j, int64_t b, int64_t n, int p, double d_score) {
    const int64_t first = asking(j, n);
    for (int64_t t = first; t < first + j->r->chunk; t++) {
        double cosine;
        const int64_t other = nearest(j, b, t, p, &cosine);
        cosine_back(j, b, t, other, d_score);
        cosine_back(j, b, other, t, d_score);
    }
}

/* One chunk's context; d_to: its rows that are not zeros. */
static void context_back(const job *j, int64_t b, int64_t n, int count, const float *d_to) {
    const sr_ranking *r = j->r;
    const int64_t chunk = r->chunk * j->r->C;
    const double *scores = j->scores + b * j->r->N;
    const int *taken = j->taken + b * r->chunks;
    const int reference = count ? divisor_of(j, b, count) : 0;
    const double divisor = count ? scores[reference] + SMALL : 1;
    double d_divisor = 0;
    for (int i = 0; i < count; i++, d_to += chunk) {
        const double weight = scores[taken[i]] / divisor;
        const int64_t first = (int64_t)taken[i] * r->chunk;
        const double d_weight = dot(d_to, row_of(j, b, first), chunk);
        float *d_from = gradient_of(j, b, first);
        for (int64_t c = 0; c < chunk; c++)
            d_from[c] += (float)(weight * (double)d_to[c]);
        d_divisor -= d_weight * weight / divisor;
        score_back(j, b, n, taken[i], d_weight / divisor);
    }
    if (count)
        score_back(j, b, n, reference, d_divisor);
    float *own = gradient_of(j, b, n * r->chunk);
    for (int64_t c = 0; c < chunk; c++)
        own[c] += d_to[c];
}

static void rank_one_back(void *context, int64_t b, int worker) {
    (void)worker;
    const job *j = context;
    const sr_ranking *r = j->r;
    const int64_t chunk = r->chunk * j->r->C;
    memset(gradient_of(j, b, 0), 0, (size_t)(tokens(r) * r->C) * sizeof *j->d_e);
    for (int64_t n = j->r->first; n < j->r->N; n++) {
        const int64_t made = b * (j->r->N - j->r->first) + n - j->r->first;
        const float *d_out = j->d_out + made * r->chunks * chunk;
        const int count = choose(j, b, n);
        context_back(j, b, n, count, d_out + (r->chunks - 1 - count) * chunk);
    }
}

static void measure(void *context, int64_t row, int worker) {
    (void)worker;
    const job *j = context;
    const float *x = row_of(j, row / tokens(j->r), row % tokens(j->r));
    j->lengths[row] = sqrt(dot(x, x, j->r->C));
}

static srnn_status run(sr_backend *backend, job *j, sr_task *task) {
    const sr_ranking *r = j->r;
    j->lengths = r->saved;
    j->scores = j->lengths + length_count(r);
    j->taken = (int *)(void *)(j->scores + r->B * r->N);
    sr_parallel(measure, j, (int64_t)length_count(r), backend->threads);
    sr_parallel(task, j, r->B, backend->threads);
    return SRNN_OK;
}

srnn_status sr_cpu_rank_forward(sr_backend *backend, float *out, const sr_ranking *ranking) {
    job j = {.r = ranking, .out = out};
    return run(backend, &j, rank_one);
}

srnn_status sr_cpu_rank_backward(sr_backend *backend, float *d_e, const float *d_out,
                                 const sr_ranking *ranking) {
    job j = {.r = ranking, .d_e = d_e, .d_out = d_out};
    return run(backend, &j, rank_one_back);
}
