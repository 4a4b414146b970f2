/* prologue_rows.c: rows of q, k and v on their way to the core, and their gradients on the way
 * back; compiled per number type. */
#include "attention/cpu/shared/heads.h"
#include "attention/cpu/shared/prologue.h"
#include "attention/cpu/shared/rows.h"
#include "attention/cpu/shared/simd.h"
#include "equation/operands.h"
#include "equation/score.h"

#include <math.h>
#include <string.h>

static const double SMOOTH = 1e-6; /* of unit_smooth */

/* ---- features ---- */

/* How a row becomes a feature. */
typedef struct feature_rule {
    srnn_feature feature;
    bool query;
    double factor;
    const real *inverse; /* (D), unit_heads only */
    int D;
} feature_rule;

/* What features of powers are made of: c = x / |x|, |x|, and for queries their power. */
typedef struct norm_parts {
    double unit[SR_HEAD_SIZE_MAX], size[SR_HEAD_SIZE_MAX];
    double length, power;
} norm_parts;

static void norm_parts_of(norm_parts *parts, const real *x, const feature_rule *rule) {
    parts->length = fmax(row_norm(x, rule->D), NORM_FLOOR);
    parts->power = 3.0 * (0.5 + tanh(row_norm(x, rule->D)));
    for (int d = 0; d < rule->D; d++) {
        const double size = fabs((double)x[d]);
        parts->unit[d] = (double)x[d] / parts->length;
        parts->size[d] = rule->query ? pow(fabs(parts->unit[d]), parts->power) : size * size * size;
    }
}

/* out (2 D) */
static void norm_feature_row(real *out, const real *x, const feature_rule *rule) {
    norm_parts parts;
    norm_parts_of(&parts, x, rule);
    for (int d = 0; d < rule->D; d++) {
        const double size = rule->factor * parts.size[d];
        if (rule->feature == SRNN_FEATURE_NORM_COSINE) {
            out[d] = (real)(size * cos(parts.unit[d]));
            out[rule->D + d] = (real)(size * sin(parts.unit[d]));
        } else {
            out[d] = x[d] > 0 ? (real)size : 0;
            out[rule->D + d] = x[d] > 0 ? 0 : (real)size;
        }
    }
}

/* d |x|^power by x, where value is |x|^power; 0 at 0. */
static double power_slope(double x, double value, double power) {
    return x == 0.0 ? 0.0 : power * value / x;
}

static void norm_feature_row_backward(real *out, const real *gradient, const real *x,
                                      const feature_rule *rule) {
    norm_parts parts;
    norm_parts_of(&parts, x, rule);
    const int D = rule->D;
    double d_unit[SR_HEAD_SIZE_MAX], d_x[SR_HEAD_SIZE_MAX], d_power = 0.0, along = 0.0;
    for (int d = 0; d < D; d++) {
        const double first = rule->factor * (double)gradient[d];
        const double second = rule->factor * (double)gradient[D + d];
        double d_size = x[d] > 0 ? first : second;
        d_unit[d] = 0.0;
        if (rule->feature == SRNN_FEATURE_NORM_COSINE) {
            const double c = cos(parts.unit[d]), s = sin(parts.unit[d]);
            d_size = first * c + second * s;
            d_unit[d] = parts.size[d] * (second * c - first * s);
        }
        if (rule->query) {
            d_unit[d] += d_size * power_slope(parts.unit[d], parts.size[d], parts.power);
            if (parts.unit[d] != 0.0)
                d_power += d_size * parts.size[d] * log(fabs(parts.unit[d]));
            d_x[d] = 0.0;
        } else {
            d_x[d] = d_size * power_slope((double)x[d], parts.size[d], 3.0);
        }
        along += d_unit[d] * parts.unit[d];
    }
    const bool floored = row_norm(x, D) < NORM_FLOOR;
    const double t = tanh(parts.length),
                 d_length = rule->query ? 3.0 * (1.0 - t * t) * d_power : 0.0;
    for (int d = 0; d < D; d++)
        out[d] =
            (real)(d_x[d] + (d_unit[d] - (floored ? 0.0 : along * parts.unit[d])) / parts.length +
                   (floored ? 0.0 : d_length * parts.unit[d]));
}

