/* outputs.cu: from numerators to outputs, and back: normaliser, skip, gates and norms on rows of
 * bf16, in float. The same function as axes/epilogue*.cu, for the rows that models have. */
#include "attention/cuda/axes/outputs.h"
#include "attention/cuda/chunks/lanes.h"
#include "attention/cuda/chunks/steps.h"

/* What a thread has of a row on its way from the numerator to the output. */
struct output_piece {
    float y[8];            /* divided, with the skip */
    chunk_gate gate[8];    /* of the output gate's numbers; value 1 and slope 0 without one */
    float normaliser, row; /* row: a gate that has one value for the row */
};

/* Numbers 8 piece .. of the row `at`. */
SR_DEVICE output_piece output_piece_of(const sr_axes_call &call, const axes_row &at, int piece,
                                       const sr_bf16 *numerator, const float *row_sum,
                                       const float *maximum) {
    output_piece out;
    out.normaliser = (float)(1 + call.a.epsilon);
    out.row = 1;
    if (call.a.normaliser != SRNN_NORMALISER_NONE ||
        (call.gated && call.a.output_gate != SRNN_GATE_SIGMOID)) {
        const axes_output_row row = axes_output_of(call, at, row_sum, maximum);
        out.normaliser = (float)row.normaliser;
        if (call.a.output_gate != SRNN_GATE_SIGMOID)
            out.row = (float)row.gate;
    }
    chunk_load_8(out.y, numerator);
    const float inverse = 1 / out.normaliser;
#pragma unroll
    for (int c = 0; c < 8; c++)
        out.y[c] *= inverse;
    if (call.a.skip != SRNN_SKIP_NONE) {
        const bool conv = call.a.skip == SRNN_SKIP_CONV;
        float from[8];
        chunk_load_8(from, chunk_piece(conv ? call.in.skip : call.in.v, at.b,
                                       axes_value_head(call, at.h), at.t, piece));
#pragma unroll
        for (int c = 0; c < 8; c++)
            out.y[c] = fmaf((float)axes_skip_weight(call, at.h, 8 * piece + c), from[c], out.y[c]);
    }
    const bool gates = call.gated && (call.a.output_gate == SRNN_GATE_SIGMOID || call.a.post_gate);
    float z[8] = {};
    if (gates && call.a.gate_width == SRNN_WIDTH_CHANNEL) {
        chunk_load_8(z, chunk_piece(call.in.output_gate, at.b, at.h, at.t, piece));
    } else if (gates) {
        const float one = call.in.output_gate.at(at.b, at.h, at.t, 0);
#pragma unroll
        for (int c = 0; c < 8; c++)
            z[c] = one;
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
        out.gate[c] = gates ? chunk_gate_of(call.a.gate_shape, z[c]) : chunk_gate{1, 0};
    return out;
}

/* The factor in front of the norm, of number c. */
SR_DEVICE float front_gate(const sr_axes_call &call, const output_piece &piece, int c) {
    return call.a.output_gate == SRNN_GATE_SIGMOID ? piece.gate[c].value : piece.row;
}

/* The sum over the rows of a norm: of one head by shuffles; of several through shared memory, in
 * the order of heads. All threads. */
SR_DEVICE float norm_sum(const sr_axes_call &call, const chunk_lanes &lanes, const chunk_lane &lane,
                         float *shared, float x) {
    x = chunk_row_sum(x, lanes.pieces);
    if (call.norm_heads == 1)
        return x;
    const int row = lane.slot * lanes.heads + lane.h;
    __syncthreads(); /* no thread reads the sums before */
    if (lane.piece == 0)
        shared[row] = x;
    __syncthreads();
    const int first = row - lane.h % call.norm_heads;
    float sum = 0;
    for (int n = 0; n < call.norm_heads; n++)
        sum += shared[first + n];
    return sum;
}

/* Statistics of a norm: norm(x) = (x - mean) inverse weight + bias. */
struct norm_piece {
    float mean, inverse, size, floor;
};

SR_DEVICE norm_piece norm_piece_of(const sr_axes_call &call, const chunk_lanes &lanes,
                                   const chunk_lane &lane, float *shared, const float (&x)[8],
                                   float row_sum) {
    const int count = call.norm_heads * call.Dv;
    norm_piece norm = {0, 1, 0, (float)SR_AXES_NORM_FLOOR};
    if (call.a.norm == SRNN_NORM_NONE)
        return norm;
    float sum = 0, square = 0;
    if (sr_norm_is_centred(call.a.norm)) {
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum += x[c];
        norm.mean = norm_sum(call, lanes, lane, shared, sum) / (float)count;
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
        square = fmaf(x[c] - norm.mean, x[c] - norm.mean, square);
    square = norm_sum(call, lanes, lane, shared, square);
    if (call.norm_heads == 1 && call.floor_follows_rows)
        norm.floor *= row_sum;
    norm.size = sqrtf(square);
    norm.inverse = sr_norm_is_length(call.a.norm)
                       ? sr_norm_length_factor(call.a.norm, count) / fmaxf(norm.size, norm.floor)
                       : 1 / sqrtf(square / (float)count + (float)call.norm_epsilon);
    return norm;
}

/* Weight of the norm for number c of the thread. */
SR_DEVICE float norm_weight(const sr_axes_call &call, const chunk_lane &lane, int c) {
    return sr_norm_has_weight(call.a.norm)
               ? call.in.norm_weight[axes_norm_column(call, lane.h, 8 * lane.piece + c)]
               : 1;
}

/* ---- forward ---- */

/* Outputs from numerators (B, H, T, Dv). Threads as in lanes.h: numerator, gates and skip global ->
 * registers, sums for the norm by shuffles (and shared memory where it covers several heads),
 * output registers -> global. */
__global__ void __launch_bounds__(CHUNK_LANES_MAX, 1)
    chunk_outputs(const __grid_constant__ sr_axes_call call,
                  const __grid_constant__ sr_chunk_rows numerator, const float *row_sum,
                  const float *maximum, const __grid_constant__ chunk_lanes lanes) {
    __shared__ float shared[CHUNK_LANES_MAX];
    const chunk_lane lane = chunk_lane_of(lanes);
    const int64_t tokens = (int64_t)call.B * call.T, step = (int64_t)gridDim.x * lanes.slots;
    for (int64_t first = (int64_t)blockIdx.x * lanes.slots; first < tokens; first += step) {
        const int64_t own = first + lane.slot, token = own < tokens ? own : tokens - 1;
        const axes_row at = {(int)(token / call.T), lane.h, (int)(token % call.T)};
        const output_piece piece =
            output_piece_of(call, at, lane.piece, numerator.row(at.b, at.h, at.t) + 8 * lane.piece,
                            row_sum, maximum);
        float x[8];
#pragma unroll
        for (int c = 0; c < 8; c++)
            x[c] = front_gate(call, piece, c) * piece.y[c];
        const float sum = call.sums_rows ? row_sum[call.row(call.H, at.b, at.h, at.t)] : 0;
        const norm_piece norm = norm_piece_of(call, lanes, lane, shared, x, sum);
        if (call.a.norm != SRNN_NORM_NONE)
#pragma unroll
            for (int c = 0; c < 8; c++)
                x[c] = fmaf((x[c] - norm.mean) * norm.inverse, norm_weight(call, lane, c),
                            (float)axes_norm_bias(call, lane.h, 8 * lane.piece + c));
        if (call.a.post_gate)
#pragma unroll
            for (int c = 0; c < 8; c++)
                x[c] *= piece.gate[c].value;
        if (own < tokens)
            chunk_store_8(chunk_piece(call.o, at.b, at.h, at.t, lane.piece), x);
    }
}

srnn_status sr_chunks_outputs(const sr_axes_call &call, const sr_chunk_call &chunk,
                              cudaStream_t stream) {
    const chunk_lanes lanes = chunk_lanes_of(call.H, call.Dv);
    const int64_t tokens = (int64_t)call.B * call.T;
    const float *const row_sum = chunk.row_sum, *const maximum = call.scratch.maximum;
    SR_CUDA(sr_launch(chunk_outputs, dim3(chunk_lanes_blocks(lanes, tokens, 1 << 20)),
                      dim3((unsigned)lanes.threads()), 0, stream, call, chunk.numerator, row_sum,
                      maximum, lanes));
    return SRNN_OK;
}

/* ---- backward ---- */

/* Sums over tokens that a thread keeps for its numbers. */
enum { KIND_WEIGHT, KIND_BIAS, KIND_SKIP, KINDS };
static_assert((int)KINDS <= (int)CHUNK_SUM_KINDS, "sums need more memory");

/* Gradients of numerators and row sums, of output gates and of what the skip adds, from those of
 * outputs; and the sums over tokens that gradients of learned vectors are made of, as each thread
 * has them. Threads as in lanes.h; everything is global -> registers -> global but the sums of
 * norms over several heads. */
__global__ void __launch_bounds__(CHUNK_LANES_MAX, 1)
    chunk_outputs_backward(const __grid_constant__ sr_axes_call call,
                           const __grid_constant__ sr_chunk_call chunk,
                           const __grid_constant__ sr_chunk_rows d_skip,
                           const __grid_constant__ chunk_partial partial,
                           const __grid_constant__ chunk_lanes lanes) {
    __shared__ float shared[CHUNK_LANES_MAX];
    const chunk_lane lane = chunk_lane_of(lanes);
    const int64_t tokens = (int64_t)call.B * call.T, step = (int64_t)gridDim.x * lanes.slots;
    const bool channels = call.a.gate_width == SRNN_WIDTH_CHANNEL;
    const bool front = call.a.output_gate == SRNN_GATE_SIGMOID, post = call.a.post_gate;
    float d_weight[8] = {}, d_bias[8] = {}, d_skip_weight[8] = {};
    for (int64_t first = (int64_t)blockIdx.x * lanes.slots; first < tokens; first += step) {
        const int64_t own = first + lane.slot, token = own < tokens ? own : tokens - 1;
        const bool exists = own < tokens;
        const axes_row at = {(int)(token / call.T), lane.h, (int)(token % call.T)};
        const int64_t row = call.row(call.H, at.b, at.h, at.t);
        const output_piece piece = output_piece_of(
            call, at, lane.piece, chunk_piece(call.saved, at.b, at.h, at.t, lane.piece),
            call.saved_row_sum, call.saved_maximum);
        float d_o[8], x[8], dx[8], own_gate[8] = {};
        chunk_load_8(d_o, chunk_piece(call.o, at.b, at.h, at.t, lane.piece));
#pragma unroll
        for (int c = 0; c < 8; c++)
            x[c] = front_gate(call, piece, c) * piece.y[c];
        const float sum = call.sums_rows ? call.saved_row_sum[row] : 0;
        const norm_piece norm = norm_piece_of(call, lanes, lane, shared, x, sum);
        float shift = 0, along = 0;
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const float weight = norm_weight(call, lane, c), centred = x[c] - norm.mean;
            const float bias = (float)axes_norm_bias(call, lane.h, 8 * lane.piece + c);
            const float behind = post ? piece.gate[c].value * d_o[c] : d_o[c];
            if (post)
                own_gate[c] =
                    d_o[c] * piece.gate[c].slope * fmaf(centred * norm.inverse, weight, bias);
            if (exists) {
                d_weight[c] = fmaf(behind, centred * norm.inverse, d_weight[c]);
                d_bias[c] += behind;
            }
            dx[c] = behind * weight;
            shift += dx[c];
            along = fmaf(dx[c], centred, along);
        }
        if (call.a.norm != SRNN_NORM_NONE) {
            const int count = call.norm_heads * call.Dv;
            const bool length = sr_norm_is_length(call.a.norm);
            shift = sr_norm_is_centred(call.a.norm)
                        ? norm_sum(call, lanes, lane, shared, shift) / (float)count
                        : 0;
            along = norm_sum(call, lanes, lane, shared, along);
            const float inverse = 1 / fmaxf(norm.size, norm.floor);
            along *= length ? (norm.size < norm.floor ? 0 : inverse * inverse)
                            : norm.inverse * norm.inverse / (float)count;
#pragma unroll
            for (int c = 0; c < 8; c++)
                dx[c] = norm.inverse * (dx[c] - shift - (x[c] - norm.mean) * along);
        }
        float d_row_gate = 0, divided = 0, d_y[8], numerator[8];
        const float inverse = 1 / piece.normaliser;
        chunk_load_8(numerator, chunk_piece(call.saved, at.b, at.h, at.t, lane.piece));
#pragma unroll
        for (int c = 0; c < 8; c++) {
            if (front)
                own_gate[c] = fmaf(dx[c] * piece.y[c], piece.gate[c].slope, own_gate[c]);
            d_row_gate = fmaf(dx[c], piece.y[c], d_row_gate);
            d_y[c] = dx[c] * front_gate(call, piece, c);
            divided = fmaf(d_y[c], numerator[c], divided);
            dx[c] = d_y[c] * inverse;
        }
        if (call.sums_rows || (call.gated && !channels)) {
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
        chunk_store_8(chunk.d_numerator.row(at.b, at.h, at.t) + 8 * lane.piece, dx);
        if (call.gated && channels && call.out.output_gate.data)
            chunk_store_8(chunk_piece(call.out.output_gate, at.b, at.h, at.t, lane.piece),
                          own_gate);
        if (call.a.skip == SRNN_SKIP_NONE)
            continue;
        chunk_store_8(d_skip.row(at.b, at.h, at.t) + 8 * lane.piece, d_y);
        if (call.a.skip != SRNN_SKIP_CONV) {
            float v[8];
            chunk_load_8(
                v, chunk_piece(call.in.v, at.b, axes_value_head(call, at.h), at.t, lane.piece));
#pragma unroll
            for (int c = 0; c < 8; c++)
                d_skip_weight[c] = fmaf(d_y[c], v[c], d_skip_weight[c]);
        }
    }
    chunk_partial_store(partial, KIND_WEIGHT, d_weight);
    chunk_partial_store(partial, KIND_BIAS, d_bias);
    chunk_partial_store(partial, KIND_SKIP, d_skip_weight);
}

srnn_status sr_chunks_outputs_backward(const sr_chunk_steps &steps, cudaStream_t stream) {
    const sr_axes_call &call = steps.call;
    const chunk_lanes lanes = chunk_lanes_of(call.H, call.Dv);
    const int64_t tokens = (int64_t)call.B * call.T;
    const int numbers = call.H * call.Dv, columns = call.norm_per_head ? numbers : call.Dv;
    const unsigned blocks = chunk_lanes_blocks(lanes, tokens, CHUNK_LANES_BLOCKS);
    const chunk_partial partial = {steps.sums, (int)blocks, KINDS, lanes.threads(), 8};
    SR_CUDA(sr_launch(chunk_outputs_backward, dim3(blocks), dim3((unsigned)lanes.threads()), 0,
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
