/* attention_state.c: attention one piece at a time, on a fixed-size state or on kept keys and values. */
#include "attention/attention.h"
#include "backend/attention_kernel.h"
#include "backend/attention_problem.h"
#include "backend/cpu/attention_kernels.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

struct srnn_state {
    srnn_plan plan; /* a piece: problem.T changes with every feed, up to `longest` */
    const sr_state_kernel *kernel;
    int longest;
    char *memory;
    int64_t capacity; /* tokens that memory has room for */
    sr_carry carry;
};

/* What a saved state starts with; the numbers follow. */
typedef struct saved_header {
    char magic[8];
    int64_t position;
    int32_t dtype, fixed, B, H, Hkv, D, Dv, reserved;
    char attention[256]; /* text form */
} saved_header;

static const char saved_magic[8] = {'s', 'r', 'n', 'n', 's', 't', '0', '1'};

enum { FIRST_CAPACITY = 96 };

/* ---- creating ---- */

/* True if the state is of fixed size; fails if one was demanded that cannot be. */
static srnn_status choose_kind(bool *fixed, const srnn_problem *p) {
    *fixed = false;
    if (p->form == SRNN_FORM_PARALLEL)
        return SRNN_OK;
    srnn_status status = sr_problem_check_state(p);
    *fixed = status == SRNN_OK;
    return p->form == SRNN_FORM_AUTO ? SRNN_OK : status;
}

static srnn_status create_plan(srnn_plan *plan, const srnn_problem *p) {
    size_t B = (size_t)p->B;
    plan->problem = *p;
    plan->problem.offsets = NULL;
    plan->span_count = p->B;
    SR_TRY(sr_alloc_zero((void **)&plan->spans, B, sizeof *plan->spans));
    SR_TRY(sr_alloc_zero((void **)&plan->row_spans, B + 1, sizeof *plan->row_spans));
    return sr_alloc_zero((void **)&plan->first, B * (size_t)p->T, sizeof *plan->first);
}

static srnn_status state_fill(srnn_state *state, const srnn_problem *problem) {
    srnn_problem p = *problem;
    bool fixed;
    if (p.T == 0)
        p.T = 1;
    if (p.offsets)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "a state holds one document per row: offsets cannot be given");
    SR_TRY(sr_problem_fill(&p));
    SR_TRY(choose_kind(&fixed, &p));
    if (p.form == SRNN_FORM_RECURRENT)
        p.chunk = 1;
    if (p.chunk > p.T)
        p.chunk = p.T;
    state->kernel = sr_cpu_state_kernel(p.dtype, fixed);
    state->longest = p.T;
    SR_TRY(create_plan(&state->plan, &p));
    state->plan.scratch_bytes = state->kernel->scratch(&state->plan);
    SR_TRY(sr_alloc(&state->plan.scratch, state->plan.scratch_bytes, 1));
    SR_TRY(
        sr_alloc_zero((void **)&state->carry.decay, (size_t)p.B * (size_t)p.Hkv, sizeof(double)));
    SR_TRY(sr_alloc_zero((void **)&state->carry.cumulative, (size_t)p.B * (size_t)p.H,
                         sizeof(double)));
    state->capacity = FIRST_CAPACITY;
    return sr_alloc_zero((void **)&state->memory, state->kernel->bytes(&p, state->capacity), 1);
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
    free(state->plan.spans);
    free(state->plan.first);
    free(state->plan.row_spans);
    free(state->plan.scratch);
    free(state->memory);
    free(state->carry.decay);
    free(state->carry.cumulative);
    free(state);
}

void srnn_state_reset(srnn_state *state) {
    const srnn_problem *p = &state->plan.problem;
    memset(state->memory, 0, state->kernel->bytes(p, state->capacity));
    memset(state->carry.decay, 0, (size_t)p->B * (size_t)p->Hkv * sizeof(double));
    memset(state->carry.cumulative, 0, (size_t)p->B * (size_t)p->H * sizeof(double));
    state->carry.position = 0;
}

/* ---- feeding ---- */

/* Moves kept keys and values to memory with room for `tokens` or more. */
static srnn_status make_room(srnn_state *state, int64_t tokens) {
    const srnn_problem *p = &state->plan.problem;
    if (state->kernel->fixed || tokens <= state->capacity)
        return SRNN_OK;
    int64_t capacity = 2 * state->capacity > tokens ? 2 * state->capacity : tokens,
            position = state->carry.position;
    char *plain, *memory;
    SR_TRY(sr_alloc((void **)&plain, state->kernel->plain_bytes(p, position), 1));
    srnn_status status = sr_alloc_zero((void **)&memory, state->kernel->bytes(p, capacity), 1);
    if (status == SRNN_OK) {
        state->kernel->to_plain(plain, state->memory, state->capacity, p, position);
        state->kernel->from_plain(memory, capacity, plain, p, position);
        free(state->memory);
        state->memory = memory;
        state->capacity = capacity;
    }
    free(plain);
    return status;
}

