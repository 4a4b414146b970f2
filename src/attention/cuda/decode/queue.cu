/* queue.cu: collecting the tasks of a chain: who reads what whom wrote. */
#include "attention/cuda/decode/tasks.h"

#include "base/memory.h"
#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"

#include <stdlib.h>

enum { MARKED = 1 << 23, ACCESSES = 4 * SR_CHAIN_TASKS };

/* Which tasks come before one, whatever the blocks do. */
struct task_set {
    uint64_t bits[SR_CHAIN_TASKS / 64];
};

static void set_join(task_set *set, const task_set &other) {
    for (int i = 0; i < SR_CHAIN_TASKS / 64; i++)
        set->bits[i] |= other.bits[i];
}

static void set_add(task_set *set, int task) {
    set->bits[task / 64] |= (uint64_t)1 << task % 64;
}

static bool set_has(const task_set &set, int task) {
    return set.bits[task / 64] >> task % 64 & 1;
}

/* Rows that a task of the chain writes, or reads from memory. */
struct access {
    sr_chain_place place;
    int rows, columns, task;
    sr_chain_target *target; /* in the list; NULL: it reads */
};

struct sr_chain {
    int multiprocessors;
    sr_chain_state *state; /* device memory */
    sr_marked *marked;     /* (MARKED), device memory */
    bool open, recorded;
    srnn_status status; /* of what was started since it was opened */
    char *lists;        /* device memory of the gathering */
    char *list_copies;  /* (SR_CHAIN_LISTS) the same in host memory */
    size_t lists_used, lists_sent;
    /* The list being collected: */
    sr_chain_list *list; /* in list_copies */
    int blocks;
    int64_t marked_used;
    access accesses[ACCESSES];
    int access_count;
    task_set before[SR_CHAIN_TASKS];
};

/* ---- a list ---- */

static void begin_list(sr_chain *chain) {
    chain->list = nullptr;
    chain->blocks = 1;
    chain->marked_used = 0;
    chain->access_count = 0;
}

static srnn_status send(sr_chain *chain, cudaStream_t stream) {
    SR_CUDA(cudaMemcpyAsync(chain->lists + chain->lists_sent,
                            chain->list_copies + chain->lists_sent,
                            chain->lists_used - chain->lists_sent, cudaMemcpyHostToDevice, stream));
    chain->lists_sent = chain->lists_used;
    return SRNN_OK;
}

static srnn_status launch(sr_chain *chain, cudaStream_t stream) {
    const ptrdiff_t at = (char *)chain->list - chain->list_copies;
    if (!chain->recorded)
        SR_TRY(send(chain, stream));
    return sr_chain_launch((const sr_chain_list *)(chain->lists + at), chain->state, chain->blocks,
                           stream);
}

void sr_chain_start(sr_chain *chain, cudaStream_t stream) {
    if (!chain->open || !chain->list)
        return;
    const srnn_status status = launch(chain, stream);
    if (chain->status == SRNN_OK)
        chain->status = status;
    begin_list(chain);
}

/* Room for a task of so many bytes in the list. NULL: start the list first, or there is none at all. */
static void *take_task(sr_chain *chain, sr_chain_kind kind, size_t bytes) {
    const size_t rounded = (bytes + 15) / 16 * 16;
    const size_t head = chain->list ? 0 : sizeof(sr_chain_list);
    if (chain->lists_used + head + rounded > SR_CHAIN_LISTS)
        return nullptr;
    if (!chain->list) {
        chain->list = (sr_chain_list *)(chain->list_copies + chain->lists_used);
        *chain->list = {};
        chain->list->bytes = (int32_t)sizeof(sr_chain_list);
        chain->lists_used += sizeof(sr_chain_list);
    }
    sr_chain_list *const list = chain->list;
    if (list->count == SR_CHAIN_TASKS || list->bytes + rounded > SR_CHAIN_BYTES)
        return nullptr;
    list->entry[list->count++] = {kind, list->bytes};
    void *const task = (char *)list + list->bytes;
    list->bytes += (int32_t)rounded;
    chain->lists_used += rounded;
    return task;
}

/* ---- who reads what ---- */

