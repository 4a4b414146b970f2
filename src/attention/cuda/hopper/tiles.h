/* tiles.h (private): shared by the Hopper attention kernels: persistent tile loop, TMA copies,
 * wgmma GEMMs of tiles, masks.
 *
 * Every kernel here has the same structure. It is persistent: a block runs for the whole launch and
 * draws tiles of rows from a counter (the tile scheduler). Its first warpgroup is the producer: it
 * draws, and keeps TMA copies in flight into a ring of stages. The others are consumers with 64
 * rows each: a GEMM of the rows with a stage gives logits, these become weights in registers, and a
 * GEMM of the weights with the stage accumulates in registers. mbarriers order the two sides:
 * `full` (the bytes have landed), `empty` (every warp that reads them is done).
 *
 * Results do not depend on which block draws a tile: a tile is summed by one consumer, in a fixed
 * order. */
#ifndef SR_ATTENTION_CUDA_HOPPER_TILES_H
#define SR_ATTENTION_CUDA_HOPPER_TILES_H

#include "attention/cuda/shared/rows.h"
#include "attention/cuda/shared/tile_scheduler.h"
#include "device/cuda/hopper.h"
#include "device/cuda/launch.h"

#define SR_UNROLL _Pragma("unroll")
#define SR_ROLLED \
    _Pragma("unroll 1") /* the compiler would unroll it, and lack registers elsewhere */

enum {
    HOPPER_ROWS = 64,       /* of a consumer */
    HOPPER_GROUP = 128,     /* threads of a warpgroup */
    HOPPER_ROW_BYTES = 128, /* of a tile in shared memory: 64 numbers */
};

typedef sr_attention_view<sr_bf16> hopper_view;

/* ---- which rows ---- */

/* A tile of query rows, and the key tiles from .. past-1 that they see. */
struct row_work {
    int b, h;
    int row;        /* the first; negative where the first tile of a sequence is incomplete */
    int from, past; /* past == 0: there is no more work */
    int latest;     /* where the document of the last row starts */
};

/* Rows are tiled from the end, at multiples of 64: the incomplete tile is the shortest one. */
template <int rows, int keys>
SR_DEVICE row_work row_work_at(const hopper_view &call, const sr_tile_order &order, int i) {
    if (i >= tile_count(order))
        return {};
    const sr_tile_place at = tile_place(order, i);
    const int b = at.head / call.H, end = (call.T + HOPPER_ROWS - 1) / HOPPER_ROWS * HOPPER_ROWS;
    const int row = end - (at.rank + 1) * rows, last = min(call.T, row + rows) - 1;
    const int32_t *first = call.first + (int64_t)b * call.T;
    return {b, at.head - b * call.H, row, first[max(row, 0)] / keys, last / keys + 1, first[last]};
}

/* Past the last key tile that a consumer's rows see; `row` is the first. */
template <int keys> SR_DEVICE int row_work_past(const hopper_view &call, int row) {
    return (min(call.T, row + HOPPER_ROWS) - 1) / keys + 1;
}

/* Where the document of a row begins; only few tiles need it. */
SR_DEVICE int row_work_first(const hopper_view &call, const row_work &work, int t) {
    return call.first[(int64_t)work.b * call.T + min(t, call.T - 1)];
}

/* The same value in all lanes, provably for the compiler: derived shared-memory addresses then take
 * uniform registers, and wgmma needs no instructions to move them there. */
SR_DEVICE row_work of_warp(const row_work &work) {
    return {of_warp(work.b),    of_warp(work.h),    of_warp(work.row),
            of_warp(work.from), of_warp(work.past), of_warp(work.latest)};
}

/* ---- mbarriers ---- */

/* A stage of a ring, and the phase parity of the pass through it. */
template <int stages> struct ring_place {
    int stage, parity;

    SR_DEVICE void advance() {
        if (++stage == stages)
            stage = 0, parity ^= 1;
    }
    SR_DEVICE int before() const {
        return stage == 0 ? stages - 1 : stage - 1;
    }
    SR_DEVICE int parity_before() const {
        return stage == 0 ? parity ^ 1 : parity;
    }
};

/* One arrival for this warp, once all its lanes are here. */
SR_DEVICE void warp_arrive(uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % SR_WARP == 0)
        mbarrier_arrive(barrier);
}

/* ---- tiles in shared memory: `rows` rows of D numbers, as D / 64 pieces of rows x 64 ---- */

