/* probe.c: random attention problems and the error of a kernel against the double oracle. */
#include "verify/probe.h"

#include "attention/kernel.h"
#include "base/bf16.h"
#include "base/memory.h"
#include "base/random.h"
#include "equation/axes.h"
#include "equation/facts.h"
#include "verify/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Random streams: one per operand, and these. Their numbers are fixed, so that a new operand does
 * not change the data of the others. */
enum {
    STREAM_D_O = 17,
    STREAM_CUTS,
    STREAM_STRONG,
    STREAM_PLACES,
    STREAM_STRENGTH,
    STREAM_LATER, /* for operands added later */
};

static uint64_t stream_of(sr_operand which) {
    switch (which) {
    case SR_OPERAND_Q:
    case SR_OPERAND_K:
    case SR_OPERAND_V:
    case SR_OPERAND_OUTPUT_GATE:
    case SR_OPERAND_VALUE_GATE:
    case SR_OPERAND_DECAY:
    case SR_OPERAND_WRITE_GATE:
        return (uint64_t)which;
    case SR_OPERAND_LEVEL_GATE:
        return 7;
    case SR_OPERAND_POOL_GATE:
        return 8;
    case SR_OPERAND_SKIP:
        return 9;
    case SR_OPERAND_NORM_WEIGHT:
        return 10;
    case SR_OPERAND_NORM_BIAS:
        return 11;
    case SR_OPERAND_VALUE_POWER:
        return 12;
    case SR_OPERAND_A_LOG:
        return 13;
    case SR_OPERAND_DT_BIAS:
        return 14;
    case SR_OPERAND_SKIP_WEIGHT:
        return 15;
    case SR_OPERAND_LEVEL_SCALE:
        return 16;
    case SR_OPERAND_ERASE_GATE:
        return STREAM_LATER;
    case SR_OPERAND_REMOVAL_KEY:
        return STREAM_LATER + 1;
    case SR_OPERAND_REMOVAL_GATE:
        return STREAM_LATER + 2;
    case SR_OPERAND_SINKS:
        return STREAM_LATER + 3;
    }
    return 0;
}

/* Gradients whose terms cancel to less than this fraction of the gradient of v, such as that of a
 * gate before an l2 norm, are measured against this fraction, because float cannot resolve them.
 * With a single visible key everything about the weights cancels; with heads of one number and
 * weights that are powers, everything about the query. */
static double cancelled(const srnn_problem *problem) {
    const srnn_score score = problem->attention.score;
    const bool power = score == SRNN_SCORE_LINEAR || score == SRNN_SCORE_POWER;
    const bool one_key = problem->T == 1 || problem->attention.window == 1;
    return one_key || (problem->D == 1 && power) ? 1 : 1e-2;
}

static void store(void *array, srnn_dtype dtype, int64_t at, float value) {
    switch (dtype) {
    case SRNN_F32:
        ((float *)array)[at] = value;
        break;
    case SRNN_F64:
        ((double *)array)[at] = (double)value;
        break;
    case SRNN_BF16:
        ((uint16_t *)array)[at] = sr_bf16_of(value);
        break;
    }
}

static double element(const void *array, srnn_dtype dtype, int64_t at) {
    switch (dtype) {
    case SRNN_F32:
        return (double)((const float *)array)[at];
    case SRNN_F64:
        return ((const double *)array)[at];
    case SRNN_BF16:
        return (double)sr_bf16_float(((const uint16_t *)array)[at]);
    }
    return 0;
}

/* True if exp is taken without subtracting a row maximum: exp(s) must be finite in float, so s must
 * stay below 88. */
static bool undivided_exp(const srnn_attention *a) {
    return a->score == SRNN_SCORE_EXP && a->clamp == 0 && !sr_row_scale_invariant(a);
}

/* The scale of queries for these: where the equation does not divide products by sqrt(D), the query
 * is divided instead. Numbers that rotate before elu1 come out positive as often as negative,
 * however negative they were: near 0 their features are near 1, and products near D. */
static double draw_small_query(const srnn_attention *a, double normal, int D) {
    if (a->scale != SRNN_SCALE_ONE)
        return 1.5 * normal;
    if (a->feature == SRNN_FEATURE_ELU1 && a->position == SRNN_POSITION_ROPE_CHUNKS)
        return 0.25 * normal;
    if (a->feature == SRNN_FEATURE_ELU1)
        return 0.5 * normal - 0.5 * log((double)D) - 1;
    return 1.5 * normal / sqrt((double)D);
}

