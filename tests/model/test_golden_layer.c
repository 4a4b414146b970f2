/* test_golden_layer.c: one attention layer gives the reference's outputs and gradients. */
#include "golden.h"
#include "model/layer/attention.h"
#include "model/layer/rope.h"
#include "model/layer/sizes.h"
#include "model/layer/wiring.h"

enum { ROWS = GOLDEN_B * GOLDEN_T };

static const double tolerance = 1e-5;

static sr_backend *cpu;
static float rope_table[GOLDEN_T * GOLDEN_D];
static golden_files files;

/* One variant's layer with the golden weights. */
static int32_t positions[ROWS]; /* of each token in its row */

typedef struct fixture {
    const sr_safetensors *file;
    golden_case what;
    sr_attention_layer *layer;
    sr_tensor_table table;
    float *weights, *gradients, *x, *d_y, *want_y, *want_x;
    sr_layer_pointers weight, gradient;
    void *saved, *scratch;
    bool later; /* it mixes in values of an earlier layer, */
    float first[ROWS * GOLDEN_C], d_first[ROWS * GOLDEN_C]; /* as wide as the model */
} fixture;

static const sr_tensor *find_weight(const void *context, const char *name) {
    const fixture *f = context;
    char key[256];
    snprintf(key, sizeof key, "%s/model.layers.0.self_attn.%s", f->what.name, name);
    return sr_safetensors_find(f->file, key);
}

/* Infers the sizes from the shapes of the weights. */
static void find_dims(sr_layer_setup *setup, const fixture *f) {
    const int H = f->what.H, D = GOLDEN_C / H;
    /* Layers of published models share keys. */
    const int Hkv =
        setup->attention.wiring.qk_norm ? (int)find_weight(f, "k_proj.weight")->shape[0] / D : H;
    const sr_layer_sizes sizes =
        sr_layer_sizes_usual(&setup->attention, H, Hkv, D, &(sr_layer_sizes){0});
    setup->dims = sr_layer_sizes_dims(&sizes, GOLDEN_C);
    assert_int_equal(sr_layer_sizes_find(&setup->dims, &setup->attention, "",
                                         (sr_tensor_finder){find_weight, f}),
                     SRNN_OK);
}

static void load_first(fixture *f) {
    float *first = golden_numbers(f->file, f->what.name, "attn.", "v_first", ROWS * GOLDEN_C);
    memcpy(f->first, first, sizeof f->first);
    free(first);
}

static void fixture_open(fixture *f, size_t n) {
    memset(f, 0, sizeof *f);
    f->file = golden_layer_file(&files, n);
    f->what = golden_layer_at(n);
    const sr_safetensors *file = f->file;
    const char *variant = f->what.name;
    sr_layer_setup setup = {.B = GOLDEN_B,
                            .T = GOLDEN_T,
                            .positions = positions,
                            .rope_table = rope_table,
                            .rope_positions = GOLDEN_T};
    assert_int_equal(srnn_attention_parse(&setup.attention, f->what.attention), SRNN_OK);
    f->later = strcmp(variant, "rwkv7_residual") == 0;
    find_dims(&setup, f);
    setup.dims.later = f->later;
    setup.dims.norm_epsilon = 1e-6; /* of QK-norm */
    setup.first_values = f->first;
    setup.d_first_values = f->d_first;
    setup.first_columns = GOLDEN_C;
    if (f->later)
        load_first(f);
    sr_rope_table(rope_table, GOLDEN_T, sr_layer_rope_width(&setup.attention, setup.dims.D), 10000,
                  &(sr_rope_scaling){0});
    assert_int_equal(sr_attention_layer_create(&f->layer, cpu, &setup), SRNN_OK);
    assert_int_equal(sr_layer_tensors(&f->table, "", &setup.attention, &setup.dims), SRNN_OK);
    f->weights = calloc(f->table.numbers, sizeof *f->weights);
    f->gradients = calloc(f->table.numbers, sizeof *f->gradients);
    for (size_t i = 0; i < f->table.count; i++) {
        const sr_tensor_spec *spec = &f->table.specs[i];
        float *numbers =
            golden_numbers(file, variant, "model.layers.0.self_attn.", spec->name, spec->count);
        memcpy(f->weights + spec->start, numbers, spec->count * sizeof *numbers);
        free(numbers);
        f->weight.slot[spec->slot] = f->weights + spec->start;
        f->gradient.slot[spec->slot] = f->gradients + spec->start;
    }
    f->x = golden_numbers(file, variant, "attn.", "x", ROWS * GOLDEN_C);
    f->d_y = golden_numbers(file, variant, "attn.", "dy", ROWS * GOLDEN_C);
    f->want_y = golden_numbers(file, variant, "attn.", "y", ROWS * GOLDEN_C);
    f->want_x = golden_numbers(file, variant, "attn.", "dx", ROWS * GOLDEN_C);
    f->saved = aligned_alloc(64, sr_attention_layer_saved_bytes(f->layer) + 64);
    f->scratch = aligned_alloc(64, sr_attention_layer_scratch_bytes(f->layer) + 64);
    assert_true(f->weights && f->gradients && f->saved && f->scratch);
}