/* out = factor * feature(x) */
static void feature_row(real *out, const real *x, const feature_rule *rule) {
    const int D = rule->D;
    double factor = rule->factor;
    switch (rule->feature) {
    case SRNN_FEATURE_IDENTITY:
        for (int d = 0; d < D; d++)
            out[d] = (real)factor * x[d];
        return;
    case SRNN_FEATURE_RELU:
        for (int d = 0; d < D; d++)
            out[d] = x[d] < 0 ? 0 : (real)factor * x[d]; /* this way round a NaN stays one */
        return;
    case SRNN_FEATURE_ELU1:
        for (int d = 0; d < D; d += LANES) {
            vec v = vec_load_part(x + d, D - d);
            v = vec_select((vec_bits)(v > (vec){0}), v + (real)1, vec_exp(v));
            vec_store_part(out + d, (real)factor * v, D - d);
        }
        return;
    case SRNN_FEATURE_UNIT:
        factor /= fmax(row_norm(x, D), NORM_FLOOR);
        for (int d = 0; d < D; d++)
            out[d] = (real)(factor * (double)x[d]);
        return;
    case SRNN_FEATURE_UNIT_HEADS:
        for (int d = 0; d < D; d++)
            out[d] = (real)factor * x[d] * rule->inverse[d];
        return;
    case SRNN_FEATURE_UNIT_SMOOTH:
        factor /= sqrt(row_dot(x, x, D) + SMOOTH);
        for (int d = 0; d < D; d++)
            out[d] = (real)factor * x[d];
        return;
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        norm_feature_row(out, x, rule);
        return;
    }
}

/* out = gradient of x from the gradient of factor * feature(x). For unit_heads only the factor is
 * applied here: the rest needs all heads. */
static void feature_row_backward(real *out, const real *gradient, const real *x,
                                 const feature_rule *rule) {
    const int D = rule->D;
    const double factor = rule->factor;
    switch (rule->feature) {
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_UNIT_HEADS:
        for (int d = 0; d < D; d++)
            out[d] = (real)factor * gradient[d];
        return;
    case SRNN_FEATURE_RELU:
        for (int d = 0; d < D; d++)
            out[d] = x[d] > 0 ? (real)factor * gradient[d] : 0;
        return;
    case SRNN_FEATURE_ELU1:
        for (int d = 0; d < D; d += LANES) {
            vec v = vec_load_part(x + d, D - d);
            v = vec_select((vec_bits)(v > (vec){0}), vec_all(1), vec_exp(v));
            vec_store_part(out + d, (real)factor * v * vec_load_part(gradient + d, D - d), D - d);
        }
        return;
    case SRNN_FEATURE_UNIT:
        unit_backward(out, gradient, x, factor, NORM_FLOOR, D);
        return;
    case SRNN_FEATURE_UNIT_SMOOTH: {
        const double square = row_dot(x, x, D) + SMOOTH, inverse = 1.0 / sqrt(square);
        const double along = row_dot(x, gradient, D) / square;
        for (int d = 0; d < D; d++)
            out[d] = (real)(factor * inverse * ((double)gradient[d] - along * (double)x[d]));
        return;
    }
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        norm_feature_row_backward(out, gradient, x, rule);
        return;
    }
}

/* ---- rotation ---- */

/* out = x, each D of its width rotated; `sign` -1: rotated back. */
static void rope_row(real *out, const real *x, const real *angles, int D, int width, real sign) {
    const int half = D / 2;
    for (int from = 0; from < width; from += D) {
        for (int c = 0; c < half; c++) {
            const real a = x[from + c], b = x[from + c + half];
            const real cosine = angles[2 * c], sine = sign * angles[2 * c + 1];
            out[from + c] = a * cosine - b * sine;
            out[from + c + half] = b * cosine + a * sine;
        }
        if (D % 2)
            out[from + D - 1] = x[from + D - 1];
    }
}

/* The angles of token t of row b of the batch. */
static const real *angles_of(const sr_row_workspace *row_work, const srnn_plan *plan, int64_t b,
                             int64_t t) {
    const srnn_problem *p = &plan->problem;
    const int64_t table = sr_tokens_before(plan, b, t) ? 1 + b : 0;
    return row_work->angles + (table * p->T + t - plan->first[b * p->T + t]) * (p->D / 2) * 2;
}

void SR_ISA_REAL(sr_prologue_rope)(real *rows, int64_t ld, const sr_row_workspace *row_work,
                                   const sr_attention_call *call, sr_rows which, bool back) {
    const srnn_plan *plan = call->plan;
    for (int64_t r = 0; r < which.count; r++)
        rope_row(rows + r * ld, rows + r * ld, angles_of(row_work, plan, which.b, which.t + r),
                 plan->problem.D, plan->core.D, back ? -1 : 1);
}

static bool rope_first(const srnn_problem *p) {
    return p->attention.position == SRNN_POSITION_ROPE_CHUNKS;
}