/* Moderate numbers. Clamped scores should pass the clamp now and then, but never so close to it
 * that float and double fall on different sides, where the gradient jumps: q and k on a grid of
 * eighths make <q, k> exact. Row sums should stay away from zero: truncated series get small
 * scores, and scores that may be negative get positive queries and keys. The same holds for a
 * length that is divided by. */
static double draw_query(const srnn_attention *a, double normal, int D) {
    const bool powers = a->score == SRNN_SCORE_LINEAR || a->score == SRNN_SCORE_POWER;
    const bool unit = a->feature == SRNN_FEATURE_UNIT || a->feature == SRNN_FEATURE_UNIT_HEADS;
    const bool clamped_series = a->score == SRNN_SCORE_TAYLOR && a->clamp > 0;
    if (sr_needs_row_sum(a) && (powers || clamped_series))
        normal = fabs(normal);
    /* Never 0 where numbers are divided by their length over the heads, which may have two
     * numbers. */
    if (a->clamp > 0)
        return (rint(normal * 12) + (normal == fabs(normal) ? 1 : unit ? -1 : 0)) / 8;
    if (unit)
        return normal + copysign(0.5, normal);
    if (a->feature == SRNN_FEATURE_RELU) /* the slope jumps at 0 */
        normal += copysign(1e-3, normal);
    switch (a->score) {
    case SRNN_SCORE_EXP:
        return undivided_exp(a) ? draw_small_query(a, normal, D) : 1.5 * normal;
    case SRNN_SCORE_SIGMOID:
        return 1.5 * normal;
    case SRNN_SCORE_TAYLOR: /* both sides of a product that is not divided by sqrt(D) */
        return 0.7 * normal * (a->scale == SRNN_SCALE_ONE ? pow((double)D, -0.25) : 1);
    case SRNN_SCORE_LINEAR:
    case SRNN_SCORE_POWER:
        return sr_needs_row_sum(a) ? 0.7 * normal + 0.3 : 0.7 * normal;
    }
    return 0;
}

/* A factor for grids whose products are rounded anyway: with it no product is near a clamp. */
static const double OFF_GRID = 0.6180339887498949;

/* The delta rule is stable while beta score(|feature(k)|^2) stays below 2, so features of keys are
 * made short; where a feature is exp(k), keys are negative. */
static double draw_key(const srnn_attention *a, double normal, int D) {
    const double key = draw_query(a, normal, D);
    if (a->write != SRNN_WRITE_DELTA)
        return key;
    const bool exponential = a->score == SRNN_SCORE_EXP;
    switch (a->feature) {
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_RELU:
        return (float)key * (float)(OFF_GRID / sqrt((double)D));
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        /* sums of k^6, whose largest are far above their mean: all must be well below 1 for exp,
         * and keys for a clamp are twice as long */
        return (float)key *
               (float)((exponential || a->clamp > 0 ? 0.3 : 0.6) / pow((double)D, 1.0 / 6));
    case SRNN_FEATURE_ELU1:
        return 0.5 * normal - 0.5 * log((double)D) - 1;
    case SRNN_FEATURE_UNIT:
    case SRNN_FEATURE_UNIT_HEADS:
    case SRNN_FEATURE_UNIT_SMOOTH:
        break;
    }
    return key;
}

/* The write gate of the delta rule, up to about 1 after the sigmoid. Norms over the heads, as in
 * unit_heads, make keys sqrt(D) long however they were scaled: 1 - beta score(D) would be far below
 * -1, and the recurrence would grow without bound. There beta is made small instead. */
static double draw_write_gate(const srnn_attention *a, double normal, int D) {
    if (a->feature != SRNN_FEATURE_UNIT_HEADS)
        return normal - 1;
    switch (a->score) {
    case SRNN_SCORE_EXP:
        return normal - 1 - D;
    case SRNN_SCORE_TAYLOR:
    case SRNN_SCORE_POWER:
        return normal - 1 - a->order * log(1.0 + D);
    case SRNN_SCORE_SIGMOID:
        return normal - 1;
    case SRNN_SCORE_LINEAR:
        break;
    }
    return normal - 1 - log((double)D);
}

/* The operand holds the gate's logit, or the value after the sigmoid. */
static double draw_beta(const srnn_attention *a, double z) {
    return a->write_gate == SRNN_WRITE_GATE_GIVEN ? 1 / (1 + exp(-z)) : z;
}

/* `learned` is divided by 1024 in the equation and has either sign, so its sums grow. As a factor
 * of the logits of exp or of its series it stays near 1: logits of several hundred overflow float,
 * and sums of an odd series vanish. */
