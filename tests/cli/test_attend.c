/* test_attend.c: `softrnn attend` on files, good ones and bad ones. */
#include "test.h"

#include "base/random.h"
#include "cli/commands.h"
#include "files/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { B = 2, H = 4, HKV = 2, T = 9, D = 6, DV = 5, C = H * D };

static const char in_path[] = "test_attend_in.safetensors";
static const char out_path[] = "test_attend_out.safetensors";

/* ---- Making files */

static float numbers[64][4096]; /* one row per tensor of the file being written */

typedef struct content {
    sr_safetensors_writer *writer;
    size_t count;
} content;

static content begin(void) {
    content file = {0};
    assert_int_equal(sr_safetensors_writer_create(&file.writer), SRNN_OK);
    return file;
}

/* Adds random numbers; returns them. */
static float *add(content *file, const char *name, int rank, const int64_t *shape) {
    float *data = numbers[file->count];
    sr_tensor tensor = {.name = name, .dtype = SR_DTYPE_F32, .rank = rank, .data = data};
    memcpy(tensor.shape, shape, (size_t)rank * sizeof *shape);
    assert_true(sr_tensor_measure(&tensor));
    assert_true(tensor.count <= 4096);
    for (size_t i = 0; i < tensor.count; i++)
        data[i] = (float)sr_random_normal(5, file->count, i);
    file->count++;
    assert_int_equal(sr_safetensors_writer_add(file->writer, &tensor), SRNN_OK);
    return data;
}

static void add_integers(content *file, const char *name, const int64_t *values, int64_t count) {
    sr_tensor tensor = {
        .name = name, .dtype = SR_DTYPE_I64, .rank = 1, .shape = {count}, .data = values};
    assert_int_equal(sr_safetensors_writer_add(file->writer, &tensor), SRNN_OK);
}

static void finish(content *file) {
    assert_int_equal(sr_safetensors_writer_write(file->writer, in_path), SRNN_OK);
    sr_safetensors_writer_free(file->writer);
}

#define SHAPE(...)                                                                       \
    (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { \
        __VA_ARGS__                                                                      \
    }

/* ---- Running the command */

static int attend(const char *attention, const char *extra) {
    char *arguments[10] = {(char *)"--attention", (char *)attention, (char *)"--in",
                           (char *)in_path,       (char *)"--out",   (char *)out_path};
    int count = 6;
    char copy[128];
    snprintf(copy, sizeof copy, "%s", extra);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        arguments[count++] = word;
    return command_attend(count, arguments);
}

static const float *result(sr_safetensors *file, const char *name, int rank, const int64_t *shape) {
    const sr_tensor *tensor = sr_safetensors_find(file, name);
    if (!tensor)
        fail_msg("no tensor %s", name);
    assert_true(sr_tensor_has_shape(tensor, rank, shape));
    static float copy[4096];
    sr_tensor_to_float(copy, tensor);
    return copy;
}

static sr_safetensors *results(void) {
    sr_safetensors *file;
    assert_int_equal(sr_safetensors_open(&file, out_path), SRNN_OK);
    return file;
}

static void assert_close(const float *values, const double *expected, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)values[i] - expected[i]) <= 1e-5 * (1 + fabs(expected[i]))))
            fail_msg("number %zu is %g, not %g", i, (double)values[i], expected[i]);
}

/* ---- Plain attention, written from the equation */

typedef struct head {
    double *o;           /* (T, value_width) */
    const double *q, *k; /* (T, width) */
    const double *v;     /* (T, value_width) */
    const float *gate;   /* (T) before its sigmoid, or NULL */
    int width, value_width;
} head;

