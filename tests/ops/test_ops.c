/* test_ops.c: every op of the CPU backend against plain double arithmetic. */
#include "ops/backend.h"
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static sr_backend *cpu;

static float noise(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1.0f;
}

static float *numbers(size_t count, uint32_t seed) {
    float *x = malloc((count + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < count; i++)
        x[i] = noise(&seed);
    return x;
}

static void close_to(const float *got, const double *want, size_t count, double tolerance) {
    double difference = 0, size = 1e-30;
    for (size_t i = 0; i < count; i++) {
        difference += pow((double)got[i] - want[i], 2);
        size += want[i] * want[i];
    }
    assert_true(sqrt(difference / size) <= tolerance);
}

static double *doubles(size_t count) {
    double *x = calloc(count + 1, sizeof *x);
    assert_non_null(x);
    return x;
}

static const int64_t shapes[][3] = {{1, 1, 1},      {3, 5, 7},      {17, 33, 9},
                                    {129, 257, 31}, {300, 520, 65}, {64, 2, 16}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* All three products of one linear layer, over strided matrices, with and without bias. */
/* Two layers side by side, of `left` and of the other columns, or one. */
static void check_linear(int64_t rows, int64_t N, int64_t K, int64_t left) {
    const int64_t wide = N + 3;
    float *x = numbers((size_t)(rows * K), 1), *weight = numbers((size_t)(N * K), 2);
    float *bias = numbers((size_t)N, 3), *y = numbers((size_t)(rows * wide), 4);
    float *d_x = numbers((size_t)(rows * K), 5), *d_weight = numbers((size_t)(N * K), 6);
    float *d_bias = numbers((size_t)N, 7), *got = malloc((size_t)(rows * N + 1) * sizeof *got);
    double *want_y = doubles((size_t)(rows * N)), *want_x = doubles((size_t)(rows * K));
    double *want_w = doubles((size_t)(N * K)), *want_b = doubles((size_t)N);
    const sr_matrix Y = {
        .data = y + 1, .rows = rows, .columns = N, .stride = wide, .dtype = SRNN_F32};
    const sr_matrix X = sr_matrix_of(x, rows, K, SRNN_F32);
    const sr_matrix d_X = sr_matrix_of(d_x, rows, K, SRNN_F32);
    const int64_t right = N - left;
    const int from = left == 0, count = 2 - from;
    const sr_linear layers[] = {{weight, bias, .N = left},
                                {weight + left * K, bias + left, .N = right}};
    const sr_linear_gradient gradients[] = {{d_weight, d_bias, left},
                                            {d_weight + left * K, d_bias + left, right}};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < N; n++) {
            double s = (double)y[r * wide + 1 + n] + (double)bias[n];
            for (int64_t k = 0; k < K; k++)
                s += (double)x[r * K + k] * (double)weight[n * K + k];
            want_y[r * N + n] = s;
        }
    for (int64_t i = 0; i < N * K; i++)
        want_w[i] = (double)d_weight[i];
    for (int64_t n = 0; n < N; n++)
        want_b[n] = (double)d_bias[n];
    assert_int_equal(cpu->linear_forward(cpu, Y, Y, X, layers + from, count), SRNN_OK);
    for (int64_t r = 0; r < rows; r++)
        memcpy(got + r * N, y + r * wide + 1, (size_t)N * sizeof *got);
    close_to(got, want_y, (size_t)(rows * N), 1e-6);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < N; n++) {
            const double d = (double)got[r * N + n];
            want_b[n] += d;
            for (int64_t k = 0; k < K; k++) {
                want_x[r * K + k] += d * (double)weight[n * K + k];
                want_w[n * K + k] += d * (double)x[r * K + k];
            }
        }
    assert_int_equal(cpu->linear_backward_input(cpu, d_X, Y, layers + from, count), SRNN_OK);
    assert_int_equal(cpu->linear_backward_weight(cpu, gradients + from, count, Y, X), SRNN_OK);
    close_to(d_x, want_x, (size_t)(rows * K), 2e-6);
    close_to(d_weight, want_w, (size_t)(N * K), 2e-6);
    close_to(d_bias, want_b, (size_t)N, 2e-6);
    void *all[] = {x, weight, bias, y, d_x, d_weight, d_bias, got, want_y, want_x, want_w, want_b};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void linear_layers(void **state) {
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        check_linear(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][1] / 2);
    check_linear(5, 520, 12, 320); /* split-K for the first one, not for the other */
}

