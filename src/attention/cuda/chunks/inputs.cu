/* inputs.cu: from operands to what a core reads, and gradients back: features, factors of values,
 * gates, on rows of bf16, in float. The same function as axes/prologue*.cu, for the rows that
 * models have. */
#include "attention/cuda/axes/decays.h"
#include "attention/cuda/axes/outputs.h"
#include "attention/cuda/chunks/lanes.h"
#include "attention/cuda/chunks/steps.h"
#include "attention/cuda/chunks/tiles.h"
#include "attention/cuda/chunks/units.h"

/* ---- features ---- */

/* Rows of q or k: of the caller, and their features. */
struct feature_rows_of {
    sr_axes_tensor x;
    sr_chunk_rows rows;
    int heads;
};

/* Other features and their slopes: sr_feature_value and sr_feature_slope in float. */
SR_DEVICE float feature_value(srnn_feature feature, float x) {
    if (feature == SRNN_FEATURE_RELU)
        return x < 0 ? 0 : x; /* a NaN stays one */
    return feature != SRNN_FEATURE_ELU1 ? x : x > 0 ? x + 1 : exp2_fast(x * SR_LOG2_E);
}
SR_DEVICE float feature_slope(srnn_feature feature, float x) {
    if (feature == SRNN_FEATURE_RELU)
        return x > 0 ? 1 : 0;
    return feature != SRNN_FEATURE_ELU1 || x > 0 ? 1 : exp2_fast(x * SR_LOG2_E);
}

/* Features of q or k. Threads as in lanes.h, with the heads of the rows: global -> registers, the
 * sum of squares by shuffles, registers -> global. */
__global__ void __launch_bounds__(CHUNK_LANES_MAX, 1)
    chunk_features(const __grid_constant__ sr_axes_call call,
                   const __grid_constant__ feature_rows_of from,
                   const __grid_constant__ chunk_lanes lanes) {
    const chunk_lane lane = chunk_lane_of(lanes);
    const int64_t token = (int64_t)blockIdx.x * lanes.slots + lane.slot;
    const bool exists = token < (int64_t)call.B * call.T;
    const chunk_token place = chunk_token_of(call, exists ? token : 0);
    const int b = place.b, t = place.t;
    float x[8];
    chunk_load_8(x, chunk_piece(from.x, b, lane.h, t, lane.piece));
    if (unit_feature(call.a.feature)) {
        const float inverse =
            unit_inverse(call.a.feature, chunk_row_sum(chunk_dot(x, x), lanes.pieces));
#pragma unroll
        for (int c = 0; c < 8; c++)
            x[c] *= inverse;
    } else {
#pragma unroll
        for (int c = 0; c < 8; c++)
            x[c] = feature_value(call.a.feature, x[c]);
    }
    if (exists)
        chunk_store_8(from.rows.row(b, lane.h, t) + 8 * lane.piece, x);
}

/* Gradients of q or k from those of features, from.rows (B, own, T, F): of the heads that share a
 * row, or of `parts` parts of their sum, added up global -> registers; a sum over the row by
 * shuffles where the feature needs it; stores once. Threads as above. */
__global__ void __launch_bounds__(CHUNK_LANES_MAX, 1)
    chunk_features_backward(const __grid_constant__ sr_axes_call call,
                            const __grid_constant__ feature_rows_of from, int own, int parts,
                            const __grid_constant__ sr_axes_tensor out,
                            const __grid_constant__ chunk_lanes lanes) {
    const chunk_lane lane = chunk_lane_of(lanes);
    const int64_t token = (int64_t)blockIdx.x * lanes.slots + lane.slot;
    const bool exists = token < (int64_t)call.B * call.T;
    const chunk_token place = chunk_token_of(call, exists ? token : 0);
    const int b = place.b, t = place.t;
    float d[8] = {};
    const bool shares = call.shares_queries && parts == 0;
    const int each = parts > 0 ? parts : 1;
    for (int h = shares ? 0 : lane.h * each; h < (shares ? own : (lane.h + 1) * each); h++) {
        if (shares && call.shared_head(h) != lane.h)
            continue;
        float part[8];
        chunk_load_8(part, from.rows.row(b, h, t) + 8 * lane.piece);
#pragma unroll
        for (int c = 0; c < 8; c++)
            d[c] += part[c];
    }
    float x[8];
    chunk_load_8(x, chunk_piece(from.x, b, lane.h, t, lane.piece));
    if (unit_feature(call.a.feature)) {
        const float square = chunk_row_sum(chunk_dot(x, x), lanes.pieces);
        const float inverse = unit_inverse(call.a.feature, square);
        const float dot = chunk_row_sum(chunk_dot(x, d), lanes.pieces);
        const float along = dot * unit_along(call.a.feature, inverse);
#pragma unroll
        for (int c = 0; c < 8; c++)
            d[c] = inverse * fmaf(-along, x[c], d[c]);
    } else {
#pragma unroll
        for (int c = 0; c < 8; c++)
            d[c] *= feature_slope(call.a.feature, x[c]);
    }
    if (exists)
        chunk_store_8(chunk_piece(out, b, lane.h, t, lane.piece), d);
}

