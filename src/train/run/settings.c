/* settings.c: the table of a run's settings, their defaults and the presets. */
#include "train/run/settings.h"

#include "base/text.h"
#include "equation/facts.h"
#include "model/config/config.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const layouts[] = {"stream", "packed", "document", NULL};
static const char *const halves[] = {"all", "first", "second", NULL};
static const char *const mlps[] = {"swiglu", "gelu", "none", "gated", "plain", NULL};
static const char *const precisions[] = {"float", "bf16", "fp8", NULL};
static const char *const recomputed[] = {"none", "attention", "block", NULL};
static const char *const shards[] = {"optimizer", "none", NULL};
static const char *const optimizers[] = {"adamw", "muon", NULL};
static const char *const objectives[] = {"text", "kl", "reverse-kl", "layers", NULL};
static const char *const schedules[] = {"linear", "cosine", "stable", "constant", NULL};

#define AT(field) offsetof(sr_run_settings, field)
#define TEXT(name, field, argument, help) \
    { name, SR_SETTING_TEXT, AT(field), argument, help, 0, 0, NULL }
#define FLAG(name, field, help) \
    { name, SR_SETTING_FLAG, AT(field), NULL, help, 0, 1, NULL }
#define INTEGER(name, field, least, most, help) \
    { name, SR_SETTING_INTEGER, AT(field), "N", help, least, most, NULL }
#define PRESET_NAMES "tiny, mini, midi, small, large, large_depth" /* of the table `presets` */
#define COUNT(name, field, help) \
    { name, SR_SETTING_INTEGER64, AT(field), "N", help, 0, 9e15, NULL }
#define NUMBER(name, field, least, most, help) \
    { name, SR_SETTING_NUMBER, AT(field), "X", help, least, most, NULL }
#define CHOICE(name, field, choices, help) \
    { name, SR_SETTING_CHOICE, AT(field), "WORD", help, 0, 0, choices }

