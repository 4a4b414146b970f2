/* pair.h (private): two mixers of one input, side by side in a block (Falcon-H1):
 * y = f1 first(e1 x) + f2 second(e2 x). */
#ifndef SR_MODEL_LAYER_PAIR_H
#define SR_MODEL_LAYER_PAIR_H

#include "model/layer/mixer.h"

typedef struct sr_pair_setup {
    sr_mixer parts[2];   /* the pair owns them, also if it cannot be made */
    float in[2], out[2]; /* e and f */
    int64_t rows, C;     /* of the input, at most */
} sr_pair_setup;

/* *mixer = the pair. Weights and gradients of the second are behind those of the first: each
 * sr_layer_pointers is an array of two. Observers see the first. */
srnn_status sr_mixer_of_pair(sr_mixer *mixer, sr_backend *backend, const sr_pair_setup *setup);

#endif