/* Starts the TMA copy of rows t, t + 1, ... of a head; rows outside the tensor become zero. */
template <int D, int rows>
SR_DEVICE void tile_load(uint8_t *tile, const CUtensorMap *map, uint64_t *barrier, int t, int h,
                         int b) {
    SR_UNROLL
    for (int piece = 0; piece < D / 64; piece++)
        tensor_load_4d(tile + piece * rows * HOPPER_ROW_BYTES, map, barrier, {64 * piece, t, h, b});
}

/* The tensor map for tile_load. */
static inline cudaError_t tile_map_encode(CUtensorMap *map, const sr_strided<const sr_bf16> &from,
                                          const hopper_view &call, int heads, int rows) {
    const uint64_t number = sizeof(sr_bf16);
    const sr_tensor_shape shape = {4,
                                   {(uint64_t)call.D, (uint64_t)call.T, (uint64_t)heads,
                                    (uint64_t)call.B},
                                   {(uint64_t)from.time * number, (uint64_t)from.head * number,
                                    (uint64_t)from.batch * number},
                                   {64, (uint32_t)rows, 1, 1}};
    return sr_tensor_map_encode(map, from.data, &shape);
}

/* Bytes to the numbers 16 c .. 16 c + 15 of each row. */
template <int rows> SR_BOTH constexpr int tile_further(int c) {
    return c / 4 * rows * HOPPER_ROW_BYTES + c % 4 * 32;
}

/* wgmma: d (64 x N) = A B', A with 64 rows of D, B with N. */
template <int D, int N>
SR_DEVICE void multiply_rows(float (&d)[N / 2], const uint8_t *a, const uint8_t *b) {
    const uint64_t left = wgmma_descriptor(a), right = wgmma_descriptor(b);
    SR_UNROLL
    for (int c = 0; c < D / 16; c++)
        wgmma_shared<N, 0, 0>(d, wgmma_descriptor_further(left, tile_further<HOPPER_ROWS>(c)),
                              wgmma_descriptor_further(right, tile_further<N>(c)), c != 0);
}

/* The same with A in registers, as tile_fragments gives it. */
template <int D, int N>
SR_DEVICE void multiply_rows(float (&d)[N / 2], const uint32_t (&a)[D / 4], const uint8_t *b) {
    const uint64_t right = wgmma_descriptor(b);
    SR_UNROLL
    for (int c = 0; c < D / 16; c++)
        wgmma_registers<N, 0>(d, a + 4 * c, wgmma_descriptor_further(right, tile_further<N>(c)),
                              c != 0);
}

/* This warp's 16 rows of a tile of 64 as the A operand. */
template <int D> SR_DEVICE void tile_fragments(uint32_t (&a)[D / 4], const uint8_t *tile) {
    const int lane = threadIdx.x % SR_WARP;
    const int row = threadIdx.x % HOPPER_GROUP / SR_WARP * 16 + lane % 16;
    SR_UNROLL
    for (int c = 0; c < D / 16; c++) { /* pieces of 16 bytes are swizzled over 8 rows */
        const int piece = (c % 4 * 2 + lane / 16) ^ (row % 8);
        ldmatrix_x4(a + 4 * c, tile + (c / 4 * HOPPER_ROWS + row) * HOPPER_ROW_BYTES + 16 * piece);
    }
}

/* d (64 x D) += A B, A 64 x 16 in registers, B the rows from 16 c on of a tile of `rows` rows of
 * D. */
template <int D, int rows>
SR_DEVICE void multiply_columns(float (&d)[D / 2], const uint32_t *a, const uint8_t *b, int c) {
    const uint64_t right = wgmma_descriptor(b, rows * HOPPER_ROW_BYTES);
    wgmma_registers<D, 1>(d, a, wgmma_descriptor_further(right, c * 16 * HOPPER_ROW_BYTES), 1);
}

/* ---- accumulator layout of a consumer: thread 32 w + 4 g + i holds rows 16 w + g and 16 w + g +
 * 8, of each row the columns 8 j + 2 i and 8 j + 2 i + 1; number n is of the second row where n & 2
 * ---- */

/* The consumer warpgroup of this warp. */
SR_DEVICE int consumer() {
    return of_warp((int)threadIdx.x / HOPPER_GROUP - 1);
}

SR_DEVICE int fragment_row() {
    const int thread = thread_index_again();
    return thread % HOPPER_GROUP / SR_WARP * 16 + thread % SR_WARP / 4;
}

SR_DEVICE int fragment_column() {
    return thread_index_again() % 4 * 2;
}

SR_BOTH constexpr int fragment_half(int n) {
    return n >> 1 & 1;
}

