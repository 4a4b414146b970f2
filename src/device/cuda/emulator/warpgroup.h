/* warpgroup.h: Hopper's barriers that count bytes, bulk tensor copies and products of a warpgroup,
 * emulated. */
#ifndef SR_EMULATOR_WARPGROUP_H
#define SR_EMULATOR_WARPGROUP_H

#include "cuda.h"
#include "device/cuda/emulator/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- barriers: 8 bytes of shared memory ---- */

void sr_emulator_mbarrier_init(uint64_t *barrier, int arrivals);
void sr_emulator_mbarrier_arrive(uint64_t *barrier, int bytes); /* expecting so many bytes more */
void sr_emulator_mbarrier_wait(uint64_t *barrier, int parity);

/* ---- bulk tensor copies ---- */

void sr_emulator_tensor_load(void *shared, const CUtensorMap *map, uint64_t *barrier,
                             const int *at);
void sr_emulator_tensor_store(const CUtensorMap *map, const void *shared, const int *at);

/* ---- bulk copies without a map, and turns among blocks ---- */

void sr_emulator_bulk_store(void *global, const void *shared, int bytes);
void sr_emulator_bulk_add(float *global, const float *shared, int bytes);
bool sr_emulator_turn_has_come(const int *turn, int mine);
void sr_emulator_turn_pass(int *turn, int next);

/* ---- products: each warp has 16 of the 64 rows, so that warps multiply on their own ---- */

typedef struct sr_emulated_wgmma {
    float *d;                  /* (columns / 2) */
    const uint32_t *a;         /* (4), registers; NULL: in shared memory */
    uint64_t a_place, b_place; /* descriptors */
    bool transpose_a, transpose_b, add;
    int columns;
} sr_emulated_wgmma;

/* Starts a product; ends a batch of them; waits until at most `pending` batches are under way. */
void sr_emulator_wgmma(const sr_emulated_wgmma *product);
void sr_emulator_wgmma_commit(void);
void sr_emulator_wgmma_wait(int pending);

/* Where in the block's shared memory this is; an operand of a product there. */
uint32_t sr_emulator_shared_offset(const void *shared);

#ifdef __cplusplus
}
#endif

#endif
