/* states.cu: the states between segments of tokens: what each segment adds, and their scan. */
#include "attention/cuda/order2/order2.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { EIGHT = 8, SCAN_THREADS = SR_GROUP_NUMBERS / EIGHT }; /* numbers of a thread of the scan */

/* What a warp sums, in units of 16 rows by SR_CHUNK columns: four, or two of short keys, where one
 * block computes the whole state and prefetches more of a segment. Stages in flight or being read;
 * resident blocks per multiprocessor. */
template <int WIDTH> struct sums_shape {
    static constexpr int UNITS = WIDTH <= 16 ? 2 : 4, WARPS = WIDTH <= 16 ? 8 : 4;
    static constexpr int THREADS = WARPS * SR_WARP, STAGES = WIDTH <= 16 ? 4 : 2;
    /* Code for GPUs before Hopper needs more registers than two blocks of short keys leave. */
    static constexpr int BLOCKS = WIDTH <= 16 && SR_CHUNK_BLOCKS < 4 ? 1 : 2;
};

enum task_kind {
    PRODUCTS, /* some numbers of A times those of B, by values */
    VALUES,   /* keys by values */
    KEYS,     /* keys by keys */
    VECTORS,  /* ones by values, ones by keys; the count */
};

struct task_place {
    task_kind kind;
    /* of products: numbers first .. of tile a; tile b. Of one tile: groups first .. */
    int a, b, first;
    int units;
};

template <int WIDTH> SR_BOTH int product_tasks(const sr_order2 &expanded) {
    constexpr int UNITS = sums_shape<WIDTH>::UNITS;
    return (expanded.product_groups() + UNITS - 1) / UNITS;
}

template <int WIDTH> SR_BOTH int task_count(const sr_order2 &expanded) {
    return product_tasks<WIDTH>(expanded) + 3;
}

template <int WIDTH> SR_DEVICE task_place task_of(const sr_order2 &expanded, int n) {
    const int other = n - product_tasks<WIDTH>(expanded);
    if (other >= 0)
        return {(task_kind)(VALUES + other), 0, 0, 0,
                VALUES + other == VECTORS ? 2 : expanded.tiles};
    constexpr int UNITS = sums_shape<WIDTH>::UNITS;
    const sr_tile_pair pair = tile_pair(n * UNITS / 16);
    return {PRODUCTS, pair.a, pair.b, n * UNITS % 16,
            min((int)UNITS, expanded.product_groups() - n * UNITS)};
}

/* Where unit 0 of a task is in the numbers of a state. */
template <int WIDTH> SR_DEVICE int64_t task_offset(const sr_order2 &expanded, int n) {
    const int other = n - product_tasks<WIDTH>(expanded);
    const int group = other < 0 ? n * sums_shape<WIDTH>::UNITS
                                : expanded.product_groups() + other * expanded.tiles;
    return (int64_t)group * SR_GROUP_NUMBERS;
}

