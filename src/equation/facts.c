/* facts.c: facts derived from a descriptor. */
#include "equation/facts.h"

#include "equation/axes.h"
#include "equation/norm.h"

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
    case SRNN_SCORE_SIGMOID:
        score = "sigmoid";
        break;
    }
    if (a->order < low || a->order > high)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "attention: score=%s takes an order from %d to %d, not %d", score, low, high,
                       a->order);
    return SRNN_OK;
}

static srnn_status check_count(const char *name, int count, int most) {
    if (count < 0 || count > most)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: %s is from 0 to %d, not %d", name, most,
                       count);
    return SRNN_OK;
}

static srnn_status check_number(const char *name, double number) {
    if (!isfinite(number) || number < 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: %s is 0 or more, not %g", name, number);
    return SRNN_OK;
}

static srnn_status check_wiring(const srnn_wiring *w) {
    SR_TRY(check_number("rope_theta", w->rope_theta));
    SR_TRY(check_number("softmax_scale", w->softmax_scale));
    if (!(w->rope_part >= 0 && w->rope_part <= 1))
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "attention: rope_part is a part of a head, above 0 and up to 1, not %g",
                       w->rope_part);
    return SRNN_OK;
}

static srnn_status check_positive(const char *name, double number) {
    if (!isfinite(number) || number < 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: %s is a positive number or none, not %g",
                       name, number);
    return SRNN_OK;
}

srnn_status sr_attention_check_values(const srnn_attention *a) {
    SR_TRY(check_words(a));
    SR_TRY(check_order(a));
    SR_TRY(check_count("short_conv", a->wiring.short_conv, SR_SHORT_CONV_MAX));
    SR_TRY(check_count("prefix_tokens", a->wiring.prefix_tokens, SR_PREFIX_TOKENS_MAX));
    SR_TRY(check_wiring(&a->wiring));
    SR_TRY(check_count("pool", a->pool, SR_POOL_MAX));
    SR_TRY(check_count("window", a->window, SR_WINDOW_MAX));
    SR_TRY(check_positive("clamp", a->clamp));
    SR_TRY(check_positive("cap", a->cap));
    if (a->cap != 0 && (a->cap < SR_CAP_LEAST || a->cap > SR_CAP_MOST))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: cap is %g to %g, not %g", SR_CAP_LEAST,
                       SR_CAP_MOST, a->cap);
    if (!isfinite(a->score_bias))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: score_bias is a finite number, not %g",
                       a->score_bias);
    SR_TRY(check_number("epsilon", a->epsilon));
    SR_TRY(check_number("decay_divisor", a->decay_divisor));
    SR_TRY(check_number("decay_bound", a->decay_bound));
    SR_TRY(check_number("norm_epsilon", a->norm_epsilon));
    const bool taps = a->skip == SRNN_SKIP_CONV;
    if (a->skip_conv < (taps ? 1 : 0) || a->skip_conv > (taps ? SR_SHORT_CONV_MAX : 0))
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "attention: skip=conv takes from 1 to %d taps and other skips none, not %d",
                       SR_SHORT_CONV_MAX, a->skip_conv);
    return SRNN_OK;
}

/* Two axes that exclude each other, and why. */
typedef struct conflict {
    bool there;
    const char *why;
} conflict;

static bool gate_is_summed(const srnn_attention *a) {
    return a->normaliser == SRNN_NORMALISER_CUMULATIVE_GATE ||
           a->output_gate == SRNN_GATE_INVERSE_EXP ||
           a->output_gate == SRNN_GATE_INVERSE_CUMULATIVE;
}

/* True if the decay has a learned rate and bias, or may have them. */
static bool decay_is_rated(srnn_decay decay) {
    switch (decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
    case SRNN_DECAY_LOG_SIGMOID:
    case SRNN_DECAY_NEG_SOFTPLUS:
    case SRNN_DECAY_GIVEN:
        return false;
    case SRNN_DECAY_SOFTPLUS:
    case SRNN_DECAY_BOUNDED:
        break;
    }
    return true;
}