static double norm_loss(const double *x, const double *w, const float *d_out, int64_t rows,
                        int64_t C, double epsilon) {
    double loss = 0;
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t c = 0; c < C; c++)
            squares += x[r * C + c] * x[r * C + c];
        const double rstd = 1 / sqrt(squares / (double)C + epsilon);
        for (int64_t c = 0; c < C; c++)
            loss += x[r * C + c] * rstd * w[c] * (double)d_out[r * C + c];
    }
    return loss;
}

static void check_norm(int64_t rows, int64_t C) {
    float *x = numbers((size_t)(rows * C), 1), *weight = numbers((size_t)C, 2);
    float *out = malloc((size_t)(rows * C) * sizeof *out), *d_out = numbers((size_t)(rows * C), 3);
    float *d_x = calloc((size_t)(rows * C), sizeof *d_x), *d_w = calloc((size_t)C, sizeof *d_w);
    float *scratch = malloc((size_t)(SR_ROW_PARTS * C) * sizeof *scratch);
    float *rstd = malloc((size_t)rows * sizeof *rstd);
    double *X = doubles((size_t)(rows * C)), *W = doubles((size_t)C);
    double *slope = doubles((size_t)(rows * C));
    for (int64_t i = 0; i < rows * C; i++)
        X[i] = (double)x[i];
    for (int64_t i = 0; i < C; i++)
        W[i] = (double)weight[i];
    const double epsilon = 1e-5;
    const sr_rmsnorm norm = {x, weight, rstd, (float)epsilon, rows, C, NULL};
    assert_int_equal(cpu->rmsnorm_forward(cpu, out, &norm), SRNN_OK);
    double got = 0;
    for (int64_t i = 0; i < rows * C; i++)
        got += (double)out[i] * (double)d_out[i];
    assert_true(fabs(got - norm_loss(X, W, d_out, rows, C, epsilon)) < 1e-4);
    const sr_rmsnorm_gradient gradient = {d_x, d_x, d_w, scratch, NULL, false};
    assert_int_equal(cpu->rmsnorm_backward(cpu, &gradient, d_out, &norm), SRNN_OK);
    const double h = 1e-6;
    for (int64_t i = 0; i < rows * C; i++) {
        const int64_t row = i / C * C; /* only this row depends on x[i] */
        X[i] += h;
        slope[i] = norm_loss(X + row, W, d_out + row, 1, C, epsilon);
        X[i] -= 2 * h;
        slope[i] = (slope[i] - norm_loss(X + row, W, d_out + row, 1, C, epsilon)) / (2 * h);
        X[i] += h;
    }
    if (C > 1) /* with one channel the gradient is epsilon-sized */
        close_to(d_x, slope, (size_t)(rows * C), 1e-5);
    for (int64_t c = 0; c < C; c++) {
        W[c] += 1;
        slope[c] = norm_loss(X, W, d_out, rows, C, epsilon);
        W[c] -= 1;
        slope[c] -= norm_loss(X, W, d_out, rows, C, epsilon);
    }
    close_to(d_w, slope, (size_t)C, 1e-5);
    void *all[] = {x, weight, out, d_out, d_x, d_w, scratch, rstd, X, W, slope};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void norms(void **state) {
    (void)state;
    check_norm(1, 1);
    check_norm(3, 7);
    check_norm(37, 33);
    check_norm(65, 16);
}

static void rope_and_its_inverse(void **state) {
    (void)state;
    enum { ROWS = 5, HEADS = 3, D = 6, WIDE = HEADS * D + 4 };
    const int32_t positions[ROWS] = {0, 1, 2, 0, 7};
    float table[8 * D], *x = numbers(ROWS * WIDE, 1), *before = numbers(ROWS * WIDE, 1);
    for (int p = 0; p < 8; p++)
        for (int c = 0; c < D / 2; c++) {
            table[p * D + c] = (float)cos(p * (c + 1) * 0.3);
            table[p * D + D / 2 + c] = (float)sin(p * (c + 1) * 0.3);
        }
    const sr_rope rope = {table, positions, HEADS, D, 0, false};
    const sr_matrix X = {
        .data = x + 2, .rows = ROWS, .columns = HEADS * D, .stride = WIDE, .dtype = SRNN_F32};
    assert_int_equal(cpu->rope_forward(cpu, X, &rope), SRNN_OK);
    for (int r = 0; r < ROWS; r++)
        for (int head = 0; head < HEADS; head++)
            for (int c = 0; c < D / 2; c++) {
                const float *old = before + r * WIDE + 2 + head * D;
                const float *new = x + r *WIDE + 2 + head *D;
                const double angle = positions[r] * (c + 1) * 0.3;
                const double a = (double)old[c], b = (double)old[c + D / 2];
                assert_true(fabs((double)new[c] - (a * cos(angle) - b * sin(angle))) < 1e-6);
                assert_true(fabs((double)new[c + D / 2] - (b * cos(angle) + a * sin(angle))) <
                            1e-6);
            }
    assert_int_equal(cpu->rope_backward(cpu, X, &rope), SRNN_OK);
    for (int i = 0; i < ROWS * WIDE; i++)
        assert_true(fabsf(x[i] - before[i]) < 1e-6f);
    free(x);
    free(before);
}

static void activations(void **state) {
    (void)state;
    enum { ROWS = 31, F = 291, N = ROWS * F };
    float *x = numbers(2 * N, 1), *d_out = numbers(N, 3);
    float *out = numbers(N, 4), *d_x = numbers(2 * N, 5), *sum = numbers(N, 2);
    double *want = doubles(N), *want_x = doubles(2 * N);
    for (int i = 0; i < 2 * N; i++)
        x[i] *= i % 3 ? 4.0f : i % 2 ? 1.0f : 100.0f;
    for (int i = 0; i < N; i++) {
        const int gate = i / F * 2 * F + i % F, up = gate + F;
        const double g = (double)x[gate], u = (double)x[up], d = (double)d_out[i];
        const double s = 1 / (1 + exp(-g));
        want[i] = g * s * u;
        want_x[up] = d * g * s;
        want_x[gate] = d * u * (s + g * s * (1 - s));
    }
    const sr_matrix X = sr_matrix_of(x, ROWS, 2 * F, SRNN_F32);
    const sr_matrix d_X = sr_matrix_of(d_x, ROWS, 2 * F, SRNN_F32);
    const sr_matrix Out = sr_matrix_of(out, ROWS, F, SRNN_F32);
    const sr_matrix d_Out = sr_matrix_of(d_out, ROWS, F, SRNN_F32);
    assert_int_equal(cpu->swiglu_forward(cpu, Out, X), SRNN_OK);
    assert_int_equal(cpu->swiglu_backward(cpu, d_X, d_Out, X), SRNN_OK);
    close_to(out, want, N, 1e-6);
    close_to(d_x, want_x, 2 * N, 1e-6);
    for (int i = 0; i < N; i++) {
        const double g = (double)x[i], below = 0.5 * (1 + erf(g / sqrt(2)));
        want[i] = g * below;
        want_x[i] = (double)d_out[i] * (below + g * exp(-g * g / 2) / sqrt(2 * acos(-1)));
    }
    const sr_matrix Up = sr_matrix_of(x, ROWS, F, SRNN_F32);
    assert_int_equal(cpu->gelu_forward(cpu, Out, Up), SRNN_OK);
    assert_int_equal(cpu->gelu_backward(cpu, d_Out, d_Out, Up), SRNN_OK);
    close_to(out, want, N, 1e-6);
    close_to(d_out, want_x, N, 1e-6);
    for (int i = 0; i < N; i++)
        want[i] = (double)sum[i] + (double)x[i];
    assert_int_equal(cpu->add(cpu, sum, x, N), SRNN_OK);
    close_to(sum, want, N, 1e-6);
    void *all[] = {x, d_out, out, d_x, sum, want, want_x};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void embedding(void **state) {
    (void)state;
    enum { ROWS = 300, C = 70, V = 11 };
    int32_t ids[ROWS];
    float *weight = numbers(V * C, 1), *out = numbers(ROWS * C, 2), *d_w = numbers(V * C, 3);
    double *want = doubles(V * C);
    for (int i = 0; i < V * C; i++)
        want[i] = (double)d_w[i];
    for (int r = 0; r < ROWS; r++)
        ids[r] = r * 7 % (V + 1) - 1;
    const sr_matrix X = sr_matrix_of(out, ROWS, C, SRNN_F32);
    assert_int_equal(cpu->embed_forward(cpu, X, sr_matrix_of(weight, V, C, SRNN_F32), ids),
                     SRNN_OK);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < C; c++) {
            assert_true(out[r * C + c] == (ids[r] < 0 ? 0.0f : weight[ids[r] * C + c]));
            out[r * C + c] += (float)(r % 5);
            if (ids[r] >= 0)
                want[ids[r] * C + c] += (double)out[r * C + c];
        }
    assert_int_equal(cpu->embed_backward(cpu, d_w, X, ids), SRNN_OK);
    close_to(d_w, want, V * C, 1e-6);
    free(weight), free(out), free(d_w), free(want);
}

static void check_losses(double z_loss) {
    enum { ROWS = 67, V = 301 };
    float *logits = numbers(ROWS * V, 1), loss[ROWS];
    int32_t targets[ROWS], hits[ROWS], want_hits[ROWS];
    double want_loss[ROWS], *want = doubles(ROWS * V);
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        targets[r] = r % 7 == 3 ? -1 : r * 31 % V;
        for (int v = 0; v < V; v++)
            logits[r * V + v] *= r % 2 ? 3.0f : 60.0f;
        if (r % 5 == 0 && targets[r] >= 0) /* a hit, or a tie with an earlier one */
            logits[r * V + targets[r]] = 250.0f;
        if (r % 10 == 0 && targets[r] > 0)
            logits[r * V] = 250.0f;
        int best = 0;
        for (int v = 0; v < V; v++) {
            sum += exp((double)logits[r * V + v]);
            best = logits[r * V + v] > logits[r * V + best] ? v : best;
        }
        want_hits[r] = best == targets[r];
        want_loss[r] = targets[r] < 0 ? 0 : log(sum) - (double)logits[r * V + targets[r]];
        for (int v = 0; v < V && targets[r] >= 0; v++)
            want[r * V + v] =
                0.25 * (exp((double)logits[r * V + v]) / sum * (1 + 2 * z_loss * log(sum)) -
                        (v == targets[r]));
    }
    sr_step_stats stats = {.loss = 1, .targets = 2, .hits = 3};
    double total = 1;
    int64_t counted = 2, hit = 3;
    const sr_cross_entropy of = {.targets = targets, .scale = 0.25f, .z = (float)z_loss};
    assert_int_equal(cpu->cross_entropy(cpu, loss, hits, sr_matrix_of(logits, ROWS, V, SRNN_F32),
                                        &of),
                     SRNN_OK);
    assert_memory_equal(hits, want_hits, sizeof hits);
    assert_int_equal(cpu->stats_losses(cpu, &stats, loss, hits, targets, ROWS), SRNN_OK);
    for (int r = 0; r < ROWS; r++) {
        total += want_loss[r];
        counted += targets[r] >= 0;
        hit += want_hits[r];
    }
    assert_true(fabs(stats.loss - total) < 1e-3);
    assert_true(stats.targets == counted && stats.hits == hit && hit > 3);
    close_to(loss, want_loss, ROWS, 1e-6);
    close_to(logits, want, ROWS * V, 1e-6);
    free(logits), free(want);
}

