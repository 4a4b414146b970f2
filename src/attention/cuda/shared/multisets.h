/* multisets.h (private): the symmetric basis in which a power of q.k is a plain inner product, as a
 * table in device memory: the features of src/attention/cpu/shared/features.h in their order. */
#ifndef SR_ATTENTION_CUDA_SHARED_MULTISETS_H
#define SR_ATTENTION_CUDA_SHARED_MULTISETS_H

#include "attention/kernel.h"
#include "base/memory.h"
#include "device/cuda/platform.h"

/* Feature m is scale[m] times the product of x[variable[m][n]] over n < order[m]. */
struct sr_feature_table {
    float *scale;      /* (count) */
    uint8_t *order;    /* (count) */
    uint8_t *variable; /* (count, highest + 1) */
    int64_t count;
    int highest;
};

/* Takes it from `layout`, for keys of p->D numbers; and fills it. */
sr_feature_table sr_feature_table_place(const srnn_problem *p, sr_layout *layout);
srnn_status sr_feature_table_fill(const sr_feature_table &table, const srnn_problem *p,
                                  cudaStream_t stream);

SR_DEVICE float feature_of(const sr_feature_table &table, int64_t m, const float *x) {
    const uint8_t *const variable = table.variable + m * (table.highest + 1);
    float product = table.scale[m];
    for (int n = 0; n < table.order[m]; n++)
        product *= x[variable[n]];
    return product;
}

#endif
