/* attention_expanded_states.cu: the states between spans of tokens: what each span adds, and their scan. */
#include "device/cuda/attention_expanded.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = 4, THREADS = WARPS * SR_WARP };
enum { EIGHT = 8, SCAN_THREADS = SR_GROUP_NUMBERS / EIGHT }; /* numbers of a thread of the scan */

/* What a warp sums up, in units of 16 rows by SR_CHUNK columns: four, or two of short keys, where more warps hide more. */
template <int WIDTH> constexpr int units_of = WIDTH <= 16 ? 2 : 4;

enum task_kind {
    PRODUCTS, /* some numbers of A times those of B, by values */
    VALUES,   /* keys by values */
    KEYS,     /* keys by keys */
    VECTORS,  /* ones by values, ones by keys; the count */
};

struct task_place {
    task_kind kind;
    int a, b, first; /* of products: numbers first .. of tile a; tile b */
    int units;
};

template <int WIDTH> SR_BOTH int product_tasks(const sr_expanded &expanded) {
    return 16 / units_of<WIDTH> * expanded.pairs;
}

template <int WIDTH> SR_BOTH int task_count(const sr_expanded &expanded) {
    return product_tasks<WIDTH>(expanded) + 3;
}

template <int WIDTH> SR_DEVICE task_place task_of(const sr_expanded &expanded, int n) {
    const int other = n - product_tasks<WIDTH>(expanded);
    if (other >= 0)
        return {(task_kind)(VALUES + other), 0, 0, 0,
                VALUES + other == VECTORS ? 2 : expanded.tiles};
    const sr_tile_pair pair = tile_pair(n * units_of<WIDTH> / 16);
    return {PRODUCTS, pair.a, pair.b, n * units_of<WIDTH> % 16, units_of<WIDTH>};
}

/* Where unit 0 of a task lies in the numbers of a state. */
template <int WIDTH> SR_DEVICE int64_t task_offset(const sr_expanded &expanded, int n) {
    const int other = n - product_tasks<WIDTH>(expanded);
    const int group =
        other < 0 ? n * units_of<WIDTH> : 16 * expanded.pairs + other * expanded.tiles;
    return (int64_t)group * SR_GROUP_NUMBERS;
}

