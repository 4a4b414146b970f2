/* queue.cu: queues the tasks of the persistent decode kernel: data dependencies between tasks. */
#include "ops/cuda/decode/queue.h"

#include "base/memory.h"
#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"
#include "ops/cuda/decode/tasks.h"

#include <stdlib.h>

enum { MARKED = 1 << 23, ACCESSES = 4 * SR_DECODE_TASKS };

/* The tasks that always complete before one, in any interleaving of the blocks. */
struct task_set {
    uint64_t bits[SR_DECODE_TASKS / 64];
};

static void set_join(task_set *set, const task_set &other) {
    for (int i = 0; i < SR_DECODE_TASKS / 64; i++)
        set->bits[i] |= other.bits[i];
}

static void set_add(task_set *set, int task) {
    set->bits[task / 64] |= (uint64_t)1 << task % 64;
}

static bool set_has(const task_set &set, int task) {
    return set.bits[task / 64] >> task % 64 & 1;
}

/* Rows that a task of the queue writes, or reads from memory. */
struct access {
    sr_decode_place place;
    int rows, columns, task;
    sr_decode_target *target; /* in the list; NULL: it reads */
};

/* The coalescer of device/cuda/device.h. */
struct sr_cuda_coalescer {
    int multiprocessors;
    sr_decode_state *state; /* device memory */
    sr_marked *marked;      /* (MARKED), device memory */
    bool captured;
    srnn_status status; /* first failed launch since it was opened */
    char *lists;        /* device memory of the coalesced call or graph */
    char *list_copies;  /* (SR_DECODE_LISTS) the same in host memory */
    size_t lists_used, lists_sent;
    /* The list being collected: */
    sr_decode_list *list; /* in list_copies */
    int blocks;
    int64_t marked_used;
    access accesses[ACCESSES];
    int access_count;
    task_set before[SR_DECODE_TASKS];
};

/* ---- a list ---- */

static void begin_list(sr_cuda_coalescer *queue) {
    queue->list = nullptr;
    queue->blocks = 1;
    queue->marked_used = 0;
    queue->access_count = 0;
}

static srnn_status send(sr_cuda_coalescer *queue, cudaStream_t stream) {
    SR_CUDA(cudaMemcpyAsync(queue->lists + queue->lists_sent,
                            queue->list_copies + queue->lists_sent,
                            queue->lists_used - queue->lists_sent, cudaMemcpyHostToDevice, stream));
    queue->lists_sent = queue->lists_used;
    return SRNN_OK;
}

static srnn_status launch(sr_cuda_coalescer *queue, cudaStream_t stream) {
    const ptrdiff_t at = (char *)queue->list - queue->list_copies;
    if (!queue->captured)
        SR_TRY(send(queue, stream));
    return sr_decode_launch((const sr_decode_list *)(queue->lists + at), queue->state,
                            queue->blocks, stream);
}

static void flush(sr_cuda_coalescer *queue, cudaStream_t stream) {
    if (!queue->list)
        return;
    const srnn_status status = launch(queue, stream);
    if (queue->status == SRNN_OK)
        queue->status = status;
    begin_list(queue);
}

/* Reserves that many bytes for a task in the list. NULL: launch the list first, or the task never
 * fits. */
static void *take_task(sr_cuda_coalescer *queue, sr_decode_kind kind, size_t bytes) {
    const size_t rounded = (bytes + 15) / 16 * 16;
    const size_t head = queue->list ? 0 : sizeof(sr_decode_list);
    if (queue->lists_used + head + rounded > SR_DECODE_LISTS)
        return nullptr;
    if (!queue->list) {
        queue->list = (sr_decode_list *)(queue->list_copies + queue->lists_used);
        *queue->list = {};
        queue->list->bytes = (int32_t)sizeof(sr_decode_list);
        queue->lists_used += sizeof(sr_decode_list);
    }
    sr_decode_list *const list = queue->list;
    if (list->count == SR_DECODE_TASKS || list->bytes + rounded > SR_DECODE_BYTES)
        return nullptr;
    list->entry[list->count++] = {kind, list->bytes};
    void *const task = (char *)list + list->bytes;
    list->bytes += (int32_t)rounded;
    queue->lists_used += rounded;
    return task;
}

/* ---- data dependencies ---- */

