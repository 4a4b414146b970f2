/* rope.c: the angles of rotary position, with Hugging Face's scalings. */
#include "model/layer/rope.h"

#include <math.h>

/* Llama 3: waves longer than the original context are slowed down by the factor, waves much
 * shorter than it stay. */
static double scale_llama3(double frequency, const sr_rope_scaling *s) {
    const double rotations = (double)s->original_positions * frequency / (2.0 * acos(-1.0));
    if (rotations < s->low_frequency_factor)
        return frequency / s->factor;
    if (rotations > s->high_frequency_factor)
        return frequency;
    const double smooth = (rotations - s->low_frequency_factor) /
                          (s->high_frequency_factor - s->low_frequency_factor);
    return (1.0 - smooth) * frequency / s->factor + smooth * frequency;
}

/* The channel, between channels, whose wave rotations so often over the original context. */
static double channel_of_rotations(double rotations, int D, double theta,
                                   const sr_rope_scaling *s) {
    return D * log((double)s->original_positions / (rotations * 2.0 * acos(-1.0))) /
           (2.0 * log(theta));
}

/* YaRN (arXiv:2309.00071), with transformers' limits of the slope. */
static double scale_yarn(double frequency, int c, int D, double theta, const sr_rope_scaling *s) {
    double low = channel_of_rotations(s->fast_rotations, D, theta, s);
    double high = channel_of_rotations(s->slow_rotations, D, theta, s);
    if (!s->fractional) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, D - 1);
    if (low == high)
        high += 0.001;
    const double slowed = fmin(fmax((c - low) / (high - low), 0), 1);
    return frequency / s->factor * slowed + frequency * (1 - slowed);
}

/* Of channel c's angle, in radians a position. */
static double frequency_of(int c, int D, double theta, const sr_rope_scaling *scaling) {
    const double frequency = pow(theta, -2.0 * c / D);
    switch (scaling->kind) {
    case SR_ROPE_DEFAULT:
        return frequency;
    case SR_ROPE_LINEAR:
        return frequency / scaling->factor;
    case SR_ROPE_LLAMA3:
        return scale_llama3(frequency, scaling);
    case SR_ROPE_YARN:
        return scale_yarn(frequency, c, D, theta, scaling);
    case SR_ROPE_LONG:
        return c < SR_ROPE_DIVISORS && scaling->divisors[c] > 0 ? frequency / scaling->divisors[c]
                                                                : frequency;
    }
    return NAN;
}

void sr_rope_rows(float *rows, int64_t first, int64_t count, int D, double theta,
                  const sr_rope_scaling *scaling) {
    const int half = D / 2;
    const bool scaled = scaling->kind == SR_ROPE_YARN || scaling->kind == SR_ROPE_LONG;
    const double amplitude = scaled ? scaling->amplitude : 1;
    for (int c = 0; c < half; c++) {
        const double frequency = frequency_of(c, D, theta, scaling);
        for (int64_t p = 0; p < count; p++) {
            rows[p * D + c] = (float)(amplitude * cos((double)(first + p) * frequency));
            rows[p * D + half + c] = (float)(amplitude * sin((double)(first + p) * frequency));
        }
    }
}

void sr_rope_table(float *table, int64_t positions, int D, double theta,
                   const sr_rope_scaling *scaling) {
    sr_rope_rows(table, 0, positions, D, theta, scaling);
}
