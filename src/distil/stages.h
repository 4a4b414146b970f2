/* stages.h: a trained model to an RNN in stages, each a folder.
 *
 * FOLDER/plan/STAGE.yaml has the settings of each stage before the first begins, and
 * FOLDER/plan/request.json what was requested; FOLDER/copy is
 * a model, FOLDER/align, FOLDER/distil and FOLDER/tune are runs (train/run/run.h), each of which
 * starts from the model of the stage before. FOLDER/tokens is the text in the teacher's tokens,
 * if it was given as text. */
#ifndef SR_DISTIL_STAGES_H
#define SR_DISTIL_STAGES_H

#include "distil/student.h"
#include "files/path.h"
#include "train/run/run.h"

#include <jansson.h>

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

enum { SR_ALIGN_RATE = 3 };

typedef struct sr_distil_request {
    /* What all stages have in common: teacher, attention (the student's), data, sizes of batches,
     * the optimizer. Warm-ups are cut to a tenth of a stage. */
    const sr_run_settings *common;
    const char *keep; /* layers that stay as they are, see sr_layers_parse */
    bool stages[SR_STAGES];
    int64_t steps[SR_STAGES];
    /* Learning rates; 0: the common one, in align SR_ALIGN_RATE times that. */
    double rates[SR_STAGES];
    bool reversed;       /* KL(student, teacher) in stage distil */
    bool attention_only; /* in distil and tune, only the replaced layers' attention learns */
    int adapter_rank;    /* in distil and tune, only adapters of this rank learn; 0: none */
    /* The student starts as a new model, with nothing of the teacher but its shape: the control of
     * what the teacher's weights are worth. */
    bool from_scratch;
    bool decays_of_teacher; /* decays start from the distances at which the teacher looks */
} sr_distil_request;

/* What learns in distil and tune, by the words of --learn. */
enum { SR_LEARN_ALL = 0, SR_LEARN_ATTENTION, SR_LEARN_ADAPTERS };
enum { SR_ADAPTER_RANK = 8 };                /* the default rank */
extern const char *const sr_distil_learns[]; /* ends in NULL */
void sr_distil_learn(sr_distil_request *request, int learns, int rank);

/* What is requested by default: stages, steps and rates. */
sr_distil_request sr_distil_request_usual(void);

/* Sets a part by the name that `softrnn distil` gives it: stages, align-steps, distil-rate, kl,
 * learn, lora-rank, decays; lora-rank before learn, with which it counts. *known is false, and
 * nothing is set, for other names. */
srnn_status sr_distil_request_set(sr_distil_request *request, bool *known, const char *name,
                                  const char *value);

/* All of it but `common`, with equal objects for equal requests. NULL: no memory. */
json_t *sr_distil_request_json(const sr_distil_request *request);

/* SRNN_OK if the folder has no plan, or that of this request. */
srnn_status sr_distil_check(const char *folder, const sr_distil_request *request);

/* Whether the folder has a plan; whether its student starts from scratch. */
srnn_status sr_distil_has_plan(bool *has, const char *folder);
srnn_status sr_distil_is_from_scratch(bool *from_scratch, const char *folder);
srnn_status sr_distil_has_stage(bool *has, const char *folder, sr_stage stage);

/* Writes the plan and the copy into a folder that is new or has no plan yet. */
srnn_status sr_distil_begin(const char *folder, const sr_distil_request *request,
                            sr_student_parts *parts);

/* Makes the copy if it is missing, so that stages can be opened. Fails if the folder has no
 * plan. */
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