static void losses(void **state) {
    (void)state;
    check_losses(0);
    check_losses(1e-3);
}

/* In double: t^2 KL of a row, and its gradient with respect to the student's logits. */
static double want_divergence(double *gradient, const float *student, const float *teacher, int V,
                              double t, bool reversed) {
    double sums[2] = {0, 0}, result = 0;
    for (int v = 0; v < V; v++) {
        sums[0] += exp((double)student[v] / t);
        sums[1] += exp((double)teacher[v] / t);
    }
    for (int both = 0; both < 2; both++) /* the reversed gradient needs the sum */
        for (int v = 0; v < V; v++) {
            const double log_q = (double)student[v] / t - log(sums[0]);
            const double log_p = (double)teacher[v] / t - log(sums[1]);
            if (both == 0)
                result += reversed ? exp(log_q) * (log_q - log_p) : exp(log_p) * (log_p - log_q);
            gradient[v] =
                t * (reversed ? exp(log_q) * (log_q - log_p - result) : exp(log_q) - exp(log_p));
        }
    return t * t * result;
}

static void check_divergence(float t, bool reversed) {
    enum { ROWS = 37, V = 301 };
    float *student = numbers(ROWS * V, 1), *teacher = numbers(ROWS * V, 2), loss[ROWS];
    double want_loss[ROWS], *want = doubles(ROWS * V);
    int32_t targets[ROWS];
    for (int i = 0; i < ROWS * V; i++) {
        student[i] *= i / V % 2 ? 3.0f : 20.0f;
        teacher[i] *= i / V % 3 ? 3.0f : 20.0f;
    }
    memcpy(student, teacher, V * sizeof *student); /* equal rows: exactly 0 */
    for (int r = 0; r < ROWS; r++) {
        targets[r] = r % 7 == 3 ? -1 : 0;
        want_loss[r] =
            want_divergence(want + r * V, student + r * V, teacher + r * V, V, (double)t, reversed);
        for (int v = 0; v < V; v++)
            want[r * V + v] *= targets[r] < 0 ? 0 : 0.25;
        want_loss[r] *= targets[r] >= 0;
    }
    const sr_divergence of = {.student = sr_matrix_of(student, ROWS, V, SRNN_F32),
                              .teacher = sr_matrix_of(teacher, ROWS, V, SRNN_F32),
                              .targets = targets,
                              .reversed = reversed,
                              .temperature = t,
                              .scale = 0.25f};
    assert_int_equal(cpu->divergence(cpu, loss, &of), SRNN_OK);
    close_to(loss, want_loss, ROWS, 1e-6);
    close_to(student, want, ROWS * V, 2e-6);
    assert_true(loss[0] == 0);
    for (int v = 0; v < V; v++)
        assert_true(student[v] == 0);
    free(student), free(teacher), free(want);
}

