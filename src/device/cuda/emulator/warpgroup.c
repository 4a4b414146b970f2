/* warpgroup.c: Hopper's instructions (mbarrier, TMA, wgmma), from their definition in the PTX ISA.
 *
 * TMA copies are performed at once. Half of the blocks run their threads in reverse order,
 * consumers before producers, so that data read without waiting for it is missing there, and data
 * overwritten too early is corrupted in the other half. wgmma is computed when it is issued in one
 * half of the blocks, when it is waited for in the other. */
#include "device/cuda/emulator/warpgroup.h"

#include "device/cuda/emulator/cooperative.h"

#include <sched.h>
#include <string.h>
#include <time.h>

enum { LANES = SR_EMULATOR_WARP, GROUP = 4, ROWS = 16, DEPTH = 16, COLUMNS_MAX = 256 };

/* ---- mbarriers ---- */

/* `pending` arrivals and `missing` times 16 bytes are still outstanding in this phase. */
typedef struct mbarrier {
    uint32_t phase;                                   /* number of completed phases */
    uint32_t arrivals : 9, pending : 9, missing : 14; /* missing: modulo MISSING */
} mbarrier;

enum { UNIT = 16, ARRIVALS_MAX = 511, MISSING = 1 << 14, MISSING_MAX = MISSING / 2 - 1 };

static mbarrier *mbarrier_of(uint64_t *barrier) {
    sr_emulator_shared_offset(barrier);
    return (mbarrier *)(void *)barrier;
}

static void mbarrier_check(mbarrier *b) {
    if (b->pending > 0 || b->missing != 0)
        return;
    b->pending = b->arrivals;
    b->phase++;
    sr_emulator_order();
}

static void mbarrier_expect(mbarrier *b, int bytes) {
    const int before = (int)b->missing - (b->missing > MISSING_MAX ? MISSING : 0);
    const int missing = before + bytes / UNIT;
    if (bytes % UNIT != 0 || missing > MISSING_MAX || missing < -MISSING_MAX)
        sr_emulator_fail("an mbarrier cannot count %d bytes more", bytes);
    b->missing = (uint32_t)missing & (MISSING - 1);
}

void sr_emulator_mbarrier_init(uint64_t *barrier, int arrivals) {
    if (arrivals < 1 || arrivals > ARRIVALS_MAX)
        sr_emulator_fail("an mbarrier for %d arrivals", arrivals);
    *mbarrier_of(barrier) = (mbarrier){.arrivals = (uint32_t)arrivals & ARRIVALS_MAX,
                                       .pending = (uint32_t)arrivals & ARRIVALS_MAX};
}

void sr_emulator_mbarrier_arrive(uint64_t *barrier, int bytes) {
    mbarrier *b = mbarrier_of(barrier);
    mbarrier_expect(b, bytes);
    if (b->pending == 0)
        sr_emulator_fail("more arrivals at an mbarrier than the %d of a phase", (int)b->arrivals);
    b->pending = (b->pending - 1u) & ARRIVALS_MAX;
    mbarrier_check(b);
}

void sr_emulator_mbarrier_wait(uint64_t *barrier, int parity) {
    mbarrier *b = mbarrier_of(barrier);
    if ((int)(b->phase & 1) == parity)
        sr_emulator_wait(&b->phase, b->phase, "mbarrier_wait");
}

/* ---- shared memory ---- */

uint32_t sr_emulator_shared_offset(const void *shared) {
    const ptrdiff_t offset = (const unsigned char *)shared - sr_emulated_shared;
    if (offset < 0 || offset >= SR_EMULATOR_SHARED_BYTES)
        sr_emulator_fail("an address that is not in the dynamic shared memory");
    return (uint32_t)offset;
}

/* 128-byte swizzle: pieces of 16 bytes are permuted within 8 rows of 128 bytes. */
static unsigned char *swizzled(uint32_t offset) {
    return sr_emulated_shared + (offset ^ (offset >> 7 & 7) << 4);
}

/* ---- TMA ---- */

/* One row of 64 numbers of a box: where in global memory, NULL if outside. */
static char *box_row(const CUtensorMap *map, const int *at, uint64_t row) {
    int64_t offset = 0;
    bool inside = true;
    for (uint32_t i = 1; i < map->dimensions; i++) {
        const int64_t place = at[i] + (int64_t)(row % map->box[i]);
        row /= map->box[i];
        inside = inside && place >= 0 && place < (int64_t)map->size[i];
        offset += place * (int64_t)map->stride[i - 1];
    }
    return inside ? map->data + offset : NULL;
}

static uint64_t box_rows(const CUtensorMap *map) {
    uint64_t rows = 1;
    for (uint32_t i = 1; i < map->dimensions; i++)
        rows *= map->box[i];
    return rows;
}