template <int WIDTH> struct state_task {
    static constexpr int UNITS = units_of<WIDTH>;
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

    /* Keys times some of their numbers, by values. */
    SR_DEVICE void add_products(const sr_bf16 *keys, const columns &b, const float *factor,
                                int step) {
        const int lane = (int)threadIdx.x % SR_WARP;
        uint32_t a[4], numbers[4];
        load_a_columns<WIDTH>(a, keys, 16 * step, at.b);
        load_a_columns<WIDTH>(numbers, keys, 16 * step, at.a);
        if (factor)
            scale_columns(a, factor, step);
        const bool upper = at.first >= 8; /* of the 16 rows of A */
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

    /* Keys as they are. */
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

    /* Row 0 of A is ones, times factors. */
    SR_DEVICE void add_ones(float (&unit)[SR_CHUNK / 8][4], const columns &b, const float *factor,
                            int step) {
        const uint32_t one = (int)threadIdx.x % SR_WARP < 4 ? 0x3f803f80u : 0;
        uint32_t a[4] = {one, 0, one, 0};
        if (factor)
            scale_columns(a, factor, step);
        multiply(unit, a, b);
    }

    /* 64 tokens. */
    SR_DEVICE void add(const sr_bf16 *keys, const sr_bf16 *values,
                       const sr_token_factors &factors) {
        const int lane = (int)threadIdx.x % SR_WARP;
#pragma unroll 1
        for (int step = 0; step < SR_CHUNK / 16; step++) {
            columns b;
            switch (at.kind) {
            case PRODUCTS:
                load_values(b, values, step);
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

    /* To where unit 0 lies; of vectors only the first row is anything. */
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
                    float *const to =
                        numbers + unit * apart + row * SR_CHUNK + 8 * n + 2 * (lane % 4);
                    *reinterpret_cast<float2 *>(to) = {c[unit][n][2 * half],
                                                       c[unit][n][2 * half + 1]};
                }
        if (at.kind == VECTORS && lane < EIGHT)
            numbers[2 * SR_CHUNK + lane] = lane == 0 ? all : 0;
    }
};

template <int WIDTH> struct states_memory {
    alignas(16) sr_bf16 keys[2][SR_CHUNK * WIDTH];
    sr_bf16 values[2][SR_CHUNK_NUMBERS];
    float factor[2][SR_CHUNK], ones[2][SR_CHUNK];
};

/* The tokens that a span adds, 64 at a time: keys and values, or from the end queries and gradients of numerators of all
 * heads that share the keys. */
template <int WIDTH, bool FROM_END> struct token_stream {
    const sr_attention_view<sr_bf16> &call;
    const sr_mma_alignment &aligned;
    const sr_chunk_head<true> head;
    states_memory<WIDTH> &memory;
    int b, kv, begin, end;
    int from;    /* of keys: the first that counts after the span */
    bool differ; /* whether tokens count differently */

    SR_DEVICE int stages() const {
        return (end - begin + SR_CHUNK - 1) / SR_CHUNK * (FROM_END ? call.group : 1);
    }

    SR_DEVICE void load(int n) {
        const int stage = n % 2, past = call.T, tid = (int)threadIdx.x;
        const int g = FROM_END ? n % call.group : 0, h = kv * call.group + g;
        const int t0 = begin + (FROM_END ? n / call.group : n) * SR_CHUNK, t = t0 + tid;
        const auto keys = FROM_END ? head_rows(call.q, b, h, call.D, aligned.q)
                                   : head_rows(call.k, b, kv, call.D, aligned.k);
        const auto values = FROM_END
                                ? head_rows(call.d_numerator, b, h, call.Dv, aligned.d_numerator)
                                : head_rows(call.v, b, kv, call.Dv, aligned.v);
        tile_load<WIDTH, SR_CHUNK, THREADS>(memory.keys[stage], keys, t0, from, past);
        tile_load<SR_CHUNK, SR_CHUNK, THREADS>(memory.values[stage], values, t0, from, past);
        cp_async_commit();
        if (!differ || tid >= SR_CHUNK)
            return;
        if (!FROM_END) {
            memory.factor[stage][tid] = memory.ones[stage][tid] = head.until(end - 1, t);
            return;
        }
        const int64_t at = call.row_index(call.H, b, h, min(t, past - 1));
        const float factor = counted(call.scratch.row_scale[at], head.back_to(begin, t));
        memory.factor[stage][tid] = factor;
        memory.ones[stage][tid] = counted(call.scratch.d_row_sum[at], factor);
    }

    SR_DEVICE sr_token_factors factors(int n) const {
        if (!differ)
            return {nullptr, nullptr};
        return {memory.factor[n % 2], memory.ones[n % 2]};
    }
};

/* What a span adds, but for the last, or from the end the first: as many tasks as warps. */
template <int WIDTH, bool FROM_END>
__global__ void __launch_bounds__(THREADS, WIDTH <= 16 ? 4 : 2)
    expanded_sums(const __grid_constant__ sr_attention_view<sr_bf16> call,
                  const __grid_constant__ sr_mma_alignment aligned, const sr_expanded expanded) {
    using memory = states_memory<WIDTH>;
    SR_SHARED(memory, shared);
    const int tasks = task_count<WIDTH>(expanded), parts = (tasks + WARPS - 1) / WARPS;
    const int part = (int)blockIdx.x % parts, row = (int)blockIdx.x / parts;
    const int span = row % (expanded.count - 1) + (FROM_END ? 1 : 0);
    const int head_number = row / (expanded.count - 1);
    const int b = head_number / call.Hkv, kv = head_number % call.Hkv;
    const int begin = span * expanded.span, end = min(begin + expanded.span, call.T);
    const sr_chunk_head<true> head = chunk_head<true>(call, b, kv);
    const int from = FROM_END ? 0 : head.first[end - 1];
    const bool differ = FROM_END || call.choices.decays || from > begin;
    token_stream<WIDTH, FROM_END> tokens = {call, aligned, head, *shared, b,
                                            kv,   begin,   end,  from,    differ};
    const int number = part * WARPS + warp_number();
    state_task<WIDTH> task(task_of<WIDTH>(expanded, min(number, tasks - 1)));

    tokens.load(0);
    for (int n = 0; n < tokens.stages(); n++) {
        cp_async_wait<0>();
        __syncthreads(); /* tiles and factors are there, and nobody reads those before */
        if (n + 1 < tokens.stages())
            tokens.load(n + 1);
        if (number < tasks)
            task.add(shared->keys[n % 2], shared->values[n % 2], tokens.factors(n));
    }
    if (number < tasks)
        task.put(expanded.sum(head_number, span) + task_offset<WIDTH>(expanded, number));
}

/* What a group of the state is multiplied with: that of a pair A < B stands for two. */
SR_DEVICE float group_coefficient(const sr_expanded &expanded, const float *coefficient,
                                  int group) {
    if (group < 16 * expanded.pairs) {
        const sr_tile_pair pair = tile_pair(group / 16);
        return coefficient[2] * (pair.a < pair.b ? 2.0f : 1.0f);
    }
    return coefficient[group < 16 * expanded.pairs + expanded.tiles ? 1 : 2];
}

/* What spans add becomes the state before each. A thread has eight numbers of it, and loads those of some spans together. */
struct eight_sums {
    sr_vector<float> half[2];
    SR_DEVICE float &at(int n) {
        return half[n / 4].number[n % 4];
    }
};

/* What the state on one side of a span counts on the other. */
SR_DEVICE float factor_across(const sr_chunk_head<true> &head, int begin, int end, bool from_end) {
    if (!from_end)
        return head.across(begin, end - 1, head.first[end - 1]);
    return end < head.T ? head.back_across(begin, end, head.first[end]) : 0;
}

__global__ void expanded_scan(const __grid_constant__ sr_attention_view<sr_bf16> call,
                              const sr_expanded expanded, bool from_end) {
    constexpr int TOGETHER = 4;
    const int head_number = (int)blockIdx.x, group = (int)blockIdx.y, past = expanded.count;
    const int64_t at = (int64_t)group * SR_GROUP_NUMBERS + (int)threadIdx.x * EIGHT;
    const bool vectors = group == expanded.groups();
    const sr_chunk_head<true> head =
        chunk_head<true>(call, head_number / call.Hkv, head_number % call.Hkv);
    const float coefficient =
        vectors ? 1 : group_coefficient(expanded, call.score.coefficient, group);
    const auto span_of = [&](int n) { return from_end ? past - 1 - n : n; };
    if (vectors && (int)threadIdx.x * EIGHT >= 2 * SR_CHUNK + EIGHT)
        return; /* nothing is there */
    eight_sums before = {};
    for (int begin = 0; begin < past; begin += TOGETHER) {
        eight_sums adds[TOGETHER];
        float factor[TOGETHER];
#pragma unroll
        for (int m = 0; m < TOGETHER; m++) {
            const bool used = begin + m < past - 1; /* nobody needs what the last one adds */
            const int span = span_of(used ? begin + m : 0), from = span * expanded.span;
            const float *const sum = expanded.sum(head_number, span) + at;
            adds[m].half[0] = load_vector(sum);
            adds[m].half[1] = load_vector(sum + 4);
            factor[m] = factor_across(head, from, min(from + expanded.span, head.T), from_end);
        }
#pragma unroll
        for (int m = 0; m < TOGETHER; m++) {
            if (begin + m >= past)
                break;
            const int span = span_of(begin + m);
            sr_vector<uint32_t> rounded;
#pragma unroll
            for (int n = 0; n < EIGHT / 2; n++)
                rounded.number[n] =
                    pack_bf16(before.at(2 * n) * coefficient, before.at(2 * n + 1) * coefficient);
            float *const to = expanded.sum(head_number, span) + at;
            if (vectors) {
                store_vector(to, before.half[0]);
                store_vector(to + 4, before.half[1]);
            } else {
                store_vector(reinterpret_cast<uint32_t *>(expanded.state(head_number, span) + at),
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
                             const sr_mma_alignment &aligned, const sr_expanded &expanded,
                             cudaStream_t stream) {
    const int parts = (task_count<WIDTH>(expanded) + WARPS - 1) / WARPS;
    const dim3 grid((unsigned)(expanded.heads * (expanded.count - 1) * parts));
    SR_CUDA(sr_launch(expanded_sums<WIDTH, FROM_END>, grid, dim3(THREADS),
                      sizeof(states_memory<WIDTH>), stream, call, aligned, expanded));
    return SRNN_OK;
}

template <bool FROM_END>
static srnn_status make_states(const sr_attention_view<sr_bf16> &call,
                               const sr_mma_alignment &aligned, const sr_expanded &expanded,
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

srnn_status sr_expanded_states_before(const sr_attention_view<sr_bf16> &call,
                                      const sr_mma_alignment &aligned, const sr_expanded &expanded,
                                      cudaStream_t stream) {
    return make_states<false>(call, aligned, expanded, stream);
}

srnn_status sr_expanded_states_after(const sr_attention_view<sr_bf16> &call,
                                     const sr_mma_alignment &aligned, const sr_expanded &expanded,
                                     cudaStream_t stream) {
    return make_states<true>(call, aligned, expanded, stream);
}