/* Against float64, and against numbers worked out elsewhere. */
static void divergences(void **state) {
    (void)state;
    static const struct {
        float t, forward, reversed;
    } known[] = {{1.0f, 1.1573326f, 1.0790889f}, {2.5f, 1.3654142f, 1.3075806f}};
    for (int i = 0; i < 2; i++)
        for (int reversed = 0; reversed < 2; reversed++) {
            float teacher[] = {1.0f, 2.0f, 0.5f, -1.0f}, student[] = {0.3f, -0.7f, 1.1f, 0.9f};
            float loss;
            const int32_t target = 2;
            const sr_divergence of = {.student = sr_matrix_of(student, 1, 4, SRNN_F32),
                                      .teacher = sr_matrix_of(teacher, 1, 4, SRNN_F32),
                                      .targets = &target,
                                      .reversed = reversed,
                                      .temperature = known[i].t};
            assert_int_equal(cpu->divergence(cpu, &loss, &of), SRNN_OK);
            assert_true(fabsf(loss - (reversed ? known[i].reversed : known[i].forward)) < 1e-5f);
            check_divergence(known[i].t, reversed);
        }
}

static void square_errors(void **state) {
    (void)state;
    enum { ROWS = 70, C = 45 };
    float *x = numbers(ROWS * C, 1), *y = numbers(ROWS * C, 2), *d = numbers(ROWS * C, 3);
    float errors[ROWS];
    double want[ROWS], *slope = doubles(ROWS * C);
    int32_t targets[ROWS];
    for (int r = 0; r < ROWS; r++) {
        targets[r] = r % 5 == 2 ? -1 : 1;
        errors[r] = (float)r;
        want[r] = r;
        for (int c = 0; c < C && targets[r] >= 0; c++) {
            const double off = (double)x[r * C + c] - (double)y[r * C + c];
            want[r] += 0.5 * off * off;
            slope[r * C + c] = 0.25 * off;
        }
    }
    const sr_square_error of = {x, y, targets, ROWS, C, 0.5f, 0.25f};
    assert_int_equal(cpu->square_error(cpu, errors, sr_matrix_of(d, ROWS, C, SRNN_F32), &of),
                     SRNN_OK);
    close_to(errors, want, ROWS, 1e-6);
    close_to(d, slope, ROWS * C, 1e-6);
    assert_int_equal(cpu->square_error(cpu, errors, (sr_matrix){0}, &of), SRNN_OK); /* adds */
    for (int r = 0; r < ROWS; r++)
        want[r] += want[r] - r;
    close_to(errors, want, ROWS, 1e-6);
    free(x), free(y), free(d), free(slope);
}