/* o of one head's document from .. to-1; softmax. */
static void plain_head(const head *h, int from, int to) {
    const int width = h->width, value_width = h->value_width;
    for (int i = from; i < to; i++) {
        double weight[64], sum = 0;
        for (int j = from; j <= i; j++) {
            double s = 0;
            for (int c = 0; c < width; c++)
                s += h->q[i * width + c] * h->k[j * width + c];
            sum += weight[j] = exp(s / sqrt(width));
        }
        for (int c = 0; c < value_width; c++) {
            double total = 0;
            for (int j = from; j <= i; j++)
                total += weight[j] / sum * h->v[j * value_width + c];
            h->o[i * value_width + c] = h->gate ? total / (1 + exp(-(double)h->gate[i])) : total;
        }
    }
}

static void widen(double *to, const float *from, size_t count) {
    for (size_t i = 0; i < count; i++)
        to[i] = (double)from[i];
}

static void plain(double *o, const float *q, const float *k, const float *v, const float *gate,
                  const int64_t *offsets) {
    double wide_q[T * D], wide_k[T * D], wide_v[T * DV];
    for (int n = 0; n < B * H; n++) {
        int b = n / H, source = b * HKV + n % H / (H / HKV);
        widen(wide_q, q + n * T * D, T * D);
        widen(wide_k, k + source * T * D, T * D);
        widen(wide_v, v + source * T * DV, T * DV);
        for (int d = 0; offsets[d] < B * T; d++)
            if (offsets[d] / T == b)
                plain_head(&(head){.o = o + n * T * DV,
                                   .q = wide_q,
                                   .k = wide_k,
                                   .v = wide_v,
                                   .gate = gate ? gate + n * T : NULL,
                                   .width = D,
                                   .value_width = DV},
                           (int)offsets[d] % T, (int)(offsets[d + 1] - b * T));
    }
}

/* ---- q, k, v */

static void heads_agree_with_the_equation(void **state) {
    (void)state;
    static const int64_t whole[] = {0, T, 2 * T}, packed[] = {0, 4, T, T + 1, 2 * T};
    static double expected[B * H * T * DV];
    for (int documents = 0; documents < 2; documents++) {
        content file = begin();
        float *q = add(&file, "q", SHAPE(B, H, T, D)), *k = add(&file, "k", SHAPE(B, HKV, T, D));
        float *v = add(&file, "v", SHAPE(B, HKV, T, DV)),
              *gate = add(&file, "output_gate", SHAPE(B, H, T));
        add(&file, "dy", SHAPE(B, H, T, DV));
        if (documents)
            add_integers(&file, "offsets", packed, 5);
        finish(&file);
        for (int gated = 0; gated < 2; gated++) {
            plain(expected, q, k, v, gated ? gate : NULL, documents ? packed : whole);
            assert_int_equal(attend(gated ? "softmax,output_gate" : "softmax", "--backward"), 0);
            sr_safetensors *out = results();
            assert_close(result(out, "y", SHAPE(B, H, T, DV)), expected, B * H * T * DV);
            result(out, "dq", SHAPE(B, H, T, D));
            result(out, "dk", SHAPE(B, HKV, T, D));
            result(out, "dv", SHAPE(B, HKV, T, DV));
            if (gated)
                result(out, "d.output_gate", SHAPE(B, H, T));
            sr_safetensors_free(out);
        }
    }
}

static void gradient_is_a_difference_quotient(void **state) {
    (void)state;
    static double up[B * H * T * DV], down[B * H * T * DV];
    static const int64_t whole[] = {0, T, 2 * T};
    const float step = 0.0078125f;
    content file = begin();
    float *q = add(&file, "q", SHAPE(B, H, T, D)), *k = add(&file, "k", SHAPE(B, HKV, T, D));
    float *v = add(&file, "v", SHAPE(B, HKV, T, DV)), *d_o = add(&file, "do", SHAPE(B, H, T, DV));
    finish(&file);
    assert_int_equal(attend("softmax", "--backward --dtype double"), 0);
    sr_safetensors *out = results();
    const float *dk = result(out, "dk", SHAPE(B, HKV, T, D));
    for (int i = 0; i < B * HKV * T * D; i += 7) {
        double sum = 0;
        float before = k[i];
        k[i] = before + step;
        plain(up, q, k, v, NULL, whole);
        k[i] = before - step;
        plain(down, q, k, v, NULL, whole);
        k[i] = before;
        for (int n = 0; n < B * H * T * DV; n++)
            sum += (up[n] - down[n]) * (double)d_o[n];
        if (fabs(sum / (2 * (double)step) - (double)dk[i]) > 1e-3)
            fail_msg("dk[%d] is %g, not %g", i, (double)dk[i], sum / (2 * (double)step));
    }
    sr_safetensors_free(out);
}

