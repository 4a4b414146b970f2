/* lesson.c: what a pass learns from a teacher: its logits, or what its layers add. */
#include "model/lesson.h"

#include "base/memory.h"
#include "model/mixers.h"
#include "model/pass_parts.h"

#include <stdlib.h>

static srnn_status refuse(const char *why) {
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "teacher and student cannot be compared: %s", why);
}

static srnn_status check_sizes(const sr_pass *pass) {
    const sr_model_config *student = &pass->model->config;
    const sr_model_config *teacher = &pass->setup.lesson.teacher->config;
    if (student->V != teacher->V)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "the student has %d tokens, its teacher %d", student->V,
                       teacher->V);
    if (teacher->positions < pass->setup.T)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "rows of %d tokens: the teacher has %d positions",
                       pass->setup.T, teacher->positions);
    if (sr_mixer_row_of(student)->contexts || sr_mixer_row_of(teacher)->contexts)
        return refuse("a model of Avey sees contexts in place of the rows of a batch");
    if (sr_model_config_prefix_tokens(student) != sr_model_config_prefix_tokens(teacher))
        return refuse("they have different numbers of prefix tokens, which shift the rows");
    return SRNN_OK;
}

static srnn_status check_streams(const sr_pass *pass) {
    const sr_model_config *student = &pass->model->config;
    const sr_model_config *teacher = &pass->setup.lesson.teacher->config;
    if (student->L != teacher->L || student->C != teacher->C)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "the student has %d layers of width %d, its teacher %d of width %d: layers "
                       "can only be compared one by one",
                       student->L, student->C, teacher->L, teacher->C);
    return SRNN_OK;
}

/* Layers see each other's inputs only if the residual streams match, and are trained alone only if
 * nothing passes from one to the next. */
static srnn_status check_layers(const sr_pass *pass) {
    const sr_model_config *student = &pass->model->config;
    SR_TRY(check_streams(pass));
    if (sr_layer_kinds_first_values(student))
        return refuse("layers of the student take values from its first layer, so that none can "
                      "be trained alone; train on the logits");
    return SRNN_OK;
}

srnn_status sr_lesson_begin(sr_pass *pass) {
    const sr_lesson *lesson = &pass->setup.lesson;
    const sr_pass_setup setup = {.B = pass->setup.B,
                                 .T = pass->setup.T,
                                 .keep_inputs = sr_lesson_has_streams(pass),
                                 .form = pass->setup.form};
    const bool kl =
        lesson->objective == SR_OBJECTIVE_KL || lesson->objective == SR_OBJECTIVE_REVERSE_KL;
    if (!(lesson->hidden_weight >= 0) || (sr_lesson_has_streams(pass) && !kl))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a weight of hidden states is 0 or more, and goes with "
                                          "objective kl or reverse-kl");
    if (!lesson->teacher)
        return lesson->objective == SR_OBJECTIVE_TEXT
                   ? SRNN_OK
                   : SR_FAIL(SRNN_ERR_ARGUMENT, "this objective needs a teacher");
    if (!(lesson->temperature >= 0))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a temperature must be above 0");
    if (pass->part.count > 1)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "a teacher's rows cannot be divided among context "
                                             "ranks: use data-parallel ranks");
    SR_TRY(check_sizes(pass));
    if (sr_lesson_is_layerwise(pass))
        SR_TRY(check_layers(pass));
    if (sr_lesson_has_streams(pass))
        SR_TRY(check_streams(pass));
    return sr_pass_create(&pass->teacher, lesson->teacher, &setup);
}

/* ---- logits */

static srnn_status diverge(sr_pass *pass, sr_matrix logits, int64_t first, sr_divergence of) {
    sr_matrix teacher, normed;
    SR_TRY(sr_pass_logits_tile(pass->teacher, &teacher, &normed, first));
    of.student = logits;
    of.teacher = teacher;
    of.targets = pass->targets + first;
    return pass->backend->divergence(pass->backend, pass->losses + first, &of);
}

srnn_status sr_lesson_diverge(sr_pass *pass, sr_matrix logits, int64_t first, float scale) {
    const sr_lesson *lesson = &pass->setup.lesson;
    const sr_divergence of = {.reversed = lesson->objective == SR_OBJECTIVE_REVERSE_KL,
                              .temperature =
                                  lesson->temperature > 0 ? (float)lesson->temperature : 1.0f,
                              .scale = scale};
    return diverge(pass, logits, first, of);
}

