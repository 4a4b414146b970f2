/* rope.h: the angles of rotary position, with Hugging Face's scalings. */
#ifndef SR_MODEL_LAYER_ROPE_H
#define SR_MODEL_LAYER_ROPE_H

#include "base/status.h"

typedef enum sr_rope_scaling_kind {
    SR_ROPE_DEFAULT = 0,
    SR_ROPE_LINEAR, /* every angle divided by factor */
    SR_ROPE_LLAMA3, /* slow angles divided by factor, fast ones kept, a slope between */
    SR_ROPE_YARN,   /* the same with a slope over channels; cosines and sines times a number */
    SR_ROPE_LONG,   /* LongRoPE: every angle divided by a number of its own, times a number */
} sr_rope_scaling_kind;

enum { SR_ROPE_DIVISORS = 256 };

typedef struct sr_rope_scaling {
    sr_rope_scaling_kind kind;
    double factor;
    double low_frequency_factor, high_frequency_factor; /* llama3 */
    int64_t original_positions;                         /* llama3, yarn, long */
    double fast_rotations,
        slow_rotations;                /* yarn: faster angles are kept, slower ones interpolated */
    double amplitude;                  /* yarn, long: of cosines and sines */
    bool fractional;                   /* yarn: the slope begins and ends between channels */
    double divisors[SR_ROPE_DIVISORS]; /* long: of each angle; 0: there is none */
} sr_rope_scaling;

/* table (positions, D): the cosines of position p's D/2 angles, then their sines. */
void sr_rope_table(float *table, int64_t positions, int D, double theta,
                   const sr_rope_scaling *scaling);

/* rows (count, D): those of the table from position `first` on. */
void sr_rope_rows(float *rows, int64_t first, int64_t count, int D, double theta,
                  const sr_rope_scaling *scaling);

#endif
