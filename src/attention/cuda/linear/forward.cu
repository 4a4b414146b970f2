/* forward.cu: chunked linear attention, forward (mma.sync). */
#include "attention/cuda/linear/linear.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = 4, THREADS = WARPS * SR_WARP };
enum { STORE_COLUMNS = 32 }; /* of rows on their way out */

struct forward_memory {
    alignas(16) sr_bf16 square[2][SR_CHUNK_NUMBERS]; /* queries; the state */
    sr_bf16 keys[2][SR_CHUNK_NUMBERS];
    sr_bf16 values[2][SR_CHUNK_NUMBERS];
    sr_bf16 out[SR_CHUNK * STORE_COLUMNS];
    float factor[SR_CHUNK];
    sr_bf16 column[SR_CHUNK];
};

/* 16 rows of a warp and their row sums, without the score's coefficient. */
template <bool DECAYS> struct output_rows : sr_linear_rows {
    using Rows = sr_linear_rows;
    float sum[2]; /* the lane's share */

    /* Row sums from the state: Q z. */
    SR_DEVICE void read_sums(const sr_bf16 *column) {
        float product[4] = {};
#pragma unroll
        for (int k = 0; k < SR_CHUNK / 16; k++) {
            uint32_t a[4], b[2]; /* all eight columns of B are z */
            const sr_bf16 *const z = column + 16 * k + 2 * (threadIdx.x % 4);
            this->x.get(a, k);
            b[0] = *reinterpret_cast<const uint32_t *>(z);
            b[1] = *reinterpret_cast<const uint32_t *>(z + 8);
            mma_m16n8k16(product, a, b);
        }
        sum[0] = threadIdx.x % 4 == 0 ? product[0] : 0;
        sum[1] = threadIdx.x % 4 == 0 ? product[2] : 0;
    }

    /* Pairs with 16 keys from `key` on, which are rows `at` .. of the tiles. */
    SR_DEVICE void visit_keys(const sr_chunk_head<DECAYS> &head, const sr_bf16 *keys,
                              const sr_bf16 *values, int at, int key, bool documents) {
        Rows::visit(keys, values, at, [&](float(&w)[SR_PIECE]) {
            decay_pairs(w, head, this->t, key, 1);
            hide_keys(w, head, this->t, key, documents);
#pragma unroll
            for (int e = 0; e < SR_PIECE; e++)
                sum[e / 2 % 2] += w[e];
        });
    }

    /* Epilogue. `tile`: the warp's own. */
    SR_DEVICE void finish(const sr_attention_view<sr_bf16> &call, int b, int h, sr_bf16 *tile,
                          const sr_mma_alignment &aligned) {
        const float coefficient = call.score.coefficient[1];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Rows::multiply(half, coefficient);
            sum[half] *= coefficient;
        }
        store_outputs<STORE_COLUMNS>(call, aligned, {b, h, this->t}, this->c, sum, tile);
    }
};

/* A block of 4 warps owns one head, or one segment of it, and walks its chunks in order; each warp
 * owns 16 rows of a chunk and 16 value columns of the state, which stays in registers. cp.async
 * copies K and V of the next chunk, global -> shared (two stages), during this one; its Q follows
 * after the second barrier, into the tile that held the published state. For each chunk: wait,
 * features in place, barrier; rows = Q S (state before the chunk, bf16 in shared memory) + masked
 * (Q K') V piece by piece; barrier; outputs stored through the warp's own rows; S += K' V from
 * shared memory, then published in the old query tile. A segment starts from the state that
 * key_states and scan_states left in the workspace. */
