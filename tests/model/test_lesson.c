/* test_lesson.c: what a student learns from a teacher: losses against float64, gradients against
 * slopes, nothing to learn from oneself. */
#include "model/config/layers.h"
#include "model/pass_parts.h"
#include "small_model.h"

#include <float.h>

enum { B = 2, T = 13, ROWS = B * T };

static sr_backend *cpu;
static int32_t ids[2 * ROWS], *const targets = ids + ROWS;

static sr_pass *pass_with(sr_model *student, const sr_lesson *lesson, bool train) {
    const sr_pass_setup setup = {.B = B, .T = T, .train = train, .lesson = *lesson};
    sr_pass *pass;
    assert_int_equal(sr_pass_create(&pass, student, &setup), SRNN_OK);
    return pass;
}

/* The sum of squares of log(sum exp logits), over rows with a target. */
static double z_losses(sr_model *model) {
    static float logits[ROWS * 23];
    const int V = model->config.V;
    double total = 0;
    sr_pass *pass = pass_with(model, &(sr_lesson){0}, false);
    assert_int_equal(sr_pass_logits(pass, logits, ids), SRNN_OK);
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int v = 0; v < V; v++)
            sum += exp((double)logits[r * V + v]);
        total += targets[r] >= 0 ? log(sum) * log(sum) : 0;
    }
    sr_pass_free(pass);
    return total;
}

/* What the gradient is of. */
static double loss_of(sr_model *model, const sr_lesson *lesson, sr_pass *pass) {
    float losses[ROWS];
    double sum = lesson->z_loss > 0 ? (double)lesson->z_loss * z_losses(model) : 0;
    assert_int_equal(sr_pass_gradients(pass, losses, ids, targets, 1.0), SRNN_OK);
    for (int i = 0; i < ROWS; i++) {
        sum += (double)losses[i];
        assert_true(targets[i] >= 0 || losses[i] == 0);
    }
    return sum;
}

/* The slope of the lesson's loss along `direction`, which is not the pass's own array. */
static double slope_along(sr_model *model, const sr_lesson *lesson, sr_pass *pass,
                          const sr_tensor_spec *spec, const float *direction, double step) {
    float *weight = model->weights + spec->start, *saved = malloc(spec->count * sizeof *saved);
    double ends[2];
    assert_non_null(saved);
    memcpy(saved, weight, spec->count * sizeof *saved);
    for (int end = 0; end < 2; end++) {
        for (size_t n = 0; n < spec->count; n++)
            weight[n] = saved[n] + (float)((end ? step : -step) * (double)direction[n]);
        ends[end] = loss_of(model, lesson, pass);
    }
    memcpy(weight, saved, spec->count * sizeof *saved);
    free(saved);
    return (ends[1] - ends[0]) / (2 * step);
}

/* Along the gradient of each tensor the loss must rise by its squared norm; weights move by
 * `length`. */
static void check_slopes(sr_model *student, const sr_lesson *lesson, const char *label,
                         double length) {
    sr_pass *pass = pass_with(student, lesson, true);
    const size_t numbers = student->table.numbers;
    float *gradient = malloc(numbers * sizeof *gradient);
    int learning = 0;
    assert_non_null(gradient);
    /* One rounding of the loss tilts the slope by so much of the gradient. */
    const double noise = (double)FLT_EPSILON * loss_of(student, lesson, pass) / length;
    memcpy(gradient, sr_pass_gradient(pass), numbers * sizeof *gradient);
    for (size_t i = 0; i < student->table.count; i++) {
        const sr_tensor_spec *spec = &student->table.specs[i];
        double squares = 0;
        for (size_t n = 0; n < spec->count; n++)
            squares += pow((double)gradient[spec->start + n], 2);
        learning += squares > 0;
        if (lesson->objective == SR_OBJECTIVE_LAYERS && spec->slot >= SR_LAYER_SLOTS &&
            spec->slot != SR_BLOCK_MIXER_POST_NORM) {
            assert_true(squares == 0); /* only what makes the attention's output */
            continue;
        }
        const double step = length / sqrt(squares + 1e-12);
        const float *direction = gradient + spec->start;
        const double slope = (4 * slope_along(student, lesson, pass, spec, direction, step) -
                              slope_along(student, lesson, pass, spec, direction, 2 * step)) /
                             3; /* without the third derivative, which divergences have */
        if (!(fabs(slope - squares) <= 0.02 * squares + (2e-3 + noise) * sqrt(squares)))
            fail_msg("%s: the gradient of %s says %.6g, the slope %.6g", label, spec->name, squares,
                     slope);
    }
    assert_true(learning > 4);
    free(gradient);
    sr_pass_free(pass);
}