template <int WIDTH> struct state_task {
    static constexpr int UNITS = sums_shape<WIDTH>::UNITS;
    task_place at;
    float c[UNITS][SR_CHUNK / 8][4];
    float count; /* the lane's share */

    SR_DEVICE explicit state_task(const task_place &which) : at(which), count(0) {
#pragma unroll
        for (int n = 0; n < UNITS * SR_CHUNK / 2; n++)
            c[n / (SR_CHUNK / 2)][n / 4 % (SR_CHUNK / 8)][n % 4] = 0;
    }

    /* 16 tokens of the columns: values or keys. */
    using columns = uint32_t[SR_CHUNK / 16][4];
    static SR_DEVICE void load_values(columns &b, const sr_bf16 *values, int step) {
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 16; n++)
            load_b_rows<SR_CHUNK>(b[n], values, 16 * step, n);
    }
    static SR_DEVICE void load_keys(columns &b, const sr_bf16 *keys, int step) {
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 16; n++)
            if (n < WIDTH / 16)
                load_b_rows<WIDTH>(b[n], keys, 16 * step, n);
            else
                b[n][0] = b[n][1] = b[n][2] = b[n][3] = 0;
    }
    SR_DEVICE void multiply(float (&unit)[SR_CHUNK / 8][4], const uint32_t (&a)[4],
                            const columns &b) {
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 8; n++)
            mma_m16n8k16(unit[n], a, b[n / 2] + n % 2 * 2);
    }

    /* Keys of one tile times their numbers some places after, modulo 16, by values. */
    SR_DEVICE void add_turns(const sr_bf16 *keys, const columns &b, const float *factor, int step) {
        const int lane = (int)threadIdx.x % SR_WARP;
        uint32_t a[4], numbers[4];
        load_a_columns<WIDTH>(numbers, keys, 16 * step, 0);
        load_a_columns<WIDTH>(a, keys, 16 * step, 0);
        if (factor)
            scale_columns(a, factor, step);
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            const int row = lane / 4 + at.first + unit, from = row % 8 * 4 + lane % 4;
            const bool other = row / 8 % 2 == 1; /* the other half of the 16 rows */
            uint32_t rotated[4], product[4];
            if (unit >= at.units)
                continue;
#pragma unroll
            for (int e = 0; e < 4; e++)
                rotated[e] = shuffle(numbers[e], from);
#pragma unroll
            for (int e = 0; e < 4; e++)
                product[e] = multiply_bf16(a[e], other ? rotated[e ^ 1] : rotated[e]);
            multiply(c[unit], product, b);
        }
    }

    /* Keys times some of their numbers, by values. */
    SR_DEVICE void add_products(const sr_bf16 *keys, const columns &b, const float *factor,
                                int step) {
        const int lane = (int)threadIdx.x % SR_WARP;
        uint32_t a[4], numbers[4];
        load_a_columns<WIDTH>(a, keys, 16 * step, at.b);
        load_a_columns<WIDTH>(numbers, keys, 16 * step, at.a);
        if (factor)
            scale_columns(a, factor, step);
        const bool upper = at.first >= 8; /* half of the 16 rows of A */
        const uint32_t early = upper ? numbers[1] : numbers[0];
        const uint32_t late = upper ? numbers[3] : numbers[2];
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            const int from = 4 * (at.first % 8 + unit) + lane % 4;
            const uint32_t first = shuffle(early, from), second = shuffle(late, from);
            const uint32_t product[4] = {multiply_bf16(a[0], first), multiply_bf16(a[1], first),
                                         multiply_bf16(a[2], second), multiply_bf16(a[3], second)};
            multiply(c[unit], product, b);
        }
    }

    /* Order 1: keys as they are. */
    SR_DEVICE void add_keys(const sr_bf16 *keys, const columns &b, const float *factor, int step) {
#pragma unroll
        for (int unit = 0; unit < WIDTH / 16; unit++) {
            uint32_t a[4];
            if (unit >= at.units)
                continue;
            load_a_columns<WIDTH>(a, keys, 16 * step, unit);
            if (factor)
                scale_columns(a, factor, step);
            multiply(c[unit], a, b);
        }
    }

    /* Order 0: row 0 of A is ones, times factors. */
    SR_DEVICE void add_ones(float (&unit)[SR_CHUNK / 8][4], const columns &b, const float *factor,
                            int step) {
        const uint32_t one = (int)threadIdx.x % SR_WARP < 4 ? 0x3f803f80u : 0;
        uint32_t a[4] = {one, 0, one, 0};
        if (factor)
            scale_columns(a, factor, step);
        multiply(unit, a, b);
    }

    /* Adds 64 tokens. */
    SR_DEVICE void add(const sr_bf16 *keys, const sr_bf16 *values,
                       const sr_token_factors &factors) {
        const int lane = (int)threadIdx.x % SR_WARP;
#pragma unroll 1
        for (int step = 0; step < SR_CHUNK / 16; step++) {
            columns b;
            switch (at.kind) {
            case PRODUCTS:
                load_values(b, values, step);
                if constexpr (WIDTH <= 16)
                    add_turns(keys, b, factors.values, step);
                else
                    add_products(keys, b, factors.values, step);
                break;
            case VALUES:
                load_values(b, values, step);
                add_keys(keys, b, factors.values, step);
                break;
            case KEYS:
                load_keys(b, keys, step);
                add_keys(keys, b, factors.ones, step);
                break;
            case VECTORS:
                load_values(b, values, step);
                add_ones(c[0], b, factors.values, step);
                load_keys(b, keys, step);
                add_ones(c[1], b, factors.ones, step);
                if (lane < 16)
                    count += factors.ones ? factors.ones[16 * step + lane] : 1;
                break;
            }
        }
    }

    /* Stores the task's sums, from where unit 0 is; vectors have only a first row. */
    SR_DEVICE void put(float *numbers) {
        const int lane = (int)threadIdx.x % SR_WARP;
        const int apart = at.kind == VECTORS ? (int)SR_CHUNK : (int)SR_GROUP_NUMBERS;
        const float all = warp_sum(count);
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++)
#pragma unroll
            for (int n = 0; n < SR_CHUNK / 8; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = piece_row(half);
                    if (unit >= at.units || (at.kind == VECTORS && row > 0))
                        continue;
                    const int place = WIDTH <= 16 && at.kind == PRODUCTS ? rotated_row(row) : row;
                    float *const to =
                        numbers + unit * apart + place * SR_CHUNK + 8 * n + 2 * (lane % 4);
                    *reinterpret_cast<float2 *>(to) = {c[unit][n][2 * half],
                                                       c[unit][n][2 * half + 1]};
                }
        if (at.kind == VECTORS && lane < EIGHT)
            numbers[2 * SR_CHUNK + lane] = lane == 0 ? all : 0;
    }
};

