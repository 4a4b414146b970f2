/* study.h: a study: variants x tasks x seeds (x sizes, learning rates) and its runs. */
#ifndef SR_STUDY_PLAN_STUDY_H
#define SR_STUDY_PLAN_STUDY_H

#include "distil/stages.h"
#include "model/config/config.h"
#include "train/run/settings.h"

/* Tuning uses the seeds from here on, a comparison those below. */
enum { SR_TUNING_SEED = 1000000000 };

/* Settings by name, in the order given; a later one wins. */
typedef struct sr_pairs {
    char **names, **values; /* (count), owned */
    size_t *lines;          /* (count) of the file that gave them, from 1; owned */
    size_t count;
} sr_pairs;

/* A list of words. */
typedef struct sr_word_list {
    char **words; /* (count), owned */
    size_t count;
} sr_word_list;

/* The measure that a task is ranked by. */
typedef enum sr_measure {
    SR_MEASURE_LOSS = 0, /* less is better */
    SR_MEASURE_ACCURACY, /* more is better */
} sr_measure;
const char *sr_measure_name(sr_measure measure);

/* What the runs of a variant do. */
typedef enum sr_study_role {
    SR_ROLE_VARIANT = 0, /* a new model learns the data */
    /* In a study with a teacher: */
    SR_ROLE_TEACHER, /* the teacher continues to learn, on the number of tokens that students see */
    SR_ROLE_STUDENT, /* the stages of `softrnn distil` */
    SR_ROLE_SCRATCH, /* a new model of a student's shape learns the data, on as many tokens */
} sr_study_role;
const char *sr_study_role_name(sr_study_role role); /* "student"; static text */

typedef struct sr_study_variant {
    char *name, *attention; /* owned */
    sr_study_role role;
    char *system;  /* the name of the variant that students and controls were made from; owned, NULL
                    * in a study without a teacher */
    size_t budget; /* of students and those from scratch */
    srnn_attention descriptor; /* of SR_MIXER_ATTENTION, unless by_layers */
    sr_mixer_kind mixer;
    bool by_layers;    /* variants by layers, "3*gla,1*softmax" */
    bool fixed_state;  /* the size of its state does not grow with the text, in any layer */
    sr_pairs settings; /* applied last, to this variant's runs only */
} sr_study_variant;

typedef struct sr_study_task {
    char *name, *title; /* owned */
    sr_measure measure;
    sr_word_list variants; /* names; none: all of the study */
    sr_pairs settings;
} sr_study_task;

typedef struct sr_study_size {
    char *name; /* owned */
    sr_pairs settings;
} sr_study_size;

/* Layers that keep the teacher's attention. */
typedef struct sr_study_budget {
    char *name, *keep; /* as sr_layers_parse reads it; owned */
} sr_study_budget;

/* The model whose students are studied. */
typedef struct sr_study_teacher {
    bool wanted;
    char *attention;   /* of one that the study trains; owned */
    char *model;       /* one that exists; NULL: the study trains one for each task; owned */
    sr_pairs settings; /* of its training alone */
} sr_study_teacher;

/* The folder of the teachers that a study trains, a study of its own, in its folder. */
#define SR_STUDY_TEACHERS "teachers"

/* The path of a study's text in its folder. */
#define SR_STUDY_TEXT "data/text.txt"

/* One run of the plan. */
typedef struct sr_study_run {
    char *id; /* "recall.norm.1", unique and valid as a folder name; owned */
    size_t task;
    size_t variant;
    size_t size;      /* meaningless if the study has no sizes */
    bool text;        /* it trains on the text of the study */
    const char *home; /* folder of the study's file, which relative paths in `settings` begin with;
                       * the study's; NULL: none */
    sr_run_settings settings;
    sr_distil_request request; /* of students and those from scratch; `common` is not set */

    /* Its cost. */
    size_t parameters;
    int64_t steps; /* to the end of its schedule, or to a stop condition */
    double tokens, flops;
    double expected_seconds; /* by the tuning of its rate; 0: unknown */
    double state_bytes;      /* fixed-size state of one sequence, all layers; NaN: there is none */
    double cache_bytes; /* keys and values of one sequence of T tokens, all layers; in a hybrid, the
                         * states of layers that have one */
} sr_study_run;