/* Copies a box; `load`: to shared memory. */
static void box_move(const CUtensorMap *map, uint32_t offset, const int *at, bool load) {
    enum { ROW = 64, NUMBER = 2 };
    if (offset % 1024 != 0)
        sr_emulator_fail("a swizzled tile that does not begin at a multiple of 1024 bytes");
    for (uint64_t row = 0; row < box_rows(map); row++) {
        char *global = box_row(map, at, row);
        for (int i = 0; i < ROW; i++) {
            const int64_t place = at[0] + (int64_t)i;
            const bool inside = global && place >= 0 && place < (int64_t)map->size[0];
            unsigned char *shared =
                swizzled(offset + (uint32_t)row * ROW * NUMBER + (uint32_t)i * NUMBER);
            if (inside && load)
                memcpy(shared, global + place * NUMBER, NUMBER);
            else if (inside)
                memcpy(global + place * NUMBER, shared, NUMBER);
            else if (load)
                memset(shared, 0, NUMBER);
        }
    }
}

void sr_emulator_tensor_load(void *shared, const CUtensorMap *map, uint64_t *barrier,
                             const int *at) {
    mbarrier *b = mbarrier_of(barrier);
    box_move(map, sr_emulator_shared_offset(shared), at, true);
    mbarrier_expect(b, -(int)(box_rows(map) * 128));
    mbarrier_check(b);
}

static void bulk_check(const void *shared, const void *global, int bytes) {
    const uint32_t offset = sr_emulator_shared_offset(shared);
    if (offset % UNIT != 0 || (uintptr_t)global % UNIT != 0 || bytes < UNIT || bytes % UNIT != 0)
        sr_emulator_fail("a bulk copy whose size or address is not a multiple of 16 bytes");
}

void sr_emulator_bulk_load(void *shared, const void *global, int bytes, uint64_t *barrier) {
    mbarrier *b = mbarrier_of(barrier);
    bulk_check(shared, global, bytes);
    memcpy(shared, global, (size_t)bytes);
    mbarrier_expect(b, -bytes);
    mbarrier_check(b);
}

void sr_emulator_bulk_store(void *global, const void *shared, int bytes) {
    bulk_check(shared, global, bytes);
    memcpy(global, shared, (size_t)bytes);
}

void sr_emulator_bulk_add(float *global, const float *shared, int bytes) {
    bulk_check(shared, global, bytes);
    for (int i = 0; i < bytes / (int)sizeof *global; i++)
        global[i] += shared[i];
}

/* Blocks earlier in the order run on other host threads, or have ended. */
bool sr_emulator_ticket_is_due(const int *ticket, int mine) {
    enum { PATIENCE = 60 };
    static _Thread_local struct {
        const int *ticket;
        int mine;
        time_t since;
    } vain; /* the last counter polled without success, and since when */
    if (__atomic_load_n(ticket, __ATOMIC_ACQUIRE) == mine)
        return true;
    if (vain.ticket != ticket || vain.mine != mine) {
        vain.ticket = ticket;
        vain.mine = mine;
        vain.since = time(NULL);
    }
    if (time(NULL) - vain.since > PATIENCE)
        sr_emulator_fail("ticket %d is never due", mine);
    sched_yield();
    return false;
}

void sr_emulator_ticket_pass(int *ticket, int next) {
    __atomic_store_n(ticket, next, __ATOMIC_RELEASE);
}

void sr_emulator_tensor_store(const CUtensorMap *map, const void *shared, const int *at) {
    box_move(map, sr_emulator_shared_offset(shared), at, false);
}

/* cuTensorMapEncodeTiled, the part that this project uses. The parameters of CUDA's function. */
static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t dimensions,
                       void *data, const cuuint64_t *size, const cuuint64_t *stride,
                       const cuuint32_t *box, const cuuint32_t *every,
                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    (void)type, (void)every, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    if (dimensions < 2 || dimensions > 5 || (uintptr_t)data % 16 != 0 || box[0] != 64)
        return CUDA_ERROR_INVALID_VALUE;
    *map = (CUtensorMap){.data = data, .dimensions = dimensions};
    for (cuuint32_t i = 0; i < dimensions; i++) {
        if (size[i] == 0 || box[i] == 0 || box[i] > 256 || (i > 0 && stride[i - 1] % 16 != 0))
            return CUDA_ERROR_INVALID_VALUE;
        map->size[i] = size[i];
        map->box[i] = box[i];
        if (i > 0)
            map->stride[i - 1] = stride[i - 1];
    }
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                             unsigned int version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found) {
    (void)version, (void)flags;
    const bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    CUresult (*const address)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill) = encode;
    memset(function, 0, sizeof *function);
    if (known)
        memcpy(function, &address, sizeof *function);
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/* ---- wgmma ---- */

/* A warp's issued wgmma: one of each lane. */
typedef struct started {
    sr_emulated_wgmma lane[LANES];
    int batch;
} started;

enum { STARTED_MAX = 128, WARPS = SR_EMULATOR_THREADS / LANES };

typedef struct queue {
    started *product; /* (STARTED_MAX) */
    int count, batch; /* the batch that is not yet ended */
} queue;