static void nan_goes_through(void **state) {
    (void)state;
    content file = begin();
    float *q = add(&file, "q", SHAPE(B, H, T, D));
    add(&file, "k", SHAPE(B, HKV, T, D));
    add(&file, "v", SHAPE(B, HKV, T, DV));
    q[3 * D] = NAN;
    finish(&file);
    assert_int_equal(attend("softmax", ""), 0);
    sr_safetensors *out = results();
    const float *y = result(out, "y", SHAPE(B, H, T, DV));
    bool before = isnan(y[2 * DV]), at = isnan(y[3 * DV]);
    assert_false(before);
    assert_true(at);
    sr_safetensors_free(out);
}

/* ---- A whole layer */

static void project(double *out, const float *x, const float *weight, int rows, int outputs) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < outputs; n++) {
            out[r * outputs + n] = 0;
            for (int c = 0; c < C; c++)
                out[r * outputs + n] += (double)x[r * C + c] * (double)weight[n * C + c];
        }
}

/* Head h of a projection (T, heads * D), with RoPE applied. */
static void head_of(double *out, const double *projected, int heads, int h, bool turn) {
    for (int t = 0; t < T; t++)
        for (int c = 0; c < D; c++) {
            const double *row = projected + (t * heads + h) * D;
            double angle = t * pow(10000, -(double)(c % (D / 2)) / (D / 2));
            double other = c < D / 2 ? -row[c + D / 2] : row[c - D / 2];
            out[t * D + c] = turn ? row[c] * cos(angle) + other * sin(angle) : row[c];
        }
}

/* y (T, C) of one batch row. */
static void plain_layer(double *y, const float *x, float *const *weights) {
    static double q[T * C], k[T * C], v[T * C], o[T * C];
    project(q, x, weights[0], T, H * D);
    project(k, x, weights[1], T, HKV * D);
    project(v, x, weights[2], T, HKV * D);
    for (int h = 0; h < H; h++) {
        double of[4][T * D];
        head_of(of[0], q, H, h, true);
        head_of(of[1], k, HKV, h / (H / HKV), true);
        head_of(of[2], v, HKV, h / (H / HKV), false);
        plain_head(
            &(head){.o = of[3], .q = of[0], .k = of[1], .v = of[2], .width = D, .value_width = D},
            0, T);
        for (int t = 0; t < T; t++)
            memcpy(o + (t * H + h) * D, of[3] + t * D, D * sizeof *o);
    }
    for (int t = 0; t < T; t++)
        for (int n = 0; n < C; n++) {
            y[t * C + n] = 0;
            for (int c = 0; c < H * D; c++)
                y[t * C + n] += o[t * H * D + c] * (double)weights[3][n * H * D + c];
        }
}

/* A layer of Mamba-2 with heads of 3 numbers in 2 groups, whose keys have 2; `heads` do not divide
 * C. */
