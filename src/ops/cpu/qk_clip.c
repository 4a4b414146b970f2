/* qk_clip.c: the largest scores of heads, and weights that make them smaller. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>

enum { TILE = 16384 };

typedef struct score_job {
    const sr_cpu_rows *loops;
    const sr_scores *scores;
    float *largest;
} score_job;

/* All rows of one head: a maximum does not depend on the order. */
static void look_at_head(void *context, int64_t head, int worker) {
    (void)worker;
    const score_job *job = context;
    const sr_scores *s = job->scores;
    const int64_t shared = head / (s->H / s->Hkv);
    float largest = 0;
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t i = 0; i < s->T; i++) {
            const int64_t before = s->positions[b * s->T + i];
            const int64_t count = s->window > 0 ? sr_min(before + 1, s->window) : before + 1;
            const float *q = (const float *)s->q.data + b * s->q.batch + head * s->q.head;
            const float *k = (const float *)s->k.data + b * s->k.batch + shared * s->k.head;
            const float found =
                job->loops->largest_product(q + i * s->q.time, k + (i + 1 - count) * s->k.time,
                                            s->k.time, count, s->D);
            largest = found > largest ? found : largest;
        }
    if (s->scale * largest > job->largest[head])
        job->largest[head] = s->scale * largest;
}

srnn_status sr_cpu_largest_scores(sr_backend *backend, float *largest, const sr_scores *of) {
    score_job job = {sr_cpu_rows_of(backend), of, largest};
    sr_parallel(look_at_head, &job, of->H, backend->threads);
    return SRNN_OK;
}

static float factor_of(const sr_head_weights *w, int64_t head) {
    float largest = 0;
    for (int64_t part = 0; part < w->parts; part++)
        largest = fmaxf(largest, w->largest[part * w->stride + head]);
    if (!(largest > w->limit) || !isfinite(largest))
        return 1;
    const float factor = w->limit / largest;
    return w->root ? sqrtf(factor) : factor;
}

static void limit_tile(void *context, int64_t task, int worker) {
    (void)worker;
    const sr_head_weights *w = context;
    const int64_t end = sr_min((task + 1) * TILE, w->n);
    for (int64_t i = task * TILE; i < end;) {
        const int64_t head = (w->first + i) / w->head_numbers;
        const int64_t last = sr_min((head + 1) * w->head_numbers - w->first, end);
        const float factor = factor_of(w, head);
        for (; i < last; i++)
            w->weight[i] *= factor;
    }
}

srnn_status sr_cpu_limit_scores(sr_backend *backend, const sr_step_stats *stats,
                                const sr_head_weights *of) {
    sr_head_weights job = *of;
    if (stats->applied)
        sr_parallel(limit_tile, &job, sr_tiles(of->n, TILE), backend->threads);
    return SRNN_OK;
}
