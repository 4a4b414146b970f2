/* rank.cu: Avey's ranker: contexts made of chunks: which earlier chunks precede a chunk, and their
 * weights.
 *
 * Which chunks are selected depends on comparisons of scores, so cosines and scores are double, as
 * on the CPU. Scores of all pairs of chunks would be B N^2 / 2 numbers; the workspace holds those
 * of a group of query chunks at a time, and only the scores of selected chunks are saved:
 *   forward   measure, then for each group of query chunks: score, choose; then place
 *   backward  weigh_back, scores_back, find_nearest, gather
 * Forward computes C double multiplications per pair of tokens and moves 8 bytes per number of the
 * contexts; backward repeats the former for the selected chunks. */
#include "ops/cuda/elements.h"

enum {
    THREADS = 256,
    TILE = 64,         /* tokens of either chunk in a block's tile of cosines */
    PART = 4,          /* of them in a thread's part of it */
    DEPTH = 16,        /* channels at a time */
    GATHER_BLOCKS = 4, /* per multiprocessor: more would leave too few registers per thread */
    STRIDE = TILE + PART
};
static const double SMALL = 1e-8; /* added to lengths and to the divisor */

/* The contribution of the cosine of a query token and its nearest token to their gradients: others
 * times the other token, minus own times the token itself. */
struct cosine_share {
    float others, own_asking, own_nearest;
};

/* Saved by forward. Slots are the chunks of a context except the last; m counts contexts. */
struct ranked {
    double *lengths;      /* (B, N * chunk) of e */
    double *scores;       /* (B, M, chunks) of the selected chunks */
    double *weights;      /* (B, M, chunks): score over divisor */
    double *d_scores;     /* (B, M, chunks) */
    int32_t *taken;       /* (B, M, chunks): the chunk, or -1 */
    int32_t *nearest;     /* (B, M, chunks, chunk): of each query token */
    cosine_share *shares; /* (B, M, chunks, chunk); d_scores, nearest and shares are backward's */
    int32_t *reference;   /* (B, M): the slot whose score divides, or -1 */
};

struct rank_call {
    const float *e;
    ranked saved;
    int64_t B, N, M, C, stride, first;
    int chunk, chunks, causal;
};

SR_DEVICE const float *token_of(const rank_call &call, int64_t b, int64_t t) {
    return call.e + (b * call.stride + t) * call.C;
}

SR_DEVICE double length_of(const rank_call &call, int64_t b, int64_t t) {
    return call.saved.lengths[b * call.N * call.chunk + t];
}

SR_DEVICE double inverse_length(const rank_call &call, int64_t b, int64_t t) {
    return 1.0 / (length_of(call, b, t) + SMALL);
}

/* The first token of the query chunk of chunk n. */
SR_DEVICE int64_t queries_of(const rank_call &call, int64_t n) {
    return (call.causal ? n - 1 : n) * call.chunk;
}

/* ---- forward ---- */

/* lengths of all tokens. A warp owns a token; its lanes add squares of every 32nd channel, global
 * -> registers, and lane 0 stores the root of their sum. */
static __global__ void __launch_bounds__(THREADS) measure(const rank_call call) {
    const int64_t row = (int64_t)blockIdx.x * (THREADS / SR_WARP) + threadIdx.x / SR_WARP;
    const int64_t tokens = call.N * call.chunk;
    const int lane = (int)threadIdx.x % SR_WARP;
    if (row >= call.B * tokens)
        return;
    const float *x = token_of(call, row / tokens, row % tokens);
    double squares = 0;
    for (int64_t c = lane; c < call.C; c += SR_WARP)
        squares += (double)x[c] * (double)x[c];
    squares = warp_sum(squares);
    if (lane == 0)
        call.saved.lengths[row] = sqrt(squares);
}

/* Tokens first .. past - 1 of sequence b. */
struct token_range {
    int64_t b, first, past;
};

