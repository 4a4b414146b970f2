/* steps.cu: rows, gates and factors of axes/ in the form that the cores read, and back. */
#include "attention/cuda/chunks/steps.h"

/* ---- kernels: a thread owns a number, or 8 of a row ---- */

/* Rows of floats to bf16, with zeros behind them. Thread n owns 8 numbers of a row. */
__global__ void narrow_rows(const float *in, sr_bf16 *out, int64_t rows, int columns, int width) {
    const int pieces = width / 8;
    const int64_t n = axes_thread(), row = n / pieces;
    if (row >= rows)
        return;
    const int begin = (int)(n % pieces) * 8;
    sr_vector<sr_bf16> vector;
#pragma unroll
    for (int c = 0; c < 8; c++)
        vector.number[c] = to_bf16(begin + c < columns ? in[row * columns + begin + c] : 0);
    store_vector(out + row * width + begin, vector);
}

/* The inverse: a thread owns 8 numbers. */
__global__ void widen_rows(const sr_bf16 *in, float *out, int64_t rows, int columns, int width) {
    const int pieces = width / 8;
    const int64_t n = axes_thread(), row = n / pieces;
    if (row >= rows)
        return;
    const int begin = (int)(n % pieces) * 8;
    const sr_vector<sr_bf16> vector = load_vector(in + row * width + begin);
#pragma unroll
    for (int c = 0; c < 8; c++)
        if (begin + c < columns)
            out[row * columns + begin + c] = to_float(vector.number[c]);
}

/* Gates between tokens from running sums in double: where a document begins there is none. A thread
 * owns one. */
__global__ void gates_between(const __grid_constant__ sr_axes_call call, float *gate, int width) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T * width)
        return;
    const int c = (int)(n % width);
    const axes_row at = axes_row_of(n / width, call.Hkv, call.T);
    const double *const sums = call.scratch.decay + n / width * call.decays + c;
    const bool begins = call.start(at.b, at.t) == at.t;
    gate[n] = begins || c >= call.decays
                  ? 0
                  : fmaxf((float)(sums[0] - sums[-call.decays]), SR_CHUNK_GATE_LEAST);
}

/* Gradients of gates between tokens to those of the tokens' own gates: a learned one acts from the
 * next token on. A thread owns one of the latter. */
__global__ void gates_backward(const __grid_constant__ sr_axes_call call, const float *d_gate,
                               int width) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T * call.decays)
        return;
    const int c = (int)(n % call.decays);
    const axes_row at = axes_row_of(n / call.decays, call.Hkv, call.T);
    const int t = at.t + (call.a.decay == SRNN_DECAY_LEARNED ? 1 : 0);
    const bool acts = t < call.T && call.start(at.b, t) < t;
    call.scratch.d_gate[n] =
        acts ? (double)d_gate[call.row(call.Hkv, at.b, at.h, t) * width + c] : 0;
}

__global__ void row_sums_backward(const double *in, float *out, int64_t count) {
    const int64_t n = axes_thread();
    if (n < count)
        out[n] = (float)in[n];
}

/* ---- calls ---- */

static srnn_status narrow(const float *in, const sr_chunk_rows &out, int64_t rows, int columns,
                          cudaStream_t stream) {
    const int width = sr_chunk_width(columns);
    AXES_START(narrow_rows, rows * (width / 8), in, out.data, rows, columns, width);
    return SRNN_OK;
}

static srnn_status widen(const sr_chunk_rows &in, float *out, int64_t rows, int columns,
                         cudaStream_t stream) {
    const int width = sr_chunk_width(columns);
    AXES_START(widen_rows, rows * (width / 8), in.data, out, rows, columns, width);
    return SRNN_OK;
}

static sr_chunk_rows take_rows(int B, int heads, int T, int width, sr_layout *layout) {
    const int64_t count = (int64_t)B * heads * T * width;
    const int64_t bytes = 2 * count + 256;
    char *const place = (char *)sr_layout_take(layout, (size_t)bytes, 1);
    return {(sr_bf16 *)place, (int64_t)heads * T * width, (int64_t)T * width, width};
}

static float *take_floats(bool wanted, int64_t count, sr_layout *layout) {
    return wanted ? (float *)sr_layout_take(layout, (size_t)count, sizeof(float)) : nullptr;
}