typedef struct sr_study {
    char *name, *title; /* owned */
    char *text;         /* the file it was read from, owned */
    char *where;        /* its name, for messages, owned */
    char *folder;       /* base of relative paths; NULL: the current folder; owned */
    char *out;          /* the study's own folder, from the root; NULL: none yet; owned */
    size_t baseline;    /* index of a variant */
    sr_pairs settings;
    sr_study_variant *variants; /* owned, as are the following */
    size_t variant_count;
    sr_study_task *tasks;
    size_t task_count;
    sr_study_size *sizes;
    size_t size_count;
    sr_word_list optimizers; /* with several, every variant is run with each */
    double *rates;           /* learning rates; none: those of the settings */
    size_t rate_count;
    double *tune_rates; /* candidate learning rates for tuning; none: no tuning */
    size_t tune_count;
    double tune_share; /* of the steps of a run, in the last round of tuning */
    /* Smaller differences do not matter: a comparison ends early once its interval excludes zero,
     * or lies within this margin on both sides. 0: all seeds are run */
    double settle;
    int64_t *seeds;
    size_t seed_count;
    sr_study_teacher teacher;
    sr_study_budget *budgets;
    size_t budget_count;
    sr_pairs student_settings; /* stages and settings, of all but the teacher's training */
    sr_pairs again_settings;   /* of the control that trains the teacher again */
    sr_pairs scratch_settings; /* of the controls from scratch */
    sr_word_list only, skip;
    sr_pairs cluster; /* options of sbatch */

    sr_study_run *runs; /* made by sr_study_expand */
    size_t run_count;
} sr_study;

/* Reads a study in YAML; `where` names it in messages. Free with sr_study_free in any case. */
srnn_status sr_study_read(sr_study *study, const char *where, const char *text, size_t bytes);
void sr_study_free(sr_study *study);

/* The default study. Static text. */
const char *sr_study_default(size_t *bytes);

/* Expands the study into runs. `text`: the file used for the data "@text"; it need not exist
 * yet. */
srnn_status sr_study_expand(sr_study *study, const char *text);

/* The teachers that a study trains, one for each task, as an expanded study of their own. Free with
 * sr_study_free in any case. */
srnn_status sr_study_teachers(sr_study *teachers, const sr_study *study, const char *text);

/* The same without costs: no data is opened, and none need exist. */
srnn_status sr_study_list_runs(sr_study *study, const char *text);

/* Computes the costs of the runs again, now that all data exists. */
srnn_status sr_study_price(sr_study *study);

/* Fails, suggesting the nearest name, if a word matches no run; `where` names their origin. */
srnn_status sr_study_words_check(const sr_study *study, const sr_word_list *words,
                                 const char *where);

/* True if the run matches `only` (empty: all do) and no word of `skip`. A word is a task, a
 * variant, a size, or else a run's id or a pattern of it (with * and ?). In `only`, words of one
 * kind are alternatives and different kinds are combined; in `skip` each word counts by itself. */
bool sr_study_run_selected(const sr_study *study, const sr_study_run *run, const sr_word_list *only,
                           const sr_word_list *skip);

/* Splits at commas; free with sr_word_list_free. */
srnn_status sr_word_list_split(sr_word_list *words, const char *text);
srnn_status sr_word_list_add(sr_word_list *words, const char *word);
void sr_word_list_free(sr_word_list *words);

/* Expands the variants of a study with each of its optimizers: "norm" with the first, "norm muon"
 * with another. */
srnn_status sr_study_add_optimizers(sr_study *study);

void sr_study_variant_free(sr_study_variant *variant);
srnn_status sr_pairs_add(sr_pairs *pairs, const char *name, const char *value, size_t line);
void sr_pairs_free(sr_pairs *pairs);

/* True if any task, or a size, trains on the data "@text". */
bool sr_study_needs_text(const sr_study *study);

#endif
