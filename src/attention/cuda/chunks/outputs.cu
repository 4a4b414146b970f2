/* outputs.cu: from numerators to outputs, and back: normaliser, skip, gates and norms on rows of
 * bf16, in float. The same function as axes/epilogue*.cu, for the rows that models have. */
#include "attention/cuda/axes/outputs.h"
#include "attention/cuda/chunks/lanes.h"
#include "attention/cuda/chunks/steps.h"

/* What a thread reads of a row: eight numbers of each. */
struct output_words {
    sr_vector<uint32_t> numerator, gate, d_o;
};

/* What a kernel computes. USUAL: rows are not divided, gates are of channels, norms not centred,
 * and the skip is of heads or none: what models of linear attention have, with fewer instructions
 * and registers. EXTRAS: a norm that is centred, or a skip. */
enum output_kind { USUAL = 1, EXTRAS = 2 };

static int kind_of(const sr_axes_call &call) {
    const srnn_attention &a = call.a;
    const bool skips = a.skip != SRNN_SKIP_NONE, centred = sr_norm_is_centred(a.norm);
    const bool gated = call.gated && (a.output_gate == SRNN_GATE_SIGMOID || a.post_gate);
    const bool usual = a.normaliser == SRNN_NORMALISER_NONE && a.epsilon == 0 && !centred &&
                       !call.sums_rows && (!skips || a.skip == SRNN_SKIP_HEAD) &&
                       (gated ? a.gate_width == SRNN_WIDTH_CHANNEL : !call.gated);
    return (usual ? USUAL : 0) + (skips || centred ? EXTRAS : 0);
}

/* Weights of the norm for the thread's numbers, and that of the skip where a head has one. */
struct output_weights {
    float norm[8], skip;

    SR_DEVICE void read(const sr_axes_call &call, const chunk_lane &lane) {
#pragma unroll
        for (int c = 0; c < 8; c++)
            norm[c] = sr_norm_has_weight(call.a.norm)
                          ? call.in.norm_weight[axes_norm_column(call, lane.h, 8 * lane.piece + c)]
                          : 1;
        skip = call.a.skip == SRNN_SKIP_HEAD ? call.in.skip_weight[lane.h] : 1;
    }
};

/* Its bias for number c; 0 without one. */
template <int KIND>
SR_DEVICE float output_bias(const sr_axes_call &call, const chunk_lane &lane, int c) {
    return KIND == EXTRAS ? (float)axes_norm_bias(call, lane.h, 8 * lane.piece + c) : 0;
}

/* What a thread has of a row on its way from the numerator to the output. */
struct output_piece {
    float y[8];              /* divided, with the skip */
    float gate[8], slope[8]; /* of the output gate's numbers; 1 and 0 without one */
    float normaliser, row;   /* row: a gate that has one value for the row */
};

/* Whether the output gate has numbers of its own for rows or channels. */
SR_DEVICE bool gates_numbers(const sr_axes_call &call) {
    return call.gated && (call.a.output_gate == SRNN_GATE_SIGMOID || call.a.post_gate);
}

/* Numbers 8 piece .. of the row `at`. Seven parameters: what a thread has read of the row, each
 * from an array of its own. */