static const sr_setting table[] = {
    TEXT("data", data, "WHERE",
         "a folder from `softrnn data prepare`, a .bin or text file, or a synthetic task"),
    TEXT("validation", validation, "WHERE",
         "the validation split: a file or folder of the kind that --data names"),
    NUMBER("validation-share", validation_share, 0, 0.9, "else the last share of a text file"),
    CHOICE("validation-half", validation_half, halves,
           "of the validation rows of a text or folder: all, first or second; tuning has the "
           "second"),
    TEXT("batches", batches, "FILE",
         "safetensors with ids (steps, B, T+1): train on exactly these"),
    TEXT("test", test, "TASKS",
         "synthetic tasks to test the finished run on, between semicolons: tests.json"),
    CHOICE("layout", layout, layouts, "rows: stream, packed or document"),
    TEXT("model", model, "FOLDER",
         "start from this model or run instead of a new model; --attention may give it "
         "another attention"),
    TEXT("tokenizer", tokenizer, "FILE",
         "the tokenizer to put into checkpoints; else that of the data or of the model"),
    TEXT("preset", preset, "NAME", "shape of a new model: " PRESET_NAMES),
    TEXT("attention", attention, "TEXT",
         "a variant, or variants by layers: 0-3:norm,4-:order:2, or repeated: "
         "3*gla,1*softmax; else softmax, or what --model has"),
    TEXT("teacher", teacher, "MODEL",
         "a model, run or .bin file to learn from, as --objective says; it is not changed"),
    CHOICE("objective", objective, objectives,
           "what is learned: text, the teacher's logits (kl or reverse-kl), or layers: what "
           "each adds by its attention, alone"),
    NUMBER("temperature", temperature, 1e-3, 1e3, "of the logits in kl and reverse-kl"),
    NUMBER("hidden-weight", hidden_weight, 0, 1e9,
           "kl and reverse-kl: adds, times this, how far the hidden states after each layer are "
           "from the teacher's: mean squares"),
    TEXT("only-attention", attention_of, "LAYERS",
         "only the attention of these layers learns: 0,5,8-, or 3-/4 for every fourth from 3 "
         "on; else everything"),
    INTEGER("lora-rank", adapter_rank, 0, SR_WIDTH_MAX,
            "only low-rank adapters of the layers' matrices learn, of this rank; with --model; 0: "
            "no adapters"),
    INTEGER("vocab", V, 0, SR_VOCAB_MAX, "tokens; 0: those of the data"),
    INTEGER("hidden", C, 0, SR_WIDTH_MAX, "width; 0: the preset's"),
    INTEGER("mlp-hidden", F, 0, SR_WIDTH_MAX, "width inside the MLP; 0: the preset's"),
    INTEGER("layers", L, 0, SR_LAYERS_MAX, "layers; 0: the preset's"),
    INTEGER("heads", H, 0, SR_WIDTH_MAX, "query heads; 0: the preset's"),
    INTEGER("kv-heads", Hkv, 0, SR_WIDTH_MAX, "key and value heads; 0: the number of query heads"),
    INTEGER("head-size", D, 0, SR_HEAD_SIZE_MAX, "width of a head; 0: hidden / heads"),
    INTEGER("key-size", key_size, 0, SR_HEAD_SIZE_MAX,
            "width of a head's keys, Mamba's state; 0: as the attention's authors have it"),
    INTEGER("value-size", value_size, 0, SR_VALUE_SIZE_MAX,
            "width of a head's values; 0: the head size"),
    INTEGER("rank", rank, 0, SR_WIDTH_MAX, "of projections in two steps (gla); 0: 16"),
    INTEGER("levels", levels, 0, SR_LEVELS_MAX, "of attention with levels; 0: 15"),
    CHOICE("mlp", mlp, mlps, "swiglu, the reference's plain gelu, or none, as in Mamba-2's models"),
    FLAG("tied", tied, "the head is the embedding"),
    NUMBER("rope-theta", rope_theta, 1, 1e12, "base of the rotary angles"),
    NUMBER("norm-epsilon", norm_epsilon, 0, 1, "of the RMS norms"),
    NUMBER("initial-range", initial_range, 0, 1e3, "standard deviation of a new model's matrices"),
    INTEGER("batch", B, 1, 1 << 20, "rows in a batch"),
    INTEGER("length", T, 1, 1 << 24, "tokens in a row"),
    INTEGER("accumulate", accumulate, 1, 1 << 20,
            "batches in a step, of each rank or group of context ranks; run.yaml has those of all"),
    CHOICE("recompute", recompute, recomputed,
           "what backward computes again instead of keeping it: none, attention or block; less "
           "memory, same bits"),
    COUNT("steps", steps,
          "steps of the schedule, and where the run ends; else those that --batches holds"),
    CHOICE("optimizer", optimizer, optimizers,
           "adamw, or muon for the matrices of layers and adamw for the rest"),
    NUMBER("learning-rate", learning_rate, 0, SR_LEARNING_RATE_MAX, "the largest"),
    NUMBER("beta1", beta1, 0, 1, "of AdamW"),
    NUMBER("beta2", beta2, 0, 1, "of AdamW"),
    NUMBER("momentum", momentum, 0, 1, "of Muon"),
    NUMBER("epsilon", epsilon, 0, 1, "of AdamW"),
    NUMBER("weight-decay", weight_decay, 0, 10, "decoupled"),
    FLAG("decay-all", decay_all,
         "weight decay also of A_log, dt_bias, D and L, which their authors leave out"),
    NUMBER("z-loss", z_loss, 0, 1e3,
           "adds this times the squared logarithm of the sum of exp(logits) to the training loss "
           "(1e-4 is usual); 0: none"),
    NUMBER("qk-clip", qk_clip, 0, 1e9,
           "scales down queries and keys of heads whose largest score exceeds this (100 is usual); "
           "0: none"),
    NUMBER("clip", clip, 0, 1e9, "largest norm of the gradient; 0: none"),
    CHOICE("schedule", schedule, schedules,
           "linear, cosine, stable or constant, after the warm-up"),
    COUNT("warmup", warmup, "steps of growing learning rate"),
    COUNT("decay", decay, "steps of the decay of schedule stable"),
    NUMBER("floor", floor, 0, 1, "last learning rate as a share of the largest"),
    COUNT("validate-every", validate_every, "steps between validations; 0: none"),
    COUNT("validate-batches", validate_batches, "batches in a validation"),
    COUNT("save-every", save_every, "steps between checkpoints; 0: only the last"),
    INTEGER("keep", keep, 1, 1 << 20, "checkpoints to keep"),
    INTEGER("sample", sample, 0, 1 << 16,
            "tokens that the finished run writes after the beginnings of two validation rows: "
            "samples.json; 0: none"),
    COUNT("stop-step", stop_step, "stop after this step, before the schedule's end; 0: not"),
    COUNT("stop-tokens", stop_tokens, "stop after N tokens; 0: never"),
    NUMBER("stop-seconds", stop_seconds, 0, 1e12, "stop after N seconds; 0: never"),
    INTEGER("bad-steps", bad_steps, 1, 1 << 20,
            "steps in a row that may be skipped for a loss that is not finite"),
    COUNT("seed", seed, "of weights and data order"),
    TEXT("device", device, "NAME", "where to compute: cpu, cuda or cuda:N"),
    CHOICE("precision", precision, precisions,
           "of matrix products: float; bf16 with float weights and sums; or fp8, the same with "
           "operands of 8 bits, on GPUs from compute capability 8.9 on"),
    FLAG("fp8-head", fp8_head, "with --precision fp8: the output layer too"),
    INTEGER("threads", threads, 0, 4096,
            "0: all cores, or a rank's share of them; results do not depend on it"),
    INTEGER("context-ranks", context_ranks, 1, 1 << 20,
            "ranks that share the tokens of each row, which begins on the first of them"),
    CHOICE("shard", shard, shards, "what is divided among ranks: the optimizer's arrays, or none"),
    NUMBER("rank-patience", rank_patience, 0, 1e9,
           "seconds that ranks wait for each other before they give up; 0: for ever"),
};
enum { SETTINGS = sizeof table / sizeof *table };