/* The row itself, or in `rotated` with RoPE applied where positions come before features. */
static const real *placed_row(real *rotated, const real *x, const sr_row_workspace *row_work,
                              const srnn_plan *plan, int64_t b, int64_t t) {
    const int D = plan->problem.D;
    if (!rope_first(&plan->problem))
        return x;
    rope_row(rotated, x, angles_of(row_work, plan, b, t), D, D, 1);
    return rotated;
}

/* ---- rows of queries and keys ---- */

static feature_rule query_rule(const sr_row_workspace *row_work, const srnn_problem *p, int64_t b,
                               int64_t t) {
    return (feature_rule){.feature = p->attention.feature,
                          .query = true,
                          .factor = sr_scale_factor(&p->attention, p->D),
                          .inverse = row_work->q_inverse
                                         ? row_work->q_inverse + (b * p->T + t) * p->D
                                         : NULL,
                          .D = p->D};
}

static feature_rule key_rule(const sr_row_workspace *row_work, const srnn_problem *p, int64_t b,
                             int64_t t) {
    return (feature_rule){.feature = p->attention.feature,
                          .factor = 1.0,
                          .inverse = row_work->k_inverse
                                         ? row_work->k_inverse + (b * p->T + t) * p->D
                                         : NULL,
                          .D = p->D};
}

static const real *key_source(const sr_row_workspace *row_work, const sr_attention_call *call,
                              int64_t b, int kv, int64_t t) {
    const srnn_problem *p = &call->plan->problem;
    if (row_work->pooled_k)
        return row_work->pooled_k + sr_row_index(p, call->plan->core.Hkv, b, kv, t) * p->D;
    return tensor_row(call->in->k, b, sr_shared_head(p, kv), t);
}

void SR_ISA_REAL(sr_prologue_query_rows)(real *out, int64_t ld, const sr_row_workspace *row_work,
                                         const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const int head = sr_shared_head(p, rows.h);
    real rotated[SR_HEAD_SIZE_MAX];
    feature_rule rule = query_rule(row_work, p, rows.b, rows.t);
    for (int64_t r = 0; r < rows.count; r++) {
        const real *x = tensor_row(call->in->q, rows.b, head, rows.t + r);
        feature_row(out + r * ld, placed_row(rotated, x, row_work, call->plan, rows.b, rows.t + r),
                    &rule);
        if (rule.inverse)
            rule.inverse += p->D;
    }
}

void SR_ISA_REAL(sr_prologue_key_rows)(real *out, int64_t ld, const sr_row_workspace *row_work,
                                       const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    real rotated[SR_HEAD_SIZE_MAX];
    feature_rule rule = key_rule(row_work, p, rows.b, rows.t);
    for (int64_t r = 0; r < rows.count; r++) {
        const real *x = key_source(row_work, call, rows.b, rows.h, rows.t + r);
        feature_row(out + r * ld, placed_row(rotated, x, row_work, call->plan, rows.b, rows.t + r),
                    &rule);
        if (rule.inverse)
            rule.inverse += p->D;
    }
}

/* out = gradient of the row x from that of its feature. */
static void row_backward(real *out, const real *gradient, const real *x, const feature_rule *rule,
                         const real *angles) {
    real rotated[SR_HEAD_SIZE_MAX];
    if (angles)
        rope_row(rotated, x, angles, rule->D, rule->D, 1);
    feature_row_backward(out, gradient, angles ? rotated : x, rule);
    if (angles)
        rope_row(out, out, angles, rule->D, rule->D, -1);
}

void SR_ISA_REAL(sr_prologue_query_rows_backward)(const real *gradient, int64_t ld,
                                                  const sr_row_workspace *row_work,
                                                  const sr_attention_call *call, sr_rows rows) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->problem;
    if (!call->gradients->q.data)
        return;
    const feature_rule rule = query_rule(row_work, p, rows.b, rows.t);
    for (int64_t r = 0; r < rows.count; r++) {
        const int64_t t = rows.t + r;
        real *out = row_work->d_q ? row_work->d_q + sr_row_index(p, p->H, rows.b, rows.h, t) * p->D
                                  : tensor_row(call->gradients->q, rows.b, rows.h, t);
        row_backward(out, gradient + r * ld,
                     tensor_row(call->in->q, rows.b, sr_shared_head(p, rows.h), t), &rule,
                     rope_first(p) ? angles_of(row_work, plan, rows.b, t) : NULL);
    }
}

