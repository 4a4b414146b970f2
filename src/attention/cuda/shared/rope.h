/* rope.h: RoPE (rotary position embedding) of one channel. */
#ifndef SR_ATTENTION_CUDA_SHARED_ROPE_H
#define SR_ATTENTION_CUDA_SHARED_ROPE_H

#include "device/cuda/platform.h"

/* A channel's number after the rotation, from its own and that of its partner channel; the sine is
 * negative for the first half of a head. The rounding is fixed here, so that every kernel that
 * applies RoPE produces the same bits. */
SR_DEVICE float rotated(float own, float partner, float cosine, float sine) {
    return fmaf(own, cosine, partner * sine);
}

#endif