template <int WIDTH> struct states_memory {
    static constexpr int STAGES = sums_shape<WIDTH>::STAGES;
    alignas(16) sr_bf16 keys[STAGES][SR_CHUNK * WIDTH];
    sr_bf16 values[STAGES][SR_CHUNK_NUMBERS];
    float factor[STAGES][SR_CHUNK], ones[STAGES][SR_CHUNK];
};

/* The tokens that a segment adds, 64 at a time: keys and values, or from the end queries and
 * gradients of numerators of all heads that share the keys. */
template <int WIDTH, bool FROM_END> struct token_stream {
    const sr_attention_view<sr_bf16> &call;
    const sr_mma_alignment &aligned;
    const sr_chunk_head<true> head;
    states_memory<WIDTH> &memory;
    int b, kv, begin, end;
    /* tokens that count after the segment, or from the end before it; others are read as zero */
    int from, to;
    bool differ; /* whether tokens have different weights */

    SR_DEVICE int stages() const {
        return (end - begin + SR_CHUNK - 1) / SR_CHUNK * (FROM_END ? call.group : 1);
    }

    /* The head of queries, and the first token, of stage n. */
    SR_DEVICE int head_of(int n) const {
        return kv * call.group + (FROM_END ? n % call.group : 0);
    }
    SR_DEVICE int first_of(int n) const {
        return begin + (FROM_END ? n / call.group : n) * SR_CHUNK;
    }

    SR_DEVICE void load(int n) {
        constexpr int THREADS = sums_shape<WIDTH>::THREADS;
        const int stage = n % sums_shape<WIDTH>::STAGES;
        const int h = head_of(n), t0 = first_of(n);
        if (n >= stages()) {
            /* an empty group, so that the number of groups in flight is always the same */
            cp_async_commit();
            return;
        }
        const auto keys = FROM_END ? head_rows(call.q, b, h, call.D, aligned.q)
                                   : head_rows(call.k, b, kv, call.D, aligned.k);
        const auto values = FROM_END
                                ? head_rows(call.d_numerator, b, h, call.Dv, aligned.d_numerator)
                                : head_rows(call.v, b, kv, call.Dv, aligned.v);
        tile_load<WIDTH, SR_CHUNK, THREADS>(memory.keys[stage], keys, t0, from, to);
        tile_load<SR_CHUNK, SR_CHUNK, THREADS>(memory.values[stage], values, t0, from, to);
        cp_async_commit();
    }

    /* The weights of the thread's token of stage n, in S and z; loaded long before they are stored
     * to shared memory. */
    SR_DEVICE float2 fetch_factors(int n) const {
        const int t = first_of(n) + (int)threadIdx.x % SR_CHUNK;
        if (!differ || n >= stages())
            return {0, 0};
        if (!FROM_END) {
            const float factor = head.until(end - 1, t);
            return {factor, factor};
        }
        const int64_t at = call.row_index(call.H, b, head_of(n), min(t, call.T - 1));
        const float factor = counted(call.scratch.row_scale[at], head.back_to(begin, t));
        return {factor, counted(call.scratch.d_row_sum[at], factor)};
    }
    SR_DEVICE void put_factors(int n, const float2 &pair) {
        const int stage = n % sums_shape<WIDTH>::STAGES, token = (int)threadIdx.x % SR_CHUNK;
        if (!differ)
            return;
        memory.factor[stage][token] = pair.x;
        memory.ones[stage][token] = pair.y;
    }

    SR_DEVICE sr_token_factors factors(int n) const {
        const int stage = n % sums_shape<WIDTH>::STAGES;
        if (!differ)
            return {nullptr, nullptr};
        return {memory.factor[stage], memory.ones[stage]};
    }
};