/* What expert_weigh_backward has not written, for weights that are 0, is not read. */
static void idle_experts_have_no_gradient(void **state) {
    (void)state;
    float logits[] = {2, 1, -200}, weights[3], d_weights[] = {1, NAN, NAN}, d_logits[3];
    const sr_routing routing = {2, 1, false, true};
    const sr_matrix z = sr_matrix_of(logits, 1, 3, SRNN_F32);
    assert_int_equal(cpu->route_forward(cpu, weights, z, &routing), SRNN_OK);
    assert_true(weights[0] > 0 && weights[1] == 0 && weights[2] == 0);
    assert_int_equal(cpu->route_backward(cpu, sr_matrix_of(d_logits, 1, 3, SRNN_F32), d_weights,
                                         weights, z, &routing),
                     SRNN_OK);
    close_to(d_logits, (const double[]){0.19661193, -0.19661193, 0}, 3, 1e-6);
}

static void adamw_steps(void **state) {
    (void)state;
    enum { N = 1003 };
    float *w = numbers(N, 1), *m = calloc(N, sizeof *m), *v = calloc(N, sizeof *v);
    double *W = doubles(N), *M = doubles(N), *S = doubles(N);
    for (int i = 0; i < N; i++)
        W[i] = (double)w[i];
    for (int step = 1; step <= 4; step++) {
        float *g = numbers(N, (uint32_t)step + 10);
        const sr_adamw adamw = {.weight = w,
                                .mean = m,
                                .square = v,
                                .gradient = g,
                                .working = w,
                                .n = N,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .epsilon = 1e-7,
                                .weight_decay = 0.1,
                                .nominal = 5};
        sr_step_stats stats = {.learning_rate = 1e-2, .targets = 10, .updates = step - 1};
        assert_int_equal(cpu->stats_squares(cpu, &stats, g, N), SRNN_OK);
        assert_int_equal(cpu->adamw(cpu, &stats, &adamw), SRNN_OK);
        assert_true(stats.applied && stats.updates == step);
        assert_true(fabs(stats.gradient_norm - 0.5 * sqrt(stats.squares)) < 1e-12);
        for (int i = 0; i < N; i++) {
            const double d = 0.5 * (double)g[i];
            M[i] = 0.9 * M[i] + 0.1 * d;
            S[i] = 0.999 * S[i] + 0.001 * d * d;
            W[i] *= 1 - 1e-2 * 0.1;
            W[i] -=
                1e-2 * (M[i] / (1 - pow(0.9, step))) / (sqrt(S[i] / (1 - pow(0.999, step))) + 1e-7);
        }
        free(g);
    }
    close_to(w, W, N, 1e-6);
    close_to(m, M, N, 1e-6);
    close_to(v, S, N, 1e-6);
    free(w), free(m), free(v), free(W), free(M), free(S);
}