/* The norm of gla's outputs bends the loss sharply where they are small. */
static const struct {
    const char *attention;
    double length;
} students[] = {{"softmax", 4e-3}, {"linear_cosine", 4e-3}, {"gated_softmax", 4e-3}, {"gla", 6e-4}};
enum { STUDENTS = sizeof students / sizeof *students };

static void gradients(void **state) {
    (void)state;
    sr_model *teacher = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, true);
    for (int i = 0; i < STUDENTS; i++) {
        sr_model *student = small_model(cpu, students[i].attention, SR_MLP_SWIGLU, false, true);
        for (size_t n = 0; n < student->table.numbers; n++) /* no longer the teacher's */
            student->weights[n] += (float)(0.05 * sr_random_normal(9, 1, n));
        for (int objective = SR_OBJECTIVE_KL; objective <= SR_OBJECTIVE_LAYERS; objective++)
            for (int warm = 0; warm < 2; warm++) {
                const sr_lesson lesson = {.objective = (sr_objective)objective,
                                          .teacher = teacher,
                                          .temperature = warm ? 2.5 : 1};
                check_slopes(student, &lesson, students[i].attention, students[i].length);
            }
        const sr_lesson hidden = {.objective = SR_OBJECTIVE_KL,
                                  .teacher = teacher,
                                  .temperature = 2.5,
                                  .hidden_weight = 0.3f};
        check_slopes(student, &hidden, students[i].attention, students[i].length);
        sr_model_free(student);
    }
    sr_model_free(teacher);
}

/* Cross entropy and z-loss; behind the logits' cap, too. */
static void gradients_of_texts(void **state) {
    (void)state;
    for (int capped = 0; capped < 2; capped++) {
        sr_model_config c = small_config(SR_MLP_SWIGLU, false, true);
        c.logit_cap = capped ? 3 : 0;
        sr_model *model = small_model_of(cpu, "softmax", &c);
        check_slopes(model, &(sr_lesson){.z_loss = 0.1f}, "z-loss", 4e-3);
        sr_model_free(model);
    }
}

/* Norms behind the mixer, multipliers and logit caps change what is compared. */
static void gradients_of_other_blocks(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        sr_model_config c = small_config(SR_MLP_GELU, true, false), d = c;
        c.residual_multiplier = d.residual_multiplier = 0.7;
        c.logit_cap = d.logit_cap = 3;
        const char *attention = i ? "softmax,block_norm=both" : "softmax,block_norm=parallel";
        sr_model *teacher = small_model_of(cpu, attention, &c);
        sr_model *student = small_model_of(cpu, attention, &d);
        for (size_t n = 0; n < student->table.numbers; n++)
            student->weights[n] += (float)(0.05 * sr_random_normal(9, 2, n));
        for (int objective = SR_OBJECTIVE_KL; objective <= SR_OBJECTIVE_LAYERS; objective++) {
            const sr_lesson lesson = {.objective = (sr_objective)objective, .teacher = teacher};
            check_slopes(student, &lesson, attention, 4e-3);
        }
        sr_model_free(student);
        sr_model_free(teacher);
    }
}

/* t^2 KL of whole rows of logits, in double. */
static double divergence_of(const float *student, const float *teacher, int V, double t,
                            bool reversed) {
    double q = 0, p = 0, sum = 0;
    for (int v = 0; v < V; v++) {
        q += exp((double)student[v] / t);
        p += exp((double)teacher[v] / t);
    }
    for (int v = 0; v < V; v++) {
        const double log_q = (double)student[v] / t - log(q),
                     log_p = (double)teacher[v] / t - log(p);
        sum += reversed ? exp(log_q) * (log_q - log_p) : exp(log_p) * (log_p - log_q);
    }
    return t * t * sum;
}

static void compare_logits(sr_model *student, sr_model *teacher, double t, bool reversed) {
    enum { V = 23 };
    static float at_student[ROWS * V], at_teacher[ROWS * V];
    float losses[ROWS], plain[ROWS];
    const sr_lesson none = {0},
                    lesson = {.objective = reversed ? SR_OBJECTIVE_REVERSE_KL : SR_OBJECTIVE_KL,
                              .teacher = teacher,
                              .temperature = t};
    sr_pass *a = pass_with(student, &none, false), *b = pass_with(teacher, &none, false);
    sr_pass *both = pass_with(student, &lesson, true);
    assert_int_equal(sr_pass_logits(a, at_student, ids), SRNN_OK);
    assert_int_equal(sr_pass_logits(b, at_teacher, ids), SRNN_OK);
    assert_int_equal(sr_pass_gradients(both, losses, ids, targets, 1), SRNN_OK);
    assert_int_equal(sr_pass_divergences(both, plain, ids, targets), SRNN_OK);
    for (int i = 0; i < ROWS; i++) {
        const float *x = at_student + i * V, *y = at_teacher + i * V;
        const double counts = targets[i] >= 0;
        assert_true(fabs((double)losses[i] - counts * divergence_of(x, y, V, t, reversed)) < 2e-5);
        assert_true(fabs((double)plain[i] - counts * divergence_of(x, y, V, 1, false)) < 2e-5);
    }
    sr_pass_free(a), sr_pass_free(b), sr_pass_free(both);
}

