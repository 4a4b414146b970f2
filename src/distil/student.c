/* student.c: a teacher's weights in a model with another attention. */
#include "distil/student.h"

#include "base/memory.h"
#include "model/mixers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shape */

/* The teacher's shape with the attention of the settings in every layer. */
static srnn_status replace_all(sr_model_config *config, const sr_model_config *teacher,
                               const sr_run_settings *s) {
    SR_TRY(sr_model_config_copy(config, teacher));
    config->given = (sr_layer_sizes){.D = s->key_size ? s->key_size : teacher->D,
                                     .Dv = s->value_size ? s->value_size : teacher->D,
                                     .rank = s->rank,
                                     .levels = s->levels};
    return sr_model_config_attention(config, s->attention);
}

srnn_status sr_student_config(sr_model_config *config, const sr_model_config *teacher,
                              const sr_run_settings *s, const bool *replaced) {
    *config = (sr_model_config){0};
    if (!sr_mixer_row_of(teacher)->attends)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "a model of Avey has no attention to replace");
    if (teacher->parallel)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "layers with two mixers side by side cannot be "
                                             "replaced yet");
    SR_TRY(replace_all(config, teacher, s));
    if (!sr_mixer_row_of(config)->attends)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "a model of Avey has no attention: it cannot take the place of a layer's");
    if (config->parallel)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "a student's layers have one mixer, not two side by "
                                             "side");
    for (int layer = 0; layer < config->L; layer++)
        if (!replaced[layer]) {
            config->attention[layer] = teacher->attention[layer];
            config->sizes[layer] = teacher->sizes[layer];
        }
    return SRNN_OK;
}

/* ---- weights */

static srnn_status copy_numbers(sr_model *to, size_t at, const sr_model *from, size_t start,
                                size_t count) {
    return sr_device_copy(to->backend->device, to->weights + at, from->weights + start,
                          count * sizeof *to->weights);
}

static bool same_shape(const sr_tensor_spec *a, const sr_tensor_spec *b) {
    return a->rank == b->rank &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
}

/* The tensor of the same layer whose name ends otherwise. */
static const sr_tensor_spec *sibling(const sr_model *model, const char *name, size_t stem,
                                     const char *part, const char *end) {
    char other[SR_SPEC_NAME];
    const int length = snprintf(other, sizeof other, "%.*s%s%s", (int)stem, name, part, end);
    return length < (int)sizeof other ? sr_tensor_table_find(&model->table, other) : NULL;
}

/* q_proj, k_proj and v_proj as one qkv_proj, which is their rows one after the other. */
static srnn_status join(sr_model *student, bool *joined, const sr_model *teacher,
                        const sr_tensor_spec *spec) {
    static const char *const parts[] = {"q_proj", "k_proj", "v_proj"};
    const sr_tensor_spec *found[3];
    const char *at = strstr(spec->name, "qkv_proj");
    size_t count = 0;
    *joined = false;
    if (!at)
        return SRNN_OK;
    for (int i = 0; i < 3; i++) {
        found[i] = sibling(teacher, spec->name, (size_t)(at - spec->name), parts[i],
                           at + strlen("qkv_proj"));
        if (!found[i])
            return SRNN_OK;
        count += found[i]->count;
    }
    if (count != spec->count || found[0]->shape[1] != spec->shape[1])
        return SRNN_OK;
    *joined = true;
    count = spec->start;
    for (int i = 0; i < 3; i++) {
        SR_TRY(copy_numbers(student, count, teacher, found[i]->start, found[i]->count));
        count += found[i]->count;
    }
    return SRNN_OK;
}

/* Whether it is the weight or the bias of a short convolution of q, k or v. */
static bool is_short_conv(const sr_tensor_spec *spec) {
    return spec->slot >= SR_LAYER_CONVS && spec->slot < SR_LAYER_OUTPUT &&
           !strstr(spec->name, "skip_conv1d") && !strstr(spec->name, "attn.attn.conv1d");
}

/* The last tap belongs to the token itself: it becomes 1, everything else 0. */
static srnn_status pass_on(sr_model *student, const sr_tensor_spec *spec) {
    const size_t width = spec->rank == 3 ? (size_t)spec->shape[2] : 0;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, spec->count, sizeof(float)));
    float *numbers = memory;
    for (size_t i = width; width && i <= spec->count; i += width)
        numbers[i - 1] = 1;
    const srnn_status status =
        sr_device_copy_in(student->backend->device, student->weights + spec->start, numbers,
                          spec->count * sizeof *numbers);
    free(memory);
    return status;
}

/* Random numbers are drawn only for tensors that are new: in a large student nearly all are the
 * teacher's. */
static srnn_status take_tensor(sr_model *student, sr_student_parts *parts, const sr_model *teacher,
                               const sr_run_settings *s, size_t index) {
    const sr_tensor_spec *spec = &student->table.specs[index];
    const sr_tensor_spec *same = sr_tensor_table_find(&teacher->table, spec->name);
    bool joined;
    if (same && same_shape(same, spec)) {
        parts->copied++;
        return copy_numbers(student, spec->start, teacher, same->start, spec->count);
    }
    SR_TRY(join(student, &joined, teacher, spec));
    parts->joined += joined;
    if (joined)
        return SRNN_OK;
    return is_short_conv(spec)
               ? pass_on(student, spec)
               : sr_model_initialise_tensor(student, index, s->initial_range, (uint64_t)s->seed);
}

static srnn_status take_weights(sr_model *student, sr_student_parts *parts, const sr_model *teacher,
                                const sr_run_settings *s) {
    for (size_t i = 0; i < student->table.count; i++)
        SR_TRY(take_tensor(student, parts, teacher, s, i));
    return sr_model_narrow(student);
}

srnn_status sr_student_create(sr_model **student, sr_student_parts *parts, const sr_model *teacher,
                              const sr_run_settings *s, const bool *replaced) {
    sr_model_config config = {0};
    *student = NULL;
    *parts = (sr_student_parts){0};
    srnn_status status = sr_student_config(&config, &teacher->config, s, replaced);
    if (status == SRNN_OK)
        status = sr_model_create(student, teacher->backend, &config);
    sr_model_config_free(&config);
    SR_TRY(status);
    status = take_weights(*student, parts, teacher, s);
    if (status != SRNN_OK) {
        sr_model_free(*student);
        *student = NULL;
        return status;
    }
    parts->tensors = (*student)->table.count;
    for (int layer = 0; layer < (*student)->config.L; layer++)
        parts->replaced += replaced[layer];
    return SRNN_OK;
}

srnn_status sr_student_layers(sr_model *to, const sr_model *from, const bool *layers) {
    for (size_t i = 0; i < to->table.count; i++) {
        const sr_tensor_spec *spec = &to->table.specs[i];
        if (spec->slot >= SR_LAYER_SLOTS || !layers[spec->layer])
            continue;
        const sr_tensor_spec *same = sr_tensor_table_find(&from->table, spec->name);
        if (!same || !same_shape(same, spec))
            return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: one of two models lacks it", spec->name);
        SR_TRY(copy_numbers(to, spec->start, from, same->start, spec->count));
    }
    return sr_model_narrow(to);
}
