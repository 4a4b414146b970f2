/* test_emulator.cu: the emulated GPU: each instruction against its definition, and errors that it
 * must detect. */
#include "device/cuda/cooperative.h"
#include "device/cuda/launch.h"
#include "device/cuda/ptx.h"

extern "C" {
#include "test.h"
}

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define RIGHT(call) assert_int_equal(call, cudaSuccess)

static cudaStream_t stream;

static int create_stream(void **state) {
    (void)state;
    RIGHT(cudaStreamCreate(&stream));
    return 0;
}

static int destroy_stream(void **state) {
    (void)state;
    RIGHT(cudaStreamDestroy(stream));
    return 0;
}

/* `count` numbers in device memory, copied from `host` if that is not NULL. */
template <class T> static T *device_array(const T *host, size_t count) {
    T *memory;
    RIGHT(cudaMalloc(&memory, count * sizeof(T)));
    if (host != nullptr)
        RIGHT(cudaMemcpy(memory, host, count * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
}

template <class T> static void fetch(T *host, const T *memory, size_t count) {
    RIGHT(cudaMemcpy(host, memory, count * sizeof(T), cudaMemcpyDeviceToHost));
}

/* Numbers that are exact in bf16, and different enough to detect a wrong place. */
static float number(int i) {
    return (float)((i * 37 + 11) % 127 - 63) / 8;
}

/* ---- numbers of 16 bits ---- */

static void test_bf16(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 1u << 16; bits++) {
        const float x = to_float(sr_bf16{(uint16_t)bits});
        const bool nan = x != x;
        assert_int_equal(to_bf16(x).bits, nan ? 0x7fff : bits);
        if (nan || bits % 0x8000 >= 0x7f80)
            continue;
        const float next = to_float(sr_bf16{(uint16_t)(bits + 1)});
        const float half = bits_float(float_bits(x) + 0x8000u);
        assert_int_equal(to_bf16(half).bits, bits + bits % 2); /* a tie goes to the even one */
        assert_int_equal(to_bf16(bits_float(float_bits(half) + 1)).bits, bits + 1);
        assert_int_equal(to_bf16(bits_float(float_bits(half) - 1)).bits, bits);
        assert_int_equal(pack_bf16(x, next), (bits + 1) << 16 | bits);
        assert_true(unpack_bf16(pack_bf16(x, 1)).x == x && unpack_bf16(pack_bf16(1, x)).y == x);
    }
}

/* ---- blocks and threads ---- */

__global__ void number_threads(uint32_t *to) {
    const uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const uint32_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    to[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

static void test_every_thread_runs_once(void **state) {
    (void)state;
    uint32_t host[2 * 3 * 2 * 30];
    uint32_t *memory = device_array<uint32_t>(nullptr, 360);
    RIGHT(sr_launch(number_threads, dim3(2, 3, 2), dim3(5, 3, 2), 0, stream, memory));
    fetch(host, memory, 360);
    for (uint32_t i = 0; i < 360; i++)
        assert_int_equal(host[i], i / 30 * 1000 + i % 30);
    assert_int_equal(sr_launch(number_threads, dim3(1), dim3(1025), 0, stream, memory),
                     cudaErrorInvalidConfiguration);
    assert_int_equal(sr_launch(number_threads, dim3(0), dim3(1), 0, stream, memory),
                     cudaErrorInvalidConfiguration);
    assert_int_equal(sr_launch(number_threads, dim3(1), dim3(1), 228 * 1024, stream, memory),
                     cudaErrorInvalidConfiguration);
    RIGHT(cudaFree(memory));
}

/* Sums 256 numbers in shared memory. Without barriers it is wrong, in one order of threads or the
 * other. */
template <bool barriers> __global__ void sum_in_shared_memory(float *to, const float *from) {
    SR_SHARED(float, part);
    part[threadIdx.x] = from[threadIdx.x];
    for (unsigned int half = blockDim.x / 2; half > 0; half /= 2) {
        if (barriers)
            __syncthreads();
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        to[blockIdx.x] = part[0];
}

/* The launch fails at the wait, with these words in the message; a reset recovers. */
static void assert_fails(const char *kernel, const char *what) {
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    const char *message = cudaGetErrorString(cudaErrorLaunchFailure);
    if (strstr(message, kernel) == nullptr || strstr(message, what) == nullptr)
        fail_msg("'%s' and '%s' are not in: %s", kernel, what, message);
    RIGHT(cudaDeviceReset());
    RIGHT(cudaGetLastError());
}

static void test_barriers(void **state) {
    (void)state;
    float host[256], sums[2], sum = 0;
    for (int i = 0; i < 256; i++)
        sum += host[i] = number(i);
    float *from = device_array(host, 256), *to = device_array<float>(nullptr, 2);
    RIGHT(sr_launch(sum_in_shared_memory<true>, dim3(2), dim3(256), 1024, stream, to, from));
    fetch(sums, to, 2);
    assert_true(sums[0] == sum && sums[1] == sum);
    RIGHT(sr_launch(sum_in_shared_memory<false>, dim3(2), dim3(256), 1024, stream, to, from));
#ifdef SR_EMULATOR_RACES
    assert_fails("sum_in_shared_memory", "a race");
#else
    fetch(sums, to, 2);
    assert_false(sums[0] == sum && sums[1] == sum);
    RIGHT(cudaFree(from));
    RIGHT(cudaFree(to));
#endif
}

#ifdef SR_EMULATOR_RACES
/* Lanes of a warp pass numbers on: with __syncwarp before the write that follows a read, or only
 * before the read. */
template <bool ordered> __global__ void pass_in_warp(int *to) {
    __shared__ int passed[64];
    const int thread = threadIdx.x;
    for (int round = 0; round < 3; round++) {
        passed[thread] = thread + round;
        __syncwarp();
        to[thread] = passed[thread ^ 1];
        if (ordered)
            __syncwarp();
    }
}

/* Each warp reads what the next one wrote, behind a barrier of the warp or of the block. */
template <bool block> __global__ void look_over(int *to) {
    SR_SHARED(int, memory);
    memory[threadIdx.x] = (int)threadIdx.x;
    if (block)
        __syncthreads();
    else
        __syncwarp();
    to[threadIdx.x] = memory[(threadIdx.x + 32) % 64];
}

/* Warp 0 hands numbers to warp 1, which hands its own to warp 2, which frees the place for warp 0;
 * each arrives, and does not wait. Warps 2 and 1 meet warp 3 too, which orders nothing between
 * them. BAD: 1: warp 2 waits for warp 0 alone; 2: warp 1 frees the place. */
template <int BAD> __global__ void hand_on(int *to) {
    __shared__ int memory[2][32];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int round = 0; round < 2; round++) {
        const int handed = 1 + round, second = BAD == 1 ? handed : 3 + round, freed = 5 + round;
        const int aside = 7 + round, last = 9 + round, readers = BAD == 1 ? 96 : 64;
        if (warp == 0) {
            memory[0][lane] = lane + round;
            named_barrier_arrive(handed, readers);
            named_barrier_sync(freed, 64);
        } else if (warp == 1) {
            named_barrier_sync(handed, readers);
            memory[1][lane] = memory[0][lane ^ 1] + round;
            if (BAD != 1)
                named_barrier_arrive(second, 64);
            if (BAD == 2)
                named_barrier_arrive(freed, 64);
            named_barrier_sync(last, 64);
        } else if (warp == 2) {
            named_barrier_sync(second, readers);
            to[lane] = memory[0][lane] + memory[1][lane ^ 2];
            if (BAD != 2)
                named_barrier_arrive(freed, 64);
            named_barrier_sync(aside, 64);
        } else {
            named_barrier_sync(aside, 64);
            named_barrier_sync(last, 64);
        }
    }
}

/* Halves of one word are different locations, and atomic functions do not race. */
__global__ void share_words(uint16_t *to, int *count) {
    to[threadIdx.x] = (uint16_t)threadIdx.x;
    atomicAdd(count, 1);
}

static void test_races(void **state) {
    (void)state;
    int zero = 0;
    int *memory = device_array<int>(nullptr, 64), *count = device_array(&zero, 1);
    RIGHT(sr_launch(pass_in_warp<true>, dim3(2), dim3(64), 0, stream, memory));
    RIGHT(sr_launch(look_over<true>, dim3(2), dim3(64), 256, stream, memory));
    RIGHT(sr_launch(share_words, dim3(2), dim3(64), 0, stream, (uint16_t *)memory, count));
    RIGHT(sr_launch(hand_on<0>, dim3(4), dim3(128), 0, stream, memory));
    RIGHT(cudaStreamSynchronize(stream));
    RIGHT(sr_launch(hand_on<1>, dim3(1), dim3(128), 0, stream, memory));
    assert_fails("hand_on", "a race");
    memory = device_array<int>(nullptr, 64);
    RIGHT(sr_launch(hand_on<2>, dim3(1), dim3(128), 0, stream, memory));
    assert_fails("hand_on", "a race");
    memory = device_array<int>(nullptr, 64);
    RIGHT(sr_launch(pass_in_warp<false>, dim3(1), dim3(64), 0, stream, memory));
    assert_fails("pass_in_warp", "a race");
    memory = device_array<int>(nullptr, 64);
    RIGHT(sr_launch(look_over<false>, dim3(1), dim3(64), 256, stream, memory));
    assert_fails("look_over", "a race");
}
#endif

/* Warp 0 passes numbers to the other three through barriers 1 (full) and 2 (empty). */
__global__ void hand_over(int *to) {
    __shared__ int handed[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int round = 0; round < 5; round++) {
        if (warp == 0) {
            if (round > 0)
                named_barrier_sync(2, 128);
            handed[lane] = round * 100 + lane;
            named_barrier_arrive(1, 128);
        } else {
            named_barrier_sync(1, 128);
            to[(round * 3 + warp - 1) * 32 + lane] = handed[31 - lane];
            if (round < 4)
                named_barrier_arrive(2, 128);
        }
    }
}

static void test_named_barriers(void **state) {
    (void)state;
    int host[5 * 3 * 32];
    int *memory = device_array<int>(nullptr, 5 * 3 * 32);
    for (int order = 0; order < 2; order++) {
        RIGHT(sr_launch(hand_over, dim3(1), dim3(128), 0, stream, memory));
        fetch(host, memory, 5 * 3 * 32);
        for (int i = 0; i < 5 * 3 * 32; i++)
            assert_int_equal(host[i], i / 96 * 100 + 31 - i % 32);
    }
    RIGHT(cudaFree(memory));
}

__global__ void early_end(int *to) {
    if (threadIdx.x >= 40)
        return;
    __syncthreads();
    to[threadIdx.x] = 1;
}

__global__ void lonely_shuffle(float *to) {
    if (threadIdx.x != 7)
        to[threadIdx.x] = shuffle_xor(to[threadIdx.x], 1);
}

__global__ void quarrel(float *to) {
    if (threadIdx.x % 2 == 0)
        to[threadIdx.x] = shuffle_xor(to[threadIdx.x], 1);
    else
        __syncwarp();
}

__global__ void beyond_shared(int) {
    SR_SHARED(char, memory);
    memory[100 + threadIdx.x] = 1;
}

static void test_deadlocks_are_reported(void **state) {
    (void)state;
    int host[40];
    int *memory = device_array<int>(nullptr, 40);
    RIGHT(sr_launch(early_end, dim3(1), dim3(64), 0, stream,
                    memory)); /* threads that have ended are not waited for */
    fetch(host, memory, 40);
    assert_int_equal(host[39], 1);
    float *x = device_array<float>(nullptr, 192);
    RIGHT(sr_launch(lonely_shuffle, dim3(3), dim3(64), 0, stream, x));
    assert_fails("lonely_shuffle", "31 at shuffle_xor, 33 at its end");
    x = device_array<float>(nullptr, 192);
    RIGHT(sr_launch(quarrel, dim3(1), dim3(64), 0, stream, x));
    assert_fails("quarrel", "__syncwarp");
    x = device_array<float>(nullptr, 192);
    RIGHT(sr_launch(lonely_shuffle, dim3(1), dim3(40), 0, stream, x));
    assert_fails("lonely_shuffle", "not whole warps");
    RIGHT(sr_launch(beyond_shared, dim3(1), dim3(32), 128, stream, 0));
    assert_fails("beyond_shared", "beyond its 128 bytes");
}

/* Both warps of every block wait for the next block's word; the last block begins. */
__global__ void pass_on(sr_marked *words, uint32_t mark) {
    const int block = (int)blockIdx.x, from = 2 * (block + 1);
    sr_marked two[2] = {{0, mark}, {0, mark}};
    if (block + 1 < (int)gridDim.x)
        do {
            wait_a_moment();
            load_marked(two, words + from);
        } while (warp_ballot(two[0].mark == mark && two[1].mark == mark) != SR_FULL_WARP);
    __syncthreads();
    if (threadIdx.x < 2)
        store_marked(words + 2 * block + threadIdx.x, two[threadIdx.x].number + 1, mark);
}

static void test_blocks_together(void **state) {
    (void)state;
    enum { BLOCKS = 40 };
    sr_marked host[2 * BLOCKS] = {};
    sr_marked *words = device_array(host, 2 * BLOCKS);
    for (uint32_t mark = 1; mark < 3; mark++) {
        RIGHT(sr_launch_together(pass_on, dim3(BLOCKS), dim3(64), 0, stream, words, mark));
        fetch(host, words, 2 * BLOCKS);
        for (int block = 0; block < BLOCKS; block++)
            for (int i = 0; i < 2; i++) {
                assert_true(host[2 * block + i].number == (float)(BLOCKS - block));
                assert_int_equal(host[2 * block + i].mark, mark);
            }
    }
    RIGHT(sr_launch(pass_on, dim3(2), dim3(64), 0, stream, words, 7));
    assert_fails("pass_on", "need not run at the same time");
}

/* out[x] = the number of thread x of the next block of the cluster, twice with a barrier in
 * between. */
__global__ void ask_neighbour(float *out, int size) {
    SR_SHARED(float, memory);
    const int block = (int)blockIdx.x, thread = (int)threadIdx.x;
    for (int round = 0; round < 2; round++) {
        memory[thread] = (float)(1000 * round + 100 * block + thread);
        cluster_barrier();
        out[(round * (int)gridDim.x + block) * (int)blockDim.x + thread] =
            cluster_load(memory + thread, (block + 1) % size);
        if (round == 0)
            cluster_barrier();
        else
            cluster_leave();
    }
}

static void test_clusters(void **state) {
    (void)state;
    enum { BLOCKS = 8, THREADS = 64 };
    float host[2 * BLOCKS * THREADS];
    float *out = device_array<float>(nullptr, 2 * BLOCKS * THREADS);
    for (int size = 1; size <= BLOCKS; size *= 2) {
        RIGHT(sr_launch_clusters(size, ask_neighbour, dim3(BLOCKS), dim3(THREADS),
                                 THREADS * sizeof(float), stream, out, size));
        fetch(host, out, 2 * BLOCKS * THREADS);
        for (int i = 0; i < 2 * BLOCKS * THREADS; i++) {
            const int block = i / THREADS % BLOCKS, next = block / size * size + (block + 1) % size;
            const int round = i / THREADS / BLOCKS;
            assert_true(host[i] == (float)(1000 * round + 100 * next + i % THREADS));
        }
    }
    assert_int_equal(sr_launch_clusters(4, ask_neighbour, dim3(6), dim3(THREADS),
                                        THREADS * sizeof(float), stream, out, 4),
                     cudaErrorInvalidConfiguration);
    RIGHT(
        sr_launch(ask_neighbour, dim3(2), dim3(THREADS), THREADS * sizeof(float), stream, out, 2));
    assert_fails("ask_neighbour", "need not run at the same time");
}

__global__ void count_blocks(int *count, float *sum, int *largest) {
    const int before = atomicAdd(count, 1);
    atomicAdd(sum, 0.5f);
    atomicMax(largest, (int)(blockIdx.x * blockDim.x + threadIdx.x));
    if (before == (int)(gridDim.x * blockDim.x) - 1)
        atomicExch(count, -1);
}

static void test_atomic_functions(void **state) {
    (void)state;
    int count[2] = {0, 0};
    float sum = 0;
    int *counts = device_array(count, 2);
    float *sums = device_array(&sum, 1);
    RIGHT(sr_launch(count_blocks, dim3(50), dim3(70), 0, stream, counts, sums, counts + 1));
    fetch(count, counts, 2);
    fetch(&sum, sums, 1);
    assert_int_equal(count[0], -1);
    assert_int_equal(count[1], 3499);
    assert_true(sum == 1750);
    RIGHT(cudaFree(counts));
    RIGHT(cudaFree(sums));
}

/* ---- between the lanes ---- */

struct exchanged {
    int across, from, down, up;
    uint32_t ballot;
    float sum, maximum, quad;
    double wide;
};

__global__ void exchange(exchanged *to) {
    const int lane = threadIdx.x % 32;
    exchanged x;
    x.across = shuffle_xor(lane, 5);
    x.from = shuffle(lane, (lane * 7 + 3) % 32);
    x.down = shuffle_down(lane, 3);
    x.up = shuffle_up(lane, 3);
    x.ballot = warp_ballot(lane % 3 == 0);
    x.sum = warp_sum((float)lane);
    x.maximum = warp_maximum((float)(lane * 11 % 32));
    x.quad = quad_sum((float)lane) + 1000 * quad_maximum((float)lane);
    x.wide = warp_sum(lane + 1e-12);
    to[threadIdx.x] = x;
}

static void test_shuffles(void **state) {
    (void)state;
    exchanged host[64];
    exchanged *memory = device_array<exchanged>(nullptr, 64);
    RIGHT(sr_launch(exchange, dim3(1), dim3(64), 0, stream, memory));
    fetch(host, memory, 64);
    for (int i = 0; i < 64; i++) {
        const int lane = i % 32, quad = lane / 4 * 4;
        assert_int_equal(host[i].across, lane ^ 5);
        assert_int_equal(host[i].from, (lane * 7 + 3) % 32);
        assert_int_equal(host[i].down, lane + 3 < 32 ? lane + 3 : lane);
        assert_int_equal(host[i].up, lane >= 3 ? lane - 3 : lane);
        assert_int_equal(host[i].ballot, 0x49249249);
        assert_true(host[i].sum == 496 && host[i].maximum == 31);
        assert_true(host[i].quad == 4 * quad + 6 + 1000 * (quad + 3));
        assert_true(fabs(host[i].wide - (496 + 32e-12)) < 1e-12);
    }
    RIGHT(cudaFree(memory));
}

/* ---- products and matrices ---- */

/* C (16 x 8) += A (16 x 16) B (16 x 8), row by row in memory. */
__global__ void multiply_bf16(float *c, const float *a, const float *b) {
    const int g = threadIdx.x / 4, i = threadIdx.x % 4;
    uint32_t fa[4], fb[2];
    for (int r = 0; r < 4; r++) {
        const float *pair = a + (g + 8 * (r & 1)) * 16 + 2 * i + 8 * (r >> 1);
        fa[r] = pack_bf16(pair[0], pair[1]);
    }
    for (int r = 0; r < 2; r++)
        fb[r] = pack_bf16(b[(2 * i + 8 * r) * 8 + g], b[(2 * i + 8 * r + 1) * 8 + g]);
    float *upper = c + g * 8 + 2 * i, *lower = upper + 8 * 8;
    float fc[4] = {upper[0], upper[1], lower[0], lower[1]};
    mma_m16n8k16(fc, fa, fb);
    mma_m16n8k16(fc, fa, fb);
    upper[0] = fc[0], upper[1] = fc[1], lower[0] = fc[2], lower[1] = fc[3];
}

__global__ void multiply_tf32(float *c, const float *a, const float *b) {
    const int g = threadIdx.x / 4, i = threadIdx.x % 4;
    const uint32_t fa[4] = {to_tf32(a[g * 8 + i]), to_tf32(a[(g + 8) * 8 + i]),
                            to_tf32(a[g * 8 + i + 4]), to_tf32(a[(g + 8) * 8 + i + 4])};
    const uint32_t fb[2] = {to_tf32(b[i * 8 + g]), to_tf32(b[(i + 4) * 8 + g])};
    float *upper = c + g * 8 + 2 * i, *lower = upper + 8 * 8;
    float fc[4] = {upper[0], upper[1], lower[0], lower[1]};
    mma_m16n8k8_tf32(fc, fa, fb);
    upper[0] = fc[0], upper[1] = fc[1], lower[0] = fc[2], lower[1] = fc[3];
}

static void check_product(void (*kernel)(float *, const float *, const float *), int depth,
                          int times) {
    float a[256], b[128], c[128], product[128];
    for (int i = 0; i < 256; i++)
        a[i] = number(i);
    for (int i = 0; i < 128; i++) {
        b[i] = number(i + 300);
        c[i] = number(i + 500);
    }
    float *da = device_array(a, 256), *db = device_array(b, 128), *dc = device_array(c, 128);
    RIGHT(sr_launch(kernel, dim3(1), dim3(32), 0, stream, dc, da, db));
    fetch(product, dc, 128);
    for (int i = 0; i < 128; i++) {
        float sum = 0; /* exact: multiples of 1/64 below 2^18 */
        for (int k = 0; k < depth; k++)
            sum += a[i / 8 * depth + k] * b[k * 8 + i % 8];
        assert_true(product[i] == c[i] + (float)times * sum);
    }
    RIGHT(cudaFree(da));
    RIGHT(cudaFree(db));
    RIGHT(cudaFree(dc));
}

static void test_products(void **state) {
    (void)state;
    check_product(multiply_bf16, 16, 2);
    check_product(multiply_tf32, 8, 1);
}

/* Loads the 16 x 16 matrix in all ways, and stores it again through its fragments. */
struct fragments {
    uint32_t straight[4], transposed[4], two[2], two_transposed[2];
};

__global__ void load_matrices(fragments *to, uint16_t *stored, const uint16_t *from) {
    __shared__ __align__(16) uint16_t matrix[16][24], copy[16][24],
        again[16][24]; /* rows that begin at different banks */
    const int lane = threadIdx.x, row = lane % 8 + 8 * (lane / 8 % 2), column = 8 * (lane / 16);
    for (int i = lane; i < 256; i += 32)
        matrix[i / 16][i % 16] = from[i];
    __syncwarp();
    fragments f;
    ldmatrix_x4(f.straight, &matrix[row][column]);
    ldmatrix_x4_transposed(f.transposed, &matrix[row][column]);
    ldmatrix_x2(f.two, &matrix[row][8]);
    ldmatrix_x2_transposed(f.two_transposed, &matrix[row][8]);
    stmatrix_x4(&copy[row][column], f.straight);
    stmatrix_x4_transposed(&again[row][column], f.transposed);
    __syncwarp();
    for (int i = lane; i < 256; i += 32) {
        stored[i] = copy[i / 16][i % 16];
        stored[256 + i] = again[i / 16][i % 16];
    }
    to[lane] = f;
}

static void test_matrices(void **state) {
    (void)state;
    uint16_t host[256], stored[2][256];
    fragments found[32];
    for (int i = 0; i < 256; i++)
        host[i] = (uint16_t)(i * 257);
    uint16_t *from = device_array(host, 256), *back = device_array<uint16_t>(nullptr, 512);
    fragments *to = device_array<fragments>(nullptr, 32);
    RIGHT(sr_launch(load_matrices, dim3(1), dim3(32), 0, stream, to, back, from));
    fetch(found, to, 32);
    fetch(stored[0], back, 512);
    assert_memory_equal(stored[0], host, sizeof host);
    assert_memory_equal(stored[1], host, sizeof host);
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < 4; m++) {
            const int g = lane / 4, i = lane % 4, row = 8 * (m % 2), column = 8 * (m / 2);
            const uint16_t *pair = &host[(row + g) * 16 + column + 2 * i];
            const uint16_t *below = &host[(row + 2 * i) * 16 + column + g];
            assert_int_equal(found[lane].straight[m], (uint32_t)pair[1] << 16 | pair[0]);
            assert_int_equal(found[lane].transposed[m], (uint32_t)below[16] << 16 | below[0]);
            if (m < 2) {
                assert_int_equal(found[lane].two[m], found[lane].straight[m + 2]);
                assert_int_equal(found[lane].two_transposed[m], found[lane].transposed[m + 2]);
            }
        }
    RIGHT(cudaFree(from));
    RIGHT(cudaFree(back));
    RIGHT(cudaFree(to));
}

/* ---- asynchronous copies ---- */

/* Two groups of copies, of which only the first is waited for, or both; the second ends in
 * zeros. */
template <int pending> __global__ void copy_groups(float *to, const float *from) {
    SR_SHARED(float, memory);
    const int lane = threadIdx.x;
    cp_async_16(memory + 4 * lane, from + 4 * lane);
    cp_async_commit();
    cp_async_16(memory + 128 + 4 * lane, from, 8);
    cp_async_4(memory + 256 + lane, from + lane, lane == 0 ? 0 : 4);
    cp_async_commit();
    cp_async_wait<pending>();
    __syncthreads();
    for (int i = lane; i < 288; i += 32)
        to[blockIdx.x * 288 + i] = memory[i];
}

static void test_copies(void **state) {
    (void)state;
    float host[128], copied[2][288];
    for (int i = 0; i < 128; i++)
        host[i] = number(i);
    float *from = device_array(host, 128), *to = device_array<float>(nullptr, 2 * 288);
    RIGHT(sr_launch(copy_groups<0>, dim3(2), dim3(32), 288 * 4, stream, to, from));
    fetch(&copied[0][0], to, 2 * 288);
    for (int order = 0; order < 2; order++) {
        assert_memory_equal(copied[order], host, sizeof host);
        for (int i = 0; i < 128; i++)
            assert_true(copied[order][128 + i] == (i % 4 < 2 ? host[i % 4] : 0));
        for (int i = 0; i < 32; i++)
            assert_true(copied[order][256 + i] == (i == 0 ? 0 : host[i]));
    }
    /* Not waited for: in one of the two blocks the second group has not arrived. */
    RIGHT(sr_launch(copy_groups<1>, dim3(2), dim3(32), 288 * 4, stream, to, from));
    fetch(&copied[0][0], to, 2 * 288);
    assert_memory_equal(copied[0], host, sizeof host);
    assert_memory_equal(copied[1], host, sizeof host);
    assert_true((copied[0][130] == 0) != (copied[1][130] == 0));
    RIGHT(cudaFree(from));
    RIGHT(cudaFree(to));
}

/* ---- memory, queue and recordings ---- */

__global__ void add_one(float *x, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        x[i] += 1;
}

static void test_memory_is_poisoned_and_checked(void **state) {
    (void)state;
    float host[3];
    float *memory = device_array<float>(nullptr, 3);
    fetch(host, memory, 3);
    assert_true(host[0] != host[0] && host[2] != host[2]);
    assert_int_equal(cudaMemcpy(host, memory, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(memory, memory, 12, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(host, memory, 12, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(memory + 1, 0, 12), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(memory + 1), cudaErrorInvalidValue);
    void *large;
    assert_int_equal(cudaMalloc(&large, (size_t)1 << 40), cudaErrorMemoryAllocation);
    size_t before, during, total;
    RIGHT(cudaMemGetInfo(&before, &total));
    RIGHT(cudaFree(memory));
    RIGHT(cudaMemGetInfo(&during, &total));
    assert_int_equal(during, before + 12);
    cudaGetLastError();
}

/* Run with an argument, this program misbehaves and should be ended by a signal. */
static int misbehave(const char *how) {
    float *memory = nullptr;
    cudaMalloc(&memory, 100 * sizeof *memory);
    if (strcmp(how, "touch") == 0)
        *(volatile float *)memory = 1;
    /* The pages end within 64 numbers after the first 100. */
    sr_launch(add_one, dim3(1), dim3(256), 0, nullptr, memory, 256);
    cudaDeviceSynchronize();
    return 0;
}

/* This program, with that argument, fails with `words` in its message. */
static void assert_dies(const char *how, const char *words) {
    char said[4096] = "";
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        execl("/proc/self/exe", "test_emulator", how, (char *)nullptr);
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(ends[0], said + used, sizeof said - 1 - used)) > 0;)
        used += (size_t)got;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_not_equal(status, 0);
    if (strstr(said, words) == nullptr)
        fail_msg("'%s' is not in: %s", words, said);
}

static void test_accesses_that_a_gpu_forbids(void **state) {
    (void)state;
    assert_dies("touch", "the host touched memory of the GPU");
#ifdef SOFTRNN_SANITIZED
    assert_dies("overrun", "AddressSanitizer");
#else
    assert_dies("overrun", "beyond the GPU's memory");
#endif
}

/* Memory that is not pinned is read and written before a copy returns; other work is deferred until
 * the host waits. */
static void test_work_waits(void **state) {
    (void)state;
    float plain[2] = {1, 2}, back[2] = {0, 0};
    float *pinned, *memory = device_array<float>(nullptr, 2);
    RIGHT(cudaMallocHost(&pinned, 4 * sizeof *pinned));
    pinned[0] = 5, pinned[1] = 6, pinned[2] = pinned[3] = 0;
    RIGHT(cudaMemcpyAsync(memory, plain, 8, cudaMemcpyHostToDevice, stream));
    plain[0] = plain[1] = 9;
    RIGHT(sr_launch(add_one, dim3(1), dim3(32), 0, stream, memory, 2));
    RIGHT(cudaMemcpyAsync(pinned + 2, memory, 8, cudaMemcpyDeviceToHost, stream));
    assert_true(pinned[2] == 0); /* no wait yet */
    cudaEvent_t event;
    RIGHT(cudaEventCreate(&event));
    RIGHT(cudaEventRecord(event, stream));
    RIGHT(cudaEventSynchronize(event));
    assert_true(pinned[2] == 2 && pinned[3] == 3);
    RIGHT(cudaMemcpyAsync(memory, pinned, 8, cudaMemcpyHostToDevice, stream));
    pinned[1] = 7; /* too early */
    RIGHT(cudaMemcpyAsync(back, memory, 8, cudaMemcpyDeviceToHost, stream));
    assert_true(back[0] == 5 && back[1] == 7);
    RIGHT(cudaEventDestroy(event));
    RIGHT(cudaFreeHost(pinned));
    RIGHT(cudaFree(memory));
}

static void test_recordings(void **state) {
    (void)state;
    float host[2] = {1, 2}, back[2] = {0, 0};
    float *memory = device_array(host, 2), *other = device_array<float>(nullptr, 2);
    cudaStream_t second;
    cudaEvent_t forked, joined;
    RIGHT(cudaStreamCreate(&second));
    RIGHT(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    RIGHT(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    RIGHT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    RIGHT(sr_launch(add_one, dim3(1), dim3(32), 0, stream, memory, 2));
    RIGHT(cudaEventRecord(forked, stream));
    RIGHT(cudaStreamWaitEvent(second, forked));
    RIGHT(cudaMemcpyAsync(other, memory, 8, cudaMemcpyDeviceToDevice, second));
    RIGHT(cudaEventRecord(joined, second));
    RIGHT(cudaStreamWaitEvent(stream, joined));
    RIGHT(cudaMemsetAsync(memory, 0, 4, stream));
    void *refused;
    assert_int_equal(cudaMalloc(&refused, 4), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    RIGHT(cudaStreamEndCapture(stream, &graph));
    RIGHT(cudaGraphInstantiate(&executable, graph));
    RIGHT(cudaGraphDestroy(graph));
    fetch(back, memory, 2);
    assert_true(back[0] == 1 && back[1] == 2); /* recorded, not done */
    for (int i = 0; i < 3; i++)
        RIGHT(cudaGraphLaunch(executable, stream));
    fetch(back, memory, 2);
    assert_true(back[0] == 0 && back[1] == 5);
    fetch(back, other, 2);
    assert_true(back[0] == 1 && back[1] == 5);
    RIGHT(cudaGraphExecDestroy(executable));
    RIGHT(cudaEventDestroy(forked));
    RIGHT(cudaEventDestroy(joined));
    RIGHT(cudaStreamDestroy(second));
    RIGHT(cudaFree(memory));
    RIGHT(cudaFree(other));
    cudaGetLastError();
}

static void *allocate(void *error) {
    void *memory;
    *(cudaError_t *)error = cudaMalloc(&memory, 4);
    cudaFree(memory);
    return nullptr;
}

/* Another thread may allocate while this one captures, unless the capture is global. */
static void test_recordings_of_threads(void **state) {
    (void)state;
    const cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeThreadLocal,
                                           cudaStreamCaptureModeGlobal};
    for (int i = 0; i < 2; i++) {
        cudaError_t other = cudaErrorUnknown;
        cudaGraph_t graph;
        pthread_t thread;
        void *refused;
        RIGHT(cudaStreamBeginCapture(stream, modes[i]));
        assert_int_equal(pthread_create(&thread, nullptr, allocate, &other), 0);
        assert_int_equal(pthread_join(thread, nullptr), 0);
        assert_int_equal(other, i == 0 ? cudaSuccess : cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaGetLastError(), cudaSuccess); /* errors are those of a thread */
        assert_int_equal(cudaMalloc(&refused, 4), cudaErrorStreamCaptureUnsupported);
        RIGHT(cudaStreamEndCapture(stream, &graph));
        RIGHT(cudaGraphDestroy(graph));
        cudaGetLastError();
    }
}

int main(int argc, char **argv) {
    if (argc > 1)
        return misbehave(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_every_thread_runs_once),
        cmocka_unit_test(test_barriers),
#ifdef SR_EMULATOR_RACES
        cmocka_unit_test(test_races),
#endif
        cmocka_unit_test(test_named_barriers),
        cmocka_unit_test(test_deadlocks_are_reported),
        cmocka_unit_test(test_blocks_together),
        cmocka_unit_test(test_clusters),
        cmocka_unit_test(test_atomic_functions),
        cmocka_unit_test(test_shuffles),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_memory_is_poisoned_and_checked),
        cmocka_unit_test(test_accesses_that_a_gpu_forbids),
        cmocka_unit_test(test_work_waits),
        cmocka_unit_test(test_recordings),
        cmocka_unit_test(test_recordings_of_threads),
    };
    return cmocka_run_group_tests(tests, create_stream, destroy_stream);
}