/* ---- values and numbers of tokens ---- */

/* a_t of the gate with number z, as cores read it; a NaN stays one. */
SR_DEVICE float gate_of(const sr_axes_call &call, int h, float z) {
    const float logarithm = gate_logarithm(call.gate, h, z);
    return logarithm < SR_CHUNK_GATE_LEAST ? SR_CHUNK_GATE_LEAST : logarithm;
}

/* Whether no gate acts before a token: it begins a document that begins from nothing. */
SR_DEVICE bool begins_at(const sr_axes_call &call, int b, int t, bool continues) {
    return call.start(b, t) == t && !(continues && t == 0);
}

/* The factor of v, beta and a gate per head. A thread owns a token of a head: it reads the gates'
 * numbers and stores each result once. `continues`: rows begin from an initial state. */
__global__ void chunk_tokens(const __grid_constant__ sr_axes_call call, float *gate,
                             bool continues) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T)
        return;
    const axes_row at = axes_row_of(n, call.Hkv, call.T);
    if (gate) {
        /* a learned gate acts from the next token on */
        const int t = at.t - (call.a.decay == SRNN_DECAY_LEARNED ? 1 : 0);
        const bool begins = begins_at(call, at.b, at.t, continues);
        gate[n] =
            begins ? 0 : gate_of(call, at.h, (float)axes_decay_number(call, at.b, at.h, t, 0));
    }
    if (call.scratch.value_factor) {
        float factor = 1;
        switch (call.a.value_gate) {
        case SRNN_VALUE_GATE_OFF:
            break;
        case SRNN_VALUE_GATE_SIGMOID:
            factor = gate_sigmoid(call.in.value_gate.at(at.b, at.h, at.t, 0));
            break;
        case SRNN_VALUE_GATE_TIME_STEP:
            factor = gate_softplus((float)axes_decay_number(call, at.b, at.h, at.t, 0));
            break;
        }
        call.scratch.value_factor[n] = factor;
    }
    if (call.scratch.beta) {
        const float z = call.in.write_gate.at(at.b, at.h, at.t, 0);
        const bool given = call.a.write_gate == SRNN_WRITE_GATE_GIVEN;
        call.scratch.beta[n] = given ? z : (float)call.write_range * gate_sigmoid(z);
    }
}

/* v times its factor, global -> registers -> global. Threads as in lanes.h. */
__global__ void __launch_bounds__(CHUNK_LANES_MAX, 1)
    chunk_values(const __grid_constant__ sr_axes_call call,
                 const __grid_constant__ sr_chunk_rows out,
                 const __grid_constant__ chunk_lanes lanes) {
    const chunk_lane lane = chunk_lane_of(lanes);
    const int64_t token = (int64_t)blockIdx.x * lanes.slots + lane.slot;
    if (token >= (int64_t)call.B * call.T)
        return;
    const chunk_token place = chunk_token_of(call, token);
    const int b = place.b, t = place.t;
    const float factor = call.scratch.value_factor[call.row(call.Hkv, b, lane.h, t)];
    float v[8];
    chunk_load_8(v, chunk_piece(call.in.v, b, lane.h, t, lane.piece));
#pragma unroll
    for (int c = 0; c < 8; c++)
        v[c] *= factor;
    chunk_store_8(out.row(b, lane.h, t) + 8 * lane.piece, v);
}

