/* steps.cu: the arrays of a call, direct or not; rows, gates and factors of axes/ in the form that
 * cores read, and back. */
#include "attention/cuda/chunks/lanes.h"
#include "attention/cuda/chunks/steps.h"
#include "attention/cuda/chunks/tiles.h"
#include "attention/cuda/chunks/units.h"

/* ---- kernels: a thread owns a number, or 8 of a row ---- */

/* Rows of floats to bf16, with zeros behind them. Thread n owns 8 numbers of a row: global ->
 * registers, one store of 16 bytes. */
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

/* The inverse: a thread owns 8 numbers, one load of 16 bytes, registers -> global. */
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

/* Gates between tokens from running sums in double: where a document begins from nothing there is
 * none. A thread owns one: reads two sums, stores their difference. */
__global__ void gates_between(const __grid_constant__ sr_axes_call call, float *gate, int width,
                              bool continues) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T * width)
        return;
    const int c = (int)(n % width);
    const axes_row at = axes_row_of(n / width, call.Hkv, call.T);
    const double *const sums = call.scratch.decay + n / width * call.decays + c;
    const bool first = call.start(at.b, at.t) == at.t, begins = first && !(continues && at.t == 0);
    const float between =
        begins || c >= call.decays ? 0 : (float)(sums[0] - (first ? 0 : sums[-call.decays]));
    gate[n] = between < SR_CHUNK_GATE_LEAST ? SR_CHUNK_GATE_LEAST : between;
}

/* Gradients of gates between tokens to those of the tokens' own gates: a learned one acts from the
 * next token on. A thread owns one of the latter: reads, stores. */
__global__ void gates_backward(const __grid_constant__ sr_axes_call call, const float *d_gate,
                               int width, bool continues) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T * call.decays)
        return;
    const int c = (int)(n % call.decays);
    const axes_row at = axes_row_of(n / call.decays, call.Hkv, call.T);
    const int t = at.t + (call.a.decay == SRNN_DECAY_LEARNED ? 1 : 0);
    const bool acts = t < call.T && (call.start(at.b, t) < t || (continues && t == 0));
    call.scratch.d_gate[n] =
        acts ? (double)d_gate[call.row(call.Hkv, at.b, at.h, t) * width + c] : 0;
}

/* Rounds doubles to float. A thread owns one number: reads, stores. */
__global__ void row_sums_backward(const double *in, float *out, int64_t count) {
    const int64_t n = axes_thread();
    if (n < count)
        out[n] = (float)in[n];
}

/* ---- which calls are direct ---- */

/* Rows of 16 bytes at a time. */
static bool is_aligned(const sr_axes_tensor &x) {
    return x.narrow && (uintptr_t)x.data % 16 == 0 && x.batch % 8 == 0 && x.head % 8 == 0 &&
           x.time % 8 == 0;
}

static bool has_lanes(const sr_axes_call &call) {
    const int heads[] = {call.H, call.Hkv, call.shared};
    if ((int64_t)call.B * call.T > INT32_MAX)
        return false;
    for (const int count : heads)
        if (chunk_lanes_of(count, call.D).slots == 0 || chunk_lanes_of(count, call.Dv).slots == 0 ||
            chunk_lanes_of(count, 8).slots == 0)
            return false;
    return true;
}

/* Whether every step is one of those in inputs.cu and outputs.cu. */
static bool is_usual(const srnn_attention *a) {
    switch (a->feature) {
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_RELU:
    case SRNN_FEATURE_ELU1:
    case SRNN_FEATURE_UNIT:
    case SRNN_FEATURE_UNIT_SMOOTH:
        break;
    case SRNN_FEATURE_UNIT_HEADS:
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        return false;
    }
    switch (a->normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
    case SRNN_NORMALISER_ROW_SUM_MIN1:
    case SRNN_NORMALISER_ROW_LENGTH:
    case SRNN_NORMALISER_NONE:
        break;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
    case SRNN_NORMALISER_VALUE_POWER:
        return false;
    }
    return a->output_gate != SRNN_GATE_INVERSE_CUMULATIVE && a->skip != SRNN_SKIP_BONUS;
}