static double draw_decay(const srnn_attention *a, double normal) {
    const bool series = a->score == SRNN_SCORE_EXP || a->score == SRNN_SCORE_TAYLOR;
    if (a->decay == SRNN_DECAY_GIVEN) /* a few positive, most negative */
        return 0.3 * normal - 0.3;
    if (a->decay != SRNN_DECAY_LEARNED)
        return 2 * normal + 1;
    return series && sr_decay_in_logits(a) ? normal * 16 : normal * 256;
}

static float draw(const srnn_attention *a, sr_operand which, uint64_t seed, int64_t at, int D) {
    double normal = sr_random_normal(seed, stream_of(which), (uint64_t)at);
    switch (which) {
    case SR_OPERAND_Q:
        normal = draw_query(a, normal, D);
        /* rotated features at equal positions are equal, except for rounding */
        if (a->clamp > 0 && a->position == SRNN_POSITION_ROPE_FEATURES)
            normal *= 2 * OFF_GRID;
        return (float)normal;
    case SR_OPERAND_K:
        return (float)draw_key(a, normal, D);
    case SR_OPERAND_DECAY:
        return (float)draw_decay(a, normal);
    case SR_OPERAND_NORM_WEIGHT:
    case SR_OPERAND_SKIP_WEIGHT:
    case SR_OPERAND_LEVEL_SCALE:
        return (float)(1 + 0.2 * normal);
    case SR_OPERAND_POOL_GATE: /* some nearly 0 or 1: the remaining part of the gate counts too */
        return (float)(4 * normal);
    case SR_OPERAND_WRITE_GATE:
        return (float)draw_beta(a, draw_write_gate(a, normal, D));
    case SR_OPERAND_ERASE_GATE:
        return (float)draw_write_gate(a, normal, D);
    case SR_OPERAND_REMOVAL_KEY: /* never near 0: it is divided by its length */
        return (float)(normal + copysign(0.5, normal));
    case SR_OPERAND_A_LOG:
    case SR_OPERAND_DT_BIAS:
        return (float)(0.5 * normal - 1);
    case SR_OPERAND_V:
    case SR_OPERAND_REMOVAL_GATE:
    case SR_OPERAND_LEVEL_GATE:
    case SR_OPERAND_SKIP:
    case SR_OPERAND_VALUE_GATE:
    case SR_OPERAND_OUTPUT_GATE:
    case SR_OPERAND_NORM_BIAS:
    case SR_OPERAND_VALUE_POWER:
    case SR_OPERAND_SINKS:
        return (float)normal;
    }
    return 0;
}

/* Large arrays, which are used for timing, repeat the same numbers. */
enum { PERIOD = 1 << 20 };

static void repeat(void *numbers, srnn_dtype dtype, int64_t elements) {
    const size_t size = sr_element_bytes(dtype);
    for (int64_t done = PERIOD; done < elements; done += PERIOD)
        memcpy((char *)numbers + (size_t)done * size, numbers,
               (size_t)(elements - done < PERIOD ? elements - done : PERIOD) * size);
}

static void fill(attention_call *run, uint64_t seed) {
    const srnn_problem *p = &run->problem;
    for (int which = 0; which < SR_OPERANDS; which++) {
        const sr_shape shape = sr_operand_shape((sr_operand)which, p);
        const srnn_dtype dtype = sr_operand_dtype((sr_operand)which, p);
        void *numbers = run->host.operand[which];
        const int64_t elements = numbers ? sr_shape_numbers(&shape) : 0;
        for (int64_t i = 0; i < elements && i < PERIOD; i++)
            store(numbers, dtype, i, draw(&p->attention, (sr_operand)which, seed, i, p->D));
        repeat(numbers, dtype, elements);
    }
    const sr_shape shape = sr_output_shape(p);
    for (int64_t i = 0; i < sr_shape_numbers(&shape) && i < PERIOD; i++)
        store(run->host.d_o, p->dtype, i, (float)sr_random_normal(seed, STREAM_D_O, (uint64_t)i));
    repeat(run->host.d_o, p->dtype, sr_shape_numbers(&shape));
}

srnn_status probe_create(attention_call *run, const srnn_problem *problem, uint64_t seed) {
    SR_TRY(call_create(run, problem));
    fill(run, seed);
    return SRNN_OK;
}

srnn_status probe_copy(attention_call *run, const srnn_problem *problem,
                       const attention_call *from) {
    SR_TRY(call_create(run, problem));
    const srnn_problem *p = &run->problem;
    for (int which = 0; which <= SR_OPERANDS; which++) {
        const bool operand = which < SR_OPERANDS;
        const sr_shape shape =
            operand ? sr_operand_shape((sr_operand)which, p) : sr_output_shape(p);
        const srnn_dtype to_type = operand ? sr_operand_dtype((sr_operand)which, p) : p->dtype;
        const srnn_dtype from_type =
            operand ? sr_operand_dtype((sr_operand)which, &from->problem) : from->problem.dtype;
        const void *numbers = operand ? from->host.operand[which] : from->host.d_o;
        const int64_t elements = numbers ? sr_shape_numbers(&shape) : 0;
        for (int64_t i = 0; i < elements; i++)
            store(operand ? run->host.operand[which] : run->host.d_o, to_type, i,
                  (float)element(numbers, from_type, i));
    }
    return SRNN_OK;
}