/* What each segment adds, except the last, or from the end the first. A block owns WARPS tasks
 * (parts of the state: units of 16 features x 64 columns) of one segment of one KV head, one task
 * per warp. cp.async copies 64 tokens at a time, keys and values (or queries and gradients of
 * numerators, head by head of the group), global -> shared, STAGES - 1 ahead; the wait and barrier
 * for stage n also free the stage that is loaded next. Each warp computes products of key numbers
 * in registers and accumulates them times values by mma. Token weights (decay, documents, row
 * scales) go through registers to shared memory. Each warp stores its sums to the workspace once;
 * expanded_scan follows. */
template <int WIDTH, bool FROM_END>
__global__ void __launch_bounds__(sums_shape<WIDTH>::THREADS, sums_shape<WIDTH>::BLOCKS)
    expanded_sums(const __grid_constant__ sr_attention_view<sr_bf16> call,
                  const __grid_constant__ sr_mma_alignment aligned, const sr_order2 expanded) {
    using memory = states_memory<WIDTH>;
    constexpr int WARPS = sums_shape<WIDTH>::WARPS, AHEAD = sums_shape<WIDTH>::STAGES - 1;
    SR_SHARED(memory, shared);
    const int tasks = task_count<WIDTH>(expanded), parts = (tasks + WARPS - 1) / WARPS;
    const int part = (int)blockIdx.x % parts, row = (int)blockIdx.x / parts;
    const int segment = row % (expanded.count - 1) + (FROM_END ? 1 : 0);
    const int head_number = row / (expanded.count - 1);
    const int b = head_number / call.Hkv, kv = head_number % call.Hkv;
    const int begin = segment * expanded.segment, end = min(begin + expanded.segment, call.T);
    const sr_chunk_head<true> head = chunk_head<true>(call, b, kv);
    const int from = FROM_END ? 0 : head.first[end - 1];
    const int to = FROM_END ? other_documents(head, begin, end) : end;
    const bool differ = FROM_END || call.choices.decays || from > begin;
    token_stream<WIDTH, FROM_END> tokens = {call,  aligned, head, *shared, b,     kv,
                                            begin, end,     from, to,      differ};
    const int number = part * WARPS + warp_number(), which = warp_number() / (SR_CHUNK / SR_WARP);
    state_task<WIDTH> task(task_of<WIDTH>(expanded, min(number, tasks - 1)));

    for (int n = 0; n < AHEAD; n++)
        tokens.load(n);
    if (which < AHEAD)
        tokens.put_factors(which, tokens.fetch_factors(which));
    for (int n = 0; n < tokens.stages(); n++) {
        const int stage = n % (AHEAD + 1);
        cp_async_wait<AHEAD - 1>();
        __syncthreads(); /* stage n is ready, and no warp reads the one before */
        tokens.load(n + AHEAD);
        const float2 later = which == 0 ? tokens.fetch_factors(n + AHEAD) : float2{0, 0};
        if (number < tasks)
            task.add(shared->keys[stage], shared->values[stage], tokens.factors(n));
        if (which == 0)
            tokens.put_factors(n + AHEAD, later);
    }
    if (number < tasks)
        task.put(expanded.sum(head_number, segment) + task_offset<WIDTH>(expanded, number));
}

/* The coefficient of a group of the state: that of a pair A < B stands for two, and so does that of
 * d in one tile, for 16 - d too, except for 0 and 8. */
SR_DEVICE float group_coefficient(const sr_order2 &expanded, const float *coefficient, int group) {
    const int products = expanded.product_groups();
    if (group >= products)
        return coefficient[group < products + expanded.tiles ? 1 : 2];
    const sr_tile_pair pair = tile_pair(group / 16);
    const bool twice = expanded.tiles > 1 ? pair.a < pair.b : group % (SR_ROTATION_GROUPS - 1) > 0;
    return coefficient[2] * (twice ? 2.0f : 1.0f);
}

/* A thread's eight numbers of a state. */
struct eight_sums {
    sr_vector<float> half[2];
    SR_DEVICE float &at(int n) {
        return half[n / 4].number[n % 4];
    }
};

/* The weight of the state on one side of a segment on the other side. */
SR_DEVICE float factor_across(const sr_chunk_head<true> &head, int begin, int end, bool from_end) {
    if (!from_end)
        return head.across(begin, end - 1, head.first[end - 1]);
    return end < head.T ? head.back_across(begin, end, head.first[end]) : 0;
}

/* Exclusive scan over segments: turns what segments add (float sums) into the state before each
 * (bf16, times coefficients). Block (x, y) owns group y of KV head x, a thread eight consecutive
 * numbers of it; it walks the segments in order, or from the end, loading four at a time, global ->
 * registers, and stores the state before each segment: state = decay state + added. The vectors,
 * the last group, stay float and are overwritten in place. Threads are independent: no barriers. */