bool sr_decay_has_rate(const srnn_attention *a) {
    return decay_is_rated(a->decay) && a->dt_width != SRNN_DT_WIDTH_NONE;
}

static srnn_status check_decay(const srnn_attention *a) {
    const bool per_channel = a->decay != SRNN_DECAY_NONE && a->decay_width == SRNN_WIDTH_CHANNEL;
    const bool bounded = a->decay == SRNN_DECAY_BOUNDED;
    const conflict conflicts[] = {
        {a->decay_divisor != 0 && a->decay != SRNN_DECAY_LOG_SIGMOID,
         "decay_divisor divides the logarithm of a sigmoid: it needs decay=log_sigmoid; without "
         "that it is decay_divisor=1"},
        {bounded != (a->decay_bound != 0) && a->decay != SRNN_DECAY_NONE,
         "decay_bound is the strongest decay of decay=bounded, which needs it, as in "
         "decay=bounded,decay_bound=5; without that it is decay_bound=none"},
        {a->decay != SRNN_DECAY_NONE && a->dt_width != SRNN_DT_WIDTH_HEAD &&
             !decay_is_rated(a->decay),
         "dt_width is that of dt_bias: it needs decay=softplus or decay=bounded"},
        {a->decay == SRNN_DECAY_SOFTPLUS && a->dt_width == SRNN_DT_WIDTH_NONE,
         "decay=softplus without a_log and dt_bias is decay=neg_softplus: use that"},
        {a->decay != SRNN_DECAY_NONE && !per_channel && a->dt_width == SRNN_DT_WIDTH_CHANNEL,
         "dt_width=channel is a bias for each number of the decay: it needs decay_width=channel"},
        {per_channel && a->score != SRNN_SCORE_LINEAR && a->decay_place == SRNN_DECAY_PLACE_WEIGHT,
         "a decay per channel acts inside the product of q and k: it needs decay_place=logit, or "
         "score=linear, where both places are the same"},
        {per_channel && sr_feature_width(a, 1) != 1,
         "a decay per channel has one number for each channel of k, but this feature makes two of "
         "each"},
        {a->value_gate == SRNN_VALUE_GATE_TIME_STEP && a->decay != SRNN_DECAY_SOFTPLUS,
         "value_gate=time_step is the number that drives the decay: it needs decay=softplus"},
        {a->value_gate == SRNN_VALUE_GATE_TIME_STEP && sr_writes_channels(a),
         "value_gate=time_step is a number of a head of v, and with write_width=channel the decay "
         "belongs to the heads of k: it needs write_width=head"},
        {a->value_gate == SRNN_VALUE_GATE_TIME_STEP && per_channel,
         "value_gate=time_step is one number per head: it needs decay_width=head"},
    };
    for (size_t i = 0; i < sizeof conflicts / sizeof *conflicts; i++)
        if (conflicts[i].there)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: %s", conflicts[i].why);
    return SRNN_OK;
}

static srnn_status check_rows(const srnn_attention *a) {
    const conflict conflicts[] = {
        {a->window && a->pool,
         "window counts keys of single tokens, and with pool a row sees the last token of each "
         "chunk: use one of them"},
        {a->window && a->levels != SRNN_LEVELS_NONE,
         "window hides keys that levels merge into larger blocks: use one of them"},
        {a->window && a->write != SRNN_WRITE_ADD,
         "window drops keys, and what other writes stored depends on all earlier ones: it needs "
         "write=add"},
        {a->sink != SRNN_SINK_NONE && a->normaliser != SRNN_NORMALISER_ROW_SUM,
         "sink is a term of the row sum that a row is divided by: it needs normaliser=row_sum"},
        {a->score_bias != 0 && a->score != SRNN_SCORE_SIGMOID,
         "score_bias is added inside the sigmoid: it needs score=sigmoid"},
        {a->write_gate != SRNN_WRITE_GATE_SIGMOID && a->write_range != SRNN_WRITE_RANGE_1,
         "write_range is that of the sigmoid, and with write_gate=given beta is handed over as it "
         "is: it needs write_range=1"},
        {a->write_gate != SRNN_WRITE_GATE_SIGMOID && a->write_width != SRNN_WIDTH_HEAD,
         "write_gate=given is one beta for each head: it needs write_width=head"},
        {a->write_gate != SRNN_WRITE_GATE_SIGMOID && a->write != SRNN_WRITE_DELTA,
         "write_gate says what the delta rule's beta is: it needs write=delta"},
    };
    for (size_t i = 0; i < sizeof conflicts / sizeof *conflicts; i++)
        if (conflicts[i].there)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: %s", conflicts[i].why);
    return SRNN_OK;
}