static void divergences(void **state) {
    (void)state;
    sr_model *teacher = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, true);
    sr_model *student = small_model(cpu, "linear_cosine", SR_MLP_SWIGLU, false, true);
    compare_logits(student, teacher, 1, false);
    compare_logits(student, teacher, 1, true);
    compare_logits(student, teacher, 2.5, false);
    compare_logits(student, teacher, 0.5, true);
    sr_model_free(student), sr_model_free(teacher);
}

/* The teacher as its own student: every loss and gradient is exactly 0. */
static void nothing_to_learn_from_oneself(void **state) {
    (void)state;
    sr_model *teacher = small_model(cpu, "softmax", SR_MLP_SWIGLU, true, false);
    sr_model *student = small_model(cpu, "softmax", SR_MLP_SWIGLU, true, false);
    for (int objective = SR_OBJECTIVE_KL; objective <= SR_OBJECTIVE_LAYERS; objective++) {
        const sr_lesson lesson = {.objective = (sr_objective)objective,
                                  .teacher = teacher,
                                  .temperature = 1.5,
                                  .hidden_weight = objective == SR_OBJECTIVE_LAYERS ? 0 : 2};
        sr_pass *pass = pass_with(student, &lesson, true);
        assert_true(loss_of(student, &lesson, pass) == 0);
        for (size_t n = 0; n < student->table.numbers; n++)
            assert_true(sr_pass_gradient(pass)[n] == 0);
        sr_pass_free(pass);
    }
    sr_model_free(student), sr_model_free(teacher);
}

/* The hidden states' part of the loss, from the residual streams themselves, and what it costs to
 * leave it out: nothing but that part. */
static void hidden_states(void **state) {
    (void)state;
    float with[ROWS], without[ROWS], of_text[ROWS];
    sr_model *teacher = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, true);
    sr_model *student = small_model(cpu, "linear_cosine", SR_MLP_SWIGLU, false, true);
    const int C = student->config.C, L = student->config.L;
    sr_lesson lesson = {.objective = SR_OBJECTIVE_REVERSE_KL, .teacher = teacher};
    sr_pass *plain = pass_with(student, &lesson, true);
    lesson.hidden_weight = 0.7f;
    sr_pass *pass = pass_with(student, &lesson, true);
    assert_int_equal(sr_pass_gradients(plain, without, ids, targets, 1), SRNN_OK);
    assert_int_equal(sr_pass_gradients(pass, with, ids, targets, 1), SRNN_OK);
    assert_int_equal(sr_pass_losses(pass, of_text, ids, targets), SRNN_OK); /* streams anew */
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int layer = 0; layer < L; layer++) {
            const float *x = layer + 1 < L ? pass->saved[layer + 1].x : pass->last;
            const float *y =
                layer + 1 < L ? pass->teacher->saved[layer + 1].x : pass->teacher->last;
            for (int c = 0; c < C; c++)
                sum += pow((double)x[r * C + c] - (double)y[r * C + c], 2);
        }
        const double want = targets[r] < 0 ? 0 : 0.7 * sum / (L * C);
        assert_true(fabs((double)with[r] - (double)without[r] - want) < 1e-5 * (1 + want));
        assert_true(targets[r] < 0 || want > 1e-4);
    }
    sr_pass_free(pass), sr_pass_free(plain);
    sr_model_free(student), sr_model_free(teacher);
}