/* A contiguous tensor of the whole sequence, as a view from position t on. */
static srnn_tensor from_position(const srnn_problem *p, void *array, const sr_shape *shape, int t) {
    const int64_t width = shape->rank == 4 ? shape->sizes[3] : 1;
    return (srnn_tensor){.data =
                             (char *)array + (size_t)t * (size_t)width * sr_element_bytes(p->dtype),
                         .batch = shape->sizes[1] * p->T * width,
                         .head = p->T * width,
                         .time = width};
}

static srnn_status feed_piece(const attention_call *run, srnn_state *state, int t, int tokens) {
    const srnn_problem *p = &run->problem;
    srnn_operands in = call_operands(run);
    for (int which = 0; which < SR_OPERANDS; which++) {
        const sr_shape shape = sr_operand_shape((sr_operand)which, p);
        void *data = sr_operand_data((sr_operand)which, &in);
        if (data && sr_operand_is_tensor((sr_operand)which))
            sr_operand_set_tensor((sr_operand)which, &in, from_position(p, data, &shape, t));
    }
    const sr_shape output = sr_output_shape(p);
    return srnn_state_feed(state, from_position(p, run->device.o, &output, t), &in, tokens);
}

/* Saves the state, resets it, and loads it again. */
static srnn_status save_and_load(srnn_state *state) {
    size_t bytes = srnn_state_saved_bytes(state);
    void *copy;
    SR_TRY(sr_alloc(&copy, bytes, 1));
    srnn_status status = srnn_state_save(state, copy, bytes);
    srnn_state_reset(state);
    if (status == SRNN_OK)
        status = srnn_state_load(state, copy, bytes);
    free(copy);
    return status;
}

srnn_status probe_feed(attention_call *run, uint64_t seed) {
    srnn_state *state;
    SR_TRY(srnn_state_create(&state, &run->problem));
    int T = run->problem.T;
    srnn_status status = call_send(run);
    for (int t = 0; t < T && status == SRNN_OK;) {
        uint64_t left = (uint64_t)(T - t);
        int tokens = 1 + (int)sr_random_below(seed, STREAM_CUTS, (uint64_t)t, left);
        if (t > 0)
            status = save_and_load(state);
        if (status == SRNN_OK)
            status = feed_piece(run, state, t, tokens);
        t += tokens;
    }
    srnn_state_free(state);
    return status == SRNN_OK ? call_fetch(run) : status;
}

srnn_status probe_feed_tokens(attention_call *run, int piece) {
    srnn_state *state;
    SR_TRY(srnn_state_create(&state, &run->problem));
    srnn_status status = call_send(run);
    const int T = run->problem.T;
    for (int t = 0, single = 0, tokens; t < T && status == SRNN_OK; t += tokens) {
        tokens = piece > 0 && single == 10 ? (piece < T - t ? piece : T - t) : 1;
        single = tokens > 1 ? 0 : single + 1;
        status = feed_piece(run, state, t, tokens);
    }
    srnn_state_free(state);
    return status == SRNN_OK ? call_fetch(run) : status;
}

/* The oracle sees operands rounded to the narrower type. */
static void round_operands(attention_call *oracle) {
    const srnn_problem *p = &oracle->problem;
    const sr_shape output = sr_output_shape(p);
    for (int which = 0; which <= SR_OPERANDS; which++) {
        const sr_shape shape =
            which < SR_OPERANDS ? sr_operand_shape((sr_operand)which, p) : output;
        double *numbers = which < SR_OPERANDS ? oracle->host.operand[which] : oracle->host.d_o;
        const srnn_problem narrow = {.dtype = SRNN_BF16};
        if (which < SR_OPERANDS && sr_operand_dtype((sr_operand)which, &narrow) != SRNN_BF16)
            continue;
        const int64_t elements = numbers ? sr_shape_numbers(&shape) : 0;
        for (int64_t i = 0; i < elements; i++)
            numbers[i] = (double)sr_bf16_float(sr_bf16_of((float)numbers[i]));
    }
}