bool sr_has_equation(const srnn_attention *a) {
    return a->wiring.layer != SRNN_LAYER_CONV;
}

/* What a layer without an equation may say. */
static srnn_status check_conv(const srnn_attention *a) {
    const srnn_attention all = {.position = SRNN_POSITION_NONE,
                                .wiring = {.layer = SRNN_LAYER_CONV,
                                           .short_conv = a->wiring.short_conv,
                                           .conv_activation = a->wiring.conv_activation,
                                           .block_norm = a->wiring.block_norm}};
    if (a->wiring.short_conv > 0 && sr_attention_same(a, &all))
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT,
                   "attention: layer=conv mixes tokens by its convolution alone: it needs "
                   "position=none and short_conv, may have conv_activation and block_norm, and "
                   "nothing else");
}

srnn_status srnn_attention_check(const srnn_attention *a) {
    SR_TRY(sr_attention_check_values(a));
    if (!sr_has_equation(a))
        return check_conv(a);
    SR_TRY(check_decay(a));
    SR_TRY(check_rows(a));
    const bool rope = a->position == SRNN_POSITION_ROPE;
    const conflict conflicts[] = {
        {!rope && (a->wiring.rope_part != 0 || a->wiring.rope_pairs || a->wiring.rope_theta != 0),
         "rope_part, rope_pairs and rope_theta say how RoPE rotates: they need position=rope"},
        {a->wiring.softmax_scale != 0 && a->feature != SRNN_FEATURE_IDENTITY,
         "softmax_scale multiplies q, which a feature may not keep: it needs feature=identity"},
        {a->wiring.qk_norm && a->wiring.short_conv,
         "qk_norm follows the projections, and so does short_conv: a layer has one of them"},
        {a->position == SRNN_POSITION_ROPE_CHUNKS && !a->pool,
         "position=rope_chunks counts chunks of pool: it needs pool=L"},
        {a->position == SRNN_POSITION_ROPE_FEATURES && a->feature == SRNN_FEATURE_UNIT_HEADS,
         "position=rope_features rotates within a head, and feature=unit_heads is made across "
         "them: "
         "use feature=unit"},
        {a->write_range != SRNN_WRITE_RANGE_1 && a->write != SRNN_WRITE_DELTA,
         "write_range is that of the delta rule's gate: it needs write=delta"},
        {a->write_width != SRNN_WIDTH_HEAD && a->write != SRNN_WRITE_DELTA,
         "write_width is that of the delta rule's gates: it needs write=delta"},
        {sr_erases_apart(a) && (a->score != SRNN_SCORE_LINEAR || a->clamp != 0 || a->cap != 0),
         "write_width=channel and write=removal act inside the product of two keys: they need "
         "score=linear without a clamp or a cap"},
        {sr_erases_apart(a) && (a->levels != SRNN_LEVELS_NONE || a->pool ||
                                a->position == SRNN_POSITION_ROPE_FEATURES),
         "write_width=channel and write=removal are not defined with levels, pool and "
         "position=rope_features"},
        {sr_erases_apart(a) && sr_feature_width(a, 1) != 1,
         "write_width=channel and write=removal have one number for each channel of k, but this "
         "feature makes two of each"},
        {a->skip == SRNN_SKIP_BONUS && (a->norm_width == SRNN_NORM_WIDTH_ROW || a->pool ||
                                        a->feature == SRNN_FEATURE_UNIT_HEADS),
         "skip=bonus is added to a head after its norm, from q and k of that head: it needs "
         "norm_width=head, and neither pool nor feature=unit_heads"},
        {a->pool && a->write == SRNN_WRITE_DELTA,
         "write=delta takes back what earlier keys stored, and with pool a key is seen by its own "
         "token only until its chunk ends: there is no one sequence of writes"},
        {a->pool && a->feature == SRNN_FEATURE_UNIT_HEADS,
         "pool averages keys per head, and feature=unit_heads is made across the heads that share "
         "them: use feature=unit"},
        {a->gate_width == SRNN_WIDTH_CHANNEL && gate_is_summed(a),
         "gates that are summed over positions or inverted have one number per head: they need "
         "gate_width=head"},
        {a->gate_shape != SRNN_GATE_SHAPE_SIGMOID && gate_is_summed(a),
         "gate_shape is that of output_gate=sigmoid and post_gate: gates that are summed over "
         "positions or inverted have their own"},
    };
    for (size_t i = 0; i < sizeof conflicts / sizeof *conflicts; i++)
        if (conflicts[i].there)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "attention: %s", conflicts[i].why);
    return SRNN_OK;
}