template <int KIND>
SR_DEVICE output_piece output_piece_of(const sr_axes_call &call, const axes_row &at, int piece,
                                       const output_words &words, const output_weights &weights,
                                       const float *row_sum, const float *maximum) {
    output_piece out;
    out.normaliser = KIND & USUAL ? 1 : (float)(1 + call.a.epsilon);
    out.row = 1;
    if (!(KIND & USUAL) && (call.a.normaliser != SRNN_NORMALISER_NONE ||
                            (call.gated && call.a.output_gate != SRNN_GATE_SIGMOID))) {
        const axes_output_row row = axes_output_of(call, at, row_sum, maximum);
        out.normaliser = (float)row.normaliser;
        if (call.a.output_gate != SRNN_GATE_SIGMOID)
            out.row = (float)row.gate;
    }
    chunk_unpack_8(out.y, words.numerator);
    if constexpr ((KIND & USUAL) == 0) {
        const float inverse = 1 / out.normaliser;
#pragma unroll
        for (int c = 0; c < 8; c++)
            out.y[c] *= inverse;
    }
    if constexpr ((KIND & EXTRAS) != 0)
        if ((KIND & USUAL) || call.a.skip != SRNN_SKIP_NONE) {
            const bool conv = !(KIND & USUAL) && call.a.skip == SRNN_SKIP_CONV;
            const bool channel = !(KIND & USUAL) && call.a.skip == SRNN_SKIP_CHANNEL;
            float from[8];
            chunk_load_8(from, chunk_piece(conv ? call.in.skip : call.in.v, at.b,
                                           axes_value_head(call, at.h), at.t, piece));
#pragma unroll
            for (int c = 0; c < 8; c++)
                out.y[c] = fmaf(channel ? call.in.skip_weight[at.h * call.Dv + 8 * piece + c]
                                        : weights.skip,
                                from[c], out.y[c]);
        }
    if (!gates_numbers(call)) {
#pragma unroll
        for (int c = 0; c < 8; c++) {
            out.gate[c] = 1;
            out.slope[c] = 0;
        }
        return out;
    }
    float z[8];
    if ((KIND & USUAL) || call.a.gate_width == SRNN_WIDTH_CHANNEL)
        chunk_unpack_8(z, words.gate);
    else {
        const float one = call.in.output_gate.at(at.b, at.h, at.t, 0);
#pragma unroll
        for (int c = 0; c < 8; c++)
            z[c] = one;
    }
    chunk_gates_of(out.gate, out.slope, call.a.gate_shape, z);
    return out;
}

/* The factor in front of the norm, of number c. */
SR_DEVICE float front_gate(const sr_axes_call &call, const output_piece &piece, int c) {
    return call.a.output_gate == SRNN_GATE_SIGMOID ? piece.gate[c] : piece.row;
}

/* Where a thread's row of a token is; of the last token past the end. */
SR_DEVICE axes_row output_row_of(const sr_axes_call &call, const chunk_lane &lane, uint32_t token) {
    const uint32_t tokens = (uint32_t)call.B * (uint32_t)call.T;
    const chunk_token at = chunk_token_of(call, token < tokens ? token : tokens - 1);
    return {at.b, lane.h, at.t};
}

SR_DEVICE void load_gate(output_words *words, const sr_axes_call &call, const axes_row &at,
                         int piece) {
    if (gates_numbers(call) && call.a.gate_width == SRNN_WIDTH_CHANNEL)
        words->gate = chunk_words(chunk_piece(call.in.output_gate, at.b, at.h, at.t, piece));
}

/* Sums over the rows of a norm: every thread of them gets the same bits. Those of one head are
 * added by shuffles; those of several heads then through shared memory, by warps where these have
 * threads of one norm alone. Each thread finds its places once. */
struct norm_sums {
    float (*parts)[CHUNK_LANES_MAX]; /* two halves in turn, in shared memory */
    int turn, masks;                 /* masks: twice the distance of the first shuffle */
    int own, first, count;           /* own: where the thread leaves a part, or -1 */
    float share;                     /* 1 / numbers of a norm */

    SR_DEVICE norm_sums(float (*shared)[CHUNK_LANES_MAX], const sr_axes_call &call,
                        const chunk_lanes &lanes, const chunk_lane &lane)
        : parts(shared), turn(0), masks(lanes.pieces), own(-1), first(0), count(0),
          share(1 / (float)(call.norm_heads * call.Dv)) {
        const int row = lane.slot * lanes.heads + lane.h, rows = SR_WARP / lanes.pieces;
        const int each = call.norm_heads % rows == 0 ? rows : 1;
        if (call.norm_heads == 1)
            return;
        masks *= each;
        own = lane.piece == 0 && row % each == 0 ? row / each : -1;
        first = (row - lane.h % call.norm_heads) / each;
        count = call.norm_heads / each;
    }

    /* By all threads of the block. */
    SR_DEVICE float of(float x) {
        for (int mask = masks / 2; mask > 0; mask /= 2)
            x += shuffle_xor(x, mask);
        if (count == 0)
            return x;
        float *const sums = parts[turn];
        turn ^= 1; /* the other half's barrier is between this use and the next */
        if (own >= 0)
            sums[own] = x;
        __syncthreads();
        x = 0;
        for (int n = 0; n < count; n++)
            x += sums[first + n];
        return x;
    }
};

