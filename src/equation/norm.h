/* norm.h: facts about the norms of the equation, for the C and the CUDA compiler. No switch has a
 * default: the compiler demands an entry here for a new norm, and no other code compares norms to
 * find out their parts. */
#ifndef SR_EQUATION_NORM_H
#define SR_EQUATION_NORM_H

#include "softrnn.h"

#include <float.h>

#ifdef __CUDACC__
#define SR_NORM_FACT __host__ __device__ inline
#else
#define SR_NORM_FACT static inline
#endif

/* A learned weight for each channel. */
SR_NORM_FACT bool sr_norm_has_weight(srnn_norm norm) {
    switch (norm) {
    case SRNN_NORM_LAYER:
    case SRNN_NORM_RMS:
        return true;
    case SRNN_NORM_NONE:
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        return false;
    }
    return false;
}

/* The mean of the row is subtracted, and a learned bias added. */
SR_NORM_FACT bool sr_norm_is_centred(srnn_norm norm) {
    switch (norm) {
    case SRNN_NORM_LAYER:
        return true;
    case SRNN_NORM_NONE:
    case SRNN_NORM_RMS:
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        return false;
    }
    return false;
}

/* The row is divided by its length, so that a factor of the row cancels. */
SR_NORM_FACT bool sr_norm_is_length(srnn_norm norm) {
    switch (norm) {
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        return true;
    case SRNN_NORM_NONE:
    case SRNN_NORM_LAYER:
    case SRNN_NORM_RMS:
        return false;
    }
    return false;
}

/* The factor of a row of n numbers after it was divided by its length. */
SR_NORM_FACT float sr_norm_length_factor(srnn_norm norm, int n) {
    switch (norm) {
    case SRNN_NORM_L2_SCALED:
        return (float)n;
    case SRNN_NORM_NONE:
    case SRNN_NORM_LAYER:
    case SRNN_NORM_RMS:
    case SRNN_NORM_L2:
        break;
    }
    return 1;
}

/* The default epsilon, added to the mean square; 0: none. */
SR_NORM_FACT double sr_norm_usual_epsilon(srnn_norm norm) {
    switch (norm) {
    case SRNN_NORM_LAYER:
        return 1e-5;
    case SRNN_NORM_RMS:
        return (double)FLT_EPSILON;
    case SRNN_NORM_NONE:
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        break;
    }
    return 0;
}

#endif