struct byte_range {
    const char *from, *end;
};

static byte_range range_of(const sr_decode_place &place, int rows, int columns) {
    const char *const from = (const char *)place.data;
    const int64_t numbers = (rows - 1) * place.stride + columns;
    return {from, from + numbers * (int64_t)sr_element_bytes(place.dtype)};
}

static bool meet(const access &a, const sr_decode_place &place, int rows, int columns) {
    const byte_range x = range_of(a.place, a.rows, a.columns), y = range_of(place, rows, columns);
    return x.from < y.end && y.from < x.end;
}

/* The first column of `place` in the rows of `a`; negative: `a` does not contain them all. */
static int64_t column_in(const access &a, const sr_decode_place &place, int rows, int columns) {
    const int64_t bytes = (const char *)place.data - (const char *)a.place.data;
    const int64_t column = bytes / (int64_t)sr_element_bytes(place.dtype);
    const bool same_layout = a.place.dtype == place.dtype && a.rows == rows &&
                             (rows == 1 || a.place.stride == place.stride);
    return same_layout && bytes >= 0 && column + columns <= a.columns ? column : -1;
}

/* True if the rows can be read: from *source; the tasks that write them are added to *before. */
static bool find_source(sr_cuda_coalescer *queue, sr_decode_source *source, task_set *before,
                        const sr_decode_place &place, int rows, int columns) {
    *source = {nullptr, 0, 1, place};
    for (int i = queue->access_count - 1; i >= 0; i--) {
        const access &a = queue->accesses[i];
        if (!a.target || !meet(a, place, rows, columns))
            continue;
        const int64_t column = column_in(a, place, rows, columns);
        if (column < 0 || column % 2 != 0)
            return false;
        source->marked = a.target->marked + column;
        source->marked_stride = a.target->marked_stride;
        source->copies = a.target->copies = sr_decode_copies(rows);
        set_add(before, a.task);
        set_join(before, queue->before[a.task]);
        return true;
    }
    return true;
}

/* Whether a task may write these rows: all earlier writes there are overwritten completely, and all
 * tasks that read them come before it. */
static bool may_write(const sr_cuda_coalescer *queue, const task_set &before,
                      const sr_decode_place &place, int rows, int columns) {
    for (int i = 0; i < queue->access_count; i++) {
        const access &a = queue->accesses[i];
        if (!meet(a, place, rows, columns))
            continue;
        const access own = {place, rows, columns, 0, nullptr};
        if (a.target ? column_in(own, a.place, a.rows, a.columns) < 0 : !set_has(before, a.task))
            return false;
    }
    return true;
}

static void note_read(sr_cuda_coalescer *queue, const sr_decode_source &source, int rows,
                      int columns) {
    if (source.plain.data && !source.marked)
        queue->accesses[queue->access_count++] = {source.plain, rows, columns,
                                                  queue->list->count - 1, nullptr};
}

static void note_write(sr_cuda_coalescer *queue, sr_decode_target *target, int rows, int columns) {
    for (int i = 0; i < queue->access_count; i++)
        if (queue->accesses[i].target && meet(queue->accesses[i], target->plain, rows, columns))
            queue->accesses[i].target->plain.data = nullptr;
    queue->accesses[queue->access_count++] = {target->plain, rows, columns, queue->list->count - 1,
                                              target};
}

static int64_t even(int64_t n) {
    return (n + 1) / 2 * 2;
}

/* For all copies of that many rows. */
static int64_t marked_numbers(int rows, int columns) {
    return sr_decode_copies(rows) * rows * even(columns);
}

static bool has_space(const sr_cuda_coalescer *queue, int64_t marked) {
    return queue->marked_used + marked <= MARKED && queue->access_count + 8 <= ACCESSES;
}

static sr_decode_target take_target(sr_cuda_coalescer *queue, const sr_decode_place &place,
                                    int rows, int columns) {
    const sr_decode_target target = {queue->marked + queue->marked_used, (int32_t)even(columns), 0,
                                     place};
    queue->marked_used += marked_numbers(rows, columns);
    return target;
}

static int minimum(int a, int b) {
    return a < b ? a : b;
}

