/* averages.cu: running averages of keys and values within chunks, their rotation by the numbers of
 * chunks, and the gradients of both. */
#include "attention/cuda/pooled/pooled.h"

/* ---- eight numbers of a row: four of each half, which RoPE rotates together ---- */

/* As they are in memory. */
struct half_words {
    uint32_t word[4];
};

struct alignas(8) word_pair {
    uint32_t word[2];
};

SR_DEVICE half_words load_halves(const sr_bf16 *row, int D, int piece) {
    const word_pair low = *reinterpret_cast<const word_pair *>(row + 4 * piece);
    const word_pair high = *reinterpret_cast<const word_pair *>(row + D / 2 + 4 * piece);
    return {{low.word[0], low.word[1], high.word[0], high.word[1]}};
}

SR_DEVICE void widen(float (&x)[8], const half_words &words) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float2 pair = unpack_bf16(words.word[c]);
        x[2 * c] = pair.x;
        x[2 * c + 1] = pair.y;
    }
}

SR_DEVICE void store_halves(sr_bf16 *row, int D, int piece, const float (&x)[8]) {
    const word_pair low = {{pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])}};
    const word_pair high = {{pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])}};
    *reinterpret_cast<word_pair *>(row + 4 * piece) = low;
    *reinterpret_cast<word_pair *>(row + D / 2 + 4 * piece) = high;
}

/* The same row of an array of the caller's. */
SR_DEVICE sr_bf16 *tensor_row(const sr_axes_tensor &x, int b, int h, int64_t t) {
    return (sr_bf16 *)x.data + x.place(b, h, t, 0);
}

/* The RoPE of the rows of a chunk; the identity where there is none. */
struct chunk_angle {
    float cosine[4], sine[4];

    SR_DEVICE chunk_angle(const sr_axes_call &call, const sr_pooled &p, int b, int t, int piece) {
        const float *const from =
            call.scratch.angles +
            ((int64_t)(t - p.first[(int64_t)b * p.T + t]) * (p.D / 2) + 4 * piece) * 2;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            cosine[c] = p.rotated ? from[2 * c] : 1;
            sine[c] = p.rotated ? from[2 * c + 1] : 0;
        }
    }
    SR_DEVICE void rotate(float (&x)[8], bool back) const {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float low = x[c], high = x[4 + c], s = back ? -sine[c] : sine[c];
            x[c] = low * cosine[c] - high * s;
            x[4 + c] = high * cosine[c] + low * s;
        }
    }
};

/* ---- chunks ---- */

/* The first token from t on that begins a chunk; T if there is none. */
SR_DEVICE int next_chunk(const sr_pooled &p, const int32_t *first, int64_t t) {
    while (t < p.T && ((int)t - first[t]) % p.length != 0)
        t++;
    return (int)min(t, (int64_t)p.T);
}

/* Past the last token of the chunk that begins at t: all are as long, but where a document ends. */
SR_DEVICE int chunk_end(const sr_pooled &p, const int32_t *first, int t) {
    int end = (int)min((int64_t)t + p.length, (int64_t)p.T);
    while (first[end - 1] > t)
        end--;
    return end;
}

/* What a thread of the kernels over chunks owns: numbers of a piece in the chunks of a head that
 * begin in one slot. */
struct chunk_place {
    int b, h, slot, piece;
    bool exists;
    int64_t begin, past; /* of the slot */
    const int32_t *first;

    SR_DEVICE explicit chunk_place(const sr_pooled &p) {
        const int pieces = p.D / 8;
        const int64_t n = axes_thread(), row = n / pieces, head = row / p.slots;
        piece = (int)(n % pieces);
        slot = (int)(row % p.slots);
        b = (int)(head / p.Hkv);
        h = (int)(head % p.Hkv);
        exists = head < (int64_t)p.B * p.Hkv;
        begin = (int64_t)slot * p.length;
        past = min(begin + p.length, (int64_t)p.T);
        first = p.first + (int64_t)(exists ? b : 0) * p.T;
    }
};

/* Last tokens of chunks. A thread owns a slot of a batch row: from the slot's last token it reads
 * where documents begin, one after the other backwards, until one has the end of a chunk inside the
 * slot, and stores that token once. */
