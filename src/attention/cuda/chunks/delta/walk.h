/* walk.h (private): blocks that walk the spans of a head, and what they leave in the
 * workspace.
 *
 * A block owns a head and a slice of 64 value columns, of which each of its first four warps,
 * the strips, has 16: columns of a state never meet. The other warps run ahead of the strips and
 * need no state. A span lives in one of the block's slots of shared memory, which goes round:
 *
 *     loader: waits until the slot is free, copies the span's rows, then tells that it is full
 *     workers: wait until it is full, one makes X of the rows and one P, tell that they are ready
 *     strips: wait for that, compute, tell that the slot is free
 *
 * Warps that use a slot one after the other meet at one of its barriers, also where a third stands
 * between them: the loader tells the strips that its rows are ready, workers tell the loader that
 * they read them no more. Race detectors need not follow who waits for whom.
 *
 * Spans go to the slots in order, and their tasks to the workers in turn. Spans after the last are
 * marks. Workers have at most one span a slot at a time, and the loader waits until they have taken
 * a span: so no two spans are waited for at one barrier. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_DELTA_WALK_H
#define SR_ATTENTION_CUDA_CHUNKS_DELTA_WALK_H

#include "attention/cuda/chunks/delta/tiles.h"
#include "device/cuda/check.h"

/* Made by the forward walk again for the backward pass; heads are those of keys and values. */
struct delta_places {
    sr_bf16 *states;   /* (B Hkv, chunks, V, F): before each chunk, transposed */
    sr_bf16 *d_states; /* the gradients of those after each chunk */
    sr_bf16 *used;     /* (B, Hkv, T, V): U */
    sr_bf16 *solved;   /* (B Hkv, chunks, SR_DELTA_PAIRS): X, in blocks of 16 x 16 */
};

srnn_status sr_delta_forward(const sr_chunk_call &call, const sr_chunk_shape &shape,
                             cudaStream_t stream);
srnn_status sr_delta_states(const sr_chunk_call &call, const sr_chunk_shape &shape,
                            const delta_places &places, cudaStream_t stream);
srnn_status sr_delta_reverse(const sr_chunk_call &call, const sr_chunk_shape &shape,
                             const delta_places &places, cudaStream_t stream);
srnn_status sr_delta_outputs(const sr_chunk_call &call, const delta_places &places,
                             cudaStream_t stream);

/* Which calls have walks by wgmma, and these. */
static inline bool delta_has_wgmma(const sr_chunk_shape &shape) {
    return shape.capability == 90 && shape.F <= 64;
}
srnn_status sr_delta_wgmma_forward(const sr_chunk_call &call, const sr_chunk_shape &shape,
                                   cudaStream_t stream);
srnn_status sr_delta_wgmma_states(const sr_chunk_call &call, const sr_chunk_shape &shape,
                                  const delta_places &places, cudaStream_t stream);
srnn_status sr_delta_wgmma_reverse(const sr_chunk_call &call, const sr_chunk_shape &shape,
                                   const delta_places &places, cudaStream_t stream);

/* The least shared memory that a block of the walks, and of the last step, can do with. */
size_t sr_delta_walk_bytes(int F);
size_t sr_delta_outputs_bytes(int F, int V);

/* ---- slots ---- */

/* SCORES: with queries and P. */
template <int F, bool SCORES> struct delta_slot {
    alignas(1024) sr_bf16 keys[SR_DELTA_CHUNK * F]; /* as wgmma reads it */
    sr_bf16 queries[SCORES ? SR_DELTA_CHUNK * F : 8];
    sr_bf16 values[SR_DELTA_CHUNK * SR_DELTA_SLICE]; /* or gradients of numerators */
    alignas(256) sr_bf16 solved[SR_DELTA_PAIRS];
    sr_bf16 scores[SCORES ? SR_DELTA_PAIRS : 8];
    delta_factors factors;
    delta_query_factors of_queries;
    float sum[SR_DELTA_CHUNK]; /* of gates, the scorer's own */
    float gate[SR_DELTA_CHUNK];
    delta_span span;
    int group; /* in reverse: the span of which query head of the group */
};
static_assert(3 * sizeof(delta_slot<64, true>) <= 227 * 1024 / 2 - 1024,
              "Hopper has three slots for each of two blocks");

