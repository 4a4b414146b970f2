/* settings.h: the settings of a run: one table for options, run.yaml and resuming. */
#ifndef SR_TRAIN_RUN_SETTINGS_H
#define SR_TRAIN_RUN_SETTINGS_H

#include "base/status.h"
#include "ranks/ranks.h"

#include <stddef.h>

typedef enum sr_precision {
    SR_PRECISION_FLOAT = 0,
    SR_PRECISION_BF16,
    SR_PRECISION_FP8,
} sr_precision;

/* What each rank stores of the optimizer's state. */
typedef enum sr_sharding {
    SR_SHARD_OPTIMIZER = 0, /* its shard of the moments */
    SR_SHARD_NONE,          /* all of it */
} sr_sharding;

#define SR_LEARNING_RATE_MAX 1e3

typedef struct sr_run_settings {
    /* Strings are owned; "" if not given. */
    char *data, *validation, *batches;    /* sources of rows */
    char *test;                           /* test tasks of the finished run: "a; b" */
    char *model;                          /* a folder with initial weights; "": a new model */
    char *preset, *attention, *tokenizer; /* attention "": softmax, or that of `model` */
    char *teacher, *attention_of;         /* see sr_lesson, sr_trainer_settings; "": none, all */
    int adapter_rank;                     /* 0: no adapters */
    int objective;                        /* sr_objective */
    double temperature;
    double hidden_weight; /* of sr_lesson */
    int layout;           /* sr_token_layout */
    double validation_share;
    int validation_half; /* sr_half */

    /* The shape of a new model; 0: the preset's. */
    int V, C, F, L, H, Hkv, D;
    int key_size, value_size, rank, levels; /* of layers; 0: the default of the layer's form */
    int mlp;                                /* sr_mlp */
    bool tied;
    double rope_theta, norm_epsilon, initial_range;

    int B, T, accumulate;
    int recompute; /* sr_recompute */
    int64_t steps;
    int optimizer; /* sr_optimizer */
    double learning_rate, beta1, beta2, momentum, epsilon, weight_decay, z_loss, clip, qk_clip;
    bool decay_all; /* weight decay for all tensors, also those that are usually exempt */
    int schedule;   /* sr_schedule_kind */
    int64_t warmup, decay;
    double floor;

    int64_t validate_every, validate_batches, save_every;
    int keep;
    int sample;                     /* tokens of text that the finished run writes; 0: none */
    int64_t stop_step, stop_tokens; /* 0: none */
    double stop_seconds;            /* 0: none */
    int bad_steps;                  /* largest number of consecutive skipped steps */
    int64_t seed;
    char *device;  /* "cpu", "cuda", "cuda:1"; "": cpu */
    int precision; /* sr_precision */
    bool fp8_head;
    int threads;
    int context_ranks;    /* ranks that share each row */
    int shard;            /* sr_sharding */
    double rank_patience; /* seconds to wait for a silent rank before aborting; 0: for ever */

    sr_ranks *ranks; /* share the run; NULL: one process. Not owned, not a setting */

    /* Not chosen by the user, but recorded when the run starts; else "". */
    char identity[33];     /* random, of the run and its checkpoints */
    char instructions[32]; /* the machine's, see sr_machine: the bits depend on them */
} sr_run_settings;

typedef enum sr_setting_kind {
    SR_SETTING_FLAG,
    SR_SETTING_TEXT,
    SR_SETTING_INTEGER,
    SR_SETTING_INTEGER64,
    SR_SETTING_NUMBER,
    SR_SETTING_CHOICE,
} sr_setting_kind;

typedef struct sr_setting {
    const char *name; /* "learning-rate" */
    sr_setting_kind kind;
    size_t offset; /* in sr_run_settings */
    const char *argument, *help;
    double least, most;
    const char *const *choices; /* ends in NULL */
} sr_setting;

/* The table; NULL past the end. */
const sr_setting *sr_setting_at(size_t index);

/* Every setting at its default. */
srnn_status sr_run_settings_create(sr_run_settings *settings);
void sr_run_settings_free(sr_run_settings *settings);

/* Copies every setting into settings that were created. */
srnn_status sr_run_settings_copy(sr_run_settings *to, const sr_run_settings *from);

/* Sets one by name. Fails if there is no such setting, naming the nearest, or if the text is not a
 * valid value. */
srnn_status sr_run_settings_set(sr_run_settings *settings, const char *name, const char *value);

/* The name of a setting whose values differ, ignoring those that do not affect results, such as
 * threads; NULL if there is none. Two names of one file are equal. */
const char *sr_run_settings_difference(const sr_run_settings *a, const sr_run_settings *b);

/* Replaces an owned string. */
srnn_status sr_run_settings_text(char **text, const char *value);

/* Makes names of files and folders absolute, so that they do not depend on the working
 * directory. */
srnn_status sr_run_settings_absolute(sr_run_settings *settings);

/* The default preset. */
#define SR_PRESET_DEFAULT "tiny"

/* Fills settings that were not given from the preset. Fails if there is no such preset. */
srnn_status sr_run_settings_apply_preset(sr_run_settings *settings);

/* The presets' names; NULL past the end. */
const char *sr_preset_name(size_t index);

/* run.yaml: every setting by name, the program's version and revision, and the machine. */
srnn_status sr_run_settings_write(const sr_run_settings *settings, const char *path);
srnn_status sr_run_settings_read(sr_run_settings *settings, const char *path);

#endif
