/* state.c: attention one piece at a time, on a fixed-size state or on kept keys and values. */
#include "attention/state.h"
#include "attention/kernel.h"
#include "attention/problem.h"
#include "base/cancel.h"
#include "base/hash.h"
#include "base/memory.h"
#include "device/device.h"
#include "equation/facts.h"

#include <stdlib.h>
#include <string.h>

struct srnn_state {
    srnn_plan plan; /* a piece: problem.T changes with every feed, up to `longest` */
    const sr_state_kernel *kernel;
    int longest;
    char *memory;     /* device memory */
    int64_t capacity; /* tokens that memory has room for */
    sr_carry carry;
    void *sums;       /* what carry points to: position, decay, cumulative */
    int64_t position; /* the host's count of tokens */
};

/* What a saved state starts with; the numbers follow. */
typedef struct saved_header {
    char magic[8];
    uint64_t checksum; /* of all bytes, itself being 0 */
    int64_t position;
    int32_t dtype, recurrent, B, H, Hkv, D, Dv, levels;
    char attention[SR_ATTENTION_TEXT]; /* text form */
} saved_header;

/* The last two characters are the version of the format. */
static const char saved_magic[8] = {'s', 'r', 'n', 'n', 's', 't', '0', '3'};
enum { MAGIC_KIND = 6 };

/* Tokens that the first memory has room for. A recorded feed ends when memory moves, so GPUs begin
 * with more. */
enum { FIRST_CAPACITY = 96, FIRST_CAPACITY_RECORDED = 1024 };

/* ---- creating ---- */

/* True if the state is of fixed size; fails if one was demanded that cannot be. */
static srnn_status choose_kind(bool *recurrent, const srnn_problem *p) {
    *recurrent = false;
    if (p->form == SRNN_FORM_PARALLEL)
        return SRNN_OK;
    srnn_status status = sr_problem_check_state(p);
    *recurrent = status == SRNN_OK &&
                 (p->form != SRNN_FORM_AUTO || p->device->attention->state(p, true) != NULL);
    return p->form == SRNN_FORM_AUTO ? SRNN_OK : status;
}

static srnn_status create_plan(srnn_plan *plan, const srnn_problem *p) {
    size_t B = (size_t)p->B;
    plan->device = p->device;
    plan->problem = *p;
    plan->problem.offsets = NULL;
    plan->document_count = p->B;
    sr_plan_fill_core(plan);
    SR_TRY(sr_alloc_zero((void **)&plan->documents, B, sizeof *plan->documents));
    SR_TRY(sr_alloc_zero((void **)&plan->row_documents, B + 1, sizeof *plan->row_documents));
    return sr_plan_take_first(plan);
}

/* Numbers of running sums, after the position. */
static size_t sums_of(const srnn_state *state) {
    return sr_carry_numbers(&state->plan);
}

static size_t sums_bytes(const srnn_state *state) {
    return sizeof(int64_t) + sums_of(state) * sizeof(double);
}

static srnn_status take_sums(srnn_state *state) {
    const srnn_problem *p = &state->plan.problem;
    const size_t heads = (size_t)p->B * (size_t)state->plan.core.Hkv;
    srnn_device *device = state->plan.device;
    SR_TRY(sr_device_allocate(device, &state->sums, sums_bytes(state)));
    state->carry.position = state->sums;
    state->carry.decay = (double *)(void *)(state->carry.position + 1);
    state->carry.cumulative =
        state->carry.decay + heads * (size_t)sr_decay_numbers(&p->attention, p->D);
    if (p->attention.pool)
        state->carry.pool = state->carry.cumulative + (size_t)p->B * (size_t)p->H;
    return SRNN_OK;
}

/* Empty memory for `capacity` tokens. */
static srnn_status take_memory(srnn_state *state, char **memory, int64_t capacity) {
    srnn_device *device = state->plan.device;
    const size_t bytes = state->kernel->bytes(&state->plan.core, capacity);
    void *taken;
    SR_TRY(sr_device_allocate(device, &taken, bytes));
    *memory = taken;
    const srnn_status status = sr_device_zero(device, taken, bytes);
    if (status != SRNN_OK)
        sr_device_release(device, taken);
    return status;
}