/* Columns past `high` of each row, or before `low`, become `hidden`; they count from
 * fragment_column(). Of numbers from .. past-1, or of all. */
template <int from, int past, int count>
SR_DEVICE void mask_past(float (&s)[count], const int (&high)[2], const float (&hidden)[2]) {
    SR_UNROLL
    for (int n = from; n < past; n++)
        if (8 * (n / 4) + (n & 1) > high[fragment_half(n)])
            s[n] = hidden[fragment_half(n)];
}

template <int count>
SR_DEVICE void mask_past(float (&s)[count], const int (&high)[2], const float (&hidden)[2]) {
    mask_past<0, count>(s, high, hidden);
}

template <int count>
SR_DEVICE void mask_before(float (&s)[count], const int (&low)[2], const float (&hidden)[2]) {
    SR_UNROLL
    for (int n = 0; n < count; n++)
        if (8 * (n / 4) + (n & 1) < low[fragment_half(n)])
            s[n] = hidden[fragment_half(n)];
}

/* One of the thread's two rows, in the layout of the row functions. */
template <int D>
SR_DEVICE void fragment_take(float (&x)[D / 4], const float (&sum)[D / 2], int half) {
    SR_UNROLL
    for (int m = 0; m < D / 4; m++)
        x[m] = sum[m / 2 * 4 + 2 * half + m % 2];
}

/* Stores a row as bf16. The four lanes that share it exchange words, a 4 x 4 transposition, so that
 * each stores 16 bytes at a time. All lanes of the warp together; nothing is written where `write`
 * is false. */
template <int D> SR_DEVICE void fragment_store(sr_bf16 *to, const float (&x)[D / 4], bool write) {
    const int i = thread_index_again() % 4;
    const bool odd = i & 1, upper = i & 2;
    SR_UNROLL
    for (int c = 0; c < D / 32; c++) {
        uint32_t word[4];
        SR_UNROLL
        for (int n = 0; n < 4; n++)
            word[n] = pack_bf16(x[8 * c + 2 * n], x[8 * c + 2 * n + 1]);
        const uint32_t near[2] = {shuffle_xor(odd ? word[0] : word[1], 1),
                                  shuffle_xor(odd ? word[2] : word[3], 1)};
        if (odd)
            word[0] = near[0], word[2] = near[1];
        else
            word[1] = near[0], word[3] = near[1];
        const uint32_t far[2] = {shuffle_xor(upper ? word[0] : word[2], 2),
                                 shuffle_xor(upper ? word[1] : word[3], 2)};
        if (upper)
            word[0] = far[0], word[1] = far[1];
        else
            word[2] = far[0], word[3] = far[1];
        if (write)
            *reinterpret_cast<uint4 *>(to + 32 * c + 8 * i) =
                make_uint4(word[0], word[1], word[2], word[3]);
    }
}

/* ---- scores ---- */

/* Logits into weights, for templates: exponentials; r times a factor; other polynomials; the square
 * of r times a factor, with a decay: an exponential without a logarithm. */
enum weight_kind { WEIGHT_EXP, WEIGHT_LINEAR, WEIGHT_POLYNOMIAL, WEIGHT_SQUARE };

/* No exponent of a square is larger: that of a hidden pair may be anything, and its weight is 0
 * because r is. */
#define SQUARE_EXPONENT_MOST 100.0F

/* Whether a polynomial is r times a factor, up to its clamp. */
static inline bool is_line(const sr_score_rule &score) {
    return score.degree == 1 && score.coefficient[0] == 0;
}

/* Whether logits have an upper bound, of either kind: kernels without one have no code for them. */
static inline bool is_bounded(const sr_score_rule &score) {
    return score.clamped || score.capped;
}

static inline weight_kind weight_kind_of(const sr_score_rule &score) {
    if (score.kind == SR_CLASS_EXPONENTIAL)
        return WEIGHT_EXP;
    return is_line(score) && !is_bounded(score) ? WEIGHT_LINEAR : WEIGHT_POLYNOMIAL;
}

/* What a kernel keeps of the rule in registers: the factor of r, and its upper bound. */
struct score_numbers {
    float factor, limit;
};

template <weight_kind kind> SR_DEVICE score_numbers score_numbers_of(const sr_score_rule &score) {
    return {kind == WEIGHT_EXP      ? score.scale_log2
            : kind == WEIGHT_LINEAR ? score.coefficient[1]
            : kind == WEIGHT_SQUARE ? score.coefficient[2]
                                    : 1,
            score.clamped ? score.clamp : INFINITY};
}

