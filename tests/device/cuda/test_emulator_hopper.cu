/* test_emulator_hopper.cu: Hopper's instructions on the emulated GPU, each against its definition;
 * the order of tiles. */
#include "attention/cuda/hopper/tiles.h"
#include "device/cuda/cooperative.h"

extern "C" {
#include "test.h"
}

#define RIGHT(call) assert_int_equal(call, cudaSuccess)

static void run_and_fetch(void *host, const void *memory, size_t bytes) {
    RIGHT(cudaDeviceSynchronize());
    RIGHT(cudaMemcpy(host, memory, bytes, cudaMemcpyDeviceToHost));
}

static void *device_bytes(size_t bytes) {
    void *memory = nullptr;
    RIGHT(cudaMalloc(&memory, bytes));
    return memory;
}

/* Numbers that are exact in bf16, and different enough to detect a wrong place. */
static float number(int i) {
    return (float)((i * 37 + 11) % 127 - 63) / 8;
}

/* ---- barriers ---- */

enum { ROUNDS = 5 };

struct ring_memory {
    uint64_t full, empty;
    int value;
};

/* Warp 0 produces numbers, warp 1 sums them: neither may run ahead. */
__global__ void hand_over(int *sum) {
    SR_SHARED(ring_memory, shared);
    if (threadIdx.x == 0) {
        mbarrier_init(&shared->full, 1);
        mbarrier_init(&shared->empty, SR_WARP);
        mbarrier_init_fence();
    }
    __syncthreads();
    int mine = 0;
    for (int n = 0; n < ROUNDS; n++) {
        if (threadIdx.x == 0) {
            mbarrier_wait(&shared->empty, (n & 1) ^ 1);
            shared->value = 1 << n;
            mbarrier_arrive(&shared->full);
        }
        if (threadIdx.x >= SR_WARP) {
            mbarrier_wait(&shared->full, n & 1);
            mine += shared->value;
            mbarrier_arrive(&shared->empty);
        }
    }
    if (threadIdx.x >= SR_WARP)
        sum[blockIdx.x * SR_WARP + threadIdx.x - SR_WARP] = mine;
}

static void barriers_have_phases(void **state) {
    (void)state;
    int host[2 * SR_WARP];
    int *sum = (int *)device_bytes(sizeof host);
    RIGHT(sr_launch(hand_over, dim3(2), dim3(2 * SR_WARP), sizeof(ring_memory), nullptr, sum));
    run_and_fetch(host, sum, sizeof host);
    for (int n = 0; n < 2 * SR_WARP; n++)
        assert_int_equal(host[n], (1 << ROUNDS) - 1);
    RIGHT(cudaFree(sum));
}

/* Bytes that never arrive: the deadlock is reported. */
__global__ void wait_for_bytes(int *unused) {
    SR_SHARED(ring_memory, shared);
    (void)unused;
    if (threadIdx.x == 0) {
        mbarrier_init(&shared->full, 1);
        mbarrier_arrive_expect(&shared->full, 32);
        mbarrier_wait(&shared->full, 0);
    }
}

static void missing_bytes_are_reported(void **state) {
    (void)state;
    RIGHT(sr_launch(wait_for_bytes, dim3(1), dim3(SR_WARP), sizeof(ring_memory), nullptr, nullptr));
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    assert_non_null(strstr(cudaGetErrorString(cudaErrorLaunchFailure), "1 at mbarrier_wait"));
    RIGHT(cudaDeviceReset());
    cudaGetLastError();
}

/* ---- bulk copies ---- */

enum { WIDTH = 128, ROWS = 20, HEADS = 3, BOX = 16, BOX_BYTES = BOX * 128 };

struct load_memory {
    uint8_t tile[2 * BOX_BYTES];
    uint64_t full;
};