static void sums(void **state) {
    (void)state;
    for (int n = 1; n < 5000; n = n * 3 + 1) {
        float *x = numbers((size_t)n, 9);
        double want = 0;
        for (int i = 0; i < n; i++)
            want += (double)x[i] * (double)x[i];
        sr_step_stats stats = {.squares = 17};
        assert_int_equal(cpu->stats_squares(cpu, &stats, x, n), SRNN_OK);
        assert_true(fabs(stats.squares - want) < 1e-9);
        free(x);
    }
}

enum { CONV_ROWS = 14, CONV_T = 7, CHANNELS = 67, WIDTH = 4 };
static const int32_t conv_positions[CONV_ROWS] = {0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6};

/* sum of d_out * silu(conv(x)) in double, with all arrays in one flat parameter. */
static double conv_loss(const double *x, const double *weight, const double *bias,
                        const float *d_out, double *out) {
    double loss = 0;
    for (int r = 0; r < CONV_ROWS; r++)
        for (int c = 0; c < CHANNELS; c++) {
            double s = bias[c];
            for (int j = 0; j < WIDTH && j <= conv_positions[r]; j++)
                s += weight[c * WIDTH + WIDTH - 1 - j] * x[(r - j) * CHANNELS + c];
            const double y = s / (1 + exp(-s));
            if (out)
                out[r * CHANNELS + c] = y;
            loss += y * (double)d_out[r * CHANNELS + c];
        }
    return loss;
}

/* The parameters of one op, and which one to vary. */
static void slopes(double *slope, double *parameter, int n, const double *x, const double *weight,
                   const double *bias, const float *d_out) {
    const double h = 1e-5;
    for (int i = 0; i < n; i++) {
        const double old = parameter[i];
        parameter[i] = old + h;
        slope[i] = conv_loss(x, weight, bias, d_out, NULL);
        parameter[i] = old - h;
        slope[i] = (slope[i] - conv_loss(x, weight, bias, d_out, NULL)) / (2 * h);
        parameter[i] = old;
    }
}