/* Gradients of v from those of factor * v and of the skip, where the core does not fold these; with
 * `factors` <factor v, its gradient> of the token. Threads as in lanes.h: rows global -> registers,
 * the dot product by shuffles, stored by the first thread of the row, then the gradients registers
 * -> global. */
__global__ void __launch_bounds__(CHUNK_LANES_MAX, 1)
    chunk_values_backward(const __grid_constant__ sr_axes_call call,
                          const __grid_constant__ sr_chunk_rows d_v,
                          const __grid_constant__ sr_chunk_rows d_skip, bool factors,
                          const __grid_constant__ chunk_lanes lanes) {
    const chunk_lane lane = chunk_lane_of(lanes);
    const int64_t token = (int64_t)blockIdx.x * lanes.slots + lane.slot;
    const bool exists = token < (int64_t)call.B * call.T;
    const chunk_token place = chunk_token_of(call, exists ? token : 0);
    const int b = place.b, t = place.t;
    const int64_t row = call.row(call.Hkv, b, lane.h, t);
    float d[8];
    chunk_load_8(d, d_v.row(b, lane.h, t) + 8 * lane.piece);
    if (factors) {
        const float factor = call.scratch.value_factor[row];
        float v[8];
        chunk_load_8(v, chunk_piece(call.in.v, b, lane.h, t, lane.piece));
        const float dot = factor * chunk_row_sum(chunk_dot(d, v), lanes.pieces);
        if (exists && lane.piece == 0) {
            call.scratch.value_dot[row] = (double)dot;
            if (call.a.value_gate == SRNN_VALUE_GATE_SIGMOID && call.out.value_gate.data)
                call.out.value_gate.put(
                    b, lane.h, t, 0,
                    (double)(dot * gate_sigmoid(-call.in.value_gate.at(b, lane.h, t, 0))));
        }
#pragma unroll
        for (int c = 0; c < 8; c++)
            d[c] *= factor;
    }
    if (!exists)
        return;
    if (d_skip.data && call.a.skip != SRNN_SKIP_NONE) {
        const bool conv = call.a.skip == SRNN_SKIP_CONV;
        float skipped[8] = {};
        for (int h = lane.h * call.group; h < (lane.h + 1) * call.group; h++) {
            float part[8];
            chunk_load_8(part, d_skip.row(b, h, t) + 8 * lane.piece);
#pragma unroll
            for (int c = 0; c < 8; c++)
                skipped[c] =
                    fmaf(part[c],
                         conv ? 1.0f : (float)axes_skip_weight(call, h, 8 * lane.piece + c),
                         skipped[c]);
        }
        if (conv && call.out.skip.data)
            chunk_store_8(chunk_piece(call.out.skip, b, lane.h, t, lane.piece), skipped);
#pragma unroll
        for (int c = 0; c < 8; c++)
            d[c] += conv ? 0 : skipped[c];
    }
    if (call.out.v.data)
        chunk_store_8(chunk_piece(call.out.v, b, lane.h, t, lane.piece), d);
}

/* ---- gradients of gates ---- */

enum { KIND_RATE, KIND_BIAS, KINDS };
static_assert((int)KINDS <= (int)CHUNK_SUM_KINDS, "sums need more memory");

/* The gradient of a gate's number from that of the gate between tokens that it makes; what a_log
 * gets of it is added to `rate`. */
SR_DEVICE float gate_number_backward(const sr_axes_call &call, int h, float z, float d_gate,
                                     float *rate) {
    if (call.gate.a_log)
        *rate = fmaf(d_gate, gate_rate_slope(call.gate, h, z), *rate);
    return d_gate * gate_slope(call.gate, h, z);
}

/* The gradient of the write gate. A thread owns a token of a head: reads the gate and d_beta,
 * stores once. */