__global__ void load_box(uint16_t *out, const __grid_constant__ CUtensorMap map, int t, int h) {
    SR_SHARED(load_memory, shared);
    if (threadIdx.x == 0) {
        mbarrier_init(&shared->full, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(&shared->full, 2 * BOX_BYTES);
        tile_load<WIDTH, BOX>(shared->tile, &map, &shared->full, t, h, 0);
        mbarrier_wait(&shared->full, 0);
    }
    __syncthreads();
    for (int n = (int)threadIdx.x; n < BOX * WIDTH;
         n += SR_WARP) { /* 16 bytes swizzled over 8 rows */
        const int row = n / WIDTH, column = n % WIDTH, piece = column % 64 / 8 ^ row % 8;
        const uint8_t *from = shared->tile + column / 64 * BOX_BYTES + row * 128 + piece * 16;
        out[n] = ((const uint16_t *)(const void *)from)[column % 8];
    }
}

static void boxes_are_swizzled_and_end_in_zeros(void **state) {
    (void)state;
    static sr_bf16 host[HEADS * ROWS * WIDTH];
    uint16_t got[BOX * WIDTH];
    for (int n = 0; n < HEADS * ROWS * WIDTH; n++)
        host[n] = {(uint16_t)(n + 1)};
    sr_bf16 *data = (sr_bf16 *)device_bytes(sizeof host);
    uint16_t *out = (uint16_t *)device_bytes(sizeof got);
    RIGHT(cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice));
    hopper_view call = {};
    call.B = 1, call.T = ROWS, call.D = WIDTH;
    CUtensorMap map;
    const sr_strided<const sr_bf16> rows = {data, HEADS * ROWS * WIDTH, ROWS * WIDTH, WIDTH};
    RIGHT(tile_map_encode(&map, rows, call, HEADS, BOX));
    for (int t = -BOX; t <= ROWS; t += 6) {
        RIGHT(sr_launch(load_box, dim3(1), dim3(SR_WARP), sizeof(load_memory), nullptr, out, map, t,
                        2));
        run_and_fetch(got, out, sizeof got);
        for (int n = 0; n < BOX * WIDTH; n++) {
            const int row = t + n / WIDTH;
            const bool inside = row >= 0 && row < ROWS;
            assert_int_equal(got[n], inside ? host[(2 * ROWS + row) * WIDTH + n % WIDTH].bits : 0);
        }
    }
    RIGHT(cudaFree(data));
    RIGHT(cudaFree(out));
}

/* ---- products ---- */

enum { D = 128, N = 64 };

struct product_memory {
    uint8_t a[HOPPER_ROWS * D * 2], b[N * D * 2];
};

SR_DEVICE void tile_write(uint8_t *tile, int rows, int from) {
    for (int n = (int)threadIdx.x; n < rows * D; n += HOPPER_GROUP) {
        const int row = n / D, column = n % D, piece = column % 64 / 8 ^ row % 8;
        uint8_t *to = tile + column / 64 * rows * 128 + row * 128 + piece * 16;
        ((sr_bf16 *)(void *)to)[column % 8] = to_bf16(number(from + n));
    }
}

/* The sums of a consumer, where they belong. */
template <int columns> SR_DEVICE void sums_store(float *out, const float (&sum)[columns / 2]) {
    for (int n = 0; n < columns / 2; n++)
        out[(fragment_row() + 8 * fragment_half(n)) * columns + 8 * (n / 4) + (n & 1) +
            fragment_column()] = sum[n];
}

/* A B' from shared memory and from registers; then the first 64 columns of A times B, added to
 * it. */