static bool is_direct(const sr_axes_call &call) {
    const sr_axes_operands *const sides[] = {&call.in, &call.out};
    if (!is_usual(&call.a) || !has_lanes(call) || !is_aligned(call.o))
        return false;
    for (const sr_axes_operands *side : sides) {
        const sr_axes_tensor *const rows[] = {&side->q, &side->k, &side->v, &side->skip};
        for (const sr_axes_tensor *tensor : rows)
            if (tensor->data && !is_aligned(*tensor))
                return false;
        if (call.gated && call.a.gate_width == SRNN_WIDTH_CHANNEL && side->output_gate.data &&
            !is_aligned(side->output_gate))
            return false;
        if (call.decays > 1 && side->decay.data && !is_aligned(side->decay))
            return false;
    }
    return true;
}

/* Whether outputs are numerators. */
static bool has_plain_outputs(const sr_axes_call &call) {
    return call.a.normaliser == SRNN_NORMALISER_NONE && call.a.epsilon == 0 &&
           call.a.output_gate == SRNN_GATE_NONE && !call.a.post_gate &&
           call.a.norm == SRNN_NORM_NONE && call.a.skip == SRNN_SKIP_NONE;
}

/* ---- arrays ---- */

static sr_chunk_rows take_rows(int B, int heads, int T, int width, sr_layout *layout) {
    const size_t count = (size_t)B * (size_t)heads * (size_t)T * (size_t)width;
    sr_bf16 *const data = (sr_bf16 *)sr_layout_take(layout, count, sizeof(sr_bf16));
    return {data, (int64_t)heads * T * width, (int64_t)T * width, width};
}

static float *take_floats(bool wanted, int64_t count, sr_layout *layout) {
    return wanted ? (float *)sr_layout_take(layout, (size_t)count, sizeof(float)) : nullptr;
}

static sr_chunk_rows rows_of(const sr_axes_tensor &x) {
    return {(sr_bf16 *)x.data, x.batch, x.head, x.time};
}

/* The caller's rows where `own`, else an array. */
static sr_chunk_rows rows_or_array(bool own, const sr_axes_tensor &x, const sr_axes_call &call,
                                   int heads, int width, sr_layout *layout) {
    return own && x.data ? rows_of(x) : take_rows(call.B, heads, call.T, width, layout);
}

/* Gates of channels by the caller's numbers. */
static sr_chunk_numbers numbers_of(const sr_axes_call &call, bool backward, sr_layout *layout) {
    sr_chunk_numbers gates = {};
    gates.numbers = rows_of(call.in.decay);
    gates.rule = call.gate;
    gates.later = call.a.decay == SRNN_DECAY_LEARNED ? 1 : 0;
    gates.d_numbers = rows_of(call.out.decay);
    const int64_t chunks = chunk_count(call.T);
    gates.sums = take_floats(backward && sr_decay_has_rate(&call.a),
                             2 * call.B * chunks * call.Hkv * call.F, layout);
    return gates;
}

/* Whether the core takes the caller's values, which count as often as their factors say. */
static bool folds_values(const sr_axes_call &call, int parts) {
    return parts > 0 && call.a.value_gate == SRNN_VALUE_GATE_TIME_STEP;
}

/* Whether it adds the gradient of the skip, which is then that of numerators times its weight. */
static bool folds_skip(const sr_axes_call &call, int parts) {
    return parts > 0 && call.a.skip == SRNN_SKIP_HEAD &&
           call.a.normaliser == SRNN_NORMALISER_NONE && call.a.epsilon == 0;
}

/* What both kinds of calls have. */
static sr_chunk_call facts_of(const sr_axes_call &call) {
    sr_chunk_call out = {};
    out.B = call.B;
    out.H = call.H;
    out.Hkv = call.Hkv;
    out.T = call.T;
    out.group = call.group;
    out.F = sr_chunk_width(call.F);
    out.V = sr_chunk_width(call.Dv);
    out.levels = call.levels;
    out.level = call.scratch.level;
    out.d_level = call.scratch.d_level;
    out.delta = call.delta;
    out.sums_rows = call.sums_rows;
    out.decays = call.decays > 1 ? out.F : call.decays;
    out.scale = (float)call.scale;
    out.first = call.first;
    out.q_share = out.k_share = 1;
    out.q_heads = call.H;
    out.k_heads = call.Hkv;
    out.beta = call.scratch.beta;
    out.d_beta = call.scratch.d_beta;
    out.row_sum = call.saved.data ? call.saved_row_sum : call.scratch.row_sum;
    return out;
}