void SR_ISA_REAL(sr_prologue_key_rows_backward)(const real *gradient, int64_t ld,
                                                const sr_row_workspace *row_work,
                                                const sr_attention_call *call, sr_rows rows) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->problem;
    if (!call->gradients->k.data && !row_work->d_k)
        return;
    const feature_rule rule = key_rule(row_work, p, rows.b, rows.t);
    for (int64_t r = 0; r < rows.count; r++) {
        const int64_t t = rows.t + r;
        real *out = row_work->d_k
                        ? row_work->d_k + sr_row_index(p, plan->core.Hkv, rows.b, rows.h, t) * p->D
                        : tensor_row(call->gradients->k, rows.b, rows.h, t);
        row_backward(out, gradient + r * ld, key_source(row_work, call, rows.b, rows.h, t), &rule,
                     rope_first(p) ? angles_of(row_work, plan, rows.b, t) : NULL);
    }
}

/* ---- what the rule takes back by ---- */

static double row_unit(const real *x, int D) {
    return 1.0 / fmax(row_norm(x, D), NORM_FLOOR);
}

void SR_ISA_REAL(sr_prologue_erase_rows)(sr_erase_rows out, const real *keys, int64_t ld,
                                         const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const bool removal = p->attention.write == SRNN_WRITE_REMOVAL;
    const real range = (real)sr_write_range(&p->attention);
    const int head = sr_shared_head(p, rows.h), D = p->D;
    for (int64_t r = 0; r < rows.count; r++) {
        real *erase = out.erase + r * ld;
        const real *z = tensor_row(removal ? call->in->removal_gate : call->in->erase_gate, rows.b,
                                   head, rows.t + r);
        for (int d = 0; d < D && !removal; d += LANES)
            vec_store_part(erase + d,
                           range * vec_sigmoid(vec_load_part(z + d, D - d)) *
                               vec_load_part(keys + r * ld + d, D - d),
                           D - d);
        if (!removal)
            continue;
        const real *x = tensor_row(call->in->removal_key, rows.b, head, rows.t + r);
        const double unit = row_unit(x, D);
        for (int d = 0; d < D; d++)
            erase[d] = (real)(unit * (double)x[d]);
        for (int d = 0; d < D; d += LANES)
            vec_store_part(out.removed + r * ld + d,
                           vec_sigmoid(vec_load_part(z + d, D - d)) *
                               vec_load_part(erase + d, D - d),
                           D - d);
    }
}

/* Where the gradient of a row of key heads goes: its own place, or one to be summed over heads. */
static real *key_head_row(srnn_tensor gradient, real *shared, const sr_attention_call *call,
                          sr_rows at) {
    const srnn_problem *p = &call->plan->problem;
    if (shared)
        return shared + sr_row_index(p, call->plan->core.Hkv, at.b, at.h, at.t) * p->D;
    return gradient.data ? tensor_row(gradient, at.b, at.h, at.t) : NULL;
}

/* d_keys += gate d_f, and the gradient of the gate's numbers. Its parameters are the forward's and
 * the gradients. */
static void erase_gate_backward(real *d_keys, real *d_gate, const real *d_erase, const real *key,
                                const real *z, double range, int D) {
    for (int d = 0; d < D; d++) {
        const double gate = sr_sigmoid((double)z[d]);
        d_keys[d] += (real)(range * gate * (double)d_erase[d]);
        if (d_gate)
            d_gate[d] = (real)(range * gate * (1.0 - gate) * (double)key[d] * (double)d_erase[d]);
    }
}

/* One row of removal: from the gradients of n and b to those of the key and of the gate. Its
 * parameters are the forward's and the gradients. */
static void removal_backward(real *d_key, real *d_gate, const real *d_erase, const real *d_removed,
                             const real *x, const real *z, int D) {
    real d_unit[SR_HEAD_SIZE_MAX];
    const double unit = row_unit(x, D);
    for (int d = 0; d < D; d++) {
        const double gate = sr_sigmoid((double)z[d]);
        d_unit[d] = (real)((double)d_erase[d] + gate * (double)d_removed[d]);
        if (d_gate)
            d_gate[d] = (real)(gate * (1.0 - gate) * unit * (double)x[d] * (double)d_removed[d]);
    }
    if (d_key)
        unit_backward(d_key, d_unit, x, 1.0, NORM_FLOOR, D);
}