enum {
    SR_DELTA_SLOTS_MOST = 5, /* three named barriers each */
    SR_DELTA_STRIP_THREADS = SR_DELTA_STRIPS * SR_WARP,
};

/* Barriers of a slot, and who meets there. */
struct delta_barriers {
    int slots, workers; /* those of a span: threads */

    SR_DEVICE void wait_full(int slot) const { /* loader and workers */
        named_barrier_sync(1 + slot, SR_WARP + workers);
    }
    SR_DEVICE void tell_ready(int slot) const { /* loader and workers */
        named_barrier_arrive(1 + slots + slot, all());
    }
    SR_DEVICE void wait_ready(int slot) const { /* strips */
        named_barrier_sync(1 + slots + slot, all());
    }
    SR_DEVICE void tell_free(int slot) const { /* workers and strips */
        named_barrier_arrive(1 + 2 * slots + slot, all());
    }
    SR_DEVICE void wait_free(int slot) const { /* loader */
        named_barrier_sync(1 + 2 * slots + slot, all());
    }

  private:
    SR_DEVICE int all() const {
        return SR_WARP + workers + SR_DELTA_STRIP_THREADS;
    }
};

/* The loader: load(slot) starts the copies of the next span, whose place it leaves in slot.span, or
 * returns false if there are no more; `count` marks follow, numbered in span.from. One warp. */
template <class Products, class Slot, class Load>
SR_DEVICE void delta_run_loader(Slot *slots, const delta_barriers &barriers, int count,
                                const Load &load) {
    int item = 0;
    for (int marks = 0; marks < count; item++) {
        Slot &slot = slots[item % barriers.slots];
        if (item >= barriers.slots)
            barriers.wait_free(item % barriers.slots);
        if (marks > 0 || !load(slot)) {
            if (delta_lane() == 0)
                slot.span = {-1, marks, 0, false, false};
            marks++;
        }
        cp_async_commit();
        cp_async_wait<0>();
        Products::publish();
        barriers.wait_full(item % barriers.slots);
        if (marks <= 1) /* strips end at the first mark */
            barriers.tell_ready(item % barriers.slots);
    }
    for (int n = max(0, item - barriers.slots); n < item - count; n++)
        barriers.wait_free(n % barriers.slots); /* no thread is left at a barrier */
}

/* Worker `worker` of `workers`: tasks worker, worker + workers ..., of which a span has `kinds`,
 * until no mark has one for it: work(slot, kind). One warp. Seven parameters: constants at each
 * call, so that divisions are by constants. */
template <class Products, class Slot, class Work>
SR_DEVICE void delta_run_worker(Slot *slots, const delta_barriers &barriers, int worker,
                                int workers, int kinds, int marks, const Work &work) {
    for (int task = worker;; task += workers) {
        const int at = task / kinds % barriers.slots, kind = task % kinds;
        barriers.wait_full(at);
        const delta_span span = slots[at].span;
        if (span.t0 >= 0)
            work(slots[at], kind);
        Products::publish();
        __syncwarp();
        if (span.t0 >= 0 || span.from == 0)
            barriers.tell_ready(at);
        if (span.t0 >= 0)
            barriers.tell_free(at);
        if (span.t0 < 0 && kinds * span.from + kind + workers >= kinds * marks)
            return;
    }
}

/* A strip: step(slot) for every span. */
template <class Slot, class Step>
SR_DEVICE void delta_run_strip(Slot *slots, const delta_barriers &barriers, const Step &step) {
    for (int item = 0;; item++) {
        const int at = item % barriers.slots;
        barriers.wait_ready(at);
        if (slots[at].span.t0 < 0)
            return;
        step(slots[at]);
        __syncwarp();
        barriers.tell_free(at);
    }
}

#endif