/* The logit of a hidden pair: its weight is 0. */
template <weight_kind kind> SR_BOTH constexpr float hidden_logit() {
    return kind == WEIGHT_LINEAR || kind == WEIGHT_SQUARE ? 0 : -INFINITY;
}

/* Caps a tile's logits, before they are masked. Where all of a warp are small, as they are as a
 * rule, without special functions, which exponentials need. */
template <int count> SR_DEVICE bool all_near_zero(const float (&s)[count], float near) {
    float most = 0;
    SR_UNROLL
    for (int n = 0; n < count; n++)
        most = fmaxf(most, fabsf(s[n]));
    return warp_ballot(most <= near) == SR_FULL_WARP;
}

template <int count> SR_DEVICE void cap_logits(float (&s)[count], const sr_score_rule &score) {
    const float cap = 1 / score.cap_inverse;
    if (all_near_zero(s, SR_CAP_NEAR * cap)) {
        SR_UNROLL
        for (int n = 0; n < count; n++)
            s[n] = cap_near(score, s[n]);
        return;
    }
    SR_UNROLL
    for (int n = 0; n < count; n++)
        s[n] = cap_of(score, cap, s[n]).value;
}

/* ---- decay: an exponent gains log2(e) (C_i - C_j), with C counted from a position near the rows
 * that stay ---- */

/* The C of a kv head from position `from` on, in base 2. The difference is of doubles: C may be
 * large. */
struct decay_since {
    const double *decay; /* (T) */
    int from, T;

    SR_DEVICE decay_since(const hopper_view &call, int b, int kv_head, int first)
        : decay(call.scratch.decay + call.row_index(call.Hkv, b, kv_head, 0)), from(max(first, 0)),
          T(call.T) {
    }
    /* Of position t, or of the last. */
    SR_DEVICE float at(int t) const {
        return (float)(decay[min(t, T - 1)] - decay[from]) * SR_LOG2_E;
    }
};

/* A warp's loads of `count` of these for each stage of a ring. They are issued before the stage is
 * free. */
template <int count> struct decay_stage {
    float of[count / SR_WARP];

    SR_DEVICE void ask(const decay_since &since, int t) {
        SR_UNROLL
        for (int i = 0; i < count / SR_WARP; i++)
            of[i] = since.at(t + i * SR_WARP + (int)threadIdx.x % SR_WARP);
    }
    SR_DEVICE void store(float (&to)[count]) const {
        SR_UNROLL
        for (int i = 0; i < count / SR_WARP; i++)
            to[i * SR_WARP + (int)threadIdx.x % SR_WARP] = of[i];
    }
};

/* ---- the kernels; counters are zero before the first tile is drawn ---- */

/* Tiles drawn beyond the first of each block; blocks that have stopped drawing. */
enum { FORWARD_DRAWN, FORWARD_ENDED, FORWARD_COUNTERS };

/* Whether a row is only divided by its sum, or only by its length, or has a longer epilogue. */
enum plain_end { PLAIN_NOT, PLAIN_SUM, PLAIN_LENGTH };
struct forward_task {
    CUtensorMap q, k, v;
    hopper_view call;
    sr_tile_order order;
    int *counters; /* (FORWARD_COUNTERS), reset to zero at the end */
    plain_end plain;
};

/* Each of the two backward kernels has one, with its own tensor maps. */
struct backward_task {
    CUtensorMap q, k, v, d;
    hopper_view call;
    sr_tile_order order;
    int *drawn;
};

/* Starts the forward pass, or the backward pass between prologue and epilogue, on that many
 * multiprocessors. `counters` are integers in device memory: FORWARD_COUNTERS that are zero between
 * calls, or HOPPER_COUNTERS of any value. */
enum { HOPPER_COUNTERS = 2 };
cudaError_t hopper_forward(const hopper_view &call, int *counters, int multiprocessors,
                           cudaStream_t stream);
cudaError_t hopper_backward(const hopper_view &call, int *counters, int multiprocessors,
                            cudaStream_t stream);

/* The same in one kernel, if gradients of queries are requested. Workspace for (B, H, T /
 * HOPPER_SUM_ROWS, rounded up) tiles of them. */
enum { HOPPER_SUM_ROWS = 128, HOPPER_SUM_TICKETS = 4 };
struct hopper_sums {
    float *sums;  /* HOPPER_SUM_ROWS x D for each */
    int *tickets; /* HOPPER_SUM_TURNS for each */
    int *drawn;   /* (1) */
};
cudaError_t hopper_backward_ordered(const hopper_view &call, const hopper_sums &memory,
                                    int multiprocessors, cudaStream_t stream);

#endif