/* Statistics of a norm: norm(x) = (x - mean) inverse weight + bias; size and floor of norms by
 * length. */
struct norm_piece {
    float mean, inverse, size, floor;
};

template <int KIND>
SR_DEVICE norm_piece norm_piece_of(const sr_axes_call &call, norm_sums &sums, const float (&x)[8],
                                   float row_sum) {
    norm_piece norm = {0, 1, 0, (float)SR_AXES_NORM_FLOOR};
    if (call.a.norm == SRNN_NORM_NONE)
        return norm;
    float sum = 0, square = 0;
    if (KIND == EXTRAS && sr_norm_is_centred(call.a.norm)) {
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum += x[c];
        norm.mean = sums.of(sum) * sums.share;
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
        square = fmaf(x[c] - norm.mean, x[c] - norm.mean, square);
    square = sums.of(square);
    if (!sr_norm_is_length(call.a.norm)) {
        norm.inverse = rsqrtf(fmaf(square, sums.share, (float)call.norm_epsilon));
        return norm;
    }
    if (!(KIND & USUAL) && call.norm_heads == 1 && call.floor_follows_rows)
        norm.floor *= row_sum;
    norm.size = sqrtf(square);
    norm.inverse = sr_norm_length_factor(call.a.norm, call.norm_heads * call.Dv) /
                   fmaxf(norm.size, norm.floor);
    return norm;
}

/* The gradient of norm(x)'s length along x is this times <dx, x>, of dx times the weights. */
SR_DEVICE float norm_along(const sr_axes_call &call, const norm_sums &sums,
                           const norm_piece &norm) {
    if (!sr_norm_is_length(call.a.norm))
        return norm.inverse * norm.inverse * sums.share;
    const float inverse = 1 / fmaxf(norm.size, norm.floor);
    return norm.size < norm.floor ? 0 : inverse * inverse;
}

/* ---- forward ---- */

/* Outputs from numerators (B, H, T, Dv). Threads as in lanes.h: numerator, gates and skip global ->
 * registers, one token ahead; sums for the norm by shuffles (and shared memory where it covers
 * several heads); output registers -> global. */
template <int KIND>
__global__ void __launch_bounds__(CHUNK_LANES_MAX, KIND &USUAL ? 2 : 1)
    chunk_outputs(const __grid_constant__ sr_axes_call call,
                  const __grid_constant__ sr_chunk_rows numerator, const float *row_sum,
                  const float *maximum, const __grid_constant__ chunk_lanes lanes) {
    __shared__ float parts[2][CHUNK_LANES_MAX];
    const chunk_lane lane = chunk_lane_of(lanes);
    norm_sums sums(parts, call, lanes, lane);
    const uint32_t tokens = (uint32_t)call.B * (uint32_t)call.T;
    const uint32_t step = gridDim.x * (uint32_t)lanes.slots;
    output_weights weights;
    weights.read(call, lane);
    const auto load = [&](output_words *words, const axes_row &at) {
        words->numerator = chunk_words(numerator.row(at.b, at.h, at.t) + 8 * lane.piece);
        load_gate(words, call, at, lane.piece);
    };
    uint32_t own = blockIdx.x * (uint32_t)lanes.slots + (uint32_t)lane.slot;
    axes_row next = output_row_of(call, lane, own);
    output_words ahead = {};
    load(&ahead, next);
    for (uint32_t first = own - (uint32_t)lane.slot; first < tokens; first += step, own += step) {
        const axes_row at = next;
        const output_words words = ahead;
        next = output_row_of(call, lane, own + step);
        load(&ahead, next);
        const output_piece piece =
            output_piece_of<KIND>(call, at, lane.piece, words, weights, row_sum, maximum);
        float x[8];
#pragma unroll
        for (int c = 0; c < 8; c++)
            x[c] = front_gate(call, piece, c) * piece.y[c];
        const float sum =
            !(KIND & USUAL) && call.sums_rows ? row_sum[call.row(call.H, at.b, at.h, at.t)] : 0;
        const norm_piece norm = norm_piece_of<KIND>(call, sums, x, sum);
        if (call.a.norm != SRNN_NORM_NONE)
#pragma unroll
            for (int c = 0; c < 8; c++)
                x[c] = fmaf((x[c] - norm.mean) * norm.inverse, weights.norm[c],
                            output_bias<KIND>(call, lane, c));
        if (call.a.post_gate)
#pragma unroll
            for (int c = 0; c < 8; c++)
                x[c] *= piece.gate[c];
        if (own < tokens)
            chunk_store_8(chunk_piece(call.o, at.b, at.h, at.t, lane.piece), x);
    }
}

srnn_status sr_chunks_outputs(const sr_axes_call &call, const sr_chunk_call &chunk,
                              cudaStream_t stream) {
    const chunk_lanes lanes = chunk_lanes_of(call.H, call.Dv);
    const int64_t tokens = (int64_t)call.B * call.T;
    const float *const row_sum = chunk.row_sum, *const maximum = call.scratch.maximum;
    const unsigned blocks = chunk_lanes_blocks(lanes, tokens, CHUNK_LANES_ALL / lanes.threads());
    void (*const kernels[])(sr_axes_call, sr_chunk_rows, const float *, const float *,
                            chunk_lanes) = {chunk_outputs<0>, chunk_outputs<USUAL>,
                                            chunk_outputs<EXTRAS>, chunk_outputs<USUAL | EXTRAS>};
    SR_CUDA(sr_launch(kernels[kind_of(call)], dim3(blocks), dim3((unsigned)lanes.threads()), 0,
                      stream, call, chunk.numerator, row_sum, maximum, lanes));
    return SRNN_OK;
}

/* ---- backward ---- */

/* Sums over tokens that a thread keeps for its numbers. */
enum { KIND_WEIGHT, KIND_BIAS, KIND_SKIP, KINDS };
static_assert((int)KINDS <= (int)CHUNK_SUM_KINDS, "sums need more memory");

/* Rounds x to bf16, every number down or up, so that its product with n stays what it was: behind a
 * norm a gradient has no part along its row, and rows that the norm makes long by much would
 * otherwise get one from rounding alone. */
SR_DEVICE void round_across(float (&x)[8], const float (&n)[8]) {
    float lost = 0;
    uint32_t nearest[8];
#pragma unroll
    for (int c = 0; c < 8; c++) {
        const float rounded = unpack_bf16(pack_bf16(x[c], 0)).x;
        nearest[c] = float_bits(rounded);
        lost = fmaf(n[c], x[c] - rounded, lost);
    }
#pragma unroll
    for (int c = 0; c < 8; c++) {
        const float rounded = bits_float(nearest[c]);
        const bool grows = (x[c] > rounded) == (rounded > 0);
        const float other = bits_float(grows ? nearest[c] + 0x10000u : nearest[c] - 0x10000u);
        const float left = fmaf(n[c], rounded - other, lost);
        const bool takes = rounded != 0 && rounded != x[c] && fabsf(left) < fabsf(lost);
        x[c] = takes ? other : rounded;
        lost = takes ? left : lost;
    }
}

/* Gradients of numerators and row sums, of output gates and of what the skip adds, from those of
 * outputs; and the sums over tokens that gradients of learned vectors are made of, as each thread
 * has them. Threads as in lanes.h; everything is global -> registers, one token ahead, -> global
 * but the sums of norms over several heads. */
template <int KIND>
__global__ void __launch_bounds__(CHUNK_LANES_MAX, 1)
    chunk_outputs_backward(const __grid_constant__ sr_axes_call call,
                           const __grid_constant__ sr_chunk_call chunk,
                           const __grid_constant__ sr_chunk_rows d_skip,
                           const __grid_constant__ chunk_partial partial,
                           const __grid_constant__ chunk_lanes lanes) {
    __shared__ float parts[2][CHUNK_LANES_MAX];
    const chunk_lane lane = chunk_lane_of(lanes);
    norm_sums sums(parts, call, lanes, lane);
    const uint32_t tokens = (uint32_t)call.B * (uint32_t)call.T;
    const uint32_t step = gridDim.x * (uint32_t)lanes.slots;
    const bool channels = call.a.gate_width == SRNN_WIDTH_CHANNEL;
    const bool front = call.a.output_gate == SRNN_GATE_SIGMOID, post = call.a.post_gate;
    float d_weight[8] = {}, d_bias[8] = {}, d_skip_weight[8] = {};
    output_weights weights;
    weights.read(call, lane);
    const auto load = [&](output_words *words, const axes_row &at) {
        words->numerator = chunk_words(chunk_piece(call.saved, at.b, at.h, at.t, lane.piece));
        if constexpr (KIND != EXTRAS)
            words->d_o = chunk_words(chunk_piece(call.o, at.b, at.h, at.t, lane.piece));
        if constexpr (KIND == USUAL)
            load_gate(words, call, at, lane.piece);
    };
    uint32_t own = blockIdx.x * (uint32_t)lanes.slots + (uint32_t)lane.slot;
    axes_row next = output_row_of(call, lane, own);
    output_words ahead = {};
    load(&ahead, next);
    for (uint32_t first = own - (uint32_t)lane.slot; first < tokens; first += step, own += step) {
        const bool exists = own < tokens;
        const axes_row at = next;
        output_words words = ahead;
        if constexpr (KIND != USUAL) /* not ahead: registers are scarce */
            load_gate(&words, call, at, lane.piece);
        if constexpr (KIND == EXTRAS)
            words.d_o = chunk_words(chunk_piece(call.o, at.b, at.h, at.t, lane.piece));
        next = output_row_of(call, lane, own + step);
        load(&ahead, next);
        const int64_t row = call.row(call.H, at.b, at.h, at.t);
        const output_piece piece = output_piece_of<KIND>(call, at, lane.piece, words, weights,
                                                         call.saved_row_sum, call.saved_maximum);
        float d_o[8], x[8], dx[8], own_gate[8] = {};
        chunk_unpack_8(d_o, words.d_o);
#pragma unroll
        for (int c = 0; c < 8; c++)
            x[c] = front_gate(call, piece, c) * piece.y[c];
        const float sum = !(KIND & USUAL) && call.sums_rows ? call.saved_row_sum[row] : 0;
        const norm_piece norm = norm_piece_of<KIND>(call, sums, x, sum);
        float shift = 0, along = 0;
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const float weight = weights.norm[c], centred = x[c] - norm.mean;
            const float bias = output_bias<KIND>(call, lane, c);
            const float behind = post ? piece.gate[c] * d_o[c] : d_o[c];
            if (post)
                own_gate[c] = d_o[c] * piece.slope[c] * fmaf(centred * norm.inverse, weight, bias);
            if (exists) {
                d_weight[c] = fmaf(behind, centred * norm.inverse, d_weight[c]);
                if (KIND == EXTRAS)
                    d_bias[c] += behind;
            }
            dx[c] = behind * weight;
            shift += dx[c];
            along = fmaf(dx[c], centred, along);
        }
        if (call.a.norm != SRNN_NORM_NONE) {
            shift =
                KIND == EXTRAS && sr_norm_is_centred(call.a.norm) ? sums.of(shift) * sums.share : 0;
            along = sums.of(along) * norm_along(call, sums, norm);
#pragma unroll
            for (int c = 0; c < 8; c++)
                dx[c] = norm.inverse * (dx[c] - shift - (x[c] - norm.mean) * along);
        }
        float d_row_gate = 0, divided = 0, d_y[8], numerator[8];
        const float inverse = 1 / piece.normaliser;
        chunk_unpack_8(numerator, words.numerator);
#pragma unroll
        for (int c = 0; c < 8; c++) {
            if (front)
                own_gate[c] = fmaf(dx[c] * piece.y[c], piece.slope[c], own_gate[c]);
            d_row_gate = fmaf(dx[c], piece.y[c], d_row_gate);
            d_y[c] = dx[c] * front_gate(call, piece, c);
            divided = fmaf(d_y[c], numerator[c], divided);
            dx[c] = d_y[c] * inverse;
        }
        if (!(KIND & USUAL) && (call.sums_rows || (call.gated && !channels))) {
            divided = chunk_row_sum(divided, lanes.pieces);
            d_row_gate = chunk_row_sum(d_row_gate, lanes.pieces);
            float gate_sum = 0;
#pragma unroll
            for (int c = 0; c < 8; c++)
                gate_sum += own_gate[c];
            gate_sum = chunk_row_sum(gate_sum, lanes.pieces);
            if (call.a.output_gate == SRNN_GATE_INVERSE_EXP)
                gate_sum -= d_row_gate * piece.row;
            const bool divides =
                !call.a.detach && (call.a.normaliser == SRNN_NORMALISER_ROW_SUM ||
                                   (call.a.normaliser == SRNN_NORMALISER_ROW_SUM_MIN1 && sum >= 1));
            if (exists && lane.piece == 0) {
                if (chunk.d_row_sum)
                    ((float *)chunk.d_row_sum)[row] = divides ? -divided * inverse * inverse : 0;
                if (call.gated && !channels && call.out.output_gate.data)
                    call.out.output_gate.put(at.b, at.h, at.t, 0, (double)gate_sum);
            }
        }
        if (!exists)
            continue;
        if (call.a.norm != SRNN_NORM_NONE)
            round_across(dx, numerator);
        chunk_store_8(chunk.d_numerator.row(at.b, at.h, at.t) + 8 * lane.piece, dx);
        if (call.gated && channels && call.out.output_gate.data)
            chunk_store_8(chunk_piece(call.out.output_gate, at.b, at.h, at.t, lane.piece),
                          own_gate);
        if (!(KIND & EXTRAS) || call.a.skip == SRNN_SKIP_NONE)
            continue;
        if (d_skip.data)
            chunk_store_8(d_skip.row(at.b, at.h, at.t) + 8 * lane.piece, d_y);
        if (call.a.skip != SRNN_SKIP_CONV) {
            float v[8];
            chunk_load_8(v, chunk_piece(call.in.v, at.b, axes_value_head(call, at.h), at.t,
                                        lane.piece));
#pragma unroll
            for (int c = 0; c < 8; c++)
                /* one number for a head's weight: registers are scarce */
                d_skip_weight[KIND & USUAL ? 0 : c] =
                    fmaf(d_y[c], v[c], d_skip_weight[KIND & USUAL ? 0 : c]);
        }
    }
    chunk_partial_store(partial, KIND_WEIGHT, d_weight);
    if (KIND == EXTRAS)
        chunk_partial_store(partial, KIND_BIAS, d_bias);
    if (KIND & EXTRAS)
        chunk_partial_store(partial, KIND_SKIP, d_skip_weight);
}