static void take_arrays(sr_chunk_steps *s, int parts, bool backward, sr_layout *layout) {
    const sr_axes_call &call = s->call;
    sr_chunk_call *const out = &s->chunk;
    const bool direct = s->direct;
    const bool own_rows =
        direct && call.a.feature == out->feature; /* the core reads the caller's */
    const bool plain_outputs = direct && has_plain_outputs(call);
    const bool shares = direct && call.shares_queries;
    const bool folds = shares && folds_values(call, parts);
    const bool plain_values = direct && (!call.scratch.value_factor || folds);
    const bool skips = shares && plain_values && folds_skip(call, parts);
    if (shares) {
        const bool tiled = call.a.share == SRNN_SHARE_QK_TILED;
        out->q_share = out->k_share = tiled ? 1 : call.H / call.shared;
        out->q_heads = out->k_heads = call.shared;
        out->parts = parts;
    }
    if (folds) {
        out->factor = call.scratch.value_factor;
        out->value_dot = call.scratch.value_dot;
    }
    if (skips)
        out->skip = call.in.skip_weight;
    const int64_t gates = (int64_t)call.B * call.T * call.Hkv * out->decays;
    out->q = rows_or_array(own_rows, call.in.q, call, out->q_heads, out->F, layout);
    out->k = rows_or_array(own_rows, call.in.k, call, out->k_heads, out->F, layout);
    out->v = rows_or_array(plain_values, call.in.v, call, call.Hkv, out->V, layout);
    const bool finds_gates = direct && call.decays > 1; /* the core does */
    out->gate = take_floats(gates > 0 && !finds_gates, gates, layout);
    if (finds_gates)
        out->gates = numbers_of(call, backward, layout);
    if (!backward) {
        const sr_axes_tensor &outputs = plain_outputs ? call.o : call.saved;
        out->numerator =
            rows_or_array(direct && outputs.narrow, outputs, call, call.H, out->V, layout);
        return;
    }
    out->d_numerator = rows_or_array(plain_outputs, call.o, call, call.H, out->V, layout);
    out->d_row_sum = take_floats(call.sums_rows, (int64_t)call.B * call.T * call.H, layout);
    const bool own = own_rows && (!call.shares_queries || out->parts == 1);
    const int sums = out->parts * out->q_heads; /* rows of d_q and d_k where they are sums */
    out->d_q = rows_or_array(own, call.out.q, call, sums > 0 ? sums : call.H, out->F, layout);
    out->d_k = rows_or_array(own, call.out.k, call, sums > 0 ? sums : call.Hkv, out->F, layout);
    out->d_v = rows_or_array(plain_values && (call.a.skip == SRNN_SKIP_NONE || skips), call.out.v,
                             call, call.Hkv, out->V, layout);
    out->d_gate = take_floats(gates > 0 && !finds_gates, gates, layout);
    if (!direct)
        return;
    if (!skips)
        s->d_skip = take_rows(call.B, call.H, call.T, out->V, layout);
    s->sums = (float *)sr_layout_take(layout, CHUNK_SUMS, sizeof(float));
}

sr_chunk_steps sr_chunk_steps_of(const sr_axes_call &call, int parts, bool units, bool backward,
                                 sr_layout *layout) {
    sr_chunk_steps s = {};
    s.call = call;
    s.direct = is_direct(call);
    s.chunk = facts_of(call);
    if (units && s.direct && unit_feature(call.a.feature) && !call.shares_queries)
        s.chunk.feature = call.a.feature;
    if (!s.direct) /* the core applies it: queries times it would be rounded */
        s.call.scale = 1;
    take_arrays(&s, parts, backward, layout);
    return s;
}

/* Bytes of either kind of call; without operands no array is the caller's, and a core that adds up
 * gradients needs less. */
static size_t bytes_of(const sr_axes_call &facts, bool direct) {
    sr_layout layout = {};
    sr_chunk_steps s = {};
    s.call = facts;
    s.direct = direct;
    s.chunk = facts_of(facts);
    take_arrays(&s, 0, true, &layout);
    take_rows(facts.B, facts.H, facts.T, s.chunk.V, &layout);
    return layout.used;
}

