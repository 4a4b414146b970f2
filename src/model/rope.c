/* rope.c: the angles of rotary position, with Hugging Face's scalings. */
#include "model/rope.h"

#include <math.h>

/* Llama 3: waves longer than the original context are slowed down by the factor, waves much
 * shorter than it stay. */
static double scale_llama3(double frequency, const sr_rope_scaling *s) {
    const double turns = (double)s->original_positions * frequency / (2.0 * acos(-1.0));
    if (turns < s->low_frequency_factor)
        return frequency / s->factor;
    if (turns > s->high_frequency_factor)
        return frequency;
    const double smooth =
        (turns - s->low_frequency_factor) / (s->high_frequency_factor - s->low_frequency_factor);
    return (1.0 - smooth) * frequency / s->factor + smooth * frequency;
}

static double scale(double frequency, const sr_rope_scaling *scaling) {
    switch (scaling->kind) {
    case SR_ROPE_DEFAULT:
        return frequency;
    case SR_ROPE_LINEAR:
        return frequency / scaling->factor;
    case SR_ROPE_LLAMA3:
        return scale_llama3(frequency, scaling);
    }
    return NAN;
}

void sr_rope_rows(float *rows, int64_t first, int64_t count, int D, double theta,
                  const sr_rope_scaling *scaling) {
    const int half = D / 2;
    for (int c = 0; c < half; c++) {
        const double frequency = scale(pow(theta, -2.0 * c / D), scaling);
        for (int64_t p = 0; p < count; p++) {
            rows[p * D + c] = (float)cos((double)(first + p) * frequency);
            rows[p * D + half + c] = (float)sin((double)(first + p) * frequency);
        }
    }
}

void sr_rope_table(float *table, int64_t positions, int D, double theta,
                   const sr_rope_scaling *scaling) {
    sr_rope_rows(table, 0, positions, D, theta, scaling);
}