srnn_status sr_chunks_outputs_backward(const sr_chunk_steps &steps, cudaStream_t stream) {
    const sr_axes_call &call = steps.call;
    const chunk_lanes lanes = chunk_lanes_of(call.H, call.Dv);
    const int64_t tokens = (int64_t)call.B * call.T;
    const int numbers = call.H * call.Dv, columns = call.norm_per_head ? numbers : call.Dv;
    const unsigned blocks = chunk_lanes_blocks(lanes, tokens, CHUNK_LANES_ALL / lanes.threads());
    const chunk_partial partial = {steps.sums, (int)blocks, KINDS, lanes.threads(), 8};
    void (*const kernels[])(sr_axes_call, sr_chunk_call, sr_chunk_rows, chunk_partial,
                            chunk_lanes) = {chunk_outputs_backward<0>,
                                            chunk_outputs_backward<USUAL>,
                                            chunk_outputs_backward<EXTRAS>,
                                            chunk_outputs_backward<USUAL | EXTRAS>};
    SR_CUDA(sr_launch(kernels[kind_of(call)], dim3(blocks), dim3((unsigned)lanes.threads()), 0,
                      stream, call, steps.chunk, steps.d_skip, partial, lanes));
    if (sr_norm_has_weight(call.a.norm))
        SR_TRY(sr_chunks_add_partial(call.out.norm_weight, partial,
                                     {KIND_WEIGHT, numbers, 1, columns}, stream));
    if (sr_norm_is_centred(call.a.norm))
        SR_TRY(sr_chunks_add_partial(call.out.norm_bias, partial, {KIND_BIAS, numbers, 1, columns},
                                     stream));
    if (call.a.skip == SRNN_SKIP_HEAD)
        return sr_chunks_add_partial(call.out.skip_weight, partial,
                                     {KIND_SKIP, numbers, call.Dv, call.H}, stream);
    if (call.a.skip == SRNN_SKIP_CHANNEL)
        return sr_chunks_add_partial(call.out.skip_weight, partial,
                                     {KIND_SKIP, numbers, 1, numbers}, stream);
    return SRNN_OK;
}
