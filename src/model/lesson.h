/* lesson.h: what a pass learns from: the text, or a teacher. */
#ifndef SR_MODEL_LESSON_H
#define SR_MODEL_LESSON_H

#include "model/model.h"

typedef enum sr_objective {
    SR_OBJECTIVE_TEXT = 0,   /* cross entropy with the targets */
    SR_OBJECTIVE_KL,         /* KL(teacher, student) of the logits, see sr_divergence */
    SR_OBJECTIVE_REVERSE_KL, /* KL(student, teacher) */
    /* For each layer the mean square, over channels, of the difference between what student and
     * teacher add to the residual stream by their attention, both given the teacher's own input of
     * that layer; the loss is the mean over layers. */
    SR_OBJECTIVE_LAYERS,
} sr_objective;

typedef struct sr_lesson {
    sr_objective objective;
    sr_model *teacher;  /* borrowed, on the same backend; NULL: none, for SR_OBJECTIVE_TEXT alone */
    double temperature; /* of KL; 0: 1 */
    const bool *layers; /* (L), borrowed: those that SR_OBJECTIVE_LAYERS compares; NULL: all */
    float z_loss;       /* of SR_OBJECTIVE_TEXT: sr_cross_entropy's z */

    /* Of KL: what the loss has besides, times this: the mean over layers of the mean square, over
     * channels, of the difference between the residual streams of student and teacher after the
     * layer; 0: nothing. */
    float hidden_weight;
} sr_lesson;

/* How far one layer is from its teacher, summed over positions that have a target. */
typedef struct sr_layer_error {
    double error; /* mean square over channels of the difference */
    double size;  /* of what the teacher adds */
} sr_layer_error;

#endif
