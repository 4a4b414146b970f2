/* stages.h: a trained model to an RNN in stages, each a folder.
 *
 * FOLDER/plan/STAGE.yaml has the settings of each stage before the first begins; FOLDER/copy is a
 * model, FOLDER/align, FOLDER/distil and FOLDER/tune are runs (train/run/run.h), each of which starts
 * from the model of the stage before. FOLDER/tokens is the text in the teacher's tokens, if it was
 * given as text. */
#ifndef SR_DISTIL_STAGES_H
#define SR_DISTIL_STAGES_H

#include "distil/student.h"
#include "files/path.h"
#include "train/run/run.h"

typedef enum sr_stage {
    SR_STAGE_COPY = 0, /* the teacher's weights in the student: always the first */
    SR_STAGE_ALIGN,    /* each replaced layer alone, towards what the teacher's adds */
    SR_STAGE_DISTIL,   /* the student's logits towards the teacher's */
    SR_STAGE_TUNE,     /* the text */
    SR_STAGES,
} sr_stage;

/* "copy". */
const char *sr_stage_name(sr_stage stage);

/* stages = those of a text such as "copy,align,distil", and copy. */
srnn_status sr_stages_parse(bool stages[SR_STAGES], const char *text);

typedef struct sr_distil_request {
    /* What all stages have in common: teacher, attention (the student's), data, sizes of batches,
     * the optimizer. Warm-ups are cut to a tenth of a stage. */
    const sr_run_settings *common;
    const char *keep; /* layers that stay as they are, see sr_layers_parse */
    bool stages[SR_STAGES];
    int64_t steps[SR_STAGES];
    double rates[SR_STAGES]; /* learning rates; 0: the common one */
    bool reversed;           /* KL(student, teacher) in stage distil */
    bool attention_only;     /* in distil and tune, only the replaced layers' attention learns */
} sr_distil_request;

/* Writes the plan and the copy into a folder that is new or has no plan yet. */
srnn_status sr_distil_begin(const char *folder, const sr_distil_request *request,
                            sr_student_parts *parts);

/* Makes the copy if it is missing, so that stages can be opened. Fails if the folder has no plan. */
srnn_status sr_distil_continue(const char *folder);

/* The run of a stage, resumed or started; *run = NULL if the plan does not have the stage, or if a
 * later one has begun, which says that it is complete. */
srnn_status sr_distil_open(sr_run **run, const char *folder, sr_stage stage,
                           const sr_run_ends *ends);

/* The settings of a stage as they were planned; free with sr_run_settings_free. */
srnn_status sr_distil_plan(sr_run_settings *settings, const char *folder, sr_stage stage);

/* path = the folder of the last stage of the plan: the student. */
srnn_status sr_distil_student(char path[SR_PATH_BYTES], const char *folder);

#endif
