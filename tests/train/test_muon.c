/* test_muon.c: Muon against a float64 reference, written from the equations. */
#include "base/random.h"
#include "small_model.h"
#include "train/muon.h"

enum { MOST_SIDE = 64, UPDATES = 3 };
static const double momentum = 0.9, weight_decay = 0.1, learning_rate = 0.02, scale = 0.5;

typedef struct matrix {
    int rows, columns;
    double at[MOST_SIDE][MOST_SIDE];
} matrix;

static matrix product(const matrix *a, const matrix *b, bool transpose_b) {
    matrix out = {.rows = a->rows, .columns = transpose_b ? b->rows : b->columns};
    for (int r = 0; r < out.rows; r++)
        for (int c = 0; c < out.columns; c++)
            for (int k = 0; k < a->columns; k++)
                out.at[r][c] += a->at[r][k] * (transpose_b ? b->at[c][k] : b->at[k][c]);
    return out;
}

/* p(X X^T) X of five steps; it is the same whether a matrix or its transpose is given. */
static matrix newton_schulz(const matrix *of) {
    matrix x = *of;
    double squares = 0;
    for (int r = 0; r < x.rows; r++)
        for (int c = 0; c < x.columns; c++)
            squares += x.at[r][c] * x.at[r][c];
    for (int r = 0; r < x.rows; r++)
        for (int c = 0; c < x.columns; c++)
            x.at[r][c] /= sqrt(squares) + 1e-7;
    for (int step = 0; step < 5; step++) {
        const matrix a = product(&x, &x, true), aa = product(&a, &a, false);
        matrix b = a;
        for (int r = 0; r < b.rows; r++)
            for (int c = 0; c < b.columns; c++)
                b.at[r][c] = -4.7750 * a.at[r][c] + 2.0315 * aa.at[r][c];
        const matrix bx = product(&b, &x, false);
        for (int r = 0; r < x.rows; r++)
            for (int c = 0; c < x.columns; c++)
                x.at[r][c] = 3.4445 * x.at[r][c] + bx.at[r][c];
    }
    return x;
}

/* One matrix of the reference. */
typedef struct reference {
    matrix weight, mean;
} reference;

static void update_reference(reference *of, const float *gradient) {
    matrix u = of->mean;
    for (int r = 0; r < u.rows; r++)
        for (int c = 0; c < u.columns; c++) {
            const double g = scale * (double)gradient[r * u.columns + c];
            of->mean.at[r][c] = momentum * of->mean.at[r][c] + (1 - momentum) * g;
            u.at[r][c] = momentum * of->mean.at[r][c] + (1 - momentum) * g;
        }
    const matrix o = newton_schulz(&u);
    const double size = 0.2 * sqrt(fmax(u.rows, u.columns));
    for (int r = 0; r < u.rows; r++)
        for (int c = 0; c < u.columns; c++)
            of->weight.at[r][c] = (1 - learning_rate * weight_decay) * of->weight.at[r][c] -
                                  learning_rate * size * o.at[r][c];
}

static bool is_hidden_matrix(const sr_tensor_spec *spec) {
    return spec->rank == 2 && strstr(spec->name, ".layers.");
}

static double gradient_at(size_t i, int update) {
    return sr_random_normal(3, (uint64_t)update, i);
}

static void matrices_follow_the_reference(void **state) {
    (void)state;
    sr_backend *backend;
    assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = 2}), SRNN_OK);
    sr_model *model = small_model(backend, "gate", SR_MLP_SWIGLU, false, false);
    const sr_tensor_table *table = &model->table;
    const sr_muon_settings settings = {momentum, weight_decay, false};
    sr_muon *muon;
    assert_int_equal(sr_muon_create(&muon, model, &settings), SRNN_OK);
    float *before = malloc(table->numbers * sizeof(float));
    float *gradient = malloc(table->numbers * sizeof(float));
    float *mean = calloc(table->numbers, sizeof(float));
    reference *references = calloc(table->count, sizeof *references);
    memcpy(before, model->weights, table->numbers * sizeof(float));
    for (size_t t = 0; t < table->count; t++) {
        const sr_tensor_spec *spec = &table->specs[t];
        matrix *weight = &references[t].weight;
        if (!is_hidden_matrix(spec))
            continue;
        weight->rows = (int)spec->shape[0];
        weight->columns = (int)spec->shape[1];
        for (int i = 0; i < (int)spec->count; i++)
            weight->at[i / weight->columns][i % weight->columns] =
                (double)before[spec->start + (size_t)i];
        references[t].mean = (matrix){.rows = weight->rows, .columns = weight->columns};
    }
    for (int update = 0; update < UPDATES; update++) {
        for (size_t i = 0; i < table->numbers; i++)
            gradient[i] = (float)gradient_at(i, update);
        assert_int_equal(sr_muon_update(muon, model, mean, gradient, scale, learning_rate),
                         SRNN_OK);
        for (size_t t = 0; t < table->count; t++)
            if (is_hidden_matrix(&table->specs[t]))
                update_reference(&references[t], gradient + table->specs[t].start);
    }
    double worst = 0;
    int matrices = 0, wide = 0, tall = 0;
    for (size_t t = 0; t < table->count; t++) {
        const sr_tensor_spec *spec = &table->specs[t];
        const matrix *weight = &references[t].weight;
        if (!is_hidden_matrix(spec)) {
            assert_memory_equal(before + spec->start, model->weights + spec->start,
                                spec->count * sizeof(float));
            continue;
        }
        matrices++;
        wide += weight->columns > weight->rows;
        tall += weight->columns < weight->rows;
        for (int i = 0; i < (int)spec->count; i++)
            worst = fmax(worst, fabs((double)model->weights[spec->start + (size_t)i] -
                                     weight->at[i / weight->columns][i % weight->columns]));
    }
    assert_true(matrices > 10 && wide > 0 && tall > 0);
    print_message("farthest from the reference: %.2g\n", worst);
    assert_true(worst < 1e-6); /* updates are about 0.02 */
    free(before);
    free(gradient);
    free(mean);
    free(references);
    sr_muon_free(muon);
    sr_model_free(model);
    sr_backend_free(backend);
}

/* Matrices and the ranges of the others cover all parameters exactly once. */
static void others_are_the_rest(void **state) {
    (void)state;
    sr_backend *backend;
    assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    sr_model *model = small_model(backend, "norm", SR_MLP_SWIGLU, true, false);
    const sr_tensor_table *table = &model->table;
    sr_muon *muon;
    size_t count;
    assert_int_equal(sr_muon_create(&muon, model, &(sr_muon_settings){0}), SRNN_OK);
    const sr_number_range *others = sr_muon_others(muon, &count);
    char *seen = calloc(table->numbers, 1);
    for (size_t i = 0; i < count; i++)
        for (int64_t n = others[i].first; n < others[i].end; n++)
            seen[n]++;
    for (size_t t = 0; t < table->count; t++)
        for (size_t i = 0; i < table->specs[t].count; i++)
            assert_int_equal(seen[table->specs[t].start + i], !is_hidden_matrix(&table->specs[t]));
    free(seen);
    sr_muon_free(muon);
    sr_model_free(model);
    sr_backend_free(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_follow_the_reference),
        cmocka_unit_test(others_are_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