__global__ void chunk_beta_backward(const __grid_constant__ sr_axes_call call,
                                    const float *d_beta) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T)
        return;
    const axes_row at = axes_row_of(n, call.Hkv, call.T);
    const float s = gate_sigmoid(call.in.write_gate.at(at.b, at.h, at.t, 0));
    const bool given = call.a.write_gate == SRNN_WRITE_GATE_GIVEN;
    const float slope = given ? 1 : (float)call.write_range * s * (1 - s);
    call.out.write_gate.put(at.b, at.h, at.t, 0, (double)(d_beta[n] * slope));
}

/* Gradients of gates per head. A thread owns head h of every token that its place in the grid
 * gives it: reads gate and gradient, stores the gradient of its number, and keeps sums for a_log
 * and dt_bias in registers, which chunk_partial_store writes at the end. `lanes` has one number a
 * thread. */
__global__ void __launch_bounds__(CHUNK_LANES_MAX, 1)
    chunk_gates_backward(const __grid_constant__ sr_axes_call call,
                         const __grid_constant__ sr_chunk_call chunk,
                         const __grid_constant__ chunk_partial partial,
                         const __grid_constant__ chunk_lanes lanes) {
    const chunk_lane lane = chunk_lane_of(lanes);
    const int64_t tokens = (int64_t)call.B * call.T, step = (int64_t)gridDim.x * lanes.slots;
    const int h = lane.h;
    float rate[1] = {}, bias[1] = {};
    for (int64_t token = (int64_t)blockIdx.x * lanes.slots + lane.slot; token < tokens;
         token += step) {
        const chunk_token place = chunk_token_of(call, token);
        const int b = place.b, t = place.t;
        const int64_t row = call.row(call.Hkv, b, h, t);
        const int acts = t + (call.a.decay == SRNN_DECAY_LEARNED ? 1 : 0);
        const bool inside = acts < call.T && !begins_at(call, b, acts, chunk.initial);
        const float z = (float)axes_decay_number(call, b, h, t, 0);
        float d =
            gate_number_backward(call, h, z,
                                 inside ? chunk.d_gate[call.row(call.Hkv, b, h, acts)] : 0, rate);
        if (call.a.value_gate == SRNN_VALUE_GATE_TIME_STEP) {
            const float factor = call.scratch.value_factor[row];
            if (factor > 0)
                d += (float)call.scratch.value_dot[row] / factor * gate_sigmoid(z);
        }
        bias[0] += d;
        if (call.out.decay.data)
            call.out.decay.put(b, h, t, 0, (double)d);
    }
    chunk_partial_store(partial, KIND_RATE, rate);
    chunk_partial_store(partial, KIND_BIAS, bias);
}

/* ---- calls ---- */

static srnn_status features(const sr_axes_call &call, const sr_axes_tensor &x,
                            const sr_chunk_rows &rows, int heads, cudaStream_t stream) {
    if (rows.data == x.data)
        return SRNN_OK;
    const chunk_lanes lanes = chunk_lanes_of(heads, call.D);
    const feature_rows_of from = {x, rows, heads};
    SR_CUDA(sr_launch(chunk_features,
                      dim3(chunk_lanes_blocks(lanes, (int64_t)call.B * call.T, INT32_MAX)),
                      dim3((unsigned)lanes.threads()), 0, stream, call, from, lanes));
    return SRNN_OK;
}

srnn_status sr_chunks_inputs(const sr_axes_call &call, const sr_chunk_call &chunk,
                             cudaStream_t stream) {
    const int64_t tokens = (int64_t)call.B * call.T;
    const int queries = call.shares_queries ? call.shared : call.H;
    const bool continues = chunk.initial != nullptr;
    SR_TRY(features(call, call.in.q, chunk.q, queries, stream));
    SR_TRY(features(call, call.in.k, chunk.k, call.shared, stream));
    float *const gate = (float *)chunk.gate;
    if (gate || call.scratch.value_factor || call.scratch.beta)
        AXES_START(chunk_tokens, tokens * call.Hkv, call, gate, continues);
    SR_TRY(sr_chunks_levels(call, stream));
    if (chunk.v.data == call.in.v.data)
        return SRNN_OK;
    const chunk_lanes lanes = chunk_lanes_of(call.Hkv, call.Dv);
    SR_CUDA(sr_launch(chunk_values, dim3(chunk_lanes_blocks(lanes, tokens, INT32_MAX)),
                      dim3((unsigned)lanes.threads()), 0, stream, call, chunk.v, lanes));
    return SRNN_OK;
}