/* tile (DEPTH, STRIDE) = channels c .. of up to TILE tokens, side by side; zeros else. */
SR_DEVICE void load_tile(float *tile, const rank_call &call, const token_range &tokens, int64_t c) {
#pragma unroll
    for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        const int depth = i % DEPTH;
        const int64_t t = tokens.first + i / DEPTH;
        const bool there = t < tokens.past && c + depth < call.C;
        tile[depth * STRIDE + i / DEPTH] = there ? token_of(call, tokens.b, t)[c + depth] : 0.0f;
    }
}

/* products (PART, PART) of the thread's tokens among the first TILE of each range. By the whole
 * block: per step 16 channels of both, global -> shared, barrier, FMA in double from shared memory
 * into registers, barrier. */
SR_DEVICE void multiply_tile(double (*products)[PART], const rank_call &call,
                             const token_range &query_tokens, const token_range &others) {
    __shared__ __align__(16) float t_tile[DEPTH * STRIDE];
    __shared__ __align__(16) float o_tile[DEPTH * STRIDE];
    const int row = (int)threadIdx.x / 16 * PART, column = (int)threadIdx.x % 16 * PART;
    for (int64_t c = 0; c < call.C; c += DEPTH) {
        load_tile(t_tile, call, query_tokens, c);
        load_tile(o_tile, call, others, c);
        __syncthreads();
#pragma unroll
        for (int depth = 0; depth < DEPTH; depth++) {
            float x[PART], y[PART];
            load_numbers<PART>(x, t_tile + depth * STRIDE + row);
            load_numbers<PART>(y, o_tile + depth * STRIDE + column);
#pragma unroll
            for (int i = 0; i < PART; i++)
#pragma unroll
                for (int j = 0; j < PART; j++)
                    products[i][j] += (double)x[i] * (double)y[j];
        }
        __syncthreads();
    }
}

/* The nearest token seen so far, and its cosine; the first of equals. */
struct best_token {
    double cosine;
    int32_t token;
};

SR_DEVICE void keep_better(best_token &best, double cosine, int32_t token) {
    if (cosine > best.cosine || (cosine == best.cosine && token < best.token))
        best = {cosine, token};
}

/* Calls use(row, best) for each of up to TILE tokens from t on, by one thread each, with the
 * nearest token of chunk p. Each thread has 4 x 4 cosines of a tile; the 16 threads that share
 * tokens exchange their best by shuffles. */
template <class Use>
SR_DEVICE void find_in_chunk(const rank_call &call, int64_t b, int64_t t, int64_t t_past, int64_t p,
                             Use use) {
    const int64_t first = p * call.chunk, past = first + call.chunk;
    const int row = (int)threadIdx.x / 16 * PART, column = (int)threadIdx.x % 16 * PART;
    best_token best[PART];
#pragma unroll
    for (int i = 0; i < PART; i++)
        best[i] = {-INFINITY, INT32_MAX};
    for (int64_t o = first; o < past; o += TILE) {
        double products[PART][PART] = {};
        multiply_tile(products, call, {b, t, t_past}, {b, o, past});
#pragma unroll
        for (int i = 0; i < PART; i++)
#pragma unroll
            for (int j = 0; j < PART; j++)
                if (t + row + i < t_past && o + column + j < past)
                    keep_better(best[i],
                                products[i][j] * inverse_length(call, b, t + row + i) *
                                    inverse_length(call, b, o + column + j),
                                (int32_t)(o + column + j));
    }
#pragma unroll
    for (int i = 0; i < PART; i++) {
        for (int mask = 1; mask < 16; mask *= 2) {
            const double cosine = shuffle_xor(best[i].cosine, mask);
            keep_better(best[i], cosine, shuffle_xor(best[i].token, mask));
        }
        if (column == 0 && t + row + i < t_past)
            use(row + i, best[i]);
    }
}

/* Scores of a group of query chunks: scores (B, group, N). Block (x, y, z) owns the score of chunk
 * x for the y-th query chunk of the group in sequence z. It walks the query chunk in tiles of 64
 * tokens; the nearest cosines go to shared memory, barrier, and thread 0 adds them in order of
 * time. */
