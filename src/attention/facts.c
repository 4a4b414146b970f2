/* facts.c: what follows from a descriptor. */
#include "attention/attention.h"

#include "attention/axes.h"

#include <math.h>

static srnn_status check_words(const srnn_attention *a) {
    const sr_axis *axis;
    for (size_t i = 0; (axis = sr_axis_at(i)); i++) {
        const double value = sr_axis_value(axis, a), last = (double)sr_axis_words(axis) - 1;
        if (axis->kind == SR_AXIS_WORD && value > last)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: %s has no value number %.0f (0 to %.0f)",
                           axis->name, value, last);
    }
    return SRNN_OK;
}

static srnn_status check_order(const srnn_attention *a) {
    int low = 0, high = 0;
    const char *score = "";
    switch (a->score) {
    case SRNN_SCORE_EXP:
        score = "exp";
        break;
    case SRNN_SCORE_LINEAR:
        score = "linear";
        break;
    case SRNN_SCORE_TAYLOR:
        score = "taylor";
        high = SR_TAYLOR_ORDER_MAX;
        break;
    case SRNN_SCORE_POWER:
        score = "power";
        low = 1;
        high = SR_POWER_ORDER_MAX;
        break;
    }
    if (a->order < low || a->order > high)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "attention: score=%s takes an order from %d to %d, not %d", score, low, high,
                       a->order);
    return SRNN_OK;
}

srnn_status srnn_attention_check(const srnn_attention *a) {
    SR_TRY(check_words(a));
    SR_TRY(check_order(a));
    if (a->short_conv < 0 || a->short_conv > SR_SHORT_CONV_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: short_conv is from 0 to %d, not %d",
                       SR_SHORT_CONV_MAX, a->short_conv);
    if (a->front_tokens < 0 || a->front_tokens > SR_FRONT_TOKENS_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: front_tokens is from 0 to %d, not %d",
                       SR_FRONT_TOKENS_MAX, a->front_tokens);
    if (!isfinite(a->clamp) || a->clamp < 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: clamp is a positive number or none, not %g",
                       a->clamp);
    if (!isfinite(a->epsilon) || a->epsilon < 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: epsilon is 0 or more, not %g", a->epsilon);
    return SRNN_OK;
}

double sr_scale_factor(const srnn_attention *attention, int D) {
    switch (attention->scale) {
    case SRNN_SCALE_INVERSE_SQRT:
        return 1.0 / sqrt((double)D);
    case SRNN_SCALE_ONE:
        break;
    }
    return 1.0;
}

bool sr_needs_row_sum(const srnn_attention *a) {
    switch (a->normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        return true;
    case SRNN_NORMALISER_ROW_LENGTH:
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_CUMULATIVE_GATE:
    case SRNN_NORMALISER_VALUE_POWER:
        return false;
    }
    return false;
}

/* True if the norm leaves nothing of a factor of its row. */
static bool norm_ignores_factors(srnn_norm norm) {
    switch (norm) {
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        return true;
    case SRNN_NORM_NONE:
    case SRNN_NORM_LAYER:
    case SRNN_NORM_RMS:
        return false;
    }
    return false;
}

bool sr_row_scale_invariant(const srnn_attention *a) {
    bool cancels_in_norm = norm_ignores_factors(a->norm);
    bool cancels_in_division = a->normaliser == SRNN_NORMALISER_ROW_SUM && a->epsilon == 0;
    return cancels_in_norm || cancels_in_division;
}

bool sr_floor_follows_rows(const srnn_attention *a) {
    return a->score == SRNN_SCORE_EXP && a->normaliser != SRNN_NORMALISER_ROW_SUM &&
           norm_ignores_factors(a->norm);
}

bool srnn_attention_has_state(const srnn_attention *a) {
    return a->score != SRNN_SCORE_EXP && a->clamp == 0;
}

bool sr_has_order(const srnn_attention *a, int n) {
    switch (a->score) {
    case SRNN_SCORE_EXP:
        return true;
    case SRNN_SCORE_LINEAR:
        return n == 1;
    case SRNN_SCORE_TAYLOR:
        return n <= a->order;
    case SRNN_SCORE_POWER:
        return n == a->order;
    }
    return false;
}

int sr_highest_order(const srnn_attention *a) {
    switch (a->score) {
    case SRNN_SCORE_EXP:
        return 0;
    case SRNN_SCORE_LINEAR:
        return 1;
    case SRNN_SCORE_TAYLOR:
    case SRNN_SCORE_POWER:
        return a->order;
    }
    return 0;
}

/* C(D+n-1, n) from C(D+n-2, n-1), exact without a product larger than the result. */
static bool next_multisets(size_t *count, size_t D, size_t n) {
    size_t factor = D + n - 1, whole;
    if (__builtin_mul_overflow(*count / n, factor, &whole))
        return false;
    return !__builtin_add_overflow(whole, *count % n * factor / n, count);
}

size_t srnn_attention_state_numbers(const srnn_attention *a, int D, int Dv) {
    if (!srnn_attention_has_state(a) || D < 1 || Dv < 1)
        return 0;
    size_t multisets = 1, rows = 0, numbers;
    for (int n = 0; n <= sr_highest_order(a); n++) {
        if (n > 0 && !next_multisets(&multisets, (size_t)D, (size_t)n))
            return SIZE_MAX;
        if (sr_has_order(a, n) && __builtin_add_overflow(rows, multisets, &rows))
            return SIZE_MAX;
    }
    size_t columns = (size_t)Dv + sr_needs_row_sum(a);
    return __builtin_mul_overflow(rows, columns, &numbers) ? SIZE_MAX : numbers;
}