/* from.rows: gradients of features, of `own` heads. */
static srnn_status features_backward(const sr_axes_call &call, const feature_rows_of &from, int own,
                                     int parts, const sr_axes_tensor &out, cudaStream_t stream) {
    if (!out.data || from.rows.data == out.data)
        return SRNN_OK;
    const chunk_lanes lanes = chunk_lanes_of(from.heads, call.D);
    SR_CUDA(sr_launch(chunk_features_backward,
                      dim3(chunk_lanes_blocks(lanes, (int64_t)call.B * call.T, INT32_MAX)),
                      dim3((unsigned)lanes.threads()), 0, stream, call, from, own, parts, out,
                      lanes));
    return SRNN_OK;
}

/* Gradients of a_log and dt_bias from sums of terms of `numbers` for each (h, c). */
static srnn_status rates_backward(const sr_axes_call &call, const chunk_partial &partial,
                                  int numbers, cudaStream_t stream) {
    const bool wide = call.a.dt_width == SRNN_DT_WIDTH_CHANNEL;
    const int columns = wide ? numbers : call.Hkv;
    SR_TRY(sr_chunks_add_partial(call.out.a_log, partial,
                                 {KIND_RATE, numbers, numbers / call.Hkv, call.Hkv}, stream));
    return sr_chunks_add_partial(call.out.dt_bias, partial,
                                 {KIND_BIAS, numbers, numbers / columns, columns}, stream);
}

static srnn_status gates_backward(const sr_axes_call &call, const sr_chunk_call &chunk, float *sums,
                                  cudaStream_t stream) {
    const int64_t tokens = (int64_t)call.B * call.T;
    if (call.decays > 1) { /* the core has left sums of chunks */
        const int numbers = call.Hkv * call.F, chunks = call.B * chunk_count(call.T);
        const chunk_partial partial = {chunk.gates.sums, chunks, KINDS, numbers, 1};
        return call.gate.a_log ? rates_backward(call, partial, numbers, stream) : SRNN_OK;
    }
    const chunk_lanes lanes = chunk_lanes_of(call.Hkv, 8);
    const unsigned blocks = chunk_lanes_blocks(lanes, tokens, CHUNK_LANES_ALL / lanes.threads());
    const chunk_partial partial = {sums, (int)blocks, KINDS, lanes.threads(), 1};
    SR_CUDA(sr_launch(chunk_gates_backward, dim3(blocks), dim3((unsigned)lanes.threads()), 0,
                      stream, call, chunk, partial, lanes));
    return call.gate.a_log ? rates_backward(call, partial, call.Hkv, stream) : SRNN_OK;
}

srnn_status sr_chunks_inputs_backward(const sr_chunk_steps &steps, cudaStream_t stream) {
    const sr_axes_call &call = steps.call;
    const sr_chunk_call &chunk = steps.chunk;
    const int queries = call.shares_queries ? call.shared : call.H;
    SR_TRY(features_backward(call, {call.in.q, chunk.d_q, queries}, call.H, chunk.parts, call.out.q,
                             stream));
    SR_TRY(features_backward(call, {call.in.k, chunk.d_k, call.shared}, call.Hkv, chunk.parts,
                             call.out.k, stream));
    const bool factors = call.scratch.value_factor && !chunk.factor;
    if (chunk.d_v.data != call.out.v.data) {
        const chunk_lanes lanes = chunk_lanes_of(call.Hkv, call.Dv);
        SR_CUDA(sr_launch(chunk_values_backward,
                          dim3(chunk_lanes_blocks(lanes, (int64_t)call.B * call.T, INT32_MAX)),
                          dim3((unsigned)lanes.threads()), 0, stream, call, chunk.d_v, steps.d_skip,
                          factors, lanes));
    }
    SR_TRY(sr_chunks_levels_backward(call, steps.sums, stream));
    if (call.delta && call.out.write_gate.data)
        AXES_START(chunk_beta_backward, (int64_t)call.B * call.T * call.Hkv, call, chunk.d_beta);
    return call.decays > 0 ? gates_backward(call, chunk, steps.sums, stream) : SRNN_OK;
}
