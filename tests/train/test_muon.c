/* test_muon.c: Muon against a float64 reference, written from the equations. */
#include "base/random.h"
#include "small_model.h"
#include "train/muon.h"

enum { MOST_SIDE = 64, UPDATES = 4 };
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

typedef struct muon_run {
    sr_backend *backend;
    sr_model *model;
    float *before; /* (numbers) of the weights */
    reference *references;
    sr_muon *muon[2]; /* of each rank */
    sr_graph graph;
    float *mean, *gradient, *weights; /* (numbers): device memory, device memory, host memory */
    sr_step_stats *stats;
} muon_run;

static void *device_memory(srnn_device *device, size_t bytes) {
    void *memory;
    assert_int_equal(sr_device_allocate(device, &memory, bytes), SRNN_OK);
    assert_int_equal(sr_device_zero(device, memory, bytes), SRNN_OK);
    return memory;
}

/* The model's weights come from a model on the CPU, because those of a GPU cannot be written
 * directly. */
static void begin(muon_run *run, const char *device, bool bf16) {
    sr_backend *cpu;
    const sr_backend_settings settings = {.device = device, .threads = 2, .bf16 = bf16};
    assert_int_equal(sr_backend_create(&run->backend, &settings), SRNN_OK);
    assert_int_equal(sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    sr_model *from = small_model(cpu, "gate", SR_MLP_SWIGLU, false, false);
    const size_t bytes = from->table.numbers * sizeof(float);
    srnn_device *const on = run->backend->device;
    assert_int_equal(sr_model_create(&run->model, run->backend, &from->config), SRNN_OK);
    assert_int_equal(sr_device_copy_in(on, run->model->weights, from->weights, bytes), SRNN_OK);
    run->before = malloc(bytes);
    run->weights = malloc(bytes);
    memcpy(run->before, from->weights, bytes);
    run->mean = device_memory(on, bytes);
    run->gradient = device_memory(on, bytes);
    run->stats = device_memory(on, sizeof *run->stats);
    sr_model_free(from);
    sr_backend_free(cpu);
    for (int rank = 0; rank < 2; rank++) {
        const sr_muon_settings muon = {momentum, weight_decay, false, rank, 2};
        assert_int_equal(sr_muon_create(&run->muon[rank], run->model, &muon), SRNN_OK);
    }
    run->references = calloc(run->model->table.count, sizeof *run->references);
    for (size_t t = 0; t < run->model->table.count; t++) {
        const sr_tensor_spec *spec = &run->model->table.specs[t];
        matrix *weight = &run->references[t].weight;
        if (!is_hidden_matrix(spec))
            continue;
        weight->rows = (int)spec->shape[0];
        weight->columns = (int)spec->shape[1];
        for (int i = 0; i < (int)spec->count; i++)
            weight->at[i / weight->columns][i % weight->columns] =
                (double)run->before[spec->start + (size_t)i];
        run->references[t].mean = (matrix){.rows = weight->rows, .columns = weight->columns};
    }
}

static void end(muon_run *run) {
    srnn_device *device = run->backend->device;
    sr_device_forget(device, &run->graph);
    for (int rank = 0; rank < 2; rank++)
        sr_muon_free(run->muon[rank]);
    sr_device_release(device, run->mean);
    sr_device_release(device, run->gradient);
    sr_device_release(device, run->stats);
    free(run->before);
    free(run->weights);
    free(run->references);
    sr_model_free(run->model);
    sr_backend_free(run->backend);
}

/* One step of ranks that each own half of the numbers, one after the other in this process: each
 * finds directions of its half, each makes its matrices orthogonal, each updates its half. The
 * direction overwrites the gradient. */
static srnn_status step_of_two(void *context) {
    muon_run *run = context;
    const int64_t numbers = (int64_t)run->model->table.numbers, half = numbers / 2 / 16 * 16;
    for (int part = 0; part < 3; part++)
        for (int rank = 0; rank < 2; rank++) {
            const sr_share share = {rank ? half : 0, rank ? half : 0, rank ? numbers - half : half};
            const sr_muon_arrays arrays = {.shares = &share,
                                           .share_count = 1,
                                           .mean = run->mean,
                                           .gradient = run->gradient,
                                           .direction = run->gradient,
                                           .stats = run->stats};
            SR_TRY(part == 0   ? sr_muon_directions(run->muon[rank], &arrays)
                   : part == 1 ? sr_muon_orthogonalise(run->muon[rank], run->gradient)
                               : sr_muon_update(run->muon[rank], &arrays));
        }
    return SRNN_OK;
}

static double farthest(const muon_run *run) {
    double worst = 0;
    for (size_t t = 0; t < run->model->table.count; t++) {
        const sr_tensor_spec *spec = &run->model->table.specs[t];
        const matrix *weight = &run->references[t].weight;
        for (int i = 0; i < (int)spec->count && is_hidden_matrix(spec); i++)
            worst = fmax(worst, fabs((double)run->weights[spec->start + (size_t)i] -
                                     weight->at[i / weight->columns][i % weight->columns]));
    }
    return worst;
}
/* Steps follow the reference, whether they are launched or, from the third on, replayed; one that
 * is not applied changes nothing. */
static void expect_reference(const char *device, bool bf16, double limit) {
    muon_run run = {0};
    sr_step_stats stats = {.learning_rate = learning_rate,
                           .gradient_scale = scale,
                           .applied = true};
    begin(&run, device, bf16);
    const sr_tensor_table *table = &run.model->table;
    srnn_device *const on = run.backend->device;
    const size_t bytes = table->numbers * sizeof(float);
    for (int update = 0; update <= UPDATES; update++) {
        for (size_t i = 0; i < table->numbers; i++)
            run.weights[i] = (float)gradient_at(i, update);
        stats.applied = update < UPDATES;
        assert_int_equal(sr_device_copy_in(on, run.stats, &stats, sizeof stats), SRNN_OK);
        assert_int_equal(sr_device_copy_in(on, run.gradient, run.weights, bytes), SRNN_OK);
        assert_int_equal(sr_device_repeat(on, &run.graph, step_of_two, &run), SRNN_OK);
        for (size_t t = 0; t < table->count && stats.applied; t++)
            if (is_hidden_matrix(&table->specs[t]))
                update_reference(&run.references[t], run.weights + table->specs[t].start);
    }
    assert_int_equal(sr_device_copy_out(on, run.weights, run.model->weights, bytes), SRNN_OK);
    int matrices = 0, wide = 0, tall = 0;
    for (size_t t = 0; t < table->count; t++) {
        const sr_tensor_spec *spec = &table->specs[t];
        matrices += is_hidden_matrix(spec);
        wide += is_hidden_matrix(spec) && spec->shape[1] > spec->shape[0];
        tall += is_hidden_matrix(spec) && spec->shape[1] < spec->shape[0];
        if (!is_hidden_matrix(spec))
            assert_memory_equal(run.before + spec->start, run.weights + spec->start,
                                spec->count * sizeof(float));
    }
    assert_true(matrices > 10 && wide > 0 && tall > 0);
    const double worst = farthest(&run);
    print_message("%s, %s: farthest from the reference: %.2g\n", device, bf16 ? "bf16" : "float",
                  worst);
    assert_true(worst < limit); /* an update is about 0.004 */
    end(&run);
}

static void on_cpus(void **state) {
    (void)state;
    expect_reference("cpu", false, 1e-6);
}

static void on_gpus(void **state) {
    (void)state;
    sr_backend *gpu;
    if (sr_backend_create(&gpu, &(sr_backend_settings){.device = "cuda"}) != SRNN_OK)
        skip();
    sr_backend_free(gpu);
    expect_reference("cuda", false, 1e-6);
    expect_reference("cuda", true, 1e-3);
}

/* Every number is a matrix's or one of the others'; every matrix belongs to one rank, and no rank
 * has much more to do than another. */
static void everything_is_divided(void **state) {
    (void)state;
    enum { RANKS = 3 };
    sr_backend *backend;
    assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    sr_model *model = small_model(backend, "norm", SR_MLP_SWIGLU, true, false);
    const sr_tensor_table *table = &model->table;
    sr_muon *muon;
    assert_int_equal(sr_muon_create(&muon, model, &(sr_muon_settings){.ranks = RANKS}), SRNN_OK);
    const sr_learning *others = sr_muon_others(muon);
    const int64_t *bounds = sr_muon_bounds(muon);
    char *seen = calloc(table->numbers, 1);
    int matrices[RANKS] = {0};
    for (size_t i = 0; i < others->learns_count; i++)
        for (int64_t n = 0; n < others->learns[i].count; n++)
            seen[others->learns[i].first + n]++;
    for (size_t t = 0; t < table->count; t++) {
        const sr_tensor_spec *spec = &table->specs[t];
        const int64_t first = (int64_t)spec->start, end = first + (int64_t)spec->count;
        for (size_t i = 0; i < spec->count; i++)
            assert_int_equal(seen[spec->start + i], !is_hidden_matrix(spec));
        for (int r = 0; r < RANKS && is_hidden_matrix(spec); r++) {
            matrices[r] += first >= bounds[r] && first < bounds[r + 1];
            assert_false(first < bounds[r] && end > bounds[r]);
        }
    }
    assert_int_equal(bounds[0], 0);
    assert_int_equal(bounds[RANKS], table->numbers);
    for (int r = 0; r < RANKS; r++)
        assert_in_range(matrices[r], 3, 7); /* of 14 */
    free(seen);
    sr_muon_free(muon);
    sr_model_free(model);
    sr_backend_free(backend);
}

/* Each expert has a bias of its own, and together they have the shape of a matrix. */
static void biases_of_experts_are_vectors(void **state) {
    (void)state;
    sr_backend *backend;
    sr_model_config config = small_config(SR_MLP_SWIGLU, true, false);
    config.experts = (sr_experts){.count = 3, .chosen = 2, .width = 8, .router_bias = true};
    assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    sr_model *model = small_model_of(backend, "softmax", &config);
    sr_muon *muon;
    assert_int_equal(sr_muon_create(&muon, model, &(sr_muon_settings){.ranks = 1}), SRNN_OK);
    const sr_learning *others = sr_muon_others(muon);
    int biases = 0;
    for (size_t t = 0; t < model->table.count; t++) {
        const sr_tensor_spec *spec = &model->table.specs[t];
        bool is_other = false;
        for (size_t i = 0; i < others->learns_count; i++) {
            const int64_t at = (int64_t)spec->start - others->learns[i].first;
            is_other = is_other || (at >= 0 && at < others->learns[i].count);
        }
        biases += spec->rank == 2 && strstr(spec->name, ".bias") != NULL;
        if (strstr(spec->name, ".bias"))
            assert_true(is_other);
    }
    assert_int_equal(biases, 6); /* gate, up and down of two layers */
    sr_muon_free(muon);
    sr_model_free(model);
    sr_backend_free(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_cpus),
        cmocka_unit_test(on_gpus),
        cmocka_unit_test(everything_is_divided),
        cmocka_unit_test(biases_of_experts_are_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