struct span {
    const char *from, *end;
};

static span span_of(const sr_chain_place &place, int rows, int columns) {
    const char *const from = (const char *)place.data;
    const int64_t numbers = (rows - 1) * place.stride + columns;
    return {from, from + numbers * (int64_t)sr_number_bytes(place.dtype)};
}

static bool meet(const access &a, const sr_chain_place &place, int rows, int columns) {
    const span x = span_of(a.place, a.rows, a.columns), y = span_of(place, rows, columns);
    return x.from < y.end && y.from < x.end;
}

/* The first column of `place` in the rows of `a`; negative: they are not all there. */
static int64_t column_in(const access &a, const sr_chain_place &place, int rows, int columns) {
    const int64_t bytes = (const char *)place.data - (const char *)a.place.data;
    const int64_t column = bytes / (int64_t)sr_number_bytes(place.dtype);
    const bool alike = a.place.dtype == place.dtype && a.rows == rows &&
                       (rows == 1 || a.place.stride == place.stride);
    return alike && bytes >= 0 && column + columns <= a.columns ? column : -1;
}

/* True if the rows can be read: by *source, from tasks that *before then knows. */
static bool find_source(sr_chain *chain, sr_chain_source *source, task_set *before,
                        const sr_chain_place &place, int rows, int columns) {
    *source = {nullptr, 0, 1, place};
    for (int i = chain->access_count - 1; i >= 0; i--) {
        const access &a = chain->accesses[i];
        if (!a.target || !meet(a, place, rows, columns))
            continue;
        const int64_t column = column_in(a, place, rows, columns);
        if (column < 0 || column % 2 != 0)
            return false;
        source->marked = a.target->marked + column;
        source->marked_stride = a.target->marked_stride;
        source->copies = a.target->copies = sr_chain_copies(rows);
        set_add(before, a.task);
        set_join(before, chain->before[a.task]);
        return true;
    }
    return true;
}

/* Whether a task may write these rows without anybody in the chain noticing: what was written there is written whole
 * again, and who reads from there comes before it. */
static bool may_write(const sr_chain *chain, const task_set &before, const sr_chain_place &place,
                      int rows, int columns) {
    for (int i = 0; i < chain->access_count; i++) {
        const access &a = chain->accesses[i];
        if (!meet(a, place, rows, columns))
            continue;
        const access own = {place, rows, columns, 0, nullptr};
        if (a.target ? column_in(own, a.place, a.rows, a.columns) < 0 : !set_has(before, a.task))
            return false;
    }
    return true;
}

static void note_read(sr_chain *chain, const sr_chain_source &source, int rows, int columns) {
    if (source.plain.data && !source.marked)
        chain->accesses[chain->access_count++] = {source.plain, rows, columns,
                                                  chain->list->count - 1, nullptr};
}

static void note_write(sr_chain *chain, sr_chain_target *target, int rows, int columns) {
    for (int i = 0; i < chain->access_count; i++)
        if (chain->accesses[i].target && meet(chain->accesses[i], target->plain, rows, columns))
            chain->accesses[i].target->plain.data = nullptr;
    chain->accesses[chain->access_count++] = {target->plain, rows, columns, chain->list->count - 1,
                                              target};
}

static int64_t even(int64_t n) {
    return (n + 1) / 2 * 2;
}

/* Of all copies of so many rows. */
static int64_t marked_numbers(int rows, int columns) {
    return sr_chain_copies(rows) * rows * even(columns);
}

static bool has_room(const sr_chain *chain, int64_t marked) {
    return chain->marked_used + marked <= MARKED && chain->access_count + 8 <= ACCESSES;
}

static sr_chain_target take_target(sr_chain *chain, const sr_chain_place &place, int rows,
                                   int columns) {
    const sr_chain_target target = {chain->marked + chain->marked_used, (int32_t)even(columns), 0,
                                    place};
    chain->marked_used += marked_numbers(rows, columns);
    return target;
}

static int minimum(int a, int b) {
    return a < b ? a : b;
}

static void want_blocks(sr_chain *chain, int blocks) {
    const int wanted = minimum(blocks, chain->multiprocessors);
    chain->blocks = wanted > chain->blocks ? wanted : chain->blocks;
}