static srnn_status check_teacher(const sr_pass *pass) {
    return pass->teacher ? SRNN_OK : SR_FAIL(SRNN_ERR_ARGUMENT, "this pass has no teacher");
}

srnn_status sr_pass_divergences(sr_pass *pass, float *divergences, const int32_t *ids,
                                const int32_t *targets) {
    sr_matrix logits, normed;
    SR_TRY(check_teacher(pass));
    SR_TRY(sr_pass_load(pass, ids, targets));
    SR_TRY(sr_pass_forward(pass->teacher));
    SR_TRY(sr_pass_forward(pass));
    for (int64_t first = 0; first < pass->rows; first += pass->logit_rows) {
        SR_TRY(sr_pass_logits_tile(pass, &logits, &normed, first));
        SR_TRY(diverge(pass, logits, first, (sr_divergence){.temperature = 1}));
    }
    return sr_device_copy_out(pass->backend->device, divergences, pass->losses,
                              (size_t)pass->rows * sizeof *divergences);
}

/* ---- layers */

/* One layer of both models: the teacher's input of the layer, and what becomes of it after the
 * attention of each. */
typedef struct layer_pair {
    int layer;
    sr_block_saved student;
    const float *x, *teachers, *students; /* (rows, C) */
} layer_pair;

typedef srnn_status layer_visit(sr_pass *pass, const layer_pair *pair, void *context);

static bool is_compared(const sr_pass *pass, int layer) {
    const bool *layers = pass->setup.lesson.layers;
    return !layers || layers[layer];
}

static int compared_layers(const sr_pass *pass) {
    int count = 0;
    for (int layer = 0; layer < pass->model->config.L; layer++)
        count += is_compared(pass, layer);
    return count;
}

/* The student's attention for the teacher's input, in pass->x. */
static srnn_status pair_layer(sr_pass *pass, int layer, const float *x, const float *teachers,
                              layer_visit *visit, void *context) {
    layer_pair pair = {layer, pass->saved[layer], x, teachers, pass->x};
    pair.student.x = (float *)x;
    SR_TRY(sr_block_mix(&pass->blocks[layer], pass->x, &pair.student));
    return visit(pass, &pair, context);
}

/* The teacher's forward pass, from one layer to the next; its activations of a layer are
 * overwritten by those of the next. */
static srnn_status walk(sr_pass *pass, layer_visit *visit, void *context) {
    sr_pass *teacher = pass->teacher;
    const sr_model_config *config = &teacher->model->config;
    SR_TRY(sr_pass_embed(teacher));
    for (int layer = 0; layer < config->L; layer++) {
        const sr_block_saved *saved = &teacher->saved[layer];
        float *out = layer + 1 < config->L ? teacher->saved[layer + 1].x : teacher->last;
        SR_TRY(sr_block_forward(&teacher->blocks[layer], out, saved));
        if (is_compared(pass, layer))
            SR_TRY(pair_layer(pass, layer, saved->x,
                              sr_model_config_has_mlp(config) ? saved->middle : out, visit,
                              context));
    }
    return SRNN_OK;
}

static sr_square_error error_of(const sr_pass *pass, const float *x, const float *y) {
    const int C = pass->model->config.C;
    return (sr_square_error){.x = x,
                             .y = y,
                             .targets = pass->targets,
                             .rows = pass->rows,
                             .C = C,
                             .factor = 1.0f / (float)C};
}

static srnn_status zero_losses(sr_pass *pass) {
    return sr_device_zero(pass->backend->device, pass->losses,
                          (size_t)pass->rows * sizeof *pass->losses);
}

static srnn_status learn_layer(sr_pass *pass, const layer_pair *pair, void *context) {
    const sr_block *block = &pass->blocks[pair->layer];
    const sr_block_scratch scratch = sr_block_scratch_at(block, pass->scratch);
    const int *count = context;
    sr_square_error error = error_of(pass, pair->students, pair->teachers);
    const sr_matrix d = sr_matrix_of(pass->d.narrow, pass->rows, error.C, pass->backend->number);
    error.factor /= (float)*count;
    error.scale = pass->scale;
    SR_TRY(pass->backend->square_error(pass->backend, pass->losses, d, &error));
    return sr_block_mix_backward(block, pass->d.narrow, &pass->gradient.block[pair->layer],
                                 &pair->student, &scratch);
}