__global__ void multiply(float *by_rows, float *by_registers, float *by_columns) {
    SR_SHARED(product_memory, shared);
    tile_write(shared->a, HOPPER_ROWS, 0);
    tile_write(shared->b, N, 7);
    __syncthreads();
    float s[N / 2], again[N / 2], sum[D / 2];
    uint32_t a[D / 4];
    for (int n = 0; n < D / 2; n++)
        sum[n] = 1;
    tile_fragments<D>(a, shared->a);
    wgmma_fence();
    multiply_rows<D, N>(s, shared->a, shared->b);
    multiply_rows<D, N>(again, a, shared->b);
    wgmma_commit();
    for (int c = 0; c < N / 16; c++)
        multiply_columns<D, N>(sum, a + 4 * c, shared->b, c);
    wgmma_commit();
    wgmma_wait<1>();
    sums_store<N>(by_rows, s);
    sums_store<N>(by_registers, again);
    wgmma_wait<0>();
    sums_store<D>(by_columns, sum);
}

static void products_of_a_warpgroup(void **state) {
    (void)state;
    static float rows[HOPPER_ROWS][N], registers[HOPPER_ROWS][N], columns[HOPPER_ROWS][D];
    float *out[3] = {(float *)device_bytes(sizeof rows), (float *)device_bytes(sizeof registers),
                     (float *)device_bytes(sizeof columns)};
    for (int blocks = 1; blocks <= 2; blocks++) { /* early and late */
        RIGHT(sr_launch(multiply, dim3((unsigned)blocks), dim3(HOPPER_GROUP),
                        sizeof(product_memory), nullptr, out[0], out[1], out[2]));
        run_and_fetch(rows, out[0], sizeof rows);
        run_and_fetch(registers, out[1], sizeof registers);
        run_and_fetch(columns, out[2], sizeof columns);
        for (int i = 0; i < HOPPER_ROWS; i++) {
            for (int j = 0; j < N; j++) {
                float expected = 0;
                for (int k = 0; k < D; k++)
                    expected += number(i * D + k) * number(7 + j * D + k);
                assert_true(rows[i][j] == expected && registers[i][j] == expected);
            }
            for (int j = 0; j < D; j++) {
                float expected = 1;
                for (int k = 0; k < N; k++)
                    expected += number(i * D + k) * number(7 + k * D + j);
                assert_true(columns[i][j] == expected);
            }
        }
    }
    for (float *memory : out)
        RIGHT(cudaFree(memory));
}

/* A block of 16 x 16, swizzled over rows of 32 bytes: A B' and A B, A from registers. */
struct block_memory {
    alignas(1024) uint8_t a[HOPPER_ROWS * D * 2];
    alignas(256) sr_bf16 b[16 * 16];
};

__global__ void multiply_block(float *by_rows, float *by_columns) {
    SR_SHARED(block_memory, shared);
    tile_write(shared->a, HOPPER_ROWS, 0);
    for (int n = (int)threadIdx.x; n < 256; n += HOPPER_GROUP) {
        const int row = n / 16, piece = n % 16 / 8 ^ row / 4 % 2;
        shared->b[16 * row + 8 * piece + n % 8] = to_bf16(number(7 + n));
    }
    __syncthreads();
    float rows[8], columns[8];
    uint32_t a[D / 4];
    tile_fragments<D>(a, shared->a);
    wgmma_fence();
    wgmma_registers<16, 0>(rows, a, wgmma_descriptor_16(shared->b), 0);
    wgmma_registers<16, 1>(columns, a, wgmma_descriptor_16(shared->b), 0);
    wgmma_commit();
    wgmma_wait<0>();
    sums_store<16>(by_rows, rows);
    sums_store<16>(by_columns, columns);
}

static void products_with_a_block(void **state) {
    (void)state;
    static float rows[HOPPER_ROWS][16], columns[HOPPER_ROWS][16];
    float *out[2] = {(float *)device_bytes(sizeof rows), (float *)device_bytes(sizeof columns)};
    for (int blocks = 1; blocks <= 2; blocks++) { /* early and late */
        RIGHT(sr_launch(multiply_block, dim3((unsigned)blocks), dim3(HOPPER_GROUP),
                        sizeof(block_memory), nullptr, out[0], out[1]));
        run_and_fetch(rows, out[0], sizeof rows);
        run_and_fetch(columns, out[1], sizeof columns);
        for (int i = 0; i < HOPPER_ROWS; i++)
            for (int j = 0; j < 16; j++) {
                float by_row = 0, by_column = 0;
                for (int k = 0; k < 16; k++) {
                    by_row += number(i * D + k) * number(7 + j * 16 + k);
                    by_column += number(i * D + k) * number(7 + k * 16 + j);
                }
                assert_true(rows[i][j] == by_row && columns[i][j] == by_column);
            }
    }
    for (float *memory : out)
        RIGHT(cudaFree(memory));
}

