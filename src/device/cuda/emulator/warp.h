/* warp.h: collective instructions of a warp: operands of sr_emulator_collect, and the functions
 * that perform them. */
#ifndef SR_EMULATOR_WARP_H
#define SR_EMULATOR_WARP_H

#include "device/cuda/emulator/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* value = that of lane `from`; 8 bytes are moved. */
typedef struct sr_emulated_shuffle {
    uint64_t value;
    int from;
} sr_emulated_shuffle;
void sr_emulator_shuffle(void *const *operands);

/* ballot: bit l is the truth of lane l. */
typedef struct sr_emulated_vote {
    uint32_t ballot;
    bool truth;
} sr_emulated_vote;
void sr_emulator_vote(void *const *operands);

/* The fragments of ../ptx.h. */
typedef struct sr_emulated_mma {
    float *c;
    const uint32_t *a, *b;
} sr_emulated_mma;
void sr_emulator_mma_bf16(void *const *operands);
void sr_emulator_mma_tf32(void *const *operands);

/* `count` matrices of 8 x 8 from or to the rows whose addresses lane 8 m + r gives. */
typedef struct sr_emulated_matrices {
    uint32_t *fragment;
    void *row;
    int count;
} sr_emulated_matrices;
void sr_emulator_matrices_load(void *const *operands);
void sr_emulator_matrices_load_transposed(void *const *operands);
void sr_emulator_matrices_store(void *const *operands);
void sr_emulator_matrices_store_transposed(void *const *operands);

#ifdef __cplusplus
}
#endif

#endif