static void attend_groups(float *y, const char *key) {
    enum { HEADS = 10, WIDTH = 3, GROUPS = 2, KEY = 2, INNER = HEADS * WIDTH };
    content file = begin();
    add(&file, "in_proj.weight", SHAPE(2 * INNER + 2 * GROUPS * KEY + HEADS, C));
    add(&file, "conv1d.weight", SHAPE(INNER + 2 * GROUPS * KEY, 1, 4));
    add(&file, "conv1d.bias", SHAPE(INNER + 2 * GROUPS * KEY));
    add(&file, "A_log", SHAPE(HEADS)), add(&file, "dt_bias", SHAPE(HEADS));
    add(&file, "D", SHAPE(HEADS)), add(&file, "norm.weight", SHAPE(INNER));
    add(&file, "out_proj.weight", SHAPE(C, INNER));
    add(&file, "x", SHAPE(B, T, C));
    sr_safetensors_writer_metadata(file.writer, "num_attention_heads", "10");
    sr_safetensors_writer_metadata(file.writer, key, "2");
    finish(&file);
    assert_int_not_equal(C % HEADS, 0);
    assert_int_equal(attend("mamba2", ""), 0);
    sr_safetensors *out = results();
    memcpy(y, result(out, "y", SHAPE(B, T, C)), B * T * C * sizeof *y);
    sr_safetensors_free(out);
}

/* The number of groups cannot be inferred from shapes: one group would give other numbers. */
static void groups_have_two_names(void **state) {
    (void)state;
    static float named[B * T * C], shared[B * T * C], one[B * T * C];
    attend_groups(named, "n_groups");
    attend_groups(shared, "num_key_value_heads");
    attend_groups(one, "nobody_reads_this");
    assert_memory_equal(named, shared, sizeof named);
    assert_memory_not_equal(named, one, sizeof named);
}

static void layer_agrees_with_the_equation(void **state) {
    (void)state;
    static const char *const prefixes[] = {"", "model.layers.0.self_attn."};
    static const char *const names[] = {"q_proj.weight", "k_proj.weight", "v_proj.weight",
                                        "o_proj.weight"};
    static const int64_t shapes[][2] = {{H * D, C}, {HKV * D, C}, {HKV * D, C}, {C, H * D}};
    for (int p = 0; p < 2; p++) {
        char name[4][64], gradient[512];
        float *weights[4];
        content file = begin();
        for (int i = 0; i < 4; i++) {
            snprintf(name[i], sizeof name[i], "%s%s", prefixes[p], names[i]);
            weights[i] = add(&file, name[i], 2, shapes[i]);
            for (int64_t n = 0; n < shapes[i][0] * shapes[i][1]; n++)
                weights[i][n] *= 0.3f;
        }
        float *x = add(&file, "x", SHAPE(B, T, C));
        add(&file, "dy", SHAPE(B, T, C));
        sr_safetensors_writer_metadata(file.writer, "num_attention_heads", "4");
        sr_safetensors_writer_metadata(file.writer, "num_key_value_heads", "2");
        finish(&file);
        assert_int_equal(attend("softmax", "--backward"), 0);
        sr_safetensors *out = results();
        static double expected[B * T * C];
        for (int b = 0; b < B; b++)
            plain_layer(expected + b * T * C, x + b * T * C, weights);
        assert_close(result(out, "y", SHAPE(B, T, C)), expected, B * T * C);
        result(out, "dx", SHAPE(B, T, C));
        for (int i = 0; i < 4; i++) {
            snprintf(gradient, sizeof gradient, "d.%s", name[i]);
            result(out, gradient, 2, shapes[i]);
        }
        sr_safetensors_free(out);
        assert_int_equal(attend("softmax", "--kernel generic"), 0);
        out = results();
        assert_close(result(out, "y", SHAPE(B, T, C)), expected, B * T * C);
        sr_safetensors_free(out);
    }
    /* The file of the previous iteration: a layer through a state, in chunks of three. */
    static double whole[B * T * C];
    assert_int_equal(attend("order:2", "--form parallel"), 0);
    sr_safetensors *out = results();
    widen(whole, result(out, "y", SHAPE(B, T, C)), B * T * C);
    sr_safetensors_free(out);
    assert_int_equal(attend("order:2", "--kernel chunked --chunk 3"), 0);
    out = results();
    assert_close(result(out, "y", SHAPE(B, T, C)), whole, B * T * C);
    sr_safetensors_free(out);
}

/* ---- errors in files */

