/* sampler.c: choosing the next token from logits. */
#include "model/sampler.h"

#include "base/memory.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>

typedef struct candidate {
    int32_t token;
    float logit;
} candidate;

struct sr_sampler {
    sr_sampler_settings settings;
    int V;
    candidate *candidates; /* (V) */
};

srnn_status sr_sampler_create(sr_sampler **sampler, const sr_sampler_settings *settings, int V) {
    void *memory, *candidates;
    *sampler = NULL;
    if (!(settings->temperature >= 0) || settings->top_k < 0 || !(settings->top_p >= 0) ||
        settings->top_p > 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "temperature and top-k must be 0 or more, top-p between 0 and 1");
    SR_TRY(sr_alloc(&candidates, (size_t)V, sizeof(candidate)));
    const srnn_status status = sr_alloc_zero(&memory, 1, sizeof **sampler);
    if (status != SRNN_OK) {
        free(candidates);
        return status;
    }
    *sampler = memory;
    **sampler = (sr_sampler){.settings = *settings, .V = V, .candidates = candidates};
    return SRNN_OK;
}

void sr_sampler_free(sr_sampler *sampler) {
    if (!sampler)
        return;
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

/* More probable first, then by token. */
static int compare(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

/* Of a sorted candidate, relative to the first. */
static double weight_of(const sr_sampler *sampler, int i) {
    const double logit = (double)sampler->candidates[i].logit;
    const double first = (double)sampler->candidates[0].logit;
    return logit == first ? 1.0 : exp((logit - first) / sampler->settings.temperature);
}

static double mass_of(const sr_sampler *sampler, int count) {
    double mass = 0;
    for (int i = 0; i < count; i++)
        mass += weight_of(sampler, i);
    return mass;
}

/* How many of the sorted candidates may be chosen: first the k most probable, then of these, as if
 * there were no others, the most probable that make up p. */
static int allowed(const sr_sampler *sampler) {
    const sr_sampler_settings *s = &sampler->settings;
    const int count = s->top_k > 0 && s->top_k < sampler->V ? s->top_k : sampler->V;
    if (!(s->top_p > 0 && s->top_p < 1))
        return count;
    const double wanted = s->top_p * mass_of(sampler, count);
    double mass = 0;
    for (int i = 0; i < count; i++) {
        mass += weight_of(sampler, i);
        if (mass >= wanted)
            return i + 1;
    }
    return count;
}

int32_t sr_sampler_choose(sr_sampler *sampler, const float *logits, uint64_t sequence,
                          uint64_t position) {
    candidate *c = sampler->candidates;
    if (sampler->settings.temperature == 0)
        return most_probable(logits, sampler->V);
    for (int32_t token = 0; token < sampler->V; token++)
        c[token] = (candidate){token, isnan(logits[token]) ? -INFINITY : logits[token]};
    qsort(c, (size_t)sampler->V, sizeof *c, compare);
    const int count = allowed(sampler);
    double point =
        mass_of(sampler, count) * sr_random_uniform(sampler->settings.seed, sequence, position);
    for (int i = 0; i < count; i++) {
        point -= weight_of(sampler, i);
        if (point < 0)
            return c[i].token;
    }
    return c[count - 1].token;
}