template <bool DECAYS>
__global__ void __launch_bounds__(THREADS, DECAYS ? 2 : SR_CHUNK_BLOCKS)
    forward_chunks(const __grid_constant__ sr_attention_view<sr_bf16> call,
                   const sr_mma_alignment aligned, const sr_chunk_segments segments) {
    using Tiles = sr_chunk_tiles<THREADS>;
    SR_SHARED(forward_memory, shared);
    const sr_chunk_walk walk = chunk_walk(segments, (int)blockIdx.x);
    const int b = of_warp(walk.row / call.H), h = walk.row - b * call.H;
    const int kv = of_warp(h / call.group);
    const int past = call.T, start = walk.start, warp = warp_number();
    const bool sums = call.choices.sums_rows;
    const sr_chunk_head<DECAYS> head = chunk_head<DECAYS>(call, b, kv);
    const Tiles q = {head_rows(call.q, b, h, call.D, aligned.q)};
    const Tiles k = {head_rows(call.k, b, kv, call.D, aligned.k)};
    const Tiles v = {head_rows(call.v, b, kv, call.Dv, aligned.v)};
    sr_chunk_state<WARPS> state(warp);
    /* Where the document of the chunk's last token begins. */
    int begins = head.first[min((start + 1) * SR_CHUNK, past) - 1];

    q.load(shared->square[start % 2], start * SR_CHUNK, past);
    k.load(shared->keys[start % 2], start * SR_CHUNK, past);
    v.load(shared->values[start % 2], start * SR_CHUNK, past);
    cp_async_commit();
    if (start > 0) {
        state.get(segments.state(walk.row / call.group, walk.segment));
        state.publish(shared->square[(start + 1) % 2], shared->column);
    }
    for (int chunk = start;; chunk++) {
        const int stage = chunk % 2, t0 = chunk * SR_CHUNK, next = t0 + SR_CHUNK;
        const int last = min(next, past) - 1, own = chunk_own(warp, chunk);
        sr_bf16 *const queries = shared->square[stage], *const before = shared->square[stage ^ 1];
        sr_bf16 *const keys = shared->keys[stage], *const values = shared->values[stage];
        cp_async_wait<0>();
        q.features(queries, query_map(call, b), t0, past);
        k.features(keys, key_map(call, b), t0, past);
        /* tiles and state are ready, and no warp reads the previous tiles */
        __syncthreads();
        if (chunk + 1 < walk.end) {
            k.load(shared->keys[stage ^ 1], next, past);
            v.load(shared->values[stage ^ 1], next, past);
            cp_async_commit();
        }
        const bool documents = begins > t0; /* a document begins inside */
        const int next_begins = head.first[min(next + SR_CHUNK, past) - 1];
        if ((DECAYS || documents) && (int)threadIdx.x < SR_CHUNK)
            shared->factor[threadIdx.x] = head.until(last, t0 + (int)threadIdx.x);
        output_rows<DECAYS> rows;
        rows.open(queries, own, t0);
        rows.sum[0] = rows.sum[1] = 0;
        if (t0 > 0 && begins != t0) {
            rows.read_values(before);
            if (sums)
                rows.read_sums(shared->column);
            if (DECAYS || documents)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float factor = head.from_before(t0, rows.row(half));
                    rows.sum[half] = counted(rows.sum[half], factor);
                    rows.scale(half, factor);
                }
        }
        /* The pieces of the chunk up to the rows' own. */
#pragma unroll 1
        for (int at = 0; at <= own; at += 16)
            rows.visit_keys(head, keys, values, at, t0 + at, documents);
        __syncthreads(); /* no warp reads queries and state any more */
        if (chunk + 1 < walk.end) {
            q.load(before, next, past);
            cp_async_commit();
        }
        if (rows.t < past)
            rows.finish(call, b, h, shared->out + own * STORE_COLUMNS, aligned);
        if (chunk + 1 >= walk.end)
            break;
        const float *const factor = DECAYS || documents ? shared->factor : nullptr;
        if (documents) {
            Tiles::clear(keys, factor);
            Tiles::clear(values, factor);
            __syncthreads(); /* tokens that do not count are zero */
        }
        if (DECAYS || begins >= t0)
            state.multiply(head.across(t0, last, begins));
        state.add(keys, values, sums, {factor, factor});
        state.publish(queries, shared->column);
        begins = next_begins;
    }
}

srnn_status sr_chunked_forward(const sr_attention_view<sr_bf16> &call,
                               const sr_mma_alignment &aligned, const sr_chunk_workspace &workspace,
                               cudaStream_t stream) {
    sr_chunk_segments segments = sr_chunked_segments(call.B * call.Hkv, call.group, call.T,
                                                     SR_FORWARD_BLOCKS * workspace.multiprocessors);
    segments.states = workspace.states;
    if (segments.count > 1)
        SR_TRY(sr_chunked_key_states(call, aligned, segments, stream));
    SR_CUDA(sr_launch(call.choices.decays ? forward_chunks<true> : forward_chunks<false>,
                      dim3((unsigned)segments.blocks()), dim3(THREADS), sizeof(forward_memory),
                      stream, call, aligned, segments));
    return SRNN_OK;
}