/* The logit z of a gate that decays the state by about e^-strength. */
static double strong_gate(const srnn_attention *a, double strength) {
    switch (a->decay) {
    case SRNN_DECAY_NONE:
        break;
    case SRNN_DECAY_LEARNED:
        return -1024 * strength;
    case SRNN_DECAY_LOG_SIGMOID:
    case SRNN_DECAY_GIVEN:
        return -strength;
    case SRNN_DECAY_SOFTPLUS:
    case SRNN_DECAY_BOUNDED:
    case SRNN_DECAY_NEG_SOFTPLUS:
        return strength;
    }
    return 0;
}

/* The logarithm of how much stronger than e^-10 a gate may be: e^-3000; e^-300 where every channel
 * has a gate and a rate, whose gradient sums rounding errors times their strength, in the oracle
 * too; e^-100 where the same number scales the token's value, next to which other values would be
 * rounding noise. */
static double strong_powers(const srnn_attention *a) {
    if (a->value_gate == SRNN_VALUE_GATE_TIME_STEP)
        return 1;
    return a->decay_width == SRNN_WIDTH_CHANNEL && sr_decay_has_rate(a) ? 1.5 : 2.5;
}

/* For about half of all lengths T, one gate in 16 forgets everything; a fifth of these are
 * masks, -1e30 or -inf. What follows such a gate, and other documents, must stay exact. */
static void strengthen_gates(attention_call *call, uint64_t seed) {
    const srnn_problem *p = &call->problem;
    const sr_shape shape = sr_operand_shape(SR_OPERAND_DECAY, p);
    const double powers = strong_powers(&p->attention);
    const bool masks = p->attention.value_gate != SRNN_VALUE_GATE_TIME_STEP;
    double *numbers = call->host.operand[SR_OPERAND_DECAY];
    if (!numbers || sr_random_below(seed, STREAM_STRONG, (uint64_t)p->T, 2) == 0)
        return;
    for (int64_t i = 0; i < sr_shape_numbers(&shape); i++) {
        const double uniform = sr_random_uniform(seed, STREAM_STRENGTH, (uint64_t)i);
        const double mask = uniform > 0.9 ? (double)INFINITY : 1e30;
        const double strength = masks && uniform > 0.8 ? mask : pow(10, 1 + powers * uniform);
        if (sr_random_below(seed, STREAM_PLACES, (uint64_t)i, 16) == 0)
            numbers[i] = (double)(float)strong_gate(&p->attention, strength);
    }
}

/* probe_oracle with the operands of one seed. */
static srnn_status oracle_of_seed(attention_call *oracle, const srnn_problem *problem,
                                  uint64_t seed, double *clearance) {
    srnn_problem wide = *problem;
    wide.dtype = SRNN_F64;
    wide.device = NULL;
    SR_TRY(probe_create(oracle, &wide, seed));
    strengthen_gates(oracle, seed);
    if (problem->dtype == SRNN_BF16)
        round_operands(oracle);
    const srnn_operands in = call_operands(oracle), gradients = call_gradients(oracle);
    const srnn_status status = sr_oracle_run_clear(oracle->host.o, &gradients, oracle->host.d_o,
                                                   &oracle->problem, &in, clearance);
    if (status != SRNN_OK)
        call_free(oracle);
    return status;
}

srnn_status probe_oracle(attention_call *oracle, const srnn_problem *problem, uint64_t seed) {
    /* The minimum clearance from a clamp. Features off the grid come arbitrarily close to it: of
     * the tens of thousands of pairs of a problem, one in a million is not rare. Sums in float are
     * a few ulps off; those in bf16 so often that no seed would pass, so bf16 has separate
     * limits. */
    static const double CLEAR = 4e-6;
    enum { ATTEMPTS = 16 };
    double clearance = 0;
    for (uint64_t attempt = 0;; attempt++) {
        SR_TRY(oracle_of_seed(oracle, problem, seed + (attempt << 32), &clearance));
        if (clearance >= CLEAR || problem->dtype != SRNN_F32 || attempt == ATTEMPTS)
            return SRNN_OK;
        call_free(oracle);
    }
}

srnn_status probe_oracle_run(attention_call *oracle) {
    const srnn_operands in = call_operands(oracle), gradients = call_gradients(oracle);
    return sr_oracle_run(oracle->host.o, &gradients, oracle->host.d_o, &oracle->problem, &in);
}

/* The errors of a computation in this dtype that rounds in another way: sr_oracle_run_rounded. */
static srnn_status rounded_errors(probe_errors *errors, const attention_call *oracle,
                                  srnn_dtype dtype, double scale, uint64_t state_seed) {
    attention_call call;
    SR_TRY(probe_copy(&call, &oracle->problem, oracle));
    const srnn_operands in = call_operands(&call), gradients = call_gradients(&call);
    srnn_problem problem = call.problem;
    problem.dtype = dtype;
    const srnn_status status = sr_oracle_run_rounded(call.host.o, &gradients, call.host.d_o,
                                                     &problem, &in, scale, state_seed);
    if (status == SRNN_OK)
        *errors = probe_errors_of(&call, oracle, true);
    call_free(&call);
    return status;
}

