/* rows.c: the loops behind rows.h, compiled once for each instruction set. */
#include "ops/cpu/rows.h"

#include "base/bf16.h"
#include "ops/cpu/vector_math.h"

#include <math.h>
#include <string.h>

static void rmsnorm_forward(float *out, const sr_rmsnorm *norm, int64_t first, int64_t end) {
    const int64_t C = norm->C;
    const float *restrict weight = norm->weight;
    for (int64_t row = first; row < end; row++) {
        const float *restrict x = norm->x + row * C;
        float *restrict y = out + row * C;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t c = 0; c < C; c++)
            squares += x[c] * x[c];
        const float rstd = 1.0f / sqrtf(squares / (float)C + norm->epsilon);
        norm->rstd[row] = rstd;
        for (int64_t c = 0; c < C; c++)
            y[c] = x[c] * rstd * weight[c];
    }
}

/* With n = x rstd:  d_x = rstd (d_out w - n mean(d_out w n)),  d_w = d_out n. */
static void rmsnorm_backward(float *d_x, float *part, const float *d_out, const sr_rmsnorm *norm,
                             int64_t first, int64_t end) {
    const int64_t C = norm->C;
    const float *restrict weight = norm->weight;
    float *restrict d_weight = part;
    memset(part, 0, (size_t)C * sizeof *part);
    for (int64_t row = first; row < end; row++) {
        const float *restrict x = norm->x + row * C;
        const float *restrict d_y = d_out + row * C;
        float *restrict d = d_x + row * C;
        const float rstd = norm->rstd[row];
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t c = 0; c < C; c++)
            dot += d_y[c] * weight[c] * x[c];
        const float pull = dot * rstd * rstd * rstd / (float)C;
        for (int64_t c = 0; c < C; c++) {
            d[c] += d_y[c] * weight[c] * rstd - x[c] * pull;
            d_weight[c] += d_y[c] * x[c] * rstd;
        }
    }
}

static void rope_neighbours(float *x, const float *cosine, const float *sine, float sign,
                            int half) {
    for (int c = 0; c < half; c++) {
        const float a = x[2 * c], b = x[2 * c + 1], s = sign * sine[c];
        x[2 * c] = a * cosine[c] - b * s;
        x[2 * c + 1] = b * cosine[c] + a * s;
    }
}

static void rope(sr_matrix x, const sr_rope *angles, float sign, int64_t first, int64_t end) {
    const int D = angles->D, width = angles->width ? angles->width : D, half = width / 2;
    for (int64_t row = first; row < end; row++) {
        const float *restrict cosine = angles->table + (int64_t)angles->positions[row] * width;
        const float *restrict sine = cosine + half;
        for (int head = 0; head < angles->heads; head++) {
            float *restrict low = (float *)x.data + row * x.stride + (int64_t)head * D;
            float *restrict high = low + half;
            if (angles->neighbours) {
                rope_neighbours(low, cosine, sine, sign, half);
                continue;
            }
#pragma omp simd
            for (int c = 0; c < half; c++) {
                const float a = low[c], b = high[c], s = sign * sine[c];
                low[c] = a * cosine[c] - b * s;
                high[c] = b * cosine[c] + a * s;
            }
        }
    }
}

static void swiglu_forward(float *out, const float *gate, const float *up, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = gate[i] * sr_fast_sigmoid(gate[i]) * up[i];
}

static void swiglu_backward(float *d_gate, float *d_up, const float *d_out, const float *gate,
                            const float *up, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float s = sr_fast_sigmoid(gate[i]), d = d_out[i], g = gate[i], u = up[i];
        d_up[i] = d * g * s;
        d_gate[i] = d * u * s * (1.0f + g * (1.0f - s));
    }
}

static void silu_forward(float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * sr_fast_sigmoid(x[i]);
}

static void silu_backward(float *d_out, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float s = sr_fast_sigmoid(x[i]);
        d_out[i] *= s * (1.0f + x[i] * (1.0f - s));
    }
}

static void add(float *out, const float *x, const float *y, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] + y[i];
}

static void multiply_add(float *restrict y, const float *restrict a, const float *restrict x,
                         int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += a[i] * x[i];
}

/* Explicit lanes: not every compiler vectorises a maximum. */
static float largest_of(const float *x, int64_t n) {
    enum { LANES = 16 };
    float lanes[LANES], largest = x[0];
    int64_t i = 0;
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = x[0];
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    for (; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int lane = 0; lane < LANES; lane++)
        largest = lanes[lane] > largest ? lanes[lane] : largest;
    return largest;
}

static void cross_entropy(float *losses, sr_matrix logits, const sr_cross_entropy *of,
                          int64_t first, int64_t end) {
    const int64_t V = logits.columns;
    const int32_t *targets = of->targets;
    for (int64_t row = first; row < end; row++) {
        float *restrict x = (float *)logits.data + row * logits.stride;
        if (targets[row] < 0) {
            losses[row] = 0;
            memset(x, 0, (size_t)V * sizeof *x);
            continue;
        }
        const float target = x[targets[row]];
        const float largest = largest_of(x, V);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t v = 0; v < V; v++) {
            x[v] = sr_fast_exp(x[v] - largest);
            sum += x[v];
        }
        const float log_sum = logf(sum) + largest;
        losses[row] = log_sum - target;
        const float factor = of->scale * (1 + 2 * of->z * log_sum) / sum;
        for (int64_t v = 0; v < V; v++)
            x[v] *= factor;
        x[targets[row]] -= of->scale;
    }
}