__global__ void last_tokens(const __grid_constant__ sr_pooled p) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)p.B * p.slots)
        return;
    const int slot = (int)(n % p.slots);
    const int32_t *const first = p.first + n / p.slots * p.T;
    const int64_t begin = (int64_t)slot * p.length;
    int64_t at = min(begin + p.length, (int64_t)p.T) - 1, last = -1;
    while (at >= begin && last < 0) {
        const int64_t start = first[at], ends = start + (at - start + 1) / p.length * p.length - 1;
        if (ends >= max(begin, start))
            last = ends;
        at = start - 1;
    }
    p.last[n] = (int32_t)last;
}

/* One token's operands of a thread, as they are in memory. */
struct token_words {
    half_words gate, k, v;
};

SR_DEVICE void load_token(token_words *words, const sr_axes_call &call, const chunk_place &at,
                          int t) {
    words->gate = load_halves(tensor_row(call.in.pool_gate, at.b, at.h, t), call.D, at.piece);
    words->k =
        load_halves(tensor_row(call.in.k, at.b, call.shared_head(at.h), t), call.D, at.piece);
    words->v = load_halves(tensor_row(call.in.v, at.b, at.h, t), call.D, at.piece);
}

/* Averages, and those of last tokens by slot. A thread owns eight channels of the chunks of a head
 * that begin in a slot: four tokens at a time global -> registers, averages in registers in the
 * order of tokens, rotated and stored as bf16; a chunk of full length stores its last ones in its
 * slot too. */
__global__ void __launch_bounds__(SR_AXES_THREADS, 2)
    pool_rows(const __grid_constant__ sr_axes_call call, const __grid_constant__ sr_pooled p) {
    constexpr int AHEAD = 4;
    const chunk_place at(p);
    if (!at.exists)
        return;
    int end = 0;
    for (int begin = next_chunk(p, at.first, at.begin); begin < at.past;
         begin = next_chunk(p, at.first, end)) {
        const chunk_angle angle(call, p, at.b, begin, at.piece);
        float k[8] = {}, v[8] = {};
        end = chunk_end(p, at.first, begin);
        for (int t0 = begin; t0 < end; t0 += AHEAD) {
            token_words words[AHEAD];
#pragma unroll
            for (int n = 0; n < AHEAD; n++)
                load_token(&words[n], call, at, min(t0 + n, end - 1));
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                const int t = t0 + n;
                if (t >= end)
                    break;
                float z[8], own_k[8], own_v[8], rotated[8];
                widen(z, words[n].gate);
                widen(own_k, words[n].k);
                widen(own_v, words[n].v);
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    const float gate = gate_sigmoid(z[c]), rest = gate_sigmoid(-z[c]);
                    k[c] = fmaf(gate, k[c], rest * own_k[c]);
                    v[c] = fmaf(gate, v[c], rest * own_v[c]);
                    rotated[c] = k[c];
                }
                angle.rotate(rotated, false);
                store_halves(p.k.row(at.b, at.h, t), p.D, at.piece, rotated);
                store_halves(p.v.row(at.b, at.h, t), p.D, at.piece, v);
                if (t == begin + p.length - 1) {
                    const int slot = t / p.length;
                    store_halves(p.seen_k.row(at.b, at.h, slot), p.D, at.piece, rotated);
                    store_halves(p.seen_v.row(at.b, at.h, slot), p.D, at.piece, v);
                }
            }
        }
    }
}

/* Queries by the numbers of their chunks. A thread owns eight channels of a row: global ->
 * registers, rotated, registers -> global. */
__global__ void turn_queries(const __grid_constant__ sr_axes_call call,
                             const __grid_constant__ sr_pooled p) {
    const int pieces = p.D / 8, piece = (int)(axes_thread() % pieces);
    const int64_t n = axes_thread() / pieces;
    if (n >= (int64_t)p.B * p.q_heads * p.T)
        return;
    const axes_row at = axes_row_of(n, p.q_heads, p.T);
    float x[8];
    widen(x, load_halves(tensor_row(call.in.q, at.b, at.h, at.t), p.D, piece));
    chunk_angle(call, p, at.b, at.t, piece).rotate(x, false);
    store_halves(p.q.row(at.b, at.h, at.t), p.D, piece, x);
}