static void want_blocks(sr_cuda_coalescer *queue, int blocks) {
    const int wanted = minimum(blocks, queue->multiprocessors);
    queue->blocks = wanted > queue->blocks ? wanted : queue->blocks;
}

/* ---- tasks ---- */

static bool add_product(sr_cuda_coalescer *queue, const sr_decode_gemm *p) {
    task_set before = {};
    sr_decode_source x, c = {};
    const int columns = p->swiglu ? p->pair_columns : p->N;
    if (!has_space(queue, marked_numbers(p->M, columns)) ||
        !find_source(queue, &x, &before, p->x, p->M, p->K) ||
        (p->c.data && !find_source(queue, &c, &before, p->c, p->M, p->N)) ||
        !may_write(queue, before, p->d, p->M, columns))
        return false;
    sr_decode_gemm_task *task =
        (sr_decode_gemm_task *)take_task(queue, SR_DECODE_GEMM, sizeof *task);
    if (!task)
        return false;
    queue->before[queue->list->count - 1] = before;
    task->of = *p;
    task->x = x;
    task->c = c;
    task->d = take_target(queue, p->d, p->M, columns);
    task->pairs = p->swiglu ? p->pair_columns : (p->N + 1) / 2;
    task->tiles = (task->pairs + 3) / 4;
    note_read(queue, x, p->M, p->K);
    note_read(queue, c, p->M, p->N);
    note_write(queue, &task->d, p->M, columns);
    want_blocks(queue, task->tiles);
    return true;
}

/* Heads of `width` numbers side by side in one row of each sequence. */
template <class N> static sr_decode_place place_of_heads(const sr_strided<N> &heads) {
    return {(void *)heads.data, heads.batch, SRNN_BF16};
}

/* A power of two, so that blocks compute their part without a division. */
static int parts_of(int blocks) {
    int parts = 1;
    while (2 * parts <= minimum(blocks, SR_ONE_PARTS))
        parts *= 2;
    return parts;
}

static bool is_softmax(const sr_attention_view<sr_bf16> &call, const sr_kv_cache<sr_bf16> &memory) {
    const sr_choices &c = call.choices;
    return sr_is_exponential(call.score, memory) && c.normaliser == SRNN_NORMALISER_ROW_SUM &&
           c.norm == SRNN_NORM_NONE && !c.gated && !c.post_gate;
}

static bool add_attention(sr_cuda_coalescer *queue, const sr_attention_view<sr_bf16> &call,
                          const sr_kv_cache<sr_bf16> &memory) {
    task_set before = {};
    sr_decode_source q, k, v, gate;
    const int rows = call.B * call.H, output = call.H * call.Dv;
    const int parts = parts_of(queue->multiprocessors / rows);
    const int64_t partials =
        (int64_t)rows * parts * sr_decode_partial(sr_decode_width(call.D, call.Dv));
    if (!has_space(queue, marked_numbers(call.B, output) + partials) ||
        !find_source(queue, &q, &before, place_of_heads(call.q), call.B, call.H * call.D) ||
        !find_source(queue, &k, &before, place_of_heads(call.k), call.B, call.Hkv * call.D) ||
        !find_source(queue, &v, &before, place_of_heads(call.v), call.B, call.Hkv * call.Dv) ||
        (call.choices.gated &&
         (!find_source(queue, &gate, &before, place_of_heads(call.output_gate), call.B, call.H) ||
          gate.marked)) ||
        !may_write(queue, before, place_of_heads(call.o), call.B, output))
        return false;
    sr_decode_attention_task *task =
        (sr_decode_attention_task *)take_task(queue, SR_DECODE_ATTENTION, sizeof *task);
    if (!task)
        return false;
    queue->before[queue->list->count - 1] = before;
    task->call = call;
    task->memory = memory;
    task->token[0] = q;
    task->token[1] = k;
    task->token[2] = v;
    task->o = take_target(queue, place_of_heads(call.o), call.B, output);
    task->partials = queue->marked + queue->marked_used;
    task->parts = parts;
    task->softmax = is_softmax(call, memory);
    queue->marked_used += partials;
    note_read(queue, q, call.B, call.H * call.D);
    note_read(queue, k, call.B, call.Hkv * call.D);
    note_read(queue, v, call.B, call.Hkv * call.Dv);
    if (call.choices.gated)
        note_read(queue, gate, call.B, call.H);
    note_write(queue, &task->o, call.B, output);
    want_blocks(queue, rows * parts);
    return true;
}

