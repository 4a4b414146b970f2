/* student.h: a teacher's weights in a model with another attention. */
#ifndef SR_DISTIL_STUDENT_H
#define SR_DISTIL_STUDENT_H

#include "model/model.h"
#include "train/run/settings.h"

/* What a student has of its teacher. */
typedef struct sr_student_parts {
    size_t tensors; /* of the student */
    size_t copied;  /* with the teacher's name and shape */
    size_t joined;  /* one of several of the teacher's, side by side: qkv_proj */
    int replaced;   /* layers with another attention */
} sr_student_parts;

/* *config = the teacher's shape with settings->attention in the layers `replaced` (L); free with
 * sr_model_config_free, also on failure. */
srnn_status sr_student_config(sr_model_config *config, const sr_model_config *teacher,
                              const sr_run_settings *settings, const bool *replaced);

/* *student = a model with the teacher's weights and, in the layers `replaced` (L), the attention
 * settings->attention; heads of keys and values are as wide as the teacher's unless the settings
 * say otherwise. Tensors with a name and shape of the teacher are copies; the others begin as in
 * a new model with settings->seed and initial_range, but for short convolutions of q, k and v,
 * which begin by passing on the token itself. Free with sr_model_free. */
srnn_status sr_student_create(sr_model **student, sr_student_parts *parts, const sr_model *teacher,
                              const sr_run_settings *settings, const bool *replaced);

/* Copies the attention of some layers (L) from one model to another with the same tensors. */
srnn_status sr_student_layers(sr_model *to, const sr_model *from, const bool *layers);

#endif