const sr_setting *sr_setting_at(size_t index) {
    return index < SETTINGS ? &table[index] : NULL;
}

srnn_status sr_run_settings_text(char **text, const char *value) {
    char *copy = strdup(value);
    if (!copy)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a text");
    free(*text);
    *text = copy;
    return SRNN_OK;
}

static char **text_at(sr_run_settings *settings, const sr_setting *setting) {
    return (char **)(void *)((char *)settings + setting->offset);
}

srnn_status sr_run_settings_create(sr_run_settings *settings) {
    *settings = (sr_run_settings){.validation_share = 0.1,
                                  .rope_theta = 10000,
                                  .norm_epsilon = 1e-5,
                                  .initial_range = 0.02,
                                  .B = 8,
                                  .T = 256,
                                  .accumulate = 1,
                                  .context_ranks = 1,
                                  .steps = 1000,
                                  .temperature = 1,
                                  .learning_rate = 1e-3,
                                  .beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .momentum = 0.95,
                                  .epsilon = 1e-7,
                                  .weight_decay = 0.01,
                                  .clip = 1,
                                  .warmup = 100,
                                  .decay = 100,
                                  .validate_every = 100,
                                  .validate_batches = 8,
                                  .save_every = 500,
                                  .keep = 2,
                                  .bad_steps = 10,
                                  .seed = 1,
                                  .rank_patience = 600};
    for (size_t i = 0; i < SETTINGS; i++)
        if (table[i].kind == SR_SETTING_TEXT)
            SR_TRY(sr_run_settings_text(text_at(settings, &table[i]), ""));
    return sr_run_settings_text(&settings->preset, SR_PRESET_DEFAULT);
}

srnn_status sr_run_settings_copy(sr_run_settings *to, const sr_run_settings *from) {
    sr_run_settings copy = *from;
    for (size_t i = 0; i < SETTINGS; i++) {
        if (table[i].kind != SR_SETTING_TEXT)
            continue;
        char **own = text_at(to, &table[i]);
        SR_TRY(sr_run_settings_text(own, *text_at(&copy, &table[i])));
        *text_at(&copy, &table[i]) = *own;
    }
    *to = copy;
    return SRNN_OK;
}

/* True if both names refer to the same file or folder. */
static bool same_file(const char *a, const char *b) {
    struct stat left, right;
    return stat(a, &left) == 0 && stat(b, &right) == 0 && left.st_dev == right.st_dev &&
           left.st_ino == right.st_ino;
}

static bool same_text(const char *a, const char *b) {
    return strcmp(a, b) == 0 || same_file(a, b);
}