static srnn_status choose_kernel(srnn_state *state, const srnn_problem *p, bool recurrent) {
    state->kernel = p->device->attention->state(p, recurrent);
    if (state->kernel)
        return SRNN_OK;
    char text[SR_ATTENTION_TEXT];
    srnn_attention_print(text, sizeof text, &p->attention);
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s keeps no %s of %s in %s", p->device->name,
                   recurrent ? "fixed-size states" : "keys and values", text,
                   sr_element_name(p->dtype));
}

static srnn_status state_fill(srnn_state *state, const srnn_problem *problem) {
    srnn_problem p = *problem;
    bool recurrent;
    if (p.T == 0)
        p.T = 1;
    if (p.offsets)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "a state holds one document per row: offsets cannot be given");
    SR_TRY(sr_problem_fill(&p));
    SR_TRY(choose_kind(&recurrent, &p));
    if (p.form == SRNN_FORM_RECURRENT)
        p.chunk = 1;
    if (p.chunk > p.T)
        p.chunk = p.T;
    SR_TRY(choose_kernel(state, &p, recurrent));
    state->longest = p.T;
    SR_TRY(create_plan(&state->plan, &p));
    state->plan.scratch_bytes = state->kernel->scratch(&state->plan);
    SR_TRY(sr_device_allocate(p.device, &state->plan.scratch, state->plan.scratch_bytes));
    SR_TRY(take_sums(state));
    SR_TRY(sr_device_zero(p.device, state->sums, sums_bytes(state)));
    const int64_t capacity =
        sr_device_captures(p.device) ? FIRST_CAPACITY_RECORDED : FIRST_CAPACITY;
    SR_TRY(take_memory(state, &state->memory, capacity));
    state->capacity = capacity;
    return SRNN_OK;
}

srnn_status srnn_state_create(srnn_state **state, const srnn_problem *problem) {
    *state = NULL;
    srnn_state *made;
    SR_TRY(sr_alloc_zero((void **)&made, 1, sizeof *made));
    srnn_status status = state_fill(made, problem);
    if (status != SRNN_OK) {
        srnn_state_free(made);
        return status;
    }
    *state = made;
    return SRNN_OK;
}

void srnn_state_free(srnn_state *state) {
    if (!state)
        return;
    srnn_device *device = state->plan.device;
    if (device) {
        sr_device_release(device, state->memory);
        sr_device_release(device, state->sums);
    }
    sr_plan_clear(&state->plan);
    free(state);
}

srnn_status srnn_state_reset(srnn_state *state) {
    srnn_device *device = state->plan.device;
    state->position = 0;
    SR_TRY(sr_device_zero(device, state->memory,
                          state->kernel->bytes(&state->plan.core, state->capacity)));
    return sr_device_zero(device, state->sums, sums_bytes(state));
}

/* ---- feeding ---- */

static sr_state_memory memory_of(const srnn_state *state) {
    return (sr_state_memory){&state->plan, state->memory, state->capacity, state->position};
}

/* The same numbers in other memory. */
static srnn_status move_to(const sr_state_memory *to, const srnn_state *state) {
    const sr_state_memory from = memory_of(state);
    char *plain;
    if (state->kernel->move)
        return state->kernel->move(to, &from);
    SR_TRY(sr_alloc((void **)&plain, state->kernel->plain_bytes(&state->plan.core, state->position),
                    1));
    srnn_status status = state->kernel->to_plain(plain, &from);
    if (status == SRNN_OK)
        status = state->kernel->from_plain(to, plain);
    free(plain);
    return status;
}

/* Capacity in tokens for a text of `tokens`: with a window, a ring of those that a piece and the
 * tokens before it see. */
static int64_t tokens_kept(const srnn_state *state, int64_t tokens) {
    const int64_t window = state->plan.problem.attention.window;
    const int64_t most = window - 1 + state->longest;
    return window && most < tokens ? most : tokens;
}

/* Grows the KV cache of a session to hold `tokens` tokens, on a CPU or GPU: at least doubles the
 * capacity, allocates the larger memory and copies keys and values there (on a GPU by the kernel of
 * attention/cuda/decode/kv_cache.cu). *moved: the cache has a new address, so that captured graphs
 * which hold the old one must be captured again. */