__global__ void expanded_scan(const __grid_constant__ sr_attention_view<sr_bf16> call,
                              const sr_order2 expanded, bool from_end) {
    constexpr int TOGETHER = 4;
    const int head_number = (int)blockIdx.x, group = (int)blockIdx.y, past = expanded.count;
    const int64_t at = (int64_t)group * SR_GROUP_NUMBERS + (int)threadIdx.x * EIGHT;
    const bool vectors = group == expanded.groups();
    const sr_chunk_head<true> head =
        chunk_head<true>(call, head_number / call.Hkv, head_number % call.Hkv);
    const float coefficient =
        vectors ? 1 : group_coefficient(expanded, call.score.coefficient, group);
    const auto segment_of = [&](int n) { return from_end ? past - 1 - n : n; };
    if (vectors && (int)threadIdx.x * EIGHT >= 2 * SR_CHUNK + EIGHT)
        return; /* unused rows */
    eight_sums before = {};
    for (int begin = 0; begin < past; begin += TOGETHER) {
        eight_sums adds[TOGETHER];
        float factor[TOGETHER];
#pragma unroll
        for (int m = 0; m < TOGETHER; m++) {
            const bool used = begin + m < past - 1; /* what the last one adds is not needed */
            const int segment = segment_of(used ? begin + m : 0), from = segment * expanded.segment;
            const float *const sum = expanded.sum(head_number, segment) + at;
            adds[m].half[0] = load_vector(sum);
            adds[m].half[1] = load_vector(sum + 4);
            factor[m] = factor_across(head, from, min(from + expanded.segment, head.T), from_end);
        }
#pragma unroll
        for (int m = 0; m < TOGETHER; m++) {
            if (begin + m >= past)
                break;
            const int segment = segment_of(begin + m);
            sr_vector<uint32_t> rounded;
#pragma unroll
            for (int n = 0; n < EIGHT / 2; n++)
                rounded.number[n] =
                    pack_bf16(before.at(2 * n) * coefficient, before.at(2 * n + 1) * coefficient);
            float *const to = expanded.sum(head_number, segment) + at;
            if (vectors) {
                store_vector(to, before.half[0]);
                store_vector(to + 4, before.half[1]);
            } else {
                store_vector(reinterpret_cast<uint32_t *>(expanded.state(head_number, segment) +
                                                          at),
                             rounded);
            }
#pragma unroll
            for (int n = 0; n < EIGHT; n++)
                before.at(n) = counted(before.at(n), factor[m]) + adds[m].at(n);
        }
    }
}

template <int WIDTH, bool FROM_END>
static srnn_status make_sums(const sr_attention_view<sr_bf16> &call,
                             const sr_mma_alignment &aligned, const sr_order2 &expanded,
                             cudaStream_t stream) {
    using shape = sums_shape<WIDTH>;
    const int parts = (task_count<WIDTH>(expanded) + shape::WARPS - 1) / shape::WARPS;
    const dim3 grid((unsigned)(expanded.heads * (expanded.count - 1) * parts));
    SR_CUDA(sr_launch(expanded_sums<WIDTH, FROM_END>, grid, dim3(shape::THREADS),
                      sizeof(states_memory<WIDTH>), stream, call, aligned, expanded));
    return SRNN_OK;
}

template <bool FROM_END>
static srnn_status make_states(const sr_attention_view<sr_bf16> &call,
                               const sr_mma_alignment &aligned, const sr_order2 &expanded,
                               cudaStream_t stream) {
    if (expanded.count == 1)
        return SRNN_OK;
    const auto sums = call.D <= 16 ? make_sums<16, FROM_END> : make_sums<64, FROM_END>;
    SR_TRY(sums(call, aligned, expanded, stream));
    const dim3 scan((unsigned)expanded.heads, (unsigned)(expanded.groups() + 1));
    SR_CUDA(
        sr_launch(expanded_scan, scan, dim3(SCAN_THREADS), 0, stream, call, expanded, FROM_END));
    return SRNN_OK;
}

srnn_status sr_order2_states_before(const sr_attention_view<sr_bf16> &call,
                                    const sr_mma_alignment &aligned, const sr_order2 &expanded,
                                    cudaStream_t stream) {
    return make_states<false>(call, aligned, expanded, stream);
}

srnn_status sr_order2_states_after(const sr_attention_view<sr_bf16> &call,
                                   const sr_mma_alignment &aligned, const sr_order2 &expanded,
                                   cudaStream_t stream) {
    return make_states<true>(call, aligned, expanded, stream);
}
