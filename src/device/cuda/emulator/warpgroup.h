/* warpgroup.h: Hopper's mbarriers, TMA copies and warpgroup GEMM (wgmma), emulated. */
#ifndef SR_EMULATOR_WARPGROUP_H
#define SR_EMULATOR_WARPGROUP_H

#include "cuda.h"
#include "device/cuda/emulator/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- mbarriers: 8 bytes of shared memory ---- */

void sr_emulator_mbarrier_init(uint64_t *barrier, int arrivals);
void sr_emulator_mbarrier_arrive(uint64_t *barrier, int bytes); /* and expects `bytes` more */
void sr_emulator_mbarrier_wait(uint64_t *barrier, int parity);

/* ---- TMA ---- */

void sr_emulator_tensor_load(void *shared, const CUtensorMap *map, uint64_t *barrier,
                             const int *at);
void sr_emulator_tensor_store(const CUtensorMap *map, const void *shared, const int *at);

/* ---- bulk copies without a tensor map, and ordered additions of blocks ---- */

void sr_emulator_bulk_store(void *global, const void *shared, int bytes);
void sr_emulator_bulk_add(float *global, const float *shared, int bytes);
bool sr_emulator_ticket_is_due(const int *ticket, int mine);
void sr_emulator_ticket_pass(int *ticket, int next);

/* ---- wgmma: each warp has 16 of the 64 rows, so that warps multiply independently ---- */

typedef struct sr_emulated_wgmma {
    float *d;                  /* (columns / 2) */
    const uint32_t *a;         /* (4), registers; NULL: in shared memory */
    uint64_t a_place, b_place; /* descriptors */
    bool transpose_a, transpose_b, add;
    int columns;
} sr_emulated_wgmma;

/* Issues a wgmma; commits a batch; waits until at most `pending` batches are in flight. */
void sr_emulator_wgmma(const sr_emulated_wgmma *product);
void sr_emulator_wgmma_commit(void);
void sr_emulator_wgmma_wait(int pending);

/* The offset in the block's shared memory; the descriptor of an operand there. */
uint32_t sr_emulator_shared_offset(const void *shared);

#ifdef __cplusplus
}
#endif

#endif
