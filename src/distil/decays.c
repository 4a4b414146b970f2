/* decays.c: decays that start from the distances at which a teacher looks. */
#include "distil/decays.h"

#include "analysis/focus.h"
#include "base/memory.h"
#include "train/model_open.h"
#include "train/run/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of each row the first tokens: the work grows with their square. */
enum { ROWS = 4, MOST_TOKENS = 512 };

/* ---- distances of the teacher's heads */

static srnn_status read_rows(int32_t *ids, int32_t *targets, sr_source *source, int T, int front) {
    void *memory;
    SR_TRY(sr_alloc(&memory, (size_t)ROWS * (size_t)T + 1, sizeof(int64_t)));
    sr_batch batch = {.B = ROWS, .ids = ids, .targets = targets, .offsets = memory};
    const srnn_status status = sr_source_batch(source, &batch, SR_SPLIT_TRAIN, 0);
    if (status == SRNN_OK && !source->exact)
        sr_batch_front(&batch, T, front);
    free(memory);
    return status;
}

/* The first `fewer` of T tokens of each row, side by side. */
static void shorten(int32_t *rows, int T, int fewer) {
    for (int row = 1; row < ROWS; row++)
        memmove(rows + (size_t)row * (size_t)fewer, rows + (size_t)row * (size_t)T,
                (size_t)fewer * sizeof *rows);
}

static srnn_status measure_on(double *distances, sr_model *teacher, sr_source *source, int T) {
    const int fewer = T < MOST_TOKENS ? T : MOST_TOKENS;
    void *memory;
    SR_TRY(sr_alloc(&memory, 2 * (size_t)ROWS * (size_t)T, sizeof(int32_t)));
    int32_t *ids = memory, *targets = ids + (size_t)ROWS * (size_t)T;
    srnn_status status =
        read_rows(ids, targets, source, T, sr_model_config_prefix_tokens(&teacher->config));
    const sr_focus_request request = {
        .model = teacher, .ids = ids, .targets = targets, .rows = ROWS, .T = fewer};
    if (status == SRNN_OK) {
        shorten(ids, T, fewer);
        shorten(targets, T, fewer);
        status = sr_focus_distances(distances, &request);
    }
    free(memory);
    return status;
}

/* distances (L, H) of the teacher, on the CPU. */
static srnn_status measure(double *distances, sr_backend *cpu, const sr_run_settings *common) {
    sr_run_settings s;
    sr_source *source = NULL;
    sr_model *teacher = NULL;
    SR_TRY(sr_run_settings_create(&s));
    srnn_status status = sr_run_settings_copy(&s, common);
    if (status == SRNN_OK)
        status = sr_run_data_open(&source, &s);
    if (status == SRNN_OK)
        status = sr_model_open(&teacher, cpu, s.teacher, NULL);
    if (status == SRNN_OK)
        status = measure_on(distances, teacher, source, s.T);
    sr_model_free(teacher);
    sr_source_free(source);
    sr_run_settings_free(&s);
    return status;
}

/* ---- decays of the student's heads */

/* The tensor of the decay that does not depend on the token; NULL: there is none. */
static const sr_tensor_spec *find_start(const sr_model *student, int layer) {
    const srnn_attention *a = &student->config.attention[layer];
    const char *end = a->decay == SRNN_DECAY_SOFTPLUS                   ? "dt_bias"
                      : a->wiring.layer == SRNN_LAYER_GLA               ? "gk_proj.1.bias"
                      : a->wiring.layer == SRNN_LAYER_POWER && a->decay ? "g_proj.bias"
                                                                        : NULL;
    for (size_t i = 0; end && i < student->table.count; i++) {
        const sr_tensor_spec *spec = &student->table.specs[i];
        const size_t length = strlen(spec->name), tail = strlen(end);
        if (spec->slot < SR_LAYER_SLOTS && spec->layer == layer && length > tail &&
            spec->name[length - tail - 1] == '.' && strcmp(spec->name + length - tail, end) == 0)
            return spec;
    }
    return NULL;
}