/* Its parameters are the forward's and the gradients. */
void SR_ISA_REAL(sr_prologue_erase_rows_backward)(real *d_keys, sr_erase_rows gradient,
                                                  const real *keys, int64_t ld,
                                                  const sr_row_workspace *row_work,
                                                  const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const srnn_operands *in = call->in, *out = call->gradients;
    const int head = sr_shared_head(p, rows.h);
    for (int64_t r = 0; r < rows.count; r++) {
        const sr_rows at = {rows.b, rows.h, rows.t + r, 1};
        if (p->attention.write == SRNN_WRITE_REMOVAL)
            removal_backward(key_head_row(out->removal_key, row_work->d_erase, call, at),
                             key_head_row(out->removal_gate, row_work->d_removal, call, at),
                             gradient.erase + r * ld, gradient.removed + r * ld,
                             tensor_row(in->removal_key, rows.b, head, at.t),
                             tensor_row(in->removal_gate, rows.b, head, at.t), p->D);
        else
            erase_gate_backward(d_keys + r * ld,
                                key_head_row(out->erase_gate, row_work->d_erase, call, at),
                                gradient.erase + r * ld, keys + r * ld,
                                tensor_row(in->erase_gate, rows.b, head, at.t),
                                sr_write_range(&p->attention), p->D);
    }
}

/* ---- values ---- */

/* out (Dv) times the write gate of a row, channel by channel. */
static void gate_channels(real *out, const sr_attention_call *call, int64_t b, int h, int64_t t) {
    const int Dv = call->plan->problem.Dv;
    const real *z = tensor_row(call->in->write_gate, b, h, t);
    for (int d = 0; d < Dv; d += LANES)
        vec_store_part(out + d,
                       vec_load_part(out + d, Dv - d) * vec_sigmoid(vec_load_part(z + d, Dv - d)),
                       Dv - d);
}

/* The gradient of those gates, and then that of what they multiplied, `plain`, in place. */
static void channels_backward(real *gradient, const real *plain, const sr_attention_call *call,
                              int64_t b, int h, int64_t t) {
    const int Dv = call->plan->problem.Dv;
    const real *z = tensor_row(call->in->write_gate, b, h, t);
    const srnn_tensor out = call->gradients->write_gate;
    for (int d = 0; d < Dv; d++) {
        const double gate = sr_sigmoid((double)z[d]), own = (double)gradient[d];
        gradient[d] = (real)(gate * own);
        if (out.data)
            tensor_row(out, b, h, t)[d] = (real)(gate * (1.0 - gate) * (double)plain[d] * own);
    }
}

void SR_ISA_REAL(sr_prologue_value_rows)(real *out, int64_t ld, const sr_row_workspace *row_work,
                                         const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const int64_t base = sr_row_index(p, call->plan->core.Hkv, rows.b, rows.h, rows.t);
    const real *factor = row_work->value_factor ? row_work->value_factor + base : NULL;
    for (int64_t r = 0; r < rows.count; r++) {
        const real *v = row_work->pooled_v ? row_work->pooled_v + (base + r) * p->Dv
                                           : tensor_row(call->in->v, rows.b, rows.h, rows.t + r);
        const real f = factor ? factor[r] : (real)1;
        for (int d = 0; d < p->Dv; d++)
            out[r * ld + d] = f * v[d];
        if (sr_writes_channels(&p->attention))
            gate_channels(out + r * ld, call, rows.b, rows.h, rows.t + r);
    }
}

void SR_ISA_REAL(sr_prologue_value_rows_backward)(const real *gradient, const real *value,
                                                  int64_t ld, const sr_row_workspace *row_work,
                                                  const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const int64_t base = sr_row_index(p, call->plan->core.Hkv, rows.b, rows.h, rows.t);
    for (int64_t r = 0; r < rows.count; r++) {
        if (row_work->value_dot)
            row_work->value_dot[base + r] = row_dot(gradient + r * ld, value + r * ld, p->Dv);
        const real f = row_work->value_factor ? row_work->value_factor[base + r] : (real)1;
        real own[SR_VALUE_SIZE_MAX];
        const real *d_value = gradient + r * ld;
        if (sr_writes_channels(&p->attention)) {
            const real *v = tensor_row(call->in->v, rows.b, rows.h, rows.t + r);
            real plain[SR_VALUE_SIZE_MAX];
            for (int d = 0; d < p->Dv; d++) {
                plain[d] = f * v[d];
                own[d] = d_value[d];
            }
            channels_backward(own, plain, call, rows.b, rows.h, rows.t + r);
            d_value = own;
        }
        if (!call->gradients->v.data && !row_work->d_v)
            continue;
        real *out = row_work->d_v ? row_work->d_v + (base + r) * p->Dv
                                  : tensor_row(call->gradients->v, rows.b, rows.h, rows.t + r);
        for (int d = 0; d < p->Dv; d++)
            out[d] = f * d_value[d];
    }
}