static void short_convolution(void **state) {
    (void)state;
    enum { N = CONV_ROWS * CHANNELS, NW = CHANNELS * WIDTH };
    float *x = numbers(N, 1), *w = numbers(NW, 2), *b = numbers(CHANNELS, 3);
    float *d_out = numbers(N, 4), *out = numbers(N, 5), *d_x = numbers(N, 6);
    float *d_w = calloc(NW, sizeof *d_w), *d_b = calloc(CHANNELS, sizeof *d_b);
    double *X = doubles(N), *W = doubles(NW), *B = doubles(CHANNELS), *want = doubles(N);
    double *s_x = doubles(N), *s_w = doubles(NW), *s_b = doubles(CHANNELS);
    for (int i = 0; i < N; i++)
        X[i] = (double)x[i];
    for (int i = 0; i < NW; i++)
        W[i] = (double)w[i];
    for (int i = 0; i < CHANNELS; i++)
        B[i] = (double)b[i];
    sr_short_conv conv = {.x = sr_matrix_of(x, CONV_ROWS, CHANNELS, SRNN_F32),
                          .weight = w,
                          .bias = b,
                          .positions = conv_positions,
                          .width = WIDTH,
                          .T = CONV_T};
    conv_loss(X, W, B, d_out, want);
    assert_int_equal(cpu->short_conv_forward(cpu, sr_matrix_of(out, CONV_ROWS, CHANNELS, SRNN_F32),
                                             &conv),
                     SRNN_OK);
    close_to(out, want, N, 1e-6);
    /* The last tokens of a row alone, the ones before them as history. */
    for (int start = 1; start < CONV_T; start++) {
        float history[(WIDTH - 1) * CHANNELS] = {0}, tail[CONV_T * CHANNELS];
        for (int j = 1; j < WIDTH && j <= start; j++)
            memcpy(history + (WIDTH - 1 - j) * CHANNELS, x + (CONV_T + start - j) * CHANNELS,
                   CHANNELS * sizeof *history);
        const int64_t rows = CONV_T - start;
        sr_short_conv piece = conv;
        piece.x = sr_matrix_of(x + (CONV_T + start) * CHANNELS, rows, CHANNELS, SRNN_F32);
        piece.positions = conv_positions + CONV_T + start;
        piece.T = rows;
        piece.history = history;
        assert_int_equal(cpu->short_conv_forward(cpu, sr_matrix_of(tail, rows, CHANNELS, SRNN_F32),
                                                 &piece),
                         SRNN_OK);
        close_to(tail, want + (CONV_T + start) * CHANNELS, (size_t)rows * CHANNELS, 1e-6);
        float next[(WIDTH - 1) * CHANNELS];
        assert_int_equal(cpu->short_conv_history(cpu, next, &piece), SRNN_OK);
        assert_memory_equal(next, x + (CONV_ROWS - WIDTH + 1) * CHANNELS, sizeof next);
    }
    slopes(s_x, X, N, X, W, B, d_out);
    slopes(s_w, W, NW, X, W, B, d_out);
    slopes(s_b, B, CHANNELS, X, W, B, d_out);
    assert_int_equal(cpu->short_conv_backward(cpu, sr_matrix_of(d_x, CONV_ROWS, CHANNELS, SRNN_F32),
                                              d_w, d_b,
                                              sr_matrix_of(d_out, CONV_ROWS, CHANNELS, SRNN_F32),
                                              &conv),
                     SRNN_OK);
    close_to(d_x, s_x, N, 1e-6);
    close_to(d_w, s_w, NW, 1e-6);
    close_to(d_b, s_b, CHANNELS, 1e-6);
    void *all[] = {x, w, b, d_out, out, d_x, d_w, d_b, X, W, B, want, s_x, s_w, s_b};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* The bits of a product and of a norm's gradient on 1, 2 and 3 threads. */
static void threads_do_not_matter(void **state) {
    (void)state;
    enum { ROWS = 261, C = 300 };
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        sr_backend *backend;
        assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = threads}),
                         SRNN_OK);
        float *x = numbers(ROWS * C, 1), *w = numbers(C * C, 2), *y = numbers(ROWS * C, 3);
        float *d_x = calloc(ROWS * C, sizeof *d_x);
        float *d_w = calloc(C * C, sizeof *d_w), *scratch = malloc(SR_ROW_PARTS * C * sizeof *x);
        float rstd[ROWS];
        const sr_matrix X = sr_matrix_of(x, ROWS, C, SRNN_F32),
                        Y = sr_matrix_of(y, ROWS, C, SRNN_F32);
        const sr_rmsnorm norm = {x, w, rstd, 1e-5f, ROWS, C, NULL};
        const sr_linear layer = {w, NULL, .N = C};
        const sr_linear_gradient d_layer = {d_w, NULL, C};
        const sr_rmsnorm_gradient d_norm = {d_x, d_x, d_w, scratch, NULL, false};
        assert_int_equal(backend->linear_forward(backend, Y, (sr_matrix){0}, X, &layer, 1),
                         SRNN_OK);
        assert_int_equal(backend->linear_backward_weight(backend, &d_layer, 1, Y, X), SRNN_OK);
        assert_int_equal(backend->rmsnorm_forward(backend, y, &norm), SRNN_OK);
        assert_int_equal(backend->rmsnorm_backward(backend, &d_norm, y, &norm), SRNN_OK);
        if (!first) {
            first = d_w;
        } else {
            assert_memory_equal(first, d_w, C * C * sizeof *d_w);
            free(d_w);
        }
        free(x), free(w), free(y), free(d_x), free(scratch);
        sr_backend_free(backend);
    }
    free(first);
}