srnn_status probe_plain_errors(probe_errors *errors, const srnn_problem *problem,
                               const attention_call *oracle) {
    return rounded_errors(errors, oracle, problem->dtype, 1, 0);
}

static void keep_worst(probe_errors *worst, const probe_errors *errors, double share) {
    for (int n = 0; n < PROBE_TENSORS; n++)
        if (!(share * errors->of[n] <= worst->of[n])) /* written so that a NaN remains */
            worst->of[n] = share * errors->of[n];
}

/* Whether a product made of this operand may be exactly at a clamp, where the slope jumps however
 * small the change: features that stay on the grid of q and k. */
static bool stands_at_clamp(const srnn_attention *a, sr_operand which) {
    const bool grid = a->feature == SRNN_FEATURE_IDENTITY || a->feature == SRNN_FEATURE_RELU ||
                      a->feature == SRNN_FEATURE_ELU1;
    const bool key = which == SR_OPERAND_Q || which == SR_OPERAND_K;
    return a->clamp > 0 && grid && (key || (which == SR_OPERAND_DECAY && sr_decay_in_logits(a)));
}

/* Moves every operand by half an ulp of float, up or down, where that is allowed. */
static void nudge_operands(attention_call *call, uint64_t seed) {
    for (int which = 0; which < SR_OPERANDS; which++) {
        const sr_shape shape = sr_operand_shape((sr_operand)which, &call->problem);
        double *numbers = call->host.operand[which];
        if (stands_at_clamp(&call->problem.attention, (sr_operand)which))
            continue;
        for (int64_t i = 0; numbers && i < sr_shape_numbers(&shape); i++)
            numbers[i] *=
                sr_random_below(seed, (uint64_t)which, (uint64_t)i, 2) ? 1 + 0x1p-24 : 1 - 0x1p-24;
    }
}

/* The errors of one exact computation on perturbed operands: the result is not determined more
 * accurately than that. */
static srnn_status nudged_errors(probe_errors *errors, const attention_call *oracle,
                                 uint64_t seed) {
    attention_call nudged;
    SR_TRY(probe_copy(&nudged, &oracle->problem, oracle));
    nudge_operands(&nudged, seed);
    const srnn_status status = probe_oracle_run(&nudged);
    if (status == SRNN_OK)
        *errors = probe_errors_of(&nudged, oracle, true);
    call_free(&nudged);
    return status;
}

static bool has_state(const srnn_problem *problem) {
    const bool state = problem->form == SRNN_FORM_CHUNKED || problem->form == SRNN_FORM_RECURRENT;
    return state && srnn_attention_has_state(&problem->attention);
}

srnn_status probe_find_losses(probe_errors *losses, const srnn_problem *problem,
                              const attention_call *oracle) {
    enum { OTHERS = 5 };
    /* A state has thousands of products, and one perturbation samples them poorly: kernels lose up
     * to twice as much. Kernels may lose four times this error, where they may lose sixteen times
     * the others. */
    static const double STATE_SHARE = 0.25;
    probe_errors own;
    SR_TRY(probe_plain_errors(losses, problem, oracle));
    for (uint64_t seed = 1; seed <= OTHERS; seed++) {
        SR_TRY(nudged_errors(&own, oracle, seed));
        keep_worst(losses, &own, 1);
        const double scale = exp2((double)seed / (OTHERS + 1));
        SR_TRY(rounded_errors(&own, oracle, problem->dtype, scale, 0));
        keep_worst(losses, &own, 1);
        /* a linear state holds the keys themselves, which are perturbed as operands */
        if (!has_state(problem) || problem->attention.score == SRNN_SCORE_LINEAR)
            continue;
        SR_TRY(rounded_errors(&own, oracle, SRNN_F64, 1, seed));
        keep_worst(losses, &own, STATE_SHARE);
    }
    return SRNN_OK;
}

static bool all_within(const probe_errors *errors, double limit, const probe_errors *plain) {
    for (int n = 0; n < PROBE_TENSORS; n++)
        if (!(errors->of[n] <= limit) &&
            !(isfinite(errors->of[n]) && errors->of[n] <= probe_plain_limit(plain->of[n])))
            return false;
    return true;
}

