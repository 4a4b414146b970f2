/* features.h (private): one number of a feature row, and of its gradient, from sums over the row
 * that a warp has found. */
#ifndef SR_ATTENTION_CUDA_AXES_FEATURES_H
#define SR_ATTENTION_CUDA_AXES_FEATURES_H

#include "attention/cuda/axes/call.h"

/* A row of q or k on its way to the core. */
struct axes_source {
    sr_axes_tensor x;     /* the caller's; data NULL: it is `pooled` */
    const float *pooled;  /* (B, Hkv, T, D) */
    const float *inverse; /* (B, T, D): unit_heads only */
    bool query;
    int heads;     /* of features */
    double factor; /* q: the scale */
};

/* The caller's number c of the row of feature head h. */
SR_DEVICE double axes_raw(const sr_axes_call &call, const axes_source &source, axes_row at, int c) {
    if (!source.query && source.pooled)
        return (double)source.pooled[call.row(call.Hkv, at.b, at.h, at.t) * call.D + c];
    return (double)source.x.at(at.b, call.shared_head(at.h), at.t, c);
}

/* x rotated by the angles of token t: number c of `width` numbers in halves of D; back: by less
 * them. from: x as a function of the column. */
template <class From>
SR_DEVICE double axes_rotated(const sr_axes_call &call, axes_row at, int c, bool back, From from) {
    const int D = call.D, half = D / 2, own = c % D, base = c - own;
    if (own >= 2 * half)
        return from(c);
    const int n = own % half;
    const float *const angle =
        call.scratch.angles + ((int64_t)(at.t - call.start(at.b, at.t)) * half + n) * 2;
    const double cosine = (double)angle[0], sine = back ? -(double)angle[1] : (double)angle[1];
    if (own < half)
        return from(base + n) * cosine - from(base + n + half) * sine;
    return from(base + n + half) * cosine + from(base + n) * sine;
}

/* The same with its position applied where that comes before the feature. */
SR_DEVICE double axes_placed(const sr_axes_call &call, const axes_source &source, axes_row at,
                             int c) {
    if (call.a.position != SRNN_POSITION_ROPE_CHUNKS)
        return axes_raw(call, source, at, c);
    return axes_rotated(call, at, c, false, [&](int n) { return axes_raw(call, source, at, n); });
}

/* |x|^2 of the row, by the whole warp; 0 where the feature does not need it. */
SR_DEVICE double axes_square(const sr_axes_call &call, const axes_source &source, axes_row at) {
    switch (call.a.feature) {
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_RELU:
    case SRNN_FEATURE_ELU1:
    case SRNN_FEATURE_UNIT_HEADS:
        return 0;
    case SRNN_FEATURE_UNIT:
    case SRNN_FEATURE_UNIT_SMOOTH:
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        break;
    }
    double sum = 0;
    for (int c = axes_lane(); c < call.D; c += SR_WARP) {
        const double x = axes_placed(call, source, at, c);
        sum += x * x;
    }
    return warp_sum(sum);
}

/* What features of powers are made of: c = x / |x|, the power of |c| or |x|. */
struct axes_norm_parts {
    double length, power, unit, size;
};

SR_DEVICE axes_norm_parts axes_norm_parts_of(double x, double square, bool query) {
    const double norm = sqrt(square);
    axes_norm_parts parts;
    parts.length = fmax(norm, SR_AXES_NORM_FLOOR);
    parts.power = query ? 3.0 * (0.5 + tanh(norm)) : 3.0;
    parts.unit = x / parts.length;
    parts.size = query ? pow(fabs(parts.unit), parts.power) : fabs(x * x * x);
    return parts;
}

/* Number c of factor * feature(x), c < F. */
SR_DEVICE double axes_feature(const sr_axes_call &call, const axes_source &source, axes_row at,
                              double square, int c) {
    const double x = axes_placed(call, source, at, c % call.D);
    const bool second = c >= call.D;
    switch (call.a.feature) {
    case SRNN_FEATURE_IDENTITY:
        break;
    case SRNN_FEATURE_RELU:
    case SRNN_FEATURE_ELU1:
        return source.factor * sr_feature_value(call.a.feature, x);
    case SRNN_FEATURE_UNIT:
        return source.factor / fmax(sqrt(square), SR_AXES_NORM_FLOOR) * x;
    case SRNN_FEATURE_UNIT_HEADS:
        return source.factor * x *
               (double)source.inverse[((int64_t)at.b * call.T + at.t) * call.D + c];
    case SRNN_FEATURE_UNIT_SMOOTH:
        return source.factor / sqrt(square + SR_AXES_SMOOTH) * x;
    case SRNN_FEATURE_NORM_SPLIT: {
        const axes_norm_parts parts = axes_norm_parts_of(x, square, source.query);
        return (x > 0) != second ? source.factor * parts.size : 0;
    }
    case SRNN_FEATURE_NORM_COSINE: {
        const axes_norm_parts parts = axes_norm_parts_of(x, square, source.query);
        return source.factor * parts.size *
               (second ? axes_sine(parts.unit) : axes_cosine(parts.unit));
    }
    }
    return source.factor * x;
}

