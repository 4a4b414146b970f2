/* fast_kernels.c: the table of fast kernels for one number type and instruction set. */
#include "attention/cpu/chunked/chunked.h"
#include "attention/cpu/flash/flash.h"
#include "attention/cpu/kernels.h"
#include "attention/cpu/linear/linear.h"
#include "attention/cpu/pooled/pooled.h"
#include "equation/facts.h"

static bool supports_plain(const srnn_problem *problem) {
    return sr_pairs_are_plain(&problem->attention);
}

/* One decay per head at most, be it on weights or logits, and nothing beside it that only some pairs have. */
static bool supports_tiles(const srnn_problem *problem) {
    const srnn_attention *a = &problem->attention;
    return (a->decay == SRNN_DECAY_NONE || a->decay_width == SRNN_WIDTH_HEAD) &&
           a->position != SRNN_POSITION_ROPE_FEATURES && !a->pool && a->write == SRNN_WRITE_ADD &&
           a->levels == SRNN_LEVELS_NONE;
}

/* Running averages of a chunk, without a decay between them. */
static bool supports_pooled(const srnn_problem *problem) {
    const srnn_attention *a = &problem->attention;
    return a->pool && a->decay == SRNN_DECAY_NONE && a->position != SRNN_POSITION_ROPE_FEATURES &&
           a->write == SRNN_WRITE_ADD && a->levels == SRNN_LEVELS_NONE;
}

static bool supports_states(const srnn_problem *problem) {
    return supports_plain(problem) && srnn_attention_has_state(&problem->attention);
}

/* The decay in the logits is that of the weights for a linear score. */
static bool supports_linear(const srnn_problem *problem) {
    const srnn_attention *a = &problem->attention;
    return a->score == SRNN_SCORE_LINEAR && srnn_attention_has_state(a) && !sr_pairs_are_plain(a);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t flash_scratch(const srnn_plan *plan) {
    return larger(flash_forward_scratch(plan), flash_backward_scratch(plan));
}

static size_t chunked_scratch(const srnn_plan *plan) {
    return larger(chunked_forward_scratch(plan), chunked_backward_scratch(plan));
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_flash) = {
    "flash",       SRNN_FORM_PARALLEL, SR_REAL_DTYPE,  supports_tiles,
    flash_scratch, flash_forward,      flash_backward,
};

const sr_attention_kernel SR_ISA_REAL(sr_attention_pooled) = {
    "pooled",       SRNN_FORM_PARALLEL, SR_REAL_DTYPE,   supports_pooled,
    pooled_scratch, pooled_forward,     pooled_backward,
};

const sr_attention_kernel SR_ISA_REAL(sr_attention_chunked) = {
    "chunked",       SRNN_FORM_CHUNKED, SR_REAL_DTYPE,    supports_states,
    chunked_scratch, chunked_forward,   chunked_backward,
};

const sr_attention_kernel SR_ISA_REAL(sr_attention_recurrent) = {
    "recurrent",
    SRNN_FORM_RECURRENT,
    SR_REAL_DTYPE,
    supports_states,
    chunked_forward_scratch,
    chunked_forward,
    NULL,
};

static size_t linear_scratch(const srnn_plan *plan) {
    return larger(linear_forward_scratch(plan), linear_backward_scratch(plan));
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_linear) = {
    "linear",       SRNN_FORM_CHUNKED, SR_REAL_DTYPE,   supports_linear,
    linear_scratch, linear_forward,    linear_backward,
};

const sr_attention_kernel SR_ISA_REAL(sr_attention_linear_recurrent) = {
    "linear_recurrent",     SRNN_FORM_RECURRENT, SR_REAL_DTYPE, supports_linear,
    linear_forward_scratch, linear_forward,      NULL,
};