bool sr_pairs_are_plain(const srnn_attention *a) {
    return !sr_decay_in_logits(a) && !decay_is_rated(a->decay) &&
           a->position != SRNN_POSITION_ROPE_FEATURES && !a->pool && !a->window &&
           a->write == SRNN_WRITE_ADD && a->levels == SRNN_LEVELS_NONE;
}

int sr_feature_width(const srnn_attention *a, int D) {
    switch (a->feature) {
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_RELU:
    case SRNN_FEATURE_ELU1:
    case SRNN_FEATURE_UNIT:
    case SRNN_FEATURE_UNIT_HEADS:
    case SRNN_FEATURE_UNIT_SMOOTH:
        return D;
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        break;
    }
    return 2 * D;
}

int sr_decay_numbers(const srnn_attention *a, int D) {
    switch (a->decay_width) {
    case SRNN_WIDTH_HEAD:
        return 1;
    case SRNN_WIDTH_CHANNEL:
        break;
    }
    return D;
}

bool sr_decay_in_logits(const srnn_attention *a) {
    return a->decay != SRNN_DECAY_NONE &&
           (a->decay_place == SRNN_DECAY_PLACE_LOGIT || a->decay_width == SRNN_WIDTH_CHANNEL);
}

bool sr_decay_may_rise(const srnn_attention *a) {
    switch (a->decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LOG_SIGMOID:
    case SRNN_DECAY_SOFTPLUS:
    case SRNN_DECAY_BOUNDED:
    case SRNN_DECAY_NEG_SOFTPLUS:
        break;
    case SRNN_DECAY_LEARNED:
    case SRNN_DECAY_GIVEN:
        return true;
    }
    return false;
}

int64_t sr_keys_seen(const srnn_attention *a, int64_t i) {
    return a->window && a->window < i ? a->window : i;
}

bool sr_shares_queries(const srnn_attention *a) {
    switch (a->share) {
    case SRNN_SHARE_KV:
        return false;
    case SRNN_SHARE_QK:
    case SRNN_SHARE_QK_TILED:
        break;
    }
    return true;
}

bool sr_writes_channels(const srnn_attention *a) {
    return a->write == SRNN_WRITE_DELTA && a->write_width == SRNN_WIDTH_CHANNEL;
}

bool sr_erases_apart(const srnn_attention *a) {
    return sr_writes_channels(a) || a->write == SRNN_WRITE_REMOVAL;
}