/* ---- tasks ---- */

static bool add_product(sr_chain *chain, const sr_chain_product *p) {
    task_set before = {};
    sr_chain_source x, c = {};
    const int columns = p->swiglu ? p->turned : p->N;
    if (!has_room(chain, marked_numbers(p->M, columns)) ||
        !find_source(chain, &x, &before, p->x, p->M, p->K) ||
        (p->c.data && !find_source(chain, &c, &before, p->c, p->M, p->N)) ||
        !may_write(chain, before, p->d, p->M, columns))
        return false;
    sr_chain_product_task *task =
        (sr_chain_product_task *)take_task(chain, SR_CHAIN_PRODUCT, sizeof *task);
    if (!task)
        return false;
    chain->before[chain->list->count - 1] = before;
    task->of = *p;
    task->x = x;
    task->c = c;
    task->d = take_target(chain, p->d, p->M, columns);
    task->pairs = p->swiglu ? p->turned : (p->N + 1) / 2;
    task->tiles = (task->pairs + 3) / 4;
    note_read(chain, x, p->M, p->K);
    note_read(chain, c, p->M, p->N);
    note_write(chain, &task->d, p->M, columns);
    want_blocks(chain, task->tiles);
    return true;
}

/* Heads of `width` numbers side by side in one row of each sequence. */
template <class N> static sr_chain_place place_of_heads(const sr_strided<N> &heads) {
    return {(void *)heads.data, heads.batch, SRNN_BF16};
}

/* A power of two, so that blocks know their part without dividing. */
static int parts_of(int blocks) {
    int parts = 1;
    while (2 * parts <= minimum(blocks, SR_ONE_PARTS))
        parts *= 2;
    return parts;
}

static bool is_softmax(const sr_attention_view<sr_bf16> &call,
                       const sr_kept_memory<sr_bf16> &memory) {
    const sr_choices &c = call.choices;
    return sr_is_exponential(call.score, memory) && c.normaliser == SRNN_NORMALISER_ROW_SUM &&
           c.norm == SRNN_NORM_NONE && !c.gated && !c.post_gate;
}

static bool add_attention(sr_chain *chain, const sr_attention_view<sr_bf16> &call,
                          const sr_kept_memory<sr_bf16> &memory) {
    task_set before = {};
    sr_chain_source q, k, v, gate;
    const int rows = call.B * call.H, output = call.H * call.Dv;
    const int parts = parts_of(chain->multiprocessors / rows);
    const int64_t partials =
        (int64_t)rows * parts * sr_chain_partial(sr_chain_width(call.D, call.Dv));
    if (!has_room(chain, marked_numbers(call.B, output) + partials) ||
        !find_source(chain, &q, &before, place_of_heads(call.q), call.B, call.H * call.D) ||
        !find_source(chain, &k, &before, place_of_heads(call.k), call.B, call.Hkv * call.D) ||
        !find_source(chain, &v, &before, place_of_heads(call.v), call.B, call.Hkv * call.Dv) ||
        (call.choices.gated &&
         (!find_source(chain, &gate, &before, place_of_heads(call.output_gate), call.B, call.H) ||
          gate.marked)) ||
        !may_write(chain, before, place_of_heads(call.o), call.B, output))
        return false;
    sr_chain_attention_task *task =
        (sr_chain_attention_task *)take_task(chain, SR_CHAIN_ATTENTION, sizeof *task);
    if (!task)
        return false;
    chain->before[chain->list->count - 1] = before;
    task->call = call;
    task->memory = memory;
    task->token[0] = q;
    task->token[1] = k;
    task->token[2] = v;
    task->o = take_target(chain, place_of_heads(call.o), call.B, output);
    task->partials = chain->marked + chain->marked_used;
    task->parts = parts;
    task->softmax = is_softmax(call, memory);
    chain->marked_used += partials;
    note_read(chain, q, call.B, call.H * call.D);
    note_read(chain, k, call.B, call.Hkv * call.D);
    note_read(chain, v, call.B, call.Hkv * call.Dv);
    if (call.choices.gated)
        note_read(chain, gate, call.B, call.H);
    note_write(chain, &task->o, call.B, output);
    want_blocks(chain, rows * parts);
    return true;
}