static bool same_value(const sr_run_settings *a, const sr_run_settings *b, const sr_setting *s) {
    const void *left = (const char *)a + s->offset, *right = (const char *)b + s->offset;
    switch (s->kind) {
    case SR_SETTING_FLAG:
        return *(const bool *)left == *(const bool *)right;
    case SR_SETTING_TEXT:
        return same_text(*(char *const *)left, *(char *const *)right);
    case SR_SETTING_INTEGER:
    case SR_SETTING_CHOICE:
        return *(const int *)left == *(const int *)right;
    case SR_SETTING_INTEGER64:
        return *(const int64_t *)left == *(const int64_t *)right;
    case SR_SETTING_NUMBER:
        return *(const double *)left == *(const double *)right;
    }
    return false;
}

/* Settings that do not affect the numbers of a run. */
static bool changes_nothing(const sr_setting *s) {
    return s->offset == AT(threads) || s->offset == AT(tokenizer) || s->offset == AT(shard) ||
           s->offset == AT(recompute) || s->offset == AT(rank_patience);
}

const char *sr_run_settings_difference(const sr_run_settings *a, const sr_run_settings *b) {
    for (size_t i = 0; i < SETTINGS; i++)
        if (!changes_nothing(&table[i]) && !same_value(a, b, &table[i]))
            return table[i].name;
    return NULL;
}

static srnn_status make_absolute(char **text) {
    if (!**text || **text == '/' || access(*text, F_OK) != 0)
        return SRNN_OK; /* not given, absolute, or a task or built-in name instead of a file */
    char *here = getcwd(NULL, 0), *path = NULL;
    if (!here)
        return SR_FAIL(SRNN_ERR_IO, "the current folder has no name: %s", strerror(errno));
    const int length = asprintf(&path, "%s/%s", here, *text);
    free(here);
    if (length < 0)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its path", *text);
    free(*text);
    *text = path;
    return SRNN_OK;
}

srnn_status sr_run_settings_absolute(sr_run_settings *s) {
    char **const paths[] = {&s->data,  &s->validation, &s->batches,
                            &s->model, &s->teacher,    &s->tokenizer};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        SR_TRY(make_absolute(paths[i]));
    return SRNN_OK;
}

void sr_run_settings_free(sr_run_settings *settings) {
    for (size_t i = 0; i < SETTINGS; i++)
        if (table[i].kind == SR_SETTING_TEXT)
            free(*text_at(settings, &table[i]));
    *settings = (sr_run_settings){0};
}

typedef struct preset {
    const char *name;
    int C, F, L, H;
} preset;

/* The last three are the reference implementation's; the others fit a laptop. */
static const preset presets[] = {
    {"tiny", 128, 256, 2, 4},      {"mini", 256, 512, 4, 4},
    {"midi", 512, 1024, 8, 8},     {"small", 1024, 2048, 20, 16},
    {"large", 3072, 6144, 20, 16}, {"large_depth", 1024, 2048, 60, 32},
};
enum { PRESETS = sizeof presets / sizeof *presets };

const char *sr_preset_name(size_t index) {
    return index < PRESETS ? presets[index].name : NULL;
}

static srnn_status find_preset(const preset **found, const char *name) {
    const char *names[PRESETS];
    for (size_t i = 0; i < PRESETS; i++) {
        names[i] = presets[i].name;
        if (strcmp(name, names[i]) == 0) {
            *found = &presets[i];
            return SRNN_OK;
        }
    }
    const char *near = sr_nearest_word(name, names, PRESETS);
    return SR_FAIL(SRNN_ERR_ARGUMENT, "no preset is called %s%s%s: they are " PRESET_NAMES, name,
                   near ? "; did you mean " : "", near ? near : "");
}

srnn_status sr_run_settings_apply_preset(sr_run_settings *s) {
    const preset *found = NULL;
    SR_TRY(find_preset(&found, s->preset));
    s->C = s->C ? s->C : found->C;
    s->F = s->F ? s->F : found->F;
    s->L = s->L ? s->L : found->L;
    s->H = s->H ? s->H : found->H;
    s->Hkv = s->Hkv ? s->Hkv : s->H;
    if (!s->D && s->C % s->H != 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "a width of %d cannot be divided among %d heads: give --head-size, or "
                       "another --hidden or --heads",
                       s->C, s->H);
    s->D = s->D ? s->D : s->C / s->H;
    return SRNN_OK;
}