srnn_status probe_is_plain(bool *is, probe_plain *plain, const probe_errors *errors, double limit,
                           const srnn_problem *problem, const attention_call *oracle) {
    enum { SCALES = 32 };
    while (!(*is = all_within(errors, limit, &plain->worst)) && plain->count < SCALES) {
        probe_errors own;
        plain->count++;
        SR_TRY(rounded_errors(&own, oracle, problem->dtype, exp2(plain->count / (SCALES + 1.0)),
                              has_state(problem) ? (uint64_t)plain->count : 0));
        keep_worst(&plain->worst, &own, 1);
    }
    return SRNN_OK;
}

bool probe_is_excused(const probe_errors *errors, const probe_errors *losses, double limit) {
    /* Sums in those computations are exact, but a kernel rounds each term as well. Where few terms
     * cancel, as for one token before a norm, six samples are few: mamba2 loses six times as much
     * there, the gradient of a power of positions seven times. More than MOST is never accepted. */
    static const double ROUNDINGS = 16, MOST = 1e-3;
    for (int n = 0; n < PROBE_TENSORS; n++)
        if (!(errors->of[n] <= limit) &&
            !(errors->of[n] <= MOST && errors->of[n] <= ROUNDINGS * losses->of[n]))
            return false;
    return true;
}

/* Twice the plain error; where rounding happened to cost almost nothing, half an ulp of the
 * output. */
double probe_plain_limit(double plain_error) {
    return 2 * plain_error + 0x1p-9;
}

/* ---- random combinations */

/* Axes of the layer around the equation; the layer's form determines its operands. */
static bool outside(const sr_axis *axis) {
    return axis->of == SR_AXIS_OF_LAYER && strcmp(axis->name, "layer") != 0;
}

/* Up to 4; every other window is about a tile. */
static double draw_count(const sr_axis *axis, uint64_t seed, uint64_t stream) {
    const bool wide = strcmp(axis->name, "window") == 0 && sr_random_below(seed, stream, 3, 2) == 0;
    return wide ? 90 + (double)sr_random_below(seed, stream, 2, 16)
                : 1 + (double)sr_random_below(seed, stream, 2, 4);
}

/* Biases are negative, as published ones are. */
static double draw_number(const sr_axis *axis, uint64_t seed, uint64_t stream) {
    const double size = 0.75 + (double)sr_random_below(seed, stream, 2, 4);
    return strcmp(axis->name, "score_bias") == 0 ? -size : size;
}

/* Half of the time the default, else any value. */
static void draw_axis(srnn_attention *a, const sr_axis *axis, uint64_t seed, uint64_t stream) {
    const uint64_t words = sr_axis_words(axis);
    if (sr_random_below(seed, stream, 0, 2) == 0)
        return;
    const unsigned word = (unsigned)sr_random_below(seed, stream, 1, words);
    switch (axis->kind) {
    case SR_AXIS_WORD:
    case SR_AXIS_SWITCH:
        sr_axis_set(axis, a, word);
        if (axis->counted >> word & 1)
            sr_axis_set_count(axis, a, 1 + (int)sr_random_below(seed, stream, 2, 4));
        break;
    case SR_AXIS_COUNT:
        sr_axis_set(axis, a, draw_count(axis, seed, stream));
        break;
    case SR_AXIS_NUMBER:
        sr_axis_set(axis, a, draw_number(axis, seed, stream));
        break;
    }
}

/* Resets fields that have no meaning with the values drawn for other axes, so that few draws are
 * refused. */
static void mend_draw(srnn_attention *a) {
    if (a->value_gate == SRNN_VALUE_GATE_TIME_STEP)
        a->decay = SRNN_DECAY_SOFTPLUS;
    const bool rated = a->decay == SRNN_DECAY_SOFTPLUS || a->decay == SRNN_DECAY_BOUNDED;
    if (a->decay == SRNN_DECAY_BOUNDED && a->decay_bound == 0)
        a->decay_bound = 2.75;
    if (a->decay != SRNN_DECAY_BOUNDED)
        a->decay_bound = 0;
    if (a->decay != SRNN_DECAY_LOG_SIGMOID)
        a->decay_divisor = 0;
    if (a->score != SRNN_SCORE_SIGMOID)
        a->score_bias = 0;
    if (!rated || (a->decay == SRNN_DECAY_SOFTPLUS && a->dt_width == SRNN_DT_WIDTH_NONE) ||
        (a->decay_width == SRNN_WIDTH_HEAD && a->dt_width == SRNN_DT_WIDTH_CHANNEL))
        a->dt_width = SRNN_DT_WIDTH_HEAD;
    if (a->write != SRNN_WRITE_DELTA) {
        a->write_range = SRNN_WRITE_RANGE_1;
        a->write_width = SRNN_WIDTH_HEAD;
        a->write_gate = SRNN_WRITE_GATE_SIGMOID;
    }
    if (sr_writes_channels(a) && a->value_gate == SRNN_VALUE_GATE_TIME_STEP)
        a->value_gate = SRNN_VALUE_GATE_SIGMOID;
    if (!sr_erases_apart(a))
        return;
    a->score = SRNN_SCORE_LINEAR;
    a->order = 0;
    a->score_bias = 0;
    a->clamp = 0;
    a->pool = 0;
    a->levels = SRNN_LEVELS_NONE;
    if (a->position != SRNN_POSITION_ROPE)
        a->position = SRNN_POSITION_NONE;
}