/* ---- signals */

static char *stack_begin, *stack_end;
static volatile sig_atomic_t handled, elsewhere;

static void note_where(int signal_number) {
    char here;
    (void)signal_number;
    handled++;
    if (gettid() != getpid())
        return; /* another thread, at rest, on a stack of its own */
    if ((uintptr_t)&here < (uintptr_t)stack_begin || (uintptr_t)&here >= (uintptr_t)stack_end)
        elsewhere++;
}

static void find_stack(void) {
    pthread_attr_t attributes;
    void *begin;
    size_t bytes;
    assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
    assert_int_equal(pthread_attr_getstack(&attributes, &begin, &bytes), 0);
    pthread_attr_destroy(&attributes);
    stack_begin = begin;
    stack_end = stack_begin + bytes;
}

/* A library may use heap memory as its stack: a signal handler that ran there would overwrite
 * memory below. */
static void handlers_run_on_the_stack(void **state) {
    (void)state;
    enum { SIZE = 512, MOST = 20000 };
    static const int64_t sums[] = {8, 24, 48, 72, 96, 128, 160, 320, SIZE};
    const struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    sr_backend *one;
    void *memory;
    assert_int_equal(sr_backend_create(&one, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    assert_int_equal(sr_device_allocate(one->device, &memory, 3 * SIZE * SIZE * sizeof(float)),
                     SRNN_OK);
    float *const x = memory, *const weight = x + SIZE * SIZE;
    const sr_matrix y = sr_matrix_of(weight + SIZE * SIZE, SIZE, SIZE, SRNN_F32);
    for (size_t i = 0; i < 3 * SIZE * SIZE; i++)
        x[i] = 0.01f;
    find_stack();
    signal(SIGALRM, note_where);
    setitimer(ITIMER_REAL, &often, NULL);
    for (size_t n = 0; n < sizeof sums / sizeof *sums; n++) {
        handled = 0;
        const sr_linear wide = {weight, NULL, .N = SIZE}, deep = {weight, NULL, .N = sums[n]};
        const sr_matrix narrow = sr_matrix_of(x, SIZE, sums[n], SRNN_F32);
        for (int i = 0; i < MOST && handled < 50; i++) {
            assert_int_equal(one->linear_forward(one, y, (sr_matrix){0}, narrow, &wide, 1),
                             SRNN_OK);
            assert_int_equal(one->linear_backward_input(one, y, narrow, &deep, 1), SRNN_OK);
        }
        assert_true(handled > 0);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL);
    assert_int_equal(elsewhere, 0);
    sr_device_release(one->device, memory);
    sr_backend_free(one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_layers),
        cmocka_unit_test(norms),
        cmocka_unit_test(activations),
        cmocka_unit_test(rope_and_its_inverse),
        cmocka_unit_test(embedding),
        cmocka_unit_test(losses),
        cmocka_unit_test(divergences),
        cmocka_unit_test(square_errors),
        cmocka_unit_test(idle_experts_have_no_gradient),
        cmocka_unit_test(adamw_steps),
        cmocka_unit_test(sums),
        cmocka_unit_test(short_convolution),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(handlers_run_on_the_stack),
    };
    if (sr_backend_create(&cpu, &(sr_backend_settings){.threads = 0}) != SRNN_OK)
        return 1;
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sr_backend_free(cpu);
    return failures;
}