sr_chunk_call sr_chunk_call_of(const sr_axes_call &call, bool backward, sr_layout *layout) {
    const int64_t rows = (int64_t)call.B * call.T;
    sr_chunk_call out = {};
    out.B = call.B;
    out.H = call.H;
    out.Hkv = call.Hkv;
    out.T = call.T;
    out.group = call.group;
    out.F = sr_chunk_width(call.F);
    out.V = sr_chunk_width(call.Dv);
    out.delta = call.delta;
    out.sums_rows = call.sums_rows;
    out.decays = call.decays > 1 ? out.F : call.decays;
    out.scale = 1; /* in the features of queries */
    out.first = call.first;
    out.q_share = out.k_share = 1;
    out.q_heads = call.H;
    out.k_heads = call.Hkv;
    out.q = take_rows(call.B, call.H, call.T, out.F, layout);
    out.k = take_rows(call.B, call.Hkv, call.T, out.F, layout);
    out.v = take_rows(call.B, call.Hkv, call.T, out.V, layout);
    out.numerator = take_rows(call.B, call.H, call.T, out.V, layout);
    out.row_sum = call.scratch.row_sum;
    out.gate = take_floats(out.decays > 0, rows * call.Hkv * out.decays, layout);
    out.beta = call.scratch.beta;
    if (!backward)
        return out;
    out.d_numerator = take_rows(call.B, call.H, call.T, out.V, layout);
    out.d_row_sum = take_floats(call.sums_rows, rows * call.H, layout);
    out.d_q = take_rows(call.B, call.H, call.T, out.F, layout);
    out.d_k = take_rows(call.B, call.Hkv, call.T, out.F, layout);
    out.d_v = take_rows(call.B, call.Hkv, call.T, out.V, layout);
    out.d_gate = take_floats(out.decays > 0, rows * call.Hkv * out.decays, layout);
    out.d_beta = call.scratch.d_beta;
    return out;
}

srnn_status sr_chunks_rows_in(const sr_axes_call &call, const sr_chunk_call &chunk,
                              cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T;
    SR_TRY(narrow(call.scratch.q, chunk.q, rows * call.H, call.F, stream));
    SR_TRY(narrow(call.scratch.k, chunk.k, rows * call.Hkv, call.F, stream));
    SR_TRY(narrow(call.scratch.v, chunk.v, rows * call.Hkv, call.Dv, stream));
    if (chunk.decays > 0)
        AXES_START(gates_between, rows * call.Hkv * chunk.decays, call, (float *)chunk.gate,
                   chunk.decays);
    return SRNN_OK;
}

srnn_status sr_chunks_rows_out(const sr_axes_call &call, const sr_chunk_call &chunk,
                               cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T * call.H;
    const size_t bytes = (size_t)rows * sizeof(float);
    if (!call.sums_rows)
        SR_CUDA(cudaMemsetAsync(call.scratch.row_sum, 0, bytes, stream));
    SR_CUDA(cudaMemsetAsync(call.scratch.maximum, 0, bytes, stream));
    return widen(chunk.numerator, call.scratch.numerator, rows, call.Dv, stream);
}

srnn_status sr_chunks_gradients_in(const sr_axes_call &call, const sr_chunk_call &chunk,
                                   cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T * call.H;
    if (call.sums_rows)
        AXES_START(row_sums_backward, rows, call.scratch.d_row_sum, (float *)chunk.d_row_sum, rows);
    return narrow(call.scratch.d_numerator, chunk.d_numerator, rows, call.Dv, stream);
}

srnn_status sr_chunks_gradients_out(const sr_axes_call &call, const sr_chunk_call &chunk,
                                    cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T;
    SR_TRY(widen(chunk.d_q, call.scratch.d_q, rows * call.H, call.F, stream));
    SR_TRY(widen(chunk.d_k, call.scratch.d_k, rows * call.Hkv, call.F, stream));
    SR_TRY(widen(chunk.d_v, call.scratch.d_v, rows * call.Hkv, call.Dv, stream));
    if (chunk.decays > 0)
        AXES_START(gates_backward, rows * call.Hkv * call.decays, call, chunk.d_gate, chunk.decays);
    return SRNN_OK;
}