srnn_attention probe_attention(uint64_t seed) {
    const sr_axis *axis;
    for (uint64_t attempt = 0;; attempt++) {
        srnn_attention a = {0};
        for (size_t i = 0; (axis = sr_axis_at(i)); i++)
            if (!outside(axis))
                draw_axis(&a, axis, seed + (attempt << 32), i);
        mend_draw(&a);
        if (srnn_attention_check(&a) == SRNN_OK)
            return a;
    }
}

double probe_limit(const srnn_problem *problem, srnn_form form) {
    const srnn_attention *attention = &problem->attention;
    const bool powers =
        attention->score == SRNN_SCORE_LINEAR || attention->score == SRNN_SCORE_POWER;
    /* Twice the error of a plain computation that rounds features, weights, the output and the
     * gradient of the scores to bf16. The gradient of q cancels where weights are nearly equal:
     * linear_elu loses 2.2e-2 there, softmax 1e-2. */
    if (problem->dtype == SRNN_BF16)
        return powers ? 4e-2 : 2e-2;
    /* GPUs sum in other orders, and their exponential is accurate to two ulps. */
    if (problem->device && !sr_device_is_host(problem->device))
        return 1e-4;
    /* Other forms sum in another order, through the terms of the series. */
    const double usual = form == SRNN_FORM_PARALLEL ? 1e-5 : 2e-5;
    /* A power multiplies the relative rounding error of its argument. */
    const double power = attention->score == SRNN_SCORE_POWER ? 1e-6 * attention->order : 0;
    return fmax(usual, power);
}

static double root_mean_square(const attention_call *oracle, sr_operand which) {
    sr_shape shape = sr_operand_shape(which, &oracle->problem);
    int64_t elements = sr_shape_numbers(&shape);
    const double *values = oracle->host.gradient[which];
    double sum = 0;
    for (int64_t i = 0; i < elements; i++)
        sum += values[i] * values[i];
    return sqrt(sum / (double)elements);
}

/* The norm of the oracle counts as at least that of elements of size `floor`. */
static double relative_error(const void *values, srnn_dtype dtype, const double *expected,
                             int64_t elements, double floor) {
    double difference = 0, norm = 0, least = floor * floor * (double)elements;
    for (int64_t i = 0; i < elements; i++) {
        double off = element(values, dtype, i) - expected[i];
        difference += off * off;
        norm += expected[i] * expected[i];
    }
    return difference == 0 ? 0 : sqrt(difference / (norm < least ? least : norm));
}

double probe_output_error(const attention_call *run, const attention_call *oracle) {
    sr_shape shape = sr_output_shape(&run->problem);
    return relative_error(run->host.o, run->problem.dtype, oracle->host.o, sr_shape_numbers(&shape),
                          0);
}

probe_errors probe_errors_of(const attention_call *run, const attention_call *oracle,
                             bool gradients) {
    probe_errors errors = {{0}};
    const double floor = cancelled(&run->problem) * root_mean_square(oracle, SR_OPERAND_V);
    for (int which = 0; which < SR_OPERANDS && gradients; which++) {
        if (!run->host.gradient[which])
            continue;
        const sr_shape shape = sr_operand_shape((sr_operand)which, &run->problem);
        errors.of[which] =
            relative_error(run->host.gradient[which],
                           sr_operand_dtype((sr_operand)which, &run->problem),
                           oracle->host.gradient[which], sr_shape_numbers(&shape), floor);
    }
    errors.of[PROBE_OUTPUT] = probe_output_error(run, oracle);
    return errors;
}

double probe_worst(const probe_errors *errors) {
    double worst = 0;
    for (int n = 0; n < PROBE_TENSORS && !isnan(worst); n++)
        if (!(errors->of[n] <= worst))
            worst = errors->of[n];
    return worst;
}

double probe_gradient_error(const attention_call *run, const attention_call *oracle) {
    probe_errors errors = probe_errors_of(run, oracle, true);
    errors.of[PROBE_OUTPUT] = 0;
    return probe_worst(&errors);
}