/* x (V) = the logarithms of softmax(x / temperature). */
static void log_softmax(float *restrict x, int64_t V, float inverse_temperature) {
    const float largest = largest_of(x, V);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = 0; v < V; v++) {
        x[v] = (x[v] - largest) * inverse_temperature;
        sum += sr_fast_exp(x[v]);
    }
    const float log_sum = logf(sum);
    for (int64_t v = 0; v < V; v++)
        x[v] -= log_sum;
}

/* sum p log(p / q) of logarithms; q turns into factor times its gradient with respect to the
 * logits, q - p. */
static float diverge(float *restrict q, const float *restrict p, int64_t V, float factor) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = 0; v < V; v++) {
        const float log_p = p[v], log_q = q[v], share = sr_fast_exp(log_p);
        sum += share * (log_p - log_q);
        q[v] = factor * (sr_fast_exp(log_q) - share);
    }
    return sum;
}

/* sum q log(q / p); the gradient is q (log(q / p) - sum). */
static float diverge_reversed(float *restrict q, const float *restrict p, int64_t V, float factor) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = 0; v < V; v++)
        sum += sr_fast_exp(q[v]) * (q[v] - p[v]);
#pragma omp simd
    for (int64_t v = 0; v < V; v++)
        q[v] = factor * sr_fast_exp(q[v]) * (q[v] - p[v] - sum);
    return sum;
}

static void divergence(float *losses, const sr_divergence *of, int64_t first, int64_t end) {
    const int64_t V = of->student.columns;
    const float t = of->temperature;
    for (int64_t row = first; row < end; row++) {
        float *q = (float *)of->student.data + row * of->student.stride;
        float *p = (float *)of->teacher.data + row * of->teacher.stride;
        if (of->targets[row] < 0) {
            losses[row] = 0;
            memset(q, 0, (size_t)V * sizeof *q);
            continue;
        }
        log_softmax(q, V, 1.0f / t);
        log_softmax(p, V, 1.0f / t);
        losses[row] = t * t * (of->reversed ? diverge_reversed : diverge)(q, p, V, of->scale * t);
    }
}

static void square_error(float *errors, sr_matrix d_x, const sr_square_error *of, int64_t first,
                         int64_t end) {
    const float slope = 2.0f * of->factor * of->scale;
    for (int64_t row = first; row < end; row++) {
        const float *restrict x = of->x + row * of->C, *restrict y = of->y + row * of->C;
        float *restrict d = d_x.data ? (float *)d_x.data + row * d_x.stride : NULL;
        const float counted = of->targets[row] < 0 ? 0.0f : 1.0f;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < of->C; c++)
            sum += (x[c] - y[c]) * (x[c] - y[c]);
        errors[row] += counted * of->factor * sum;
        for (int64_t c = 0; d && c < of->C; c++)
            d[c] = counted * slope * (x[c] - y[c]);
    }
}

static void adamw(float *restrict weight, float *restrict mean, float *restrict square,
                  const float *restrict gradient, int64_t n, const sr_adamw_factors *factors) {
    const sr_adamw_factors f = *factors;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float g = gradient[i] * f.gradient_scale;
        mean[i] += f.new1 * (g - mean[i]);
        square[i] = f.beta2 * square[i] + f.new2 * (g * g);
        const float root = sqrtf(square[i]) * f.inverse_root_correction + f.epsilon;
        weight[i] = weight[i] * f.keep - f.step_size * (mean[i] / root);
    }
}

static void to_bf16(uint16_t *out, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        const uint32_t nan = bits >> 16 | 0x40u;
        out[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
}

static void from_bf16(float *out, const uint16_t *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = sr_bf16_float(x[i]);
}

static float bf16_product(const float *x, const uint16_t *w, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * sr_bf16_float(w[i]);
    return sum;
}

/* Four rows at a time, so that a weight is read and widened once for them. */
static void bf16_products(float *out, const float *x, int64_t stride, int64_t rows,
                          const uint16_t *w, int64_t n) {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) {
        const float *a = x + row * stride, *b = a + stride, *c = b + stride, *d = c + stride;
        float sum_a = 0, sum_b = 0, sum_c = 0, sum_d = 0;
#pragma omp simd reduction(+ : sum_a, sum_b, sum_c, sum_d)
        for (int64_t i = 0; i < n; i++) {
            const float weight = sr_bf16_float(w[i]);
            sum_a += a[i] * weight;
            sum_b += b[i] * weight;
            sum_c += c[i] * weight;
            sum_d += d[i] * weight;
        }
        out[row] = sum_a, out[row + 1] = sum_b, out[row + 2] = sum_c, out[row + 3] = sum_d;
    }
    for (; row < rows; row++)
        out[row] = bf16_product(x + row * stride, w, n);
}

static double square_sum(const float *x, int64_t n) {
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; i++)
        total += (double)x[i] * (double)x[i];
    return total;
}

extern const sr_cpu_rows SR_ROWS_TABLE;
static float largest_product(const float *q, const float *k, int64_t stride, int64_t count,
                             int64_t D) {
    float largest = 0;
    for (int64_t row = 0; row < count; row++) {
        const float *x = k + row * stride;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < D; d++)
            sum += q[d] * x[d];
        largest = sum > largest ? sum : largest;
    }
    return largest;
}

const sr_cpu_rows SR_ROWS_TABLE = {
    .rmsnorm_forward = rmsnorm_forward,
    .rmsnorm_backward = rmsnorm_backward,
    .rope = rope,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .silu_forward = silu_forward,
    .silu_backward = silu_backward,
    .add = add,
    .multiply_add = multiply_add,
    .cross_entropy = cross_entropy,
    .divergence = divergence,
    .square_error = square_error,
    .adamw = adamw,
    .to_bf16 = to_bf16,
    .from_bf16 = from_bf16,
    .bf16_products = bf16_products,
    .square_sum = square_sum,
    .largest_product = largest_product,
};