static queue *queue_of_warp(void) {
    static _Thread_local queue queues[WARPS];
    const sr_emulated_place *here = sr_emulated_thread;
    queue *q = &queues[here->index.x / LANES];
    if (q->product == NULL)
        q->product = calloc(STARTED_MAX, sizeof *q->product);
    if (q->product == NULL)
        sr_emulator_fail("no memory for the products of a warpgroup");
    return q;
}

static float bf16_at(const unsigned char *number) {
    uint16_t half;
    memcpy(&half, number, sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Number k of row r of an operand, r among the rows of A or the columns of B. */
static float operand_at(uint64_t place, bool transposed, int r, int k) {
    const uint32_t start = (uint32_t)(place & 0x3fff) << 4;
    const uint32_t lead = (uint32_t)(place >> 16 & 0x3fff) << 4;
    const uint32_t stride = (uint32_t)(place >> 32 & 0x3fff) << 4;
    const uint32_t row = (uint32_t)r, sum = (uint32_t)k;
    const uint32_t wide = place >> 62 == 1 ? 64 : 16; /* numbers of a row of the tile */
    if (place >> 62 != 1 && place >> 62 != 3)
        sr_emulator_fail("a product of a tile that is not swizzled by 128 or 32 bytes");
    if (wide == 16 && start % 256 != 0)
        sr_emulator_fail("a narrow tile that does not begin at a multiple of 256 bytes");
    const uint32_t offset =
        transposed ? sum / 8 * stride + sum % 8 * 2 * wide + row / wide * lead + row % wide * 2
                   : row / 8 * stride + row % 8 * 2 * wide + sum * 2;
    const uint32_t at = start + offset;
    return bf16_at(wide == 64 ? swizzled(at) : sr_emulated_shared + (at ^ (at >> 7 & 1) << 4));
}

static void left_side(float a[ROWS][DEPTH], const sr_emulated_wgmma *product, int warp) {
    for (int row = 0; row < ROWS && product->a == NULL; row++)
        for (int k = 0; k < DEPTH; k++)
            a[row][k] = operand_at(product->a_place, product->transpose_a, ROWS * warp + row, k);
    for (int lane = 0; lane < LANES && product->a != NULL; lane++)
        /* the register: lower or upper rows, left or right columns */
        for (int r = 0; r < 4; r++)
            for (int half = 0; half < 2; half++)
                a[lane / GROUP + 8 * (r % 2)][2 * (lane % GROUP) + 8 * (r / 2) + half] =
                    bf16_at((const unsigned char *)&product[lane].a[r] + 2 * half);
}

static void multiply(const sr_emulated_wgmma *product, int warp) {
    float a[ROWS][DEPTH], b[DEPTH][COLUMNS_MAX], c[ROWS][COLUMNS_MAX];
    const int columns = product->columns;
    left_side(a, product, warp);
    for (int column = 0; column < columns; column++)
        for (int k = 0; k < DEPTH; k++)
            b[k][column] = operand_at(product->b_place, product->transpose_b, column, k);
    memset(c, 0, sizeof c);
    for (int row = 0; row < ROWS; row++)
        for (int k = 0; k < DEPTH; k++)
            for (int column = 0; column < columns; column++)
                c[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < LANES; lane++)
        for (int n = 0; n < columns / 2; n++) {
            const int row = lane / GROUP + 8 * (n >> 1 & 1);
            float *d = &product[lane].d[n];
            *d = (product->add ? *d : 0) + c[row][8 * (n / 4) + 2 * (lane % GROUP) + (n & 1)];
        }
}

static int warp_in_group(void) {
    return (int)sr_emulated_thread->index.x / LANES % 4;
}

/* The lanes' rendezvous: their wgmma is queued, or computed. */
static void start(void *const *operands) {
    queue *q = queue_of_warp();
    if (q->count == STARTED_MAX)
        sr_emulator_fail("more than %d products under way", STARTED_MAX);
    started *next = &q->product[q->count];
    next->batch = q->batch;
    for (int lane = 0; lane < LANES; lane++)
        next->lane[lane] = *(const sr_emulated_wgmma *)operands[lane];
    if (sr_emulator_is_late())
        q->count++;
    else
        multiply(next->lane, warp_in_group());
}

static void end_batch(void *const *operands) {
    (void)operands;
    queue_of_warp()->batch++;
}

static void finish(void *const *operands) {
    queue *q = queue_of_warp();
    int over = 0;
    while (over < q->count && q->product[over].batch < q->batch - *(const int *)operands[0])
        multiply(q->product[over++].lane, warp_in_group());
    q->count -= over;
    memmove(q->product, q->product + over, (size_t)q->count * sizeof *q->product);
}

void sr_emulator_wgmma(const sr_emulated_wgmma *product) {
    sr_emulated_wgmma own = *product;
    sr_emulator_collect(start, &own, "wgmma");
}

void sr_emulator_wgmma_commit(void) {
    sr_emulator_collect(end_batch, NULL, "wgmma_commit");
}

void sr_emulator_wgmma_wait(int pending) {
    sr_emulator_collect(finish, &pending, "wgmma_wait");
}