static __global__ void __launch_bounds__(THREADS)
    score(double *scores, const rank_call call, int64_t first) {
    __shared__ double cosines[TILE];
    const int64_t p = blockIdx.x, n = first + blockIdx.y, b = blockIdx.z;
    if (p >= n)
        return;
    const int64_t first_query = queries_of(call, n), past = first_query + call.chunk;
    double sum = 0;
    for (int64_t t = first_query; t < past; t += TILE) {
        find_in_chunk(call, b, t, past, p,
                      [&](int row, const best_token &best) { cosines[row] = best.cosine; });
        __syncthreads();
        for (int row = 0; threadIdx.x == 0 && row < TILE && t + row < past; row++)
            sum += cosines[row];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        scores[(b * gridDim.y + blockIdx.y) * call.N + p] = sum;
}

/* Selects the chunks of a context. Block (x, y) owns the x-th query chunk of the group in sequence
 * y. Its threads count, for every 256th earlier chunk, the scores that exceed it, global (cached)
 * -> registers, and store whether it is selected; one barrier; thread 0 walks these in order of
 * time and stores slots, weights and the reference. */
static __global__ void __launch_bounds__(THREADS)
    choose(const double *all_scores, int32_t *all_flags, const rank_call call, int64_t first) {
    const int64_t n = first + blockIdx.x, b = blockIdx.y;
    const int64_t at = (b * gridDim.x + blockIdx.x) * call.N;
    const double *scores = all_scores + at;
    int32_t *flags = all_flags + at;
    const int64_t slots = call.chunks - 1, most = n < slots ? n : slots;
    for (int64_t p = threadIdx.x; p < n; p += THREADS) {
        int64_t better = 0;
        for (int64_t other = 0; other < n; other++)
            better += scores[other] > scores[p] || (scores[other] == scores[p] && other < p);
        flags[p] = better < most;
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    const int64_t m = b * call.M + n - call.first;
    int32_t *taken = call.saved.taken + m * call.chunks;
    double *chosen = call.saved.scores + m * call.chunks,
           *weights = call.saved.weights + m * call.chunks;
    int64_t slot = 0, reference = most > 0 ? slots - most : -1;
    for (; slot < slots - most; slot++)
        taken[slot] = -1;
    for (int64_t p = 0; p < n; p++)
        if (flags[p]) {
            if (call.causal && slot != reference && scores[p] > chosen[reference])
                reference = slot;
            taken[slot] = (int32_t)p;
            chosen[slot++] = scores[p];
        }
    for (slot = slots - most; slot < slots; slot++)
        weights[slot] = chosen[slot] / (chosen[reference] + SMALL);
    call.saved.reference[m] = (int32_t)reference;
}

/* The contexts themselves. A thread owns W channels of one row: copies them, times the weight of
 * the slot's chunk, global -> registers -> global; zeros in empty slots, the chunk itself in the
 * last. */
template <int W>
static __global__ void __launch_bounds__(THREADS) place(float *out, const rank_call call) {
    const int64_t row = grid_row(), c = (int64_t)grid_item() * W;
    const int64_t rows = (int64_t)call.chunk * call.chunks;
    if (row >= call.B * call.M * rows || c >= call.C)
        return;
    const int64_t m = row / rows, slot = row % rows / call.chunk, token = row % call.chunk;
    const bool own = slot == call.chunks - 1;
    const int64_t from = own ? call.first + m % call.M : call.saved.taken[m * call.chunks + slot];
    const double weight = own ? 1 : call.saved.weights[m * call.chunks + slot];
    float x[W] = {0};
    if (from >= 0) {
        load_numbers<W>(x, token_of(call, m / call.M, from * call.chunk + token) + c);
#pragma unroll
        for (int k = 0; k < W; k++)
            x[k] = (float)(weight * (double)x[k]);
    }
    store_numbers<W>(out + row * call.C + c, x);
}

/* ---- backward ---- */

/* d_scores = the gradient of each weight, <d_out, e> over the chunk in the slot. Block (x, y) owns
 * slot y of context x: threads add products of every 256th number, global -> registers, one block
 * sum in double. */
static __global__ void __launch_bounds__(THREADS)
    weigh_back(const float *d_out, const rank_call call) {
    __shared__ double shared[SR_WARP];
    const int64_t m = blockIdx.x, slot = blockIdx.y, numbers = call.chunk * call.C;
    const int64_t p = call.saved.taken[m * call.chunks + slot];
    if (p < 0)
        return;
    const float *d = d_out + (m * call.chunks + slot) * numbers;
    const float *x = token_of(call, m / call.M, p * call.chunk);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < numbers; i += THREADS)
        sum += (double)d[i] * (double)x[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        call.saved.d_scores[m * call.chunks + slot] = sum;
}

/* From the gradients of weights to those of scores, in place in global memory. A thread owns a
 * context and walks its slots in order. */
static __global__ void __launch_bounds__(THREADS) scores_back(const rank_call call) {
    const int64_t m = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (m >= call.B * call.M || call.saved.reference[m] < 0)
        return;
    const int64_t at = m * call.chunks, reference = call.saved.reference[m];
    const double divisor = call.saved.scores[at + reference] + SMALL;
    double d_divisor = 0;
    for (int64_t slot = 0; slot < call.chunks - 1; slot++)
        if (call.saved.taken[at + slot] >= 0) {
            const double d_weight = call.saved.d_scores[at + slot];
            d_divisor -= d_weight * call.saved.weights[at + slot] / divisor;
            call.saved.d_scores[at + slot] = d_weight / divisor;
        }
    call.saved.d_scores[at + reference] += d_divisor;
}

SR_DEVICE float own_share(const rank_call &call, int64_t b, int64_t t, double cosine,
                          double d_score) {
    const double length = length_of(call, b, t);
    return length > 0 ? (float)(d_score * cosine * inverse_length(call, b, t) / length) : 0.0f;
}

/* The nearest token of the chunk in a slot, for each query token, and the contributions of the
 * score's gradient to both. Block (x, y) owns slot y of context x and walks the query chunk in
 * tiles of 64 tokens: embeddings pass through shared memory, the best token stays in registers,
 * and one thread per query stores it. */
static __global__ void __launch_bounds__(THREADS) find_nearest(const rank_call call) {
    const int64_t m = blockIdx.x, slot = m * call.chunks + blockIdx.y, b = m / call.M;
    const int64_t p = call.saved.taken[slot];
    if (p < 0)
        return;
    const int64_t first_query = queries_of(call, call.first + m % call.M),
                  past = first_query + call.chunk;
    const double d_score = call.saved.d_scores[slot];
    for (int64_t t = first_query; t < past; t += TILE)
        find_in_chunk(call, b, t, past, p, [&](int row, const best_token &best) {
            const int64_t query = t + row, at = slot * call.chunk + query - first_query;
            call.saved.nearest[at] = best.token;
            call.saved.shares[at] = {(float)(d_score * inverse_length(call, b, query) *
                                             inverse_length(call, b, best.token)),
                                     own_share(call, b, query, best.cosine, d_score),
                                     own_share(call, b, best.token, best.cosine, d_score)};
        });
}

/* d_e. Block (x, y) owns token x of sequence y, a thread W of its channels (and every blockDim.x-th
 * W after them). It gathers, in a fixed order: the token's own row of its own context; for every
 * later context that selected its chunk, the row there and the contribution of each query token
 * whose nearest it is; then its contributions as a query token itself. Indices and gradients come
 * from the caches, sums are in registers, each number is stored once. */
template <int W>
static __global__ void __launch_bounds__(THREADS, GATHER_BLOCKS)
    gather(float *d_e, const float *d_out, const rank_call call) {
    const int t = (int)blockIdx.x, p = t / call.chunk, place = t % call.chunk;
    const int64_t b = blockIdx.y;
    const ranked &s = call.saved;
    const int64_t queried = call.causal ? p + 1 : p; /* the chunk that this one is the query of */
    const int64_t own_context = b * call.M - call.first;
    const auto row_of = [&](int64_t slot) { return d_out + (slot * call.chunk + place) * call.C; };
    for (int64_t c = (int64_t)threadIdx.x * W; c < call.C; c += (int64_t)blockDim.x * W) {
        float sum[W] = {0}, own = 0; /* how much of the token itself is subtracted */
        const auto add = [&](const float *from, float factor) {
            float more[W];
            load_numbers<W>(more, from + c);
#pragma unroll
            for (int k = 0; k < W; k++)
                sum[k] += factor * more[k];
        };
        if (p >= call.first)
            add(row_of((own_context + p + 1) * call.chunks - 1), 1);
#pragma unroll 1
        for (int64_t n = p + 1 > call.first ? p + 1 : call.first; n < call.N; n++) {
            const int64_t end = (own_context + n + 1) * call.chunks - 1;
#pragma unroll 1
            for (int64_t slot = end + 1 - call.chunks; slot < end; slot++) {
                if (s.taken[slot] != p)
                    continue;
                add(row_of(slot), (float)s.weights[slot]);
#pragma unroll 1
                for (int i = 0; i < call.chunk; i++) {
                    const int64_t at = slot * call.chunk + i;
                    if (s.nearest[at] != t)
                        continue;
                    add(token_of(call, b, queries_of(call, n) + i), s.shares[at].others);
                    own += s.shares[at].own_nearest;
                }
            }
        }
        const bool is_query = queried >= call.first && queried < call.N;
        const int64_t end = (own_context + queried + 1) * call.chunks - 1;
#pragma unroll 1
        for (int64_t slot = end + 1 - call.chunks; is_query && slot < end; slot++) {
            const int64_t at = slot * call.chunk + place;
            if (s.taken[slot] < 0)
                continue;
            add(token_of(call, b, s.nearest[at]), s.shares[at].others);
            own += s.shares[at].own_asking;
        }
        float x[W];
        load_numbers<W>(x, token_of(call, b, t) + c);
#pragma unroll
        for (int k = 0; k < W; k++)
            sum[k] -= own * x[k];
        store_numbers<W>(d_e + (b * call.stride + t) * call.C + c, sum);
    }
}

/* ---- memory ---- */

/* base nullptr: only the bytes. */
static ranked lay_out(const sr_ranking *r, void *base, size_t *bytes) {
    const int64_t slots = r->B * (r->N - r->first) * r->chunks;
    *bytes = 0;
    const auto take = [&](int64_t count, size_t size) {
        char *start = base ? (char *)base + *bytes : nullptr;
        *bytes += ((size_t)count * size + 255) / 256 * 256;
        return (void *)start;
    };
    ranked s;
    s.lengths = (double *)take(r->B * r->N * r->chunk, sizeof(double));
    s.scores = (double *)take(slots, sizeof(double));
    s.weights = (double *)take(slots, sizeof(double));
    s.d_scores = (double *)take(slots, sizeof(double));
    s.taken = (int32_t *)take(slots, sizeof(int32_t));
    s.nearest = (int32_t *)take(slots * r->chunk, sizeof(int32_t));
    s.shares = (cosine_share *)take(slots * r->chunk, sizeof(cosine_share));
    s.reference = (int32_t *)take(r->B * (r->N - r->first), sizeof(int32_t));
    return s;
}

size_t sr_cuda_rank_bytes(const sr_backend *, const sr_ranking *r) {
    size_t bytes;
    lay_out(r, nullptr, &bytes);
    return bytes;
}

static rank_call call_of(const sr_ranking *r) {
    size_t bytes;
    return {.e = r->e,
            .saved = lay_out(r, r->saved, &bytes),
            .B = r->B,
            .N = r->N,
            .M = r->N - r->first,
            .C = r->C,
            .stride = r->stride,
            .first = r->first,
            .chunk = r->chunk,
            .chunks = r->chunks,
            .causal = r->causal};
}

/* ---- a call ---- */

/* Scores and selects for as many query chunks at a time as the workspace can hold. */
static srnn_status choose_all(sr_backend *backend, const rank_call &call) {
    enum { MOST = 32768 }; /* of one dimension of a grid */
    const cudaStream_t stream = sr_stream_of(backend);
    const int64_t each = call.B * call.N;
    const int64_t affordable =
        sr_workspace_floats(backend) / (3 * each); /* a double and an integer */
    if (affordable < 1 || call.B > MOST)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%lld sequences of %lld chunks: CUDA ranks at most %lld chunks at a time: "
                       "use fewer sequences or longer chunks",
                       (long long)call.B, (long long)call.N,
                       (long long)sr_workspace_floats(backend) / 3);
    const int64_t group = sr_minimum(sr_minimum(affordable, MOST), call.M);
    double *scores = (double *)sr_workspace_of(backend);
    int32_t *flags = (int32_t *)(scores + group * each);
    for (int64_t first = call.first; first < call.N; first += group) {
        const unsigned count = (unsigned)sr_minimum(group, call.N - first);
        SR_CUDA(sr_launch(score, dim3((unsigned)call.N, count, (unsigned)call.B), dim3(THREADS), 0,
                          stream, scores, call, first));
        SR_CUDA(sr_launch(choose, dim3(count, (unsigned)call.B), dim3(THREADS), 0, stream, scores,
                          flags, call, first));
    }
    return SRNN_OK;
}

srnn_status sr_cuda_rank_forward(sr_backend *backend, float *out, const sr_ranking *ranking) {
    const cudaStream_t stream = sr_stream_of(backend);
    const rank_call call = call_of(ranking);
    const sr_place places[] = {{out, call.C, SRNN_F32}, {call.e, call.C, SRNN_F32}};
    const int64_t rows = call.B * call.M * call.chunks * call.chunk;
    SR_CUDA(sr_launch(measure,
                      dim3((unsigned)sr_pieces(call.B * call.N * call.chunk, THREADS / SR_WARP)),
                      dim3(THREADS), 0, stream, call));
    SR_TRY(choose_all(backend, call));
    return sr_with_access<4>(SRNN_F32, call.C, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        const sr_row_grid blocks = sr_row_grid_of(rows, call.C / A::W);
        SR_CUDA(sr_launch(place<A::W>, blocks.grid, blocks.block, 0, stream, out, call));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_rank_backward(sr_backend *backend, float *d_e, const float *d_out,
                                  const sr_ranking *ranking) {
    const cudaStream_t stream = sr_stream_of(backend);
    const rank_call call = call_of(ranking);
    const unsigned contexts = (unsigned)(call.B * call.M), slots = (unsigned)(call.chunks - 1);
    const sr_place places[] = {{d_e, call.C, SRNN_F32},
                               {d_out, call.C, SRNN_F32},
                               {call.e, call.C, SRNN_F32}};
    if (slots > 0) {
        SR_CUDA(
            sr_launch(weigh_back, dim3(contexts, slots), dim3(THREADS), 0, stream, d_out, call));
        SR_CUDA(sr_launch(scores_back, dim3((unsigned)sr_pieces(contexts, THREADS)), dim3(THREADS),
                          0, stream, call));
        SR_CUDA(sr_launch(find_nearest, dim3(contexts, slots), dim3(THREADS), 0, stream, call));
    }
    return sr_with_access<4>(SRNN_F32, call.C, places, 3, [&](auto access) -> srnn_status {
        using A = decltype(access);
        SR_CUDA(sr_launch(gather<A::W>, dim3((unsigned)(call.N * call.chunk), (unsigned)call.B),
                          dim3((unsigned)sr_minimum(THREADS,
                                                    sr_pieces(call.C / A::W, SR_WARP) * SR_WARP)),
                          0, stream, d_e, d_out, call));
        return SRNN_OK;
    });
}