bool sr_decode_add_gemm(const srnn_device *device, const sr_decode_gemm *p) {
    sr_cuda_coalescer *queue = sr_cuda_coalescer_open(device);
    if (!queue || p->M > SR_DECODE_ROWS || p->K % 64 != 0 || (p->c.data && p->N % 2 != 0))
        return false;
    if (add_product(queue, p))
        return true;
    sr_cuda_stream(device); /* launches the queue */
    return add_product(queue, p);
}

static bool side_by_side(const sr_strided<const sr_bf16> &heads, int width) {
    return heads.head == width && width % 8 == 0;
}

static bool queue_attention(sr_cuda_coalescer *queue, const srnn_device *device,
                            const sr_attention_view<sr_bf16> &call,
                            const sr_kv_cache<sr_bf16> &memory) {
    const sr_choices &c = call.choices;
    const bool prepared = c.feature == SRNN_FEATURE_IDENTITY && !c.value_gate && !c.decays &&
                          !c.cumulates && c.normaliser != SRNN_NORMALISER_VALUE_POWER;
    if (!prepared || call.T != 1 || call.B > SR_DECODE_ROWS || call.D > 128 || call.Dv > 128 ||
        !side_by_side(call.q, call.D) || !side_by_side(call.k, call.D) ||
        !side_by_side(call.v, call.Dv) || call.o.head != call.Dv ||
        (c.gated && call.output_gate.head != 1))
        return false;
    if (add_attention(queue, call, memory))
        return true;
    sr_cuda_stream(device);
    return add_attention(queue, call, memory);
}

/* ---- the coalescer ---- */

static srnn_status fill(sr_cuda_coalescer *queue, cudaStream_t stream) {
    const sr_decode_state first = {1, 0};
    void *memory;
    SR_TRY(sr_alloc(&memory, SR_DECODE_LISTS, 1));
    queue->list_copies = (char *)memory;
    SR_CUDA(cudaMalloc(&memory, sizeof *queue->state));
    queue->state = (sr_decode_state *)memory;
    SR_CUDA(cudaMalloc(&memory, MARKED * sizeof *queue->marked));
    queue->marked = (sr_marked *)memory;
    SR_CUDA(cudaMemsetAsync(queue->marked, 0, MARKED * sizeof *queue->marked, stream));
    SR_CUDA(cudaMemcpyAsync(queue->state, &first, sizeof first, cudaMemcpyHostToDevice, stream));
    return SRNN_OK;
}

static void destroy(sr_cuda_coalescer *queue) {
    if (!queue)
        return;
    cudaFree(queue->state);
    cudaFree(queue->marked);
    free(queue->list_copies);
    free(queue);
}

/* The persistent kernel uses instructions of Hopper. */
static srnn_status create(sr_cuda_coalescer **queue, const sr_cuda_device *facts,
                          cudaStream_t stream) {
    void *memory;
    *queue = nullptr;
    if (facts->capability_major != 9)
        return SRNN_OK;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(sr_cuda_coalescer)));
    sr_cuda_coalescer *created = (sr_cuda_coalescer *)memory;
    created->multiprocessors = facts->multiprocessors;
    const srnn_status status = fill(created, stream);
    if (status != SRNN_OK) {
        destroy(created);
        return status;
    }
    *queue = created;
    return SRNN_OK;
}

static void open(sr_cuda_coalescer *queue, char *lists, bool captured) {
    begin_list(queue);
    queue->captured = captured;
    queue->status = SRNN_OK;
    queue->lists = lists;
    queue->lists_used = queue->lists_sent = 0;
}

static srnn_status close(sr_cuda_coalescer *queue) {
    return queue->status;
}

static srnn_status send_rest(sr_cuda_coalescer *queue, cudaStream_t stream) {
    return queue->lists_used > queue->lists_sent ? send(queue, stream) : SRNN_OK;
}

void sr_decode_install(srnn_device *device) {
    static const sr_attention_coalescer_kind kind = {{SR_DECODE_LISTS, create, destroy, open, flush,
                                                      close, send_rest},
                                                     queue_attention};
    sr_cuda_install_coalescer(device, &kind.base);
}