srnn_status sr_pooled_averages(const sr_axes_call &call, const sr_pooled &p, cudaStream_t stream) {
    const int64_t pieces = p.D / 8, slots = (int64_t)p.B * p.Hkv * p.slots;
    const size_t seen = (size_t)(slots * p.D) * sizeof(sr_bf16);
    SR_TRY(sr_axes_angles(call, stream));
    SR_CUDA(cudaMemsetAsync(p.seen_k.data, 0, seen, stream));
    SR_CUDA(cudaMemsetAsync(p.seen_v.data, 0, seen, stream));
    AXES_START(last_tokens, (int64_t)p.B * p.slots, p);
    AXES_START(pool_rows, slots * pieces, call, p);
    if (p.rotated)
        AXES_START(turn_queries, (int64_t)p.B * p.q_heads * p.T * pieces, call, p);
    return SRNN_OK;
}

/* ---- backward ---- */

/* Gradients of the averages at tokens last, last-1 .. (not before `begin`) through the pairs of
 * rows with themselves, of all query heads. */
template <int AHEAD>
SR_DEVICE void own_gradients(float (&d_k)[AHEAD][8], float (&d_v)[AHEAD][8], const sr_pooled &p,
                             const chunk_place &at, int last, int begin) {
#pragma unroll
    for (int n = 0; n < AHEAD; n++)
#pragma unroll
        for (int c = 0; c < 8; c++)
            d_k[n][c] = d_v[n][c] = 0;
    for (int h = at.h * p.group; h < (at.h + 1) * p.group; h++) {
        half_words q[AHEAD], d[AHEAD];
        float weight[AHEAD], slope[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const int t = max(last - n, begin);
            q[n] = load_halves(p.q.row(at.b, p.query_head(h), t), p.D, at.piece);
            d[n] = load_halves(p.d_numerator.row(at.b, h, t), p.D, at.piece);
            weight[n] = p.own_weight[p.row(p.H, at.b, h, t)];
            slope[n] = p.own_slope[p.row(p.H, at.b, h, t)];
        }
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            float query[8], d_numerator[8];
            widen(query, q[n]);
            widen(d_numerator, d[n]);
#pragma unroll
            for (int c = 0; c < 8; c++) {
                d_k[n][c] = fmaf(slope[n], query[c], d_k[n][c]);
                d_v[n][c] = fmaf(weight[n], d_numerator[c], d_v[n][c]);
            }
        }
    }
}

/* Adds eight numbers of a row of floats. */
SR_DEVICE void add_halves(float (&x)[8], const float *row, int D, int piece) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        x[c] += row[4 * piece + c];
        x[4 + c] += row[D / 2 + 4 * piece + c];
    }
}

/* Gradients of k, v and the gates. A thread owns eight channels of the chunks of a head that begin
 * in a slot, and walks each from its last token, two at a time: operands, the averages before them
 * and own pairs global -> registers; the gradients of later averages stay in registers; a last
 * token adds what its slot got. Each gradient is stored once. */
