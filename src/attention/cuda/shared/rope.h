/* rope.h: rotary position of one channel. */
#ifndef SR_ATTENTION_CUDA_SHARED_ROPE_H
#define SR_ATTENTION_CUDA_SHARED_ROPE_H

#include "device/cuda/platform.h"

/* A channel's number after the turn, from its own and that of the channel it turns with; the sine
 * is negative for the first half of a head. What is rounded is said here, so that all who turn have
 * the same bits. */
SR_DEVICE float turned(float own, float partner, float cosine, float sine) {
    return fmaf(own, cosine, partner * sine);
}

#endif