/* In the order of a backward pass. */
static srnn_status report_ready(const sr_pass *pass) {
    for (int layer = pass->model->config.L; pass->setup.ready && layer >= -1; layer--)
        SR_TRY(pass->setup.ready(pass->setup.ready_context, layer));
    return SRNN_OK;
}

srnn_status sr_lesson_layers(sr_pass *pass) {
    int count = compared_layers(pass);
    SR_TRY(zero_losses(pass));
    SR_TRY(walk(pass, learn_layer, &count));
    return report_ready(pass);
}

/* Room on the host for the errors of one layer. */
typedef struct layer_sums {
    sr_layer_error *errors; /* (L) */
    float *rows;            /* (rows) */
} layer_sums;

static srnn_status add_error(sr_pass *pass, double *sum, float *rows, const float *x,
                             const float *y) {
    const sr_square_error error = error_of(pass, x, y);
    SR_TRY(zero_losses(pass));
    SR_TRY(pass->backend->square_error(pass->backend, pass->losses, (sr_matrix){0}, &error));
    SR_TRY(sr_device_copy_out(pass->backend->device, rows, pass->losses,
                              (size_t)pass->rows * sizeof *rows));
    for (int64_t row = 0; row < pass->rows; row++)
        *sum += (double)rows[row];
    return SRNN_OK;
}

static srnn_status measure_layer(sr_pass *pass, const layer_pair *pair, void *context) {
    const layer_sums *sums = context;
    sr_layer_error *own = &sums->errors[pair->layer];
    SR_TRY(add_error(pass, &own->error, sums->rows, pair->students, pair->teachers));
    return add_error(pass, &own->size, sums->rows, pair->teachers, pair->x);
}

srnn_status sr_pass_layer_errors(sr_pass *pass, sr_layer_error *errors, const int32_t *ids,
                                 const int32_t *targets) {
    void *memory;
    SR_TRY(check_teacher(pass));
    SR_TRY(check_layers(pass));
    SR_TRY(sr_pass_load(pass, ids, targets));
    SR_TRY(sr_alloc(&memory, (size_t)pass->rows, sizeof(float)));
    layer_sums sums = {errors, memory};
    const srnn_status status = walk(pass, measure_layer, &sums);
    free(memory);
    return status;
}

/* ---- residual streams */

/* What layer + 1 reads, or the last norm. */
static const float *stream_after(const sr_pass *pass, int layer) {
    return layer + 1 < pass->model->config.L ? pass->saved[layer + 1].x : pass->last;
}

static sr_square_error stream_error(const sr_pass *pass, int layer) {
    sr_square_error error =
        error_of(pass, stream_after(pass, layer), stream_after(pass->teacher, layer));
    error.factor *= pass->setup.lesson.hidden_weight / (float)pass->model->config.L;
    return error;
}

srnn_status sr_lesson_streams(sr_pass *pass) {
    for (int layer = 0; layer < pass->model->config.L; layer++) {
        const sr_square_error error = stream_error(pass, layer);
        SR_TRY(pass->backend->square_error(pass->backend, pass->losses, (sr_matrix){0}, &error));
    }
    return SRNN_OK;
}

/* In pass->d_normed, which nothing needs any more: the last norm's backward pass is done. */
srnn_status sr_lesson_streams_back(sr_pass *pass, int layer) {
    sr_backend *backend = pass->backend;
    sr_square_error error = stream_error(pass, layer);
    const sr_matrix d = sr_matrix_of(pass->d_normed, pass->rows, error.C, backend->number);
    const sr_matrix wide = sr_matrix_of(pass->d.wide, pass->rows, error.C, SRNN_F32);
    error.scale = pass->scale;
    SR_TRY(backend->square_error(backend, pass->stream_errors, d, &error));
    SR_TRY(backend->add_scaled(backend, wide, wide, d, 1.0f));
    return backend->number == SRNN_F32
               ? SRNN_OK
               : backend->narrow(backend, pass->d.narrow, pass->d.wide, pass->rows * error.C);
}