/* A_log of the layer; NULL: it has none. */
static const sr_tensor_spec *find_rate(const sr_model *student, int layer) {
    for (size_t i = 0; i < student->table.count; i++) {
        const sr_tensor_spec *spec = &student->table.specs[i];
        const char *last = strrchr(spec->name, '.');
        if (spec->slot < SR_LAYER_SLOTS && spec->layer == layer && last &&
            strcmp(last, ".A_log") == 0)
            return spec;
    }
    return NULL;
}

/* Mean over the teacher's heads that share one of the student's; NAN: not measured. */
static double distance_of(const double *distances, int H, size_t number, size_t count) {
    const double first = (double)number * H / (double)count;
    const double last = (double)(number + 1) * H / (double)count;
    double sum = 0, heads = 0;
    for (int h = (int)first; h < H && ((double)h < last || heads == 0); h++) {
        sum += distances[h];
        heads++;
    }
    return sum / heads;
}

static double logit(double p) {
    return log(p / (1 - p));
}

static double inverse_softplus(double y) {
    return y > 30 ? y : log(expm1(y));
}

/* What gives a decay of `keep` per token: sigmoid(x)^(1/divisor), or exp(-rate softplus(x)). */
static double start_of(const srnn_attention *a, double keep, double rate) {
    const double divisor = a->decay_divisor > 0 ? a->decay_divisor : 1;
    return a->decay == SRNN_DECAY_SOFTPLUS ? inverse_softplus(-log(keep) / rate)
                                           : logit(pow(keep, divisor));
}

/* Distances from 0.1 to 10,000 tokens: beyond, gradients vanish. */
static double keep_of(double distance) {
    const double d = fmin(fmax(distance, 0.1), 1e4);
    return d / (1 + d);
}

static srnn_status start_layer(sr_model *student, size_t *set, const double *distances, int H,
                               int layer) {
    const srnn_attention *a = &student->config.attention[layer];
    const sr_tensor_spec *start = find_start(student, layer), *rate = find_rate(student, layer);
    void *memory;
    if (!start || (a->decay == SRNN_DECAY_SOFTPLUS && !rate))
        return SRNN_OK;
    const size_t rates = rate ? rate->count : 0;
    SR_TRY(sr_alloc(&memory, start->count + rates, sizeof(float)));
    float *numbers = memory, *a_log = numbers + start->count;
    srnn_status status =
        rates ? sr_device_copy_out(student->backend->device, a_log, student->weights + rate->start,
                                   rates * sizeof *a_log)
              : SRNN_OK;
    bool known = true;
    for (size_t i = 0; i < start->count; i++) {
        const double distance = distance_of(distances, H, i, start->count);
        const double own = rates ? exp((double)a_log[i * rates / start->count]) : 1;
        known = known && isfinite(distance);
        numbers[i] = (float)start_of(a, keep_of(distance), own);
    }
    if (status == SRNN_OK && known) {
        status = sr_device_copy_in(student->backend->device, student->weights + start->start,
                                   numbers, start->count * sizeof *numbers);
        *set += start->count;
    }
    free(memory);
    return status;
}

srnn_status sr_student_start_decays(sr_model *student, size_t *set, const sr_run_settings *settings,
                                    const bool *replaced) {
    const int L = student->config.L, H = student->config.H;
    sr_backend *cpu;
    void *memory;
    *set = 0;
    SR_TRY(sr_alloc(&memory, (size_t)L * (size_t)H, sizeof(double)));
    double *distances = memory;
    srnn_status status =
        sr_backend_create(&cpu, &(sr_backend_settings){.threads = settings->threads});
    if (status == SRNN_OK) {
        status = measure(distances, cpu, settings);
        sr_backend_free(cpu);
    }
    for (int layer = 0; layer < L && status == SRNN_OK; layer++)
        if (replaced[layer])
            status = start_layer(student, set, distances + (size_t)layer * (size_t)H, H, layer);
    free(distances);
    return status == SRNN_OK ? sr_model_narrow(student) : status;
}