static void assert_fails(const char *attention, const char *extra, const char *word) {
    unlink(out_path);
    assert_int_equal(attend(attention, extra), EXIT_FAILED);
    if (!strstr(srnn_error_detail(), word) ||
        (!strstr(srnn_error_detail(), in_path) && !strstr(srnn_error_detail(), "column")))
        fail_msg("expected %s in: %s", word, srnn_error_detail());
    assert_int_not_equal(access(out_path, F_OK), 0);
}

static void bad_heads_are_named(void **state) {
    (void)state;
    content file = begin();
    add(&file, "q", SHAPE(B, H, T, D));
    add(&file, "k", SHAPE(B, HKV, T, D));
    finish(&file);
    assert_fails("softmax", "", "'v'");

    file = begin();
    add(&file, "q", SHAPE(B, H, T, D));
    add(&file, "k", SHAPE(B, HKV, T + 1, D));
    add(&file, "v", SHAPE(B, HKV, T, DV));
    finish(&file);
    assert_fails("softmax", "", "'k'");

    file = begin();
    add(&file, "q", SHAPE(B, H, T, D));
    add(&file, "k", SHAPE(B, 3, T, D));
    add(&file, "v", SHAPE(B, 3, T, DV));
    finish(&file);
    assert_fails("softmax", "", "3");

    file = begin();
    add(&file, "q", SHAPE(B, H, T, D));
    add(&file, "k", SHAPE(B, HKV, T, D));
    add(&file, "v", SHAPE(B, HKV, T, DV));
    add_integers(&file, "offsets", (const int64_t[]){0, 30, 18}, 3);
    finish(&file);
    assert_fails("softmax", "", "document");

    file = begin();
    add_integers(&file, "q", (const int64_t[]){1, 2}, 2);
    finish(&file);
    assert_fails("softmax", "", "I64");
}

static void bad_requests_are_named(void **state) {
    (void)state;
    content file = begin();
    add(&file, "q", SHAPE(B, H, T, D));
    add(&file, "k", SHAPE(B, HKV, T, D));
    add(&file, "v", SHAPE(B, HKV, T, DV));
    finish(&file);
    assert_fails("softmax", "--backward", "'dy'");
    assert_fails("gate", "", "'output_gate'");
    assert_fails("sofmax", "", "softmax");
    assert_fails("softmax", "--kernel nonesuch", "nonesuch");
    assert_fails("softmax", "--form recurrent", "");
    assert_int_equal(attend("softmax", "--form sideways"), EXIT_USAGE);
    assert_int_equal(attend("softmax", "--nonesuch"), EXIT_USAGE);
    char *nothing[] = {(char *)"--in", (char *)in_path};
    assert_int_equal(command_attend(2, nothing), EXIT_USAGE);
    unlink(in_path);
    assert_fails("softmax", "", in_path);
}

static void bad_layers_are_named(void **state) {
    (void)state;
    content file = begin();
    add(&file, "x", SHAPE(B, T, C));
    finish(&file);
    assert_fails("softmax", "", "o_proj.weight");

    for (int i = 0; i < 3; i++) {
        static const char *const heads[] = {"4", "0x4", "1000000000"};
        file = begin();
        add(&file, "x", SHAPE(B, T, C));
        add(&file, "o_proj.weight", SHAPE(C, C));
        sr_safetensors_writer_metadata(file.writer, "num_attention_heads", heads[i]);
        finish(&file);
        assert_fails("softmax", "", i == 0 ? "q_proj.weight" : "num_attention_heads");
    }
}

static int remove_files(void **state) {
    (void)state;
    unlink(in_path);
    unlink(out_path);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_agree_with_the_equation),
        cmocka_unit_test(gradient_is_a_difference_quotient),
        cmocka_unit_test(nan_goes_through),
        cmocka_unit_test(layer_agrees_with_the_equation),
        cmocka_unit_test(groups_have_two_names),
        cmocka_unit_test(bad_heads_are_named),
        cmocka_unit_test(bad_requests_are_named),
        cmocka_unit_test(bad_layers_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, remove_files);
}
