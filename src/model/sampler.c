/* sampler.c: choosing the next token from logits. */
#include "model/sampler.h"

#include "base/memory.h"
#include "base/random.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FINE = 64,               /* buckets in a factor of e */
    FAR = 64,                /* factors of e: what is less probable than that weighs nothing */
    BUCKETS = FAR * FINE + 1 /* the last one for these */
};

typedef struct candidate {
    int32_t token;
    float logit, weight;
} candidate;

/* Tokens are put into buckets by their probability relative to the most probable one, so that only
 * the few buckets in which a limit lies have to be sorted. */
struct sr_sampler {
    sr_sampler_settings settings;
    int V;
    float *weights;        /* (V): relative to that of the most probable */
    int32_t *bucket_of;    /* (V) */
    candidate *candidates; /* (V at most): those of one bucket, in order */
    int64_t count[BUCKETS];
    double mass[BUCKETS];
};

/* The tokens of the buckets before `bucket`, and the first `rest` of its own: they weigh `mass` in
 * all. */
typedef struct prefix {
    int bucket;
    int64_t rest;
    double mass;
} prefix;

srnn_status sr_sampler_create(sr_sampler **sampler, const sr_sampler_settings *settings, int V) {
    void *memory;
    *sampler = NULL;
    if (!(settings->temperature >= 0) || settings->top_k < 0 || !(settings->top_p >= 0) ||
        settings->top_p > 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "temperature and top-k must be 0 or more, top-p between 0 and 1");
    if (V < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "there is no token to choose");
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **sampler));
    sr_sampler *made = memory;
    made->settings = *settings;
    made->V = V;
    made->weights = malloc((size_t)V * sizeof *made->weights);
    made->bucket_of = malloc((size_t)V * sizeof *made->bucket_of);
    made->candidates = malloc((size_t)V * sizeof *made->candidates);
    if (!made->weights || !made->bucket_of || !made->candidates) {
        sr_sampler_free(made);
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory to choose from %d tokens", V);
    }
    *sampler = made;
    return SRNN_OK;
}

void sr_sampler_free(sr_sampler *sampler) {
    if (!sampler)
        return;
    free(sampler->weights);
    free(sampler->bucket_of);
    free(sampler->candidates);
    free(sampler);
}

static int32_t most_probable(const float *logits, int V) {
    int32_t best = 0;
    for (int32_t token = 1; token < V; token++)
        if (logits[token] > logits[best] || isnan(logits[best]))
            best = token;
    return best;
}

static float number_or_least(float logit) {
    return isnan(logit) ? -INFINITY : logit;
}

/* The largest number; -infinity if there is none. Eight at a time, which compilers make vectors
 * of. */
static float largest(const float *logits, int V) {
    enum { LANES = 8 };
    float best[LANES], all = -INFINITY;
    int token = 0;
    for (int i = 0; i < LANES; i++)
        best[i] = -INFINITY;
    for (; token + LANES <= V; token += LANES)
        for (int i = 0; i < LANES; i++)
            best[i] = logits[token + i] > best[i] ? logits[token + i] : best[i];
    for (; token < V; token++)
        all = logits[token] > all ? logits[token] : all;
    for (int i = 0; i < LANES; i++)
        all = best[i] > all ? best[i] : all;
    return all;
}

/* e^-x for x from 0 to FAR, nothing beyond: to about 22 bits near the best token, 18 far from it.
 * Written so that compilers make vectors of it. */