static void fixture_close(fixture *f) {
    sr_attention_layer_free(f->layer);
    sr_tensor_table_free(&f->table);
    void *all[] = {f->weights, f->gradients, f->x,     f->d_y,
                   f->want_y,  f->want_x,    f->saved, f->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void expect(const char *variant, const char *name, const float *got, const float *want,
                   size_t count) {
    const double error = golden_error(got, want, count);
    if (!(error <= tolerance))
        fail_msg("%s: %s is off by %.2e", variant, name, error);
}

/* A norm after a gate cancels it except for its epsilon, so the gate's gradient is a small
 * difference of large numbers, in which the reference's float rounding shows (up to 4e-4 of it, by
 * a double computation). There the error is measured against the layer's whole gradient. */
static void expect_gradient(const char *variant, const sr_tensor_spec *spec, const float *got,
                            const float *want, double whole) {
    const double error = golden_norm(got, want, spec->count);
    const bool rest = strncmp(spec->name, "out_gate_proj", 13) == 0;
    if (!(error <= tolerance * golden_norm(want, NULL, spec->count) ||
          (rest && error <= 1e-6 * whole)))
        fail_msg("%s: the gradient of %s is off by %.2e (whole %.2e)", variant, spec->name, error,
                 whole);
}

static void outputs_and_gradients(void **state) {
    (void)state;
    for (size_t n = 0; n < GOLDEN_LAYERS; n++) {
        fixture f;
        fixture_open(&f, n);
        const char *variant = f.what.name;
        float y[ROWS * GOLDEN_C], d_x[ROWS * GOLDEN_C];
        const sr_matrix X = sr_matrix_of(f.x, ROWS, GOLDEN_C, SRNN_F32);
        const sr_matrix Y = sr_matrix_of(y, ROWS, GOLDEN_C, SRNN_F32);
        const sr_matrix d_Y = sr_matrix_of(f.d_y, ROWS, GOLDEN_C, SRNN_F32);
        const sr_matrix d_X = sr_matrix_of(d_x, ROWS, GOLDEN_C, SRNN_F32);
        const sr_layer_weights weights = {.master = &f.weight, .working = &f.weight};
        assert_int_equal(sr_attention_layer_attend(f.layer, X, &weights, f.saved, NULL), SRNN_OK);
        assert_int_equal(sr_attention_layer_finish(f.layer, Y, (sr_matrix){0}, X, &weights,
                                                   f.saved),
                         SRNN_OK);
        expect(variant, "y", y, f.want_y, ROWS * GOLDEN_C);
        assert_int_equal(sr_attention_layer_backward(f.layer, d_X, &f.gradient, d_Y, X, &weights,
                                                     f.saved, f.scratch, NULL),
                         SRNN_OK);
        expect(variant, "d_x", d_x, f.want_x, ROWS * GOLDEN_C);
        if (f.later) {
            float *want = golden_numbers(f.file, variant, "attn.", "dv_first", ROWS * GOLDEN_C);
            expect(variant, "d_v_first", f.d_first, want, ROWS * GOLDEN_C);
            free(want);
        }
        const double whole = golden_norm(f.gradients, NULL, f.table.numbers);
        for (size_t i = 0; i < f.table.count; i++) {
            const sr_tensor_spec *spec = &f.table.specs[i];
            float *want = golden_numbers(f.file, variant, "attn.grad.", spec->name, spec->count);
            expect_gradient(variant, spec, f.gradients + spec->start, want, whole);
            free(want);
        }
        fixture_close(&f);
    }
}

/* Adds the layer's output for T tokens of every row from `start` on to y. */
static void feed(const fixture *f, sr_layer_state *memory, float *y, float *x, int start, int T) {
    int32_t here[ROWS];
    for (int row = 0; row < GOLDEN_B * T; row++)
        here[row] = start + row % T;
    const sr_layer_weights weights = {.master = &f->weight, .working = &f->weight};
    const sr_layer_piece_place place = {.T = T, .positions = here, .saved = f->saved};
    bool moved;
    assert_int_equal(sr_layer_state_reserve(memory, T, &moved), SRNN_OK);
    assert_int_equal(sr_layer_state_run(memory, sr_matrix_of(y, GOLDEN_B * T, GOLDEN_C, SRNN_F32),
                                        sr_matrix_of(x, GOLDEN_B * T, GOLDEN_C, SRNN_F32), &weights,
                                        &place),
                     SRNN_OK);
    sr_layer_state_advance(memory, T);
}

/* Fed in pieces of any lengths, the layer gives the same outputs. */
static void pieces_make_the_whole(void **state) {
    static const int cuts[][GOLDEN_T] = {{11}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {3, 1, 5, 2}};
    (void)state;
    for (size_t n = 0; n < GOLDEN_LAYERS; n++) {
        fixture f;
        fixture_open(&f, n);
        sr_layer_state *memory;
        assert_int_equal(sr_layer_state_create(&memory, f.layer), SRNN_OK);
        for (size_t cut = 0; cut < sizeof cuts / sizeof *cuts; cut++) {
            float got[ROWS * GOLDEN_C];
            sr_layer_state_reset(memory);
            for (int start = 0, i = 0; start < GOLDEN_T; start += cuts[cut][i++]) {
                const int T = cuts[cut][i];
                float x[ROWS * GOLDEN_C], y[ROWS * GOLDEN_C] = {0};
                if (f.later)
                    load_first(&f);
                for (int b = 0; b < GOLDEN_B; b++) {
                    const int from = (b * GOLDEN_T + start) * GOLDEN_C;
                    const size_t bytes = (size_t)(T * GOLDEN_C) * sizeof *x;
                    memcpy(x + b * T * GOLDEN_C, f.x + from, bytes);
                    memmove(f.first + b * T * GOLDEN_C, f.first + from, bytes);
                }
                feed(&f, memory, y, x, start, T);
                for (int b = 0; b < GOLDEN_B; b++)
                    memcpy(got + (b * GOLDEN_T + start) * GOLDEN_C, y + b * T * GOLDEN_C,
                           (size_t)(T * GOLDEN_C) * sizeof *y);
            }
            expect(f.what.name, "y by pieces", got, f.want_y, ROWS * GOLDEN_C);
        }
        sr_layer_state_free(memory);
        fixture_close(&f);
    }
}

static int open_golden(void **state) {
    (void)state;
    sr_layer_positions(positions, ROWS, GOLDEN_T, NULL, 0);
    return sr_backend_create(&cpu, &(sr_backend_settings){.threads = 0}) != SRNN_OK ||
           golden_open(&files);
}

static int close_golden(void **state) {
    (void)state;
    golden_close(&files);
    sr_backend_free(cpu);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(outputs_and_gradients),
                                       cmocka_unit_test(pieces_make_the_whole)};
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