/* Where heads share q and k, calls that are not direct have more rows of them. */
size_t sr_chunk_steps_bytes(const sr_axes_call &facts) {
    const size_t direct = bytes_of(facts, true), other = bytes_of(facts, false);
    return direct > other ? direct : other;
}

/* ---- calls that are not direct ---- */

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

static srnn_status rows_in(const sr_axes_call &call, const sr_chunk_call &chunk,
                           cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T;
    SR_TRY(sr_axes_prepare(call, stream));
    SR_TRY(narrow(call.scratch.q, chunk.q, rows * call.H, call.F, stream));
    SR_TRY(narrow(call.scratch.k, chunk.k, rows * call.Hkv, call.F, stream));
    SR_TRY(narrow(call.scratch.v, chunk.v, rows * call.Hkv, call.Dv, stream));
    if (chunk.decays > 0)
        AXES_START(gates_between, rows * call.Hkv * chunk.decays, call, (float *)chunk.gate,
                   chunk.decays, chunk.initial != nullptr);
    return SRNN_OK;
}

static srnn_status rows_out(const sr_axes_call &call, const sr_chunk_call &chunk,
                            cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T * call.H;
    SR_TRY(widen(chunk.numerator, call.scratch.numerator, rows, call.Dv, stream));
    if (chunk.row_sum != call.scratch.row_sum)
        SR_CUDA(cudaMemcpyAsync(call.scratch.row_sum, chunk.row_sum, (size_t)rows * sizeof(float),
                                cudaMemcpyDeviceToDevice, stream));
    return sr_axes_finish(call, stream);
}

static srnn_status gradients_in(const sr_axes_call &call, const sr_chunk_call &chunk,
                                cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T * call.H;
    SR_TRY(sr_axes_outputs_backward(call, stream));
    if (call.sums_rows)
        AXES_START(row_sums_backward, rows, call.scratch.d_row_sum, (float *)chunk.d_row_sum, rows);
    return narrow(call.scratch.d_numerator, chunk.d_numerator, rows, call.Dv, stream);
}

static srnn_status gradients_out(const sr_axes_call &call, const sr_chunk_call &chunk,
                                 cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T;
    SR_TRY(widen(chunk.d_q, call.scratch.d_q, rows * call.H, call.F, stream));
    SR_TRY(widen(chunk.d_k, call.scratch.d_k, rows * call.Hkv, call.F, stream));
    SR_TRY(widen(chunk.d_v, call.scratch.d_v, rows * call.Hkv, call.Dv, stream));
    if (chunk.decays > 0)
        AXES_START(gates_backward, rows * call.Hkv * call.decays, call, chunk.d_gate, chunk.decays,
                   chunk.initial != nullptr);
    return sr_axes_inputs_backward(call, stream);
}

/* ---- either ---- */

srnn_status sr_chunks_begin(const sr_chunk_steps &s, cudaStream_t stream) {
    return s.direct ? sr_chunks_inputs(s.call, s.chunk, stream) : rows_in(s.call, s.chunk, stream);
}

srnn_status sr_chunks_finish(const sr_chunk_steps &s, cudaStream_t stream) {
    const size_t bytes = (size_t)s.call.B * (size_t)s.call.T * (size_t)s.call.H * sizeof(float);
    const bool plain = s.direct && has_plain_outputs(s.call);
    if (!s.call.sums_rows && !plain)
        SR_CUDA(cudaMemsetAsync(s.chunk.row_sum, 0, bytes, stream));
    SR_CUDA(cudaMemsetAsync(s.call.scratch.maximum, 0, bytes, stream));
    if (s.direct && s.call.saved.data)
        SR_CUDA(cudaMemsetAsync(s.call.saved_maximum, 0, bytes, stream));
    if (!s.direct)
        return rows_out(s.call, s.chunk, stream);
    return plain ? SRNN_OK : sr_chunks_outputs(s.call, s.chunk, stream);
}

srnn_status sr_chunks_begin_backward(const sr_chunk_steps &s, cudaStream_t stream) {
    if (!s.direct)
        return gradients_in(s.call, s.chunk, stream);
    return has_plain_outputs(s.call) ? SRNN_OK : sr_chunks_outputs_backward(s, stream);
}

srnn_status sr_chunks_finish_backward(const sr_chunk_steps &s, cudaStream_t stream) {
    return s.direct ? sr_chunks_inputs_backward(s, stream) : gradients_out(s.call, s.chunk, stream);
}