static float decay(float x) {
    const float power = x * -1.44269504f;
    const int32_t whole = (int32_t)(power - 0.5f); /* never positive: the nearest */
    const float f = (power - (float)whole) * 0.693147181f;
    const float series =
        1 + f * (1 + f * (0.5f +
                          f * (1 / 6.0f + f * (1 / 24.0f + f * (1 / 120.0f + f * (1 / 720.0f))))));
    const uint32_t bits = (uint32_t)(whole + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    const float in_range = x < FAR ? 1 : 0; /* a product, so that nothing is left out of a vector */
    return series * scale * in_range;
}

/* Weights and buckets of all tokens. */
static void weigh(float *weights, int32_t *bucket_of, const float *logits, int V,
                  const sr_sampler_settings *settings) {
    const float best = largest(logits, V), far = FAR;
    const float cold = (float)fmin(1 / settings->temperature, (double)FLT_MAX);
    if (isinf(best)) { /* all that are as good, and no others */
        for (int token = 0; token < V; token++) {
            weights[token] = logits[token] == best ? 1 : 0; /* a NaN equals nothing */
            bucket_of[token] = weights[token] > 0 ? 0 : BUCKETS - 1;
        }
        return;
    }
    for (int token = 0; token < V; token++) {
        const float difference = (best - logits[token]) * cold;
        weights[token] = difference < far ? difference : far; /* so is a NaN */
    }
    for (int token = 0; token < V; token++) {
        bucket_of[token] = (int32_t)(weights[token] * FINE);
        weights[token] = decay(weights[token]);
    }
}

static void fill_buckets(sr_sampler *sampler) {
    memset(sampler->count, 0, sizeof sampler->count);
    memset(sampler->mass, 0, sizeof sampler->mass);
    for (int token = 0; token < sampler->V; token++) {
        sampler->count[sampler->bucket_of[token]]++;
        sampler->mass[sampler->bucket_of[token]] += (double)sampler->weights[token];
    }
}

/* More probable first, then by token. */
static int compare(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

/* Puts the tokens of a bucket in order. */
static void sort_bucket(sr_sampler *sampler, const float *logits, int bucket) {
    size_t count = 0;
    for (int32_t token = 0; token < sampler->V; token++)
        if (sampler->bucket_of[token] == bucket)
            sampler->candidates[count++] =
                (candidate){token, number_or_least(logits[token]), sampler->weights[token]};
    qsort(sampler->candidates, count, sizeof *sampler->candidates, compare);
}

/* The k most probable. */
static prefix first_tokens(sr_sampler *sampler, const float *logits, int64_t k) {
    prefix p = {0, k, 0};
    while (p.rest > sampler->count[p.bucket]) {
        p.rest -= sampler->count[p.bucket];
        p.mass += sampler->mass[p.bucket++];
    }
    if (p.rest == sampler->count[p.bucket]) {
        p.mass += sampler->mass[p.bucket];
        return p;
    }
    sort_bucket(sampler, logits, p.bucket);
    for (int64_t i = 0; i < p.rest; i++)
        p.mass += (double)sampler->candidates[i].weight;
    return p;
}

/* The most probable of `all` that weigh `wanted` together; at least one. */
static prefix first_mass(sr_sampler *sampler, const float *logits, const prefix *all,
                         double wanted) {
    prefix p = {0, 0, 0};
    while (p.bucket < all->bucket &&
           (sampler->count[p.bucket] == 0 || p.mass + sampler->mass[p.bucket] < wanted))
        p.mass += sampler->mass[p.bucket++];
    const int64_t most = p.bucket < all->bucket ? sampler->count[p.bucket] : all->rest;
    sort_bucket(sampler, logits, p.bucket);
    do
        p.mass += (double)sampler->candidates[p.rest++].weight;
    while (p.rest < most && p.mass < wanted && sampler->candidates[p.rest].weight > 0);
    return p;
}

/* Which tokens may be chosen: first the k most probable, then of these, as if there were no others,
 * the most probable that make up p. */
static prefix allowed(sr_sampler *sampler, const float *logits) {
    const sr_sampler_settings *s = &sampler->settings;
    const int count = s->top_k > 0 && s->top_k < sampler->V ? s->top_k : sampler->V;
    const prefix all = first_tokens(sampler, logits, count);
    if (!(s->top_p > 0 && s->top_p < 1))
        return all;
    return first_mass(sampler, logits, &all, s->top_p * all.mass);
}

int32_t sr_sampler_choose(sr_sampler *sampler, const float *logits, uint64_t sequence,
                          uint64_t position) {
    if (sampler->settings.temperature == 0)
        return most_probable(logits, sampler->V);
    weigh(sampler->weights, sampler->bucket_of, logits, sampler->V, &sampler->settings);
    fill_buckets(sampler);
    const prefix all = allowed(sampler, logits);
    const double share = sr_random_uniform(sampler->settings.seed, sequence, position);
    /* The token that the point falls on is the last of those that weigh so much. */
    const prefix chosen = first_mass(sampler, logits, &all, share * all.mass);
    return sampler->candidates[chosen.rest - 1].token;
}