bool sr_chain_add_product(const srnn_device *device, const sr_chain_product *p) {
    sr_chain *chain = sr_cuda_chain(device);
    if (!chain || !chain->open || p->M > SR_CHAIN_ROWS || p->K % 64 != 0 ||
        (p->c.data && p->N % 2 != 0))
        return false;
    if (add_product(chain, p))
        return true;
    sr_cuda_stream(device); /* starts what there is */
    return add_product(chain, p);
}

static bool side_by_side(const sr_strided<const sr_bf16> &heads, int width) {
    return heads.head == width && width % 8 == 0;
}

bool sr_chain_add_attention(const srnn_device *device, const sr_attention_view<sr_bf16> &call,
                            const sr_kept_memory<sr_bf16> &memory) {
    sr_chain *chain = sr_cuda_chain(device);
    const sr_choices &c = call.choices;
    const bool prepared = c.feature == SRNN_FEATURE_IDENTITY && !c.value_gate && !c.decays &&
                          !c.cumulates && c.normaliser != SRNN_NORMALISER_VALUE_POWER;
    if (!chain || !chain->open || !prepared || call.T != 1 || call.B > SR_CHAIN_ROWS ||
        call.D > 128 || call.Dv > 128 || !side_by_side(call.q, call.D) ||
        !side_by_side(call.k, call.D) || !side_by_side(call.v, call.Dv) || call.o.head != call.Dv ||
        (c.gated && call.output_gate.head != 1))
        return false;
    if (add_attention(chain, call, memory))
        return true;
    sr_cuda_stream(device);
    return add_attention(chain, call, memory);
}

/* ---- what a device has ---- */

static srnn_status fill(sr_chain *chain, cudaStream_t stream) {
    const sr_chain_state first = {1, 0};
    void *memory;
    SR_TRY(sr_alloc(&memory, SR_CHAIN_LISTS, 1));
    chain->list_copies = (char *)memory;
    SR_CUDA(cudaMalloc(&memory, sizeof *chain->state));
    chain->state = (sr_chain_state *)memory;
    SR_CUDA(cudaMalloc(&memory, MARKED * sizeof *chain->marked));
    chain->marked = (sr_marked *)memory;
    SR_CUDA(cudaMemsetAsync(chain->marked, 0, MARKED * sizeof *chain->marked, stream));
    SR_CUDA(cudaMemcpyAsync(chain->state, &first, sizeof first, cudaMemcpyHostToDevice, stream));
    return SRNN_OK;
}

srnn_status sr_chain_create(sr_chain **chain, int multiprocessors, cudaStream_t stream) {
    void *memory;
    *chain = nullptr;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(sr_chain)));
    sr_chain *created = (sr_chain *)memory;
    created->multiprocessors = multiprocessors;
    const srnn_status status = fill(created, stream);
    if (status != SRNN_OK) {
        sr_chain_free(created);
        return status;
    }
    *chain = created;
    return SRNN_OK;
}

void sr_chain_free(sr_chain *chain) {
    if (!chain)
        return;
    cudaFree(chain->state);
    cudaFree(chain->marked);
    free(chain->list_copies);
    free(chain);
}

void sr_chain_open(sr_chain *chain, char *lists, bool recorded) {
    begin_list(chain);
    chain->open = true;
    chain->recorded = recorded;
    chain->status = SRNN_OK;
    chain->lists = lists;
    chain->lists_used = chain->lists_sent = 0;
}

bool sr_chain_is_open(const sr_chain *chain) {
    return chain && chain->open;
}

bool sr_chain_is_recorded(const sr_chain *chain) {
    return sr_chain_is_open(chain) && chain->recorded;
}

srnn_status sr_chain_close(sr_chain *chain) {
    chain->open = false;
    return chain->status;
}

srnn_status sr_chain_send(sr_chain *chain, cudaStream_t stream) {
    return chain->lists_used > chain->lists_sent ? send(chain, stream) : SRNN_OK;
}