/* Gradients by unit and by x of one channel of the features of powers, and of the power. */
struct axes_norm_gradient {
    double unit, x, power;
};

/* first, second: the gradients of its two numbers, times the factor. */
SR_DEVICE axes_norm_gradient axes_norm_backward(const sr_axes_call &call, double x, double square,
                                                bool query, double first, double second) {
    const axes_norm_parts parts = axes_norm_parts_of(x, square, query);
    axes_norm_gradient d = {};
    double d_size = x > 0 ? first : second;
    if (call.a.feature == SRNN_FEATURE_NORM_COSINE) {
        const double c = axes_cosine(parts.unit), s = axes_sine(parts.unit);
        d_size = first * c + second * s;
        d.unit = parts.size * (second * c - first * s);
    }
    if (!query) {
        d.x = x == 0 ? 0 : d_size * 3.0 * parts.size / x;
        return d;
    }
    if (parts.unit != 0) {
        d.unit += d_size * parts.power * parts.size / parts.unit;
        d.power = d_size * parts.size * log(fabs(parts.unit));
    }
    return d;
}

/* The sums over a row that its backward needs, by the whole warp. */
struct axes_feature_sums {
    double square, along, power;
};

/* gradient: of feature number c, as a function of c. */
template <class Gradient>
SR_DEVICE axes_feature_sums axes_feature_sums_of(const sr_axes_call &call,
                                                 const axes_source &source, axes_row at,
                                                 Gradient gradient) {
    axes_feature_sums sums = {axes_square(call, source, at), 0, 0};
    const bool unit =
        call.a.feature == SRNN_FEATURE_UNIT || call.a.feature == SRNN_FEATURE_UNIT_SMOOTH;
    const bool powers = call.F > call.D;
    for (int c = axes_lane(); (unit || powers) && c < call.D; c += SR_WARP) {
        const double x = axes_placed(call, source, at, c);
        if (unit) {
            sums.along += x * gradient(c);
            continue;
        }
        const axes_norm_gradient d =
            axes_norm_backward(call, x, sums.square, source.query, source.factor * gradient(c),
                               source.factor * gradient(call.D + c));
        sums.along += d.unit * x / fmax(sqrt(sums.square), SR_AXES_NORM_FLOOR);
        sums.power += d.power;
    }
    sums.along = warp_sum(sums.along);
    sums.power = warp_sum(sums.power);
    return sums;
}

/* Number c of the gradient of the placed row. For unit_heads only the factor is applied: the rest
 * needs all heads. */
template <class Gradient>
SR_DEVICE double axes_feature_backward(const sr_axes_call &call, const axes_source &source,
                                       axes_row at, const axes_feature_sums &sums, int c,
                                       Gradient gradient) {
    const double x = axes_placed(call, source, at, c), norm = sqrt(sums.square);
    const bool floored = norm < SR_AXES_NORM_FLOOR;
    switch (call.a.feature) {
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_UNIT_HEADS:
        break;
    case SRNN_FEATURE_RELU:
    case SRNN_FEATURE_ELU1:
        return source.factor * gradient(c) * sr_feature_slope(call.a.feature, x);
    case SRNN_FEATURE_UNIT: {
        const double inverse = 1.0 / (floored ? SR_AXES_NORM_FLOOR : norm);
        const double along = floored ? 0 : sums.along * inverse * inverse;
        return source.factor * inverse * (gradient(c) - along * x);
    }
    case SRNN_FEATURE_UNIT_SMOOTH: {
        const double square = sums.square + SR_AXES_SMOOTH;
        return source.factor / sqrt(square) * (gradient(c) - sums.along / square * x);
    }
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE: {
        const double length = fmax(norm, SR_AXES_NORM_FLOOR), t = tanh(length);
        const axes_norm_gradient d =
            axes_norm_backward(call, x, sums.square, source.query, source.factor * gradient(c),
                               source.factor * gradient(call.D + c));
        const double d_length = source.query ? 3.0 * (1.0 - t * t) * sums.power : 0;
        const double unit = x / length;
        return d.x + (d.unit - (floored ? 0 : sums.along * unit)) / length +
               (floored ? 0 : d_length * unit);
    }
    }
    return source.factor * gradient(c);
}

/* The rows of queries and keys. */
axes_source sr_axes_queries(const sr_axes_call &call);
axes_source sr_axes_keys(const sr_axes_call &call);

#endif