srnn_status sr_state_reserve(srnn_state *state, int64_t tokens, bool *moved) {
    srnn_device *device = state->plan.device;
    if (moved)
        *moved = false;
    const int64_t retained = tokens_kept(state, tokens),
                  doubled = tokens_kept(state, 2 * state->capacity);
    if (state->kernel->recurrent || retained <= state->capacity)
        return SRNN_OK;
    sr_state_memory larger = memory_of(state);
    larger.capacity = doubled > retained ? doubled : retained;
    SR_TRY(take_memory(state, &larger.memory, larger.capacity));
    const srnn_status status = move_to(&larger, state);
    if (status != SRNN_OK) {
        sr_device_release(device, larger.memory);
        return status;
    }
    sr_device_release(device, state->memory);
    state->memory = larger.memory;
    state->capacity = larger.capacity;
    if (moved)
        *moved = true;
    return SRNN_OK;
}

bool sr_state_applies_rope(const srnn_state *state, int T) {
    return state->kernel->applies_rope && state->kernel->applies_rope(&state->plan.problem, T);
}

srnn_status sr_state_run(srnn_state *state, srnn_tensor o, const srnn_operands *in, int T,
                         sr_rope_angles rope) {
    srnn_problem *p = &state->plan.problem;
    SR_TRY(sr_problem_check_operands(in, p));
    SR_TRY(sr_problem_check_output(o, p, "o"));
    p->T = state->plan.core.T = T;
    for (int b = 0; b < p->B; b++)
        state->plan.documents[b] = (sr_document_range){b, 0, T, 0};
    srnn_operands operands = sr_problem_stride_operands(in, p);
    sr_attention_call call = {.plan = &state->plan,
                              .in = &operands,
                              .o = sr_problem_stride(o, p, p->H, p->Dv),
                              .rope = rope};
    return state->kernel->feed(&call, state->memory, state->capacity, &state->carry);
}

void sr_state_advance(srnn_state *state, int T) {
    state->position += T;
}

srnn_status srnn_state_feed(srnn_state *state, srnn_tensor o, const srnn_operands *in, int T) {
    if (!state)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "no state was given (NULL)");
    if (T < 1 || T > state->longest)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "a piece of %d tokens was fed to a state made for 1 to %d", T,
                       state->longest);
    SR_TRY(sr_problem_check_operands(in, &state->plan.problem));
    SR_TRY(sr_problem_check_length(&state->plan.problem, state->position + T));
    SR_TRY(sr_state_reserve(state, state->position + T, NULL));
    sr_cancel_begin();
    const srnn_status status = sr_cancel_end(sr_state_run(state, o, in, T, (sr_rope_angles){0}));
    if (status == SRNN_ERR_INTERRUPTED)
        SR_TRY(srnn_state_reset(state)); /* some heads have seen tokens that others have not */
    if (status == SRNN_OK)
        sr_state_advance(state, T);
    return status;
}

int64_t srnn_state_position(const srnn_state *state) {
    return state->position;
}

/* True for rings of a window too. */
static bool has_fixed_size(const srnn_state *state) {
    return state->kernel->recurrent || state->plan.problem.attention.window;
}

bool srnn_state_is_recurrent(const srnn_state *state) {
    return has_fixed_size(state);
}

size_t srnn_state_bytes(const srnn_problem *problem, int64_t tokens) {
    srnn_problem p = *problem;
    bool recurrent;
    p.T = 1;
    if (sr_problem_fill(&p) != SRNN_OK || choose_kind(&recurrent, &p) != SRNN_OK || tokens < 0 ||
        tokens > INT64_MAX / 8 / (p.D + p.Dv + 1) / p.B / p.Hkv)
        return SIZE_MAX;
    const sr_state_kernel *kernel = p.device->attention->state(&p, recurrent);
    srnn_plan plan = {.problem = p};
    sr_plan_fill_core(&plan);
    return kernel ? kernel->plain_bytes(&plan.core, tokens) : SIZE_MAX;
}

/* ---- saving ---- */

static saved_header header_of(const srnn_state *state) {
    const srnn_problem *p = &state->plan.problem;
    saved_header header = {.position = state->position,
                           .dtype = (int32_t)p->dtype,
                           .recurrent = state->kernel->recurrent,
                           .B = p->B,
                           .H = p->H,
                           .Hkv = p->Hkv,
                           .D = p->D,
                           .Dv = p->Dv,
                           .levels = p->attention.levels ? p->levels : 0};
    memcpy(header.magic, saved_magic, sizeof saved_magic);
    srnn_attention_print(header.attention, sizeof header.attention, &p->attention);
    return header;
}

