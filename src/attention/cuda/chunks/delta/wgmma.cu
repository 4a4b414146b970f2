/* wgmma.cu: the walks of the delta rule by Hopper's warpgroup products, keys of up to 64 numbers:
 * the four strips are a warpgroup, whose warps' rows are their own values. */
#include "attention/cuda/chunks/delta/forward.h"
#include "attention/cuda/chunks/delta/reverse.h"
#include "device/cuda/hopper.h"

/* As delta_products. */
struct wgmma_products {
    static constexpr int reverse_scorers = 3;

    static SR_DEVICE void publish() {
        fence_proxy_async();
    }
    static SR_DEVICE void strips_begin() {
        registers_increase<144>();
    }
    static SR_DEVICE void others_begin() {
        registers_decrease<112>();
    }

    static SR_DEVICE void times_rows(float (&c)[8][4], const delta_state<64> &state,
                                     const sr_bf16 *rows) {
        uint32_t a[4][4];
        const uint64_t tile = wgmma_descriptor(rows);
#pragma unroll
        for (int k = 0; k < 4; k++)
            state.operand(a[k], k);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_registers<64, 0>(flat(c), a[k], wgmma_descriptor_further(tile, 32 * k), k > 0);
        finish(c);
    }

    static SR_DEVICE void add_rows(delta_state<64> &state, const uint32_t (&a)[SR_DELTA_STEPS][4],
                                   const sr_bf16 *rows) {
        const uint64_t tile = wgmma_descriptor(rows);
        wgmma_fence();
#pragma unroll
        for (int m = 0; m < SR_DELTA_STEPS; m++)
            wgmma_registers<64, 1>(flat(state.s), a[m], wgmma_descriptor_further(tile, 2048 * m),
                                   1);
        finish(state.s);
    }

    static SR_DEVICE void times_solved(float (&c)[8][4], const uint32_t (&a)[SR_DELTA_STEPS][4],
                                       const sr_bf16 *pairs) {
        const uint64_t blocks = wgmma_descriptor_16(pairs);
        tokens own;
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < SR_DELTA_STEPS; j++)
#pragma unroll
            for (int i = j; i < SR_DELTA_STEPS; i++)
                wgmma_registers<16, 1>(own.d[i], a[j], block(blocks, i, j), j > 0);
        own.finish(c);
    }

    template <class Slot>
    static SR_DEVICE void store_numerators(sr_bf16 *to, int64_t time, Slot &slot,
                                           const delta_state<64> &state, const delta_strip &used,
                                           float scale, int strip, int columns) {
        float c[8][4];
        times_rows(c, state, slot.queries);
        delta_scale_tokens(c, slot.of_queries.since);
        const uint64_t blocks = wgmma_descriptor_16(slot.scores);
        tokens own;
        own.begin(c);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < SR_DELTA_STEPS; j++)
#pragma unroll
            for (int i = j; i < SR_DELTA_STEPS; i++)
                wgmma_registers<16, 0>(own.d[i], used.a[j], block(blocks, i, j), 1);
        own.finish(c);
        delta_strip numerators;
        numerators.set(c, slot.of_queries.unit, scale);
        store(to, time, slot.values, numerators, strip, slot.span, columns);
    }

    static SR_DEVICE void store(sr_bf16 *to, int64_t time, sr_bf16 *tile, const delta_strip &x,
                                int strip, const delta_span &span, int columns) {
        const int lane = delta_lane();
        sr_bf16 *const own = tile + sr_tile<SR_DELTA_SLICE>::offset(lane % 8 + lane / 16 * 8,
                                                                    2 * strip + lane / 8 % 2);
        __syncwarp(); /* all lanes have read what was there */
#pragma unroll
        for (int m = 0; m < SR_DELTA_STEPS; m++)
            stmatrix_x4_transposed(own + 16 * m * SR_DELTA_SLICE, x.a[m]);
        __syncwarp();
        delta_store_columns(to, time, tile, strip, span, columns);
    }

    static SR_DEVICE void times_later(float (&c)[8][4], const uint32_t (&a)[SR_DELTA_STEPS][4],
                                      const sr_bf16 *pairs) {
        const uint64_t blocks = wgmma_descriptor_16(pairs);
        tokens own;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < SR_DELTA_STEPS; i++)
#pragma unroll
            for (int j = 0; j <= i; j++)
                wgmma_registers<16, 1>(own.d[j], a[i], block(blocks, i, j), i > j);
        own.finish(c);
    }

  private:
    static SR_DEVICE float (&flat(float (&c)[8][4]))[32] {
        return reinterpret_cast<float(&)[32]>(c);
    }
    /* The numbers of c as sums of 16 tokens: parts of one array are taken for all of it, whose
     * products then wait for each other. */
    struct tokens {
        float d[SR_DELTA_STEPS][8];

        SR_DEVICE void begin(const float (&c)[8][4]) {
#pragma unroll
            for (int n = 0; n < 32; n++)
                d[n / 8][n % 8] = c[n / 4][n % 4];
        }
        SR_DEVICE void finish(float (&c)[8][4]) {
            wgmma_commit();
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < SR_DELTA_STEPS; i++)
                wgmma_settle(d[i]);
#pragma unroll
            for (int n = 0; n < 32; n++)
                c[n / 4][n % 4] = d[n / 8][n % 8];
        }
    };
    static SR_DEVICE uint64_t block(uint64_t pairs, int i, int j) {
        return wgmma_descriptor_further(pairs, delta_block(i, j) * 512);
    }
    static SR_DEVICE void finish(float (&c)[8][4]) {
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_settle(flat(c));
    }
};

srnn_status sr_delta_wgmma_forward(const sr_chunk_call &call, const sr_chunk_shape &shape,
                                   cudaStream_t stream) {
    return start_forward_any<wgmma_products, 64, false>(call, shape, delta_places(), stream);
}

srnn_status sr_delta_wgmma_states(const sr_chunk_call &call, const sr_chunk_shape &shape,
                                  const delta_places &places, cudaStream_t stream) {
    return start_forward_any<wgmma_products, 64, true>(call, shape, places, stream);
}

srnn_status sr_delta_wgmma_reverse(const sr_chunk_call &call, const sr_chunk_shape &shape,
                                   const delta_places &places, cudaStream_t stream) {
    return start_reverse<wgmma_products, 64>(call, shape, places, stream);
}