/* ---- the order of tiles ---- */

static void every_tile_is_drawn_once(void **state) {
    (void)state;
    static const int sizes[][2] = {{1, 1}, {576, 6}, {7, 3}, {32, 86}, {100, 1}};
    for (const int(&size)[2] : sizes)
        for (int64_t bytes = 100000; bytes < 100000000; bytes *= 7) {
            const sr_tile_order order = tile_order(size[0], size[1], bytes, 1);
            bool *seen = (bool *)calloc((size_t)tile_count(order), sizeof *seen);
            assert_non_null(seen);
            assert_int_equal(tile_count(order), size[0] * size[1]);
            int tile = 0, group = 0;
            for (int i = 0; i < tile_count(order); i++) {
                const sr_tile_place at = tile_place(order, i);
                assert_true(at.head >= 0 && at.head < size[0] && at.rank >= 0 && at.rank < size[1]);
                assert_false(seen[at.head * size[1] + at.rank]);
                seen[at.head * size[1] + at.rank] = true;
                const int now = at.head / order.heads_a_group;
                assert_true(now > group || (now == group && at.rank >= tile)); /* long ones first */
                group = now, tile = at.rank;
            }
            free(seen);
        }
}

/* Two warps wait for the 96 bytes that one lane of the third requests, in two pieces. */
__global__ void load_bytes(unsigned char *to, const unsigned char *from) {
    struct memory {
        alignas(16) unsigned char bytes[96];
        uint64_t there;
    };
    SR_SHARED(memory, shared);
    if (threadIdx.x == 0)
        mbarrier_init(&shared->there, 1);
    mbarrier_init_fence();
    __syncthreads();
    if (threadIdx.x == 64) {
        mbarrier_arrive_expect(&shared->there, 96);
        bulk_load(shared->bytes, from, 32, &shared->there);
        bulk_load(shared->bytes + 32, from + 32, 64, &shared->there);
    }
    if (threadIdx.x >= 64)
        return;
    mbarrier_wait(&shared->there, 0);
    for (int i = (int)threadIdx.x; i < 96; i += 64)
        to[i] = shared->bytes[i];
}

static void bytes_in_bulk(void **state) {
    (void)state;
    unsigned char host[96], got[96];
    void *const from = device_bytes(96), *const to = device_bytes(2 * 96);
    for (int i = 0; i < 96; i++)
        host[i] = (unsigned char)(i * 7 + 1);
    RIGHT(cudaMemcpy(from, host, 96, cudaMemcpyHostToDevice));
    for (int run = 0; run < 2; run++) { /* in one order of threads and the other */
        RIGHT(sr_launch(load_bytes, dim3(1), dim3(96), 128, nullptr, (unsigned char *)to + run * 96,
                        (const unsigned char *)from));
        run_and_fetch(got, (unsigned char *)to + run * 96, 96);
        assert_memory_equal(got, host, 96);
    }
    RIGHT(cudaFree(from));
    RIGHT(cudaFree(to));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_have_phases),
        cmocka_unit_test(missing_bytes_are_reported),
        cmocka_unit_test(boxes_are_swizzled_and_end_in_zeros),
        cmocka_unit_test(bytes_in_bulk),
        cmocka_unit_test(products_of_a_warpgroup),
        cmocka_unit_test(products_with_a_block),
        cmocka_unit_test(every_tile_is_drawn_once),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