/* Bytes of a saved state at a position: header, running sums, numbers. */
size_t sr_state_saved_bytes(const srnn_state *state, int64_t position) {
    return sizeof(saved_header) + sums_of(state) * sizeof(double) +
           state->kernel->plain_bytes(&state->plan.core, position);
}

size_t srnn_state_saved_bytes(const srnn_state *state) {
    return sr_state_saved_bytes(state, state->position);
}

/* Of a saved state, what its header holds as the checksum being 0. */
static uint64_t checksum_of(const void *bytes, size_t size) {
    saved_header header;
    uint64_t hash = sr_hash_add(SR_HASH_BEGIN, size);
    memcpy(&header, bytes, sizeof header);
    header.checksum = 0;
    hash = sr_checksum_bytes(hash, &header, sizeof header);
    return sr_checksum_bytes(hash, (const char *)bytes + sizeof header, size - sizeof header);
}

srnn_status srnn_state_save(const srnn_state *state, void *bytes, size_t size) {
    srnn_device *device = state->plan.device;
    const size_t sums = sums_of(state) * sizeof(double);
    if (size < srnn_state_saved_bytes(state))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a state of %zu bytes does not fit into %zu",
                       srnn_state_saved_bytes(state), size);
    saved_header header = header_of(state);
    const sr_state_memory memory = memory_of(state);
    char *at = bytes;
    memcpy(at, &header, sizeof header);
    SR_TRY(sr_device_copy_out(device, at + sizeof header, state->carry.decay, sums));
    SR_TRY(state->kernel->to_plain(at + sizeof header + sums, &memory));
    header.checksum = checksum_of(bytes, srnn_state_saved_bytes(state));
    memcpy(at, &header, sizeof header);
    return SRNN_OK;
}

static srnn_status check_version(const saved_header *header) {
    if (memcmp(header->magic, saved_magic, MAGIC_KIND) != 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "these bytes are not a saved state");
    if (memcmp(header->magic, saved_magic, sizeof saved_magic) != 0)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "the saved state has version %.2s of the format; version %.2s is read: "
                       "save it again with this version of softrnn",
                       header->magic + MAGIC_KIND, saved_magic + MAGIC_KIND);
    return SRNN_OK;
}

static srnn_status check_saved(const srnn_state *state, const void *bytes, size_t size) {
    saved_header header, expected = header_of(state);
    if (size < sizeof header)
        return SR_FAIL(SRNN_ERR_FORMAT, "%zu bytes are too few for a saved state", size);
    memcpy(&header, bytes, sizeof header);
    SR_TRY(check_version(&header));
    if (header.checksum != checksum_of(bytes, size))
        return SR_FAIL(SRNN_ERR_FORMAT, "the saved state is damaged: its checksum is wrong");
    expected.position = header.position;
    expected.checksum = header.checksum;
    if (memcmp(&header, &expected, sizeof header) != 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "the saved state belongs to another problem than %s",
                       expected.attention);
    /* a bound before the product: a cache has at least one number for each entry, and with pool an
     * entry for each chunk */
    const int64_t pool = state->plan.problem.attention.pool;
    const int64_t entries = header.position / (pool > 0 ? pool : 1);
    if (header.position < 0 ||
        (!has_fixed_size(state) && entries > (int64_t)(size / sizeof(float))) ||
        header.position > INT64_MAX / (1 << 20) ||
        size != sr_state_saved_bytes(state, header.position))
        return SR_FAIL(SRNN_ERR_FORMAT, "a saved state at token %lld cannot have %zu bytes",
                       (long long)header.position, size);
    return SRNN_OK;
}

srnn_status srnn_state_load(srnn_state *state, const void *bytes, size_t size) {
    srnn_device *device = state->plan.device;
    const size_t sums = sums_of(state) * sizeof(double);
    saved_header header;
    SR_TRY(check_saved(state, bytes, size));
    memcpy(&header, bytes, sizeof header);
    SR_TRY(sr_state_reserve(state, header.position, NULL));
    const char *at = (const char *)bytes + sizeof header;
    const int64_t position = header.position;
    SR_TRY(sr_device_copy_in(device, state->carry.position, &position, sizeof position));
    SR_TRY(sr_device_copy_in(device, state->carry.decay, at, sums));
    state->position = position;
    const sr_state_memory memory = memory_of(state);
    return state->kernel->from_plain(&memory, at + sums);
}