srnn_status srnn_state_feed(srnn_state *state, srnn_tensor o, const srnn_operands *in, int T) {
    srnn_problem *p = &state->plan.problem;
    if (T < 1 || T > state->longest)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "a piece of %d tokens was fed to a state made for 1 to %d", T,
                       state->longest);
    SR_TRY(sr_problem_check_operands(in, &p->attention));
    SR_TRY(make_room(state, state->carry.position + T));
    p->T = T;
    for (int b = 0; b < p->B; b++)
        state->plan.spans[b] = (sr_span){b, 0, T};
    srnn_operands operands = sr_problem_stride_operands(in, p);
    sr_attention_call call = {
        .plan = &state->plan, .in = &operands, .o = sr_problem_stride(o, p, p->H, p->Dv)};
    state->kernel->feed(&call, state->memory, state->capacity, &state->carry);
    return SRNN_OK;
}

int64_t srnn_state_position(const srnn_state *state) {
    return state->carry.position;
}

bool srnn_state_is_fixed(const srnn_state *state) {
    return state->kernel->fixed;
}

size_t srnn_state_bytes(const srnn_problem *problem, int64_t tokens) {
    srnn_problem p = *problem;
    bool fixed;
    p.T = 1;
    if (sr_problem_fill(&p) != SRNN_OK || choose_kind(&fixed, &p) != SRNN_OK || tokens < 0 ||
        tokens > INT64_MAX / 8 / (p.D + p.Dv + 1) / p.B / p.Hkv)
        return SIZE_MAX;
    return sr_cpu_state_kernel(p.dtype, fixed)->plain_bytes(&p, tokens);
}

/* ---- saving ---- */

static saved_header header_of(const srnn_state *state) {
    const srnn_problem *p = &state->plan.problem;
    saved_header header = {.position = state->carry.position,
                           .dtype = (int32_t)p->dtype,
                           .fixed = state->kernel->fixed,
                           .B = p->B,
                           .H = p->H,
                           .Hkv = p->Hkv,
                           .D = p->D,
                           .Dv = p->Dv};
    memcpy(header.magic, saved_magic, sizeof saved_magic);
    srnn_attention_print(header.attention, sizeof header.attention, &p->attention);
    return header;
}

/* Bytes of a saved state at a position: header, running sums, numbers. */
static size_t saved_bytes(const srnn_state *state, int64_t position) {
    const srnn_problem *p = &state->plan.problem;
    size_t sums = (size_t)p->B * (size_t)(p->Hkv + p->H) * sizeof(double);
    return sizeof(saved_header) + sums + state->kernel->plain_bytes(p, position);
}

size_t srnn_state_saved_bytes(const srnn_state *state) {
    return saved_bytes(state, state->carry.position);
}

srnn_status srnn_state_save(const srnn_state *state, void *bytes, size_t size) {
    const srnn_problem *p = &state->plan.problem;
    size_t decay = (size_t)p->B * (size_t)p->Hkv * sizeof(double);
    size_t cumulative = (size_t)p->B * (size_t)p->H * sizeof(double);
    if (size < srnn_state_saved_bytes(state))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a state of %zu bytes does not fit into %zu",
                       srnn_state_saved_bytes(state), size);
    saved_header header = header_of(state);
    char *at = bytes;
    memcpy(at, &header, sizeof header);
    memcpy(at + sizeof header, state->carry.decay, decay);
    memcpy(at + sizeof header + decay, state->carry.cumulative, cumulative);
    state->kernel->to_plain(at + sizeof header + decay + cumulative, state->memory, state->capacity,
                            p, state->carry.position);
    return SRNN_OK;
}

srnn_status srnn_state_load(srnn_state *state, const void *bytes, size_t size) {
    const srnn_problem *p = &state->plan.problem;
    size_t decay = (size_t)p->B * (size_t)p->Hkv * sizeof(double);
    size_t cumulative = (size_t)p->B * (size_t)p->H * sizeof(double);
    saved_header header, expected = header_of(state);
    if (size < sizeof header)
        return SR_FAIL(SRNN_ERR_FORMAT, "%zu bytes are too few for a saved state", size);
    memcpy(&header, bytes, sizeof header);
    expected.position = header.position;
    if (memcmp(&header, &expected, sizeof header) != 0)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "the saved state is damaged or belongs to another problem than %s",
                       expected.attention);
    if (header.position < 0 ||
        header.position >
            (int64_t)(size / sizeof(float)) * (state->kernel->fixed ? INT32_MAX : 1) ||
        size != saved_bytes(state, header.position))
        return SR_FAIL(SRNN_ERR_FORMAT, "a saved state at token %lld cannot have %zu bytes",
                       (long long)header.position, size);
    SR_TRY(make_room(state, header.position));
    const char *at = bytes;
    memcpy(state->carry.decay, at + sizeof header, decay);
    memcpy(state->carry.cumulative, at + sizeof header + decay, cumulative);
    state->kernel->from_plain(state->memory, state->capacity,
                              at + sizeof header + decay + cumulative, p, header.position);
    state->carry.position = header.position;
    return SRNN_OK;
}