bool sr_norm_weighs_heads(const srnn_attention *a) {
    return a->norm_width == SRNN_NORM_WIDTH_ROW || a->norm_weight == SRNN_NORM_WEIGHT_HEAD;
}

double sr_write_range(const srnn_attention *a) {
    switch (a->write_range) {
    case SRNN_WRITE_RANGE_1:
        return 1.0;
    case SRNN_WRITE_RANGE_2:
        break;
    }
    return 2.0;
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

/* True if the norm cancels a factor of the row, and nothing else is added before it: a skip is not
 * scaled by the factor, and a norm over several heads sees several factors. */
static bool norm_ignores_rows(const srnn_attention *a) {
    return sr_norm_is_length(a->norm) && a->skip == SRNN_SKIP_NONE &&
           a->norm_width == SRNN_NORM_WIDTH_HEAD;
}

bool sr_row_scale_invariant(const srnn_attention *a) {
    bool cancels_in_norm = norm_ignores_rows(a);
    bool cancels_in_division = a->normaliser == SRNN_NORMALISER_ROW_SUM && a->epsilon == 0;
    return cancels_in_norm || cancels_in_division;
}

bool sr_delta_is_stable(const srnn_attention *a) {
    const bool unit = a->feature == SRNN_FEATURE_UNIT || a->feature == SRNN_FEATURE_UNIT_SMOOTH;
    const bool narrow = a->write_range == SRNN_WRITE_RANGE_1;
    if (a->write != SRNN_WRITE_DELTA)
        return true;
    if (a->write_gate == SRNN_WRITE_GATE_GIVEN) /* beta is unbounded */
        return false;
    switch (a->score) {
    case SRNN_SCORE_LINEAR:
    case SRNN_SCORE_POWER:
        return unit;
    case SRNN_SCORE_TAYLOR:
        return unit && a->order <= (narrow ? 1 : 0);
    case SRNN_SCORE_SIGMOID: /* of any key, since beta is below 2 */
        return true;
    case SRNN_SCORE_EXP:
        break;
    }
    return false;
}

bool sr_floor_follows_rows(const srnn_attention *a) {
    return a->score == SRNN_SCORE_EXP && a->normaliser != SRNN_NORMALISER_ROW_SUM &&
           norm_ignores_rows(a);
}

/* True if sums over powers of keys are all that a query needs. */
static bool is_polynomial(srnn_score score) {
    switch (score) {
    case SRNN_SCORE_EXP:
    case SRNN_SCORE_SIGMOID:
        return false;
    case SRNN_SCORE_LINEAR:
    case SRNN_SCORE_TAYLOR:
    case SRNN_SCORE_POWER:
        return true;
    }
    return false;
}

bool srnn_attention_has_state(const srnn_attention *a) {
    const bool series = is_polynomial(a->score) && a->cap == 0 && a->clamp == 0;
    const bool all_keys = a->pool == 0 && a->window == 0;
    if (!sr_has_equation(a))
        return true;
    return series && all_keys && (a->score == SRNN_SCORE_LINEAR || sr_pairs_are_plain(a));
}

bool sr_has_order(const srnn_attention *a, int n) {
    switch (a->score) {
    case SRNN_SCORE_EXP:
    case SRNN_SCORE_SIGMOID:
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
    case SRNN_SCORE_SIGMOID:
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
    if (!srnn_attention_has_state(a) || !sr_has_equation(a) || D < 1 || Dv < 1)
        return 0;
    size_t multisets = 1, rows = 0, numbers;
    const int width = sr_feature_width(a, D);
    for (int n = 0; n <= sr_highest_order(a); n++) {
        if (n > 0 && !next_multisets(&multisets, (size_t)width, (size_t)n))
            return SIZE_MAX;
        if (sr_has_order(a, n) && __builtin_add_overflow(rows, multisets, &rows))
            return SIZE_MAX;
    }
    size_t columns = (size_t)Dv + sr_needs_row_sum(a);
    return __builtin_mul_overflow(rows, columns, &numbers) ? SIZE_MAX : numbers;
}
