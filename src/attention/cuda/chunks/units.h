/* units.h (private): features of unit length, as a factor of their rows. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_UNITS_H
#define SR_ATTENTION_CUDA_CHUNKS_UNITS_H

#include "attention/cuda/axes/call.h"

SR_BOTH bool unit_feature(srnn_feature feature) {
    return feature == SRNN_FEATURE_UNIT || feature == SRNN_FEATURE_UNIT_SMOOTH;
}

/* The factor of a row x with this <x, x>. */
SR_DEVICE float unit_inverse(srnn_feature feature, float square) {
    if (feature == SRNN_FEATURE_UNIT)
        return 1 / fmaxf(sqrtf(square), (float)SR_AXES_NORM_FLOOR);
    return rsqrtf(square + (float)SR_AXES_SMOOTH);
}

/* The gradient of x is that of its feature times the factor, d, less this times <x, d> x. */
SR_DEVICE float unit_along(srnn_feature feature, float inverse) {
    const bool floored = feature == SRNN_FEATURE_UNIT && !(inverse < 1 / (float)SR_AXES_NORM_FLOOR);
    return floored ? 0 : inverse * inverse;
}

#endif