/* Layers learn alone: what a layer gets does not depend on the others, nor does its error. */
static void layers_are_independent(void **state) {
    (void)state;
    static const bool second[] = {false, true};
    sr_layer_error errors[2] = {{0, 0}, {0, 0}}, again[2] = {{0, 0}, {0, 0}};
    sr_model *teacher = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, true);
    sr_model *student = small_model(cpu, "linear_cosine", SR_MLP_SWIGLU, false, true);
    const sr_lesson all = {.objective = SR_OBJECTIVE_LAYERS, .teacher = teacher},
                    one = {SR_OBJECTIVE_LAYERS, teacher, 1, second, 0, 0};
    sr_pass *whole = pass_with(student, &all, true), *part = pass_with(student, &one, true);
    const double loss = loss_of(student, &all, whole), own = loss_of(student, &one, part);
    for (size_t i = 0; i < student->table.count; i++) {
        const sr_tensor_spec *spec = &student->table.specs[i];
        const bool counts = spec->slot < SR_LAYER_SLOTS && spec->layer == 1;
        for (size_t n = spec->start; n < spec->start + spec->count; n++) {
            const float x = sr_pass_gradient(whole)[n], y = sr_pass_gradient(part)[n];
            assert_true(counts ? fabsf(2 * x - y) <= 1e-5f * fabsf(y) : y == 0);
        }
    }
    assert_int_equal(sr_pass_layer_errors(whole, errors, ids, targets), SRNN_OK);
    assert_int_equal(sr_pass_layer_errors(part, again, ids, targets), SRNN_OK);
    assert_true(fabs((errors[0].error + errors[1].error) / 2 - loss) < 1e-5 * loss);
    assert_true(fabs(errors[1].error - own) < 1e-5 * own && errors[0].size > 0);
    assert_true(again[0].error == 0 && again[1].error == errors[1].error);
    sr_pass_free(whole), sr_pass_free(part);
    sr_model_free(student), sr_model_free(teacher);
}

static void refused(sr_model *student, const sr_lesson *lesson, srnn_status want) {
    const sr_pass_setup setup = {.B = B, .T = T, .train = true, .lesson = *lesson};
    sr_pass *pass;
    assert_int_equal(sr_pass_create(&pass, student, &setup), want);
    assert_null(pass);
}

static void what_cannot_be_compared(void **state) {
    (void)state;
    sr_model_config shallow = small_config(SR_MLP_SWIGLU, false, true);
    shallow.L = 1;
    sr_model *teacher = small_model_of(cpu, "softmax", &shallow);
    sr_model *student = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, true);
    sr_model *other = small_byte_model(cpu, "softmax", 0.02);
    sr_model *mixing = small_model(cpu, "rwkv7", SR_MLP_SWIGLU, false, true);
    refused(student, &(sr_lesson){.objective = SR_OBJECTIVE_KL}, SRNN_ERR_ARGUMENT);
    refused(other, &(sr_lesson){SR_OBJECTIVE_KL, student, 1, NULL, 0, 0}, SRNN_ERR_ARGUMENT);
    refused(student, &(sr_lesson){SR_OBJECTIVE_LAYERS, teacher, 1, NULL, 0, 0}, SRNN_ERR_ARGUMENT);
    refused(student, &(sr_lesson){SR_OBJECTIVE_KL, teacher, 1, NULL, 0, 1}, SRNN_ERR_ARGUMENT);
    refused(student, &(sr_lesson){SR_OBJECTIVE_TEXT, student, 1, NULL, 0, 1}, SRNN_ERR_ARGUMENT);
    refused(mixing, &(sr_lesson){SR_OBJECTIVE_LAYERS, student, 1, NULL, 0, 0},
            SRNN_ERR_UNSUPPORTED);
    sr_pass_free(pass_with(student, &(sr_lesson){SR_OBJECTIVE_KL, teacher, 1, NULL, 0, 0}, true));
    sr_model *const all[] = {teacher, student, other, mixing};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        sr_model_free(all[i]);
}

static void layers_as_text(void **state) {
    (void)state;
    static const struct {
        const char *text, *printed;
    } right[] = {{"", ""},       {"0,5,11", "0,5,11"}, {"0-3", "0-3"},
                 {"9-", "9-11"}, {"3-/4", "3,7,11"},   {"1-8/3,2", "1-2,4,7"}};
    static const char *const wrong[] = {"a", "0,", ",0", "1-2-3", "12", "3-1", "2-/0", "1 2", "-3"};
    enum { L = 12 };
    bool some[L];
    char text[64];
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        assert_int_equal(sr_layers_parse(some, L, right[i].text), SRNN_OK);
        sr_layers_print(text, sizeof text, some, L);
        assert_string_equal(text, right[i].printed);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_not_equal(sr_layers_parse(some, L, wrong[i]), SRNN_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients),
        cmocka_unit_test(gradients_of_texts),
        cmocka_unit_test(gradients_of_other_blocks),
        cmocka_unit_test(divergences),
        cmocka_unit_test(nothing_to_learn_from_oneself),
        cmocka_unit_test(hidden_states),
        cmocka_unit_test(layers_are_independent),
        cmocka_unit_test(what_cannot_be_compared),
        cmocka_unit_test(layers_as_text),
    };
    small_ids(ids, ROWS, 23, 5);
    small_ids(targets, ROWS, 23, 6);
    targets[3] = targets[20] = -1;
    if (sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}) != SRNN_OK)
        return 1;
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sr_backend_free(cpu);
    return failures;
}