__global__ void __launch_bounds__(SR_AXES_THREADS, 1)
    pool_rows_backward(const __grid_constant__ sr_axes_call call,
                       const __grid_constant__ sr_pooled p) {
    constexpr int AHEAD = 2;
    const chunk_place at(p);
    if (!at.exists)
        return;
    int end = 0;
    for (int begin = next_chunk(p, at.first, at.begin); begin < at.past;
         begin = next_chunk(p, at.first, end)) {
        const chunk_angle angle(call, p, at.b, begin, at.piece);
        float later_k[8] = {}, later_v[8] = {}; /* gradients of averages through later ones */
        end = chunk_end(p, at.first, begin);
        for (int last = end - 1; last >= begin; last -= AHEAD) {
            token_words words[AHEAD];
            half_words before_k[AHEAD], before_v[AHEAD];
            float d_k[AHEAD][8], d_v[AHEAD][8];
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                const int before = max(last - n - 1, begin);
                load_token(&words[n], call, at, max(last - n, begin));
                before_k[n] = load_halves(p.k.row(at.b, at.h, before), p.D, at.piece);
                before_v[n] = load_halves(p.v.row(at.b, at.h, before), p.D, at.piece);
            }
            own_gradients(d_k, d_v, p, at, last, begin);
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                const int t = last - n;
                if (t < begin)
                    break;
                if (t == begin + p.length - 1) {
                    const int64_t row =
                        (((int64_t)at.b * p.Hkv + at.h) * p.slots + t / p.length) * p.D;
                    add_halves(d_k[n], p.d_seen_k + row, p.D, at.piece);
                    add_halves(d_v[n], p.d_seen_v + row, p.D, at.piece);
                }
                angle.rotate(d_k[n], true);
                float z[8], own[8], before[8], rest[8], d_gate[8];
                widen(z, words[n].gate);
                widen(own, words[n].k);
                widen(before, before_k[n]);
                angle.rotate(before, true);
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    const float gate = gate_sigmoid(z[c]), d = later_k[c] + d_k[n][c];
                    rest[c] = gate_sigmoid(-z[c]);
                    d_gate[c] = d * ((t == begin ? 0 : before[c]) - own[c]);
                    d_k[n][c] = rest[c] * d;
                    later_k[c] = gate * d;
                }
                widen(own, words[n].v);
                widen(before, before_v[n]);
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    const float gate = gate_sigmoid(z[c]), d = later_v[c] + d_v[n][c];
                    d_gate[c] = fmaf(d, (t == begin ? 0 : before[c]) - own[c], d_gate[c]);
                    d_gate[c] *= gate * rest[c];
                    d_v[n][c] = rest[c] * d;
                    later_v[c] = gate * d;
                }
                store_halves(p.d_k.row(at.b, at.h, t), p.D, at.piece, d_k[n]);
                if (call.out.v.data)
                    store_halves(tensor_row(call.out.v, at.b, at.h, t), p.D, at.piece, d_v[n]);
                if (call.out.pool_gate.data)
                    store_halves(tensor_row(call.out.pool_gate, at.b, at.h, t), p.D, at.piece,
                                 d_gate);
            }
        }
    }
}

/* Rows of gradients of `own` heads, of which `heads` are the caller's. */
struct shared_rows {
    sr_chunk_rows from;
    int own, heads;
    bool rotated;
};

/* Gradients of q or k. A thread owns eight channels of a row of the caller's: it sums over the
 * heads that share the row in their order, global -> registers, applies the inverse RoPE and stores
 * once; rows without sharing may lie in place. */
__global__ void add_shared(const __grid_constant__ sr_axes_call call,
                           const __grid_constant__ sr_pooled p,
                           const __grid_constant__ shared_rows rows,
                           const __grid_constant__ sr_axes_tensor out) {
    const int pieces = p.D / 8, piece = (int)(axes_thread() % pieces);
    const int64_t n = axes_thread() / pieces;
    if (n >= (int64_t)p.B * rows.heads * p.T)
        return;
    const axes_row at = axes_row_of(n, rows.heads, p.T);
    float sum[8] = {};
    for (int h = p.shares ? 0 : at.h; h < (p.shares ? rows.own : at.h + 1); h++) {
        if (p.shares && call.shared_head(h) != at.h)
            continue;
        float x[8];
        widen(x, load_halves(rows.from.row(at.b, h, at.t), p.D, piece));
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum[c] += x[c];
    }
    if (rows.rotated)
        chunk_angle(call, p, at.b, at.t, piece).rotate(sum, true);
    store_halves(tensor_row(out, at.b, at.h, at.t), p.D, piece, sum);
}

static srnn_status start_shared(const sr_axes_call &call, const sr_pooled &p,
                                const shared_rows &rows, const sr_axes_tensor &out,
                                cudaStream_t stream) {
    if (!out.data || (rows.from.data == out.data && !rows.rotated))
        return SRNN_OK;
    AXES_START(add_shared, (int64_t)p.B * rows.heads * p.T * (p.D / 8), call, p, rows, out);
    return SRNN_OK;
}

srnn_status sr_pooled_averages_backward(const sr_axes_call &call, const sr_pooled &p,
                                        cudaStream_t stream) {
    AXES_START(pool_rows_backward, (int64_t)p.B * p.Hkv * p.slots * (p.D / 8), call, p);
    SR_TRY(start_shared(call, p, {p.d_q, p.H, p.q_heads, p.rotated}, call.out.q, stream));
    return start_shared(call, p, {p.d_k, p.Hkv, call.shared, false}, call.out.k, stream);
}
