/* softrnn_lab.h: the laboratory around the attention of softrnn.h, for C and for other languages:
 * models, tokenizers, sessions that generate, training runs, studies.
 *
 * Unstable: unlike softrnn.h, these declarations may change with every release.
 *
 *     srnl_model *model;
 *     srnl_tokenizer *tokenizer;
 *     srnl_session *session;
 *     int32_t ids[256], next;
 *     size_t count;
 *     srnl_model_load(&model, "runs/norm", NULL, 0, false);
 *     srnl_model_tokenizer(&tokenizer, model);
 *     srnl_tokenizer_encode(tokenizer, "Once upon", 9, ids, 256, &count);
 *     srnl_session_create(&session, model, 1);
 *     srnl_session_feed(session, ids, (int)count, NULL);
 *     srnl_session_next(session, &next, &(srnl_sampling){.temperature = 0.8});
 *
 * Conventions are those of softrnn.h: sizes B, T, V (vocabulary); row-major arrays in host
 * memory; the caller that creates an object frees it, and every _free accepts NULL; what can
 * fail returns a status, and srnn_error_detail says why. Handles are opaque, and everything else
 * is plain C, so that a foreign function interface can call it. */
#ifndef SOFTRNN_LAB_H
#define SOFTRNN_LAB_H

#include <softrnn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Models
 * -------------------------------------------------------------------------------------- */

typedef struct srnl_model srnl_model;

/* `where`: a folder in Hugging Face layout, the folder of a run (its last checkpoint), or a
 * llama2.c .bin file. `device`: "cpu", "cuda", "cuda:1"; NULL: cpu. `threads`: of the CPU; 0: every
 * core. `bf16`: products in bf16 with sums in float. */
SRNN_API srnn_status srnl_model_load(srnl_model **model, const char *where, const char *device,
                                     int threads, bool bf16);

/* Sessions made from it must be freed before. */
SRNN_API void srnl_model_free(srnl_model *model);

/* Writes config.json and model.safetensors into an existing folder; `dtype`: "float32", "bfloat16"
 * or "float16". */
SRNN_API srnn_status srnl_model_save(const srnl_model *model, const char *folder,
                                     const char *dtype);

SRNN_API int srnl_model_vocabulary(const srnl_model *model);
SRNN_API int srnl_model_layers(const srnl_model *model);

/* The longest sequence that it was made for. */
SRNN_API int srnl_model_positions(const srnl_model *model);

/* The empty tokens (id 0) that it needs in front of a sequence. */
SRNN_API int srnl_model_prefix_tokens(const srnl_model *model);

/* 1 if this token ends a text, as config.json or generation_config.json says; else 0. */
SRNN_API int srnl_model_ends(const srnl_model *model, int32_t token);
SRNN_API int64_t srnl_model_parameters(const srnl_model *model); /* learned numbers */

/* The attention of a layer, 0 .. layers-1, in its text form, or Avey's; like
 * srnn_attention_print. "A+B": two mixers side by side. */
SRNN_API size_t srnl_model_attention(const srnl_model *model, int layer, char *text, size_t size);

/* logits (B, T, V) for ids (B, T), each row a sequence of its own. */
SRNN_API srnn_status srnl_model_logits(srnl_model *model, float *logits, const int32_t *ids, int B,
                                       int T);

/* losses (B, T): minus the log probability of each target; 0 where a target is negative. */
SRNN_API srnn_status srnl_model_losses(srnl_model *model, float *losses, const int32_t *ids,
                                       const int32_t *targets, int B, int T);

/* ---- Layers: how the layer of a variant makes what the equation reads
 * ------------------------------ */

typedef struct srnl_layer srnl_layer;

typedef struct srnl_layer_sizes {
    int dim;                  /* width of the model */
    int heads, kv_heads;      /* H and Hkv of the equation */
    int key_size, value_size; /* D and Dv */
    int rank, levels;         /* where the layer has them */
    int layers;               /* of the model, for first values; 0: 1 */
    bool bias, output_bias;   /* where the layer leaves them to the model */
} srnl_layer_sizes;

/* From a model's heads, kv_heads and key_size to the sizes that a layer of this variant has there
 * usually. */
SRNN_API void srnl_layer_usual(srnl_layer_sizes *sizes, const srnn_attention *attention);

/* The description of a layer; it holds no weights. */
SRNN_API srnn_status srnl_layer_create(srnl_layer **layer, const srnn_attention *attention,
                                       const srnl_layer_sizes *sizes);
SRNN_API void srnl_layer_free(srnl_layer *layer);

/* The lists below: false past the end. Texts live as long as the layer. */

/* A tensor that the layer learns, as checkpoints call it after "self_attn.". */
typedef struct srnl_layer_tensor {
    const char *name; /* "q_proj.weight" */
    int rank;
    int64_t sizes[4];
} srnl_layer_tensor;

SRNN_API bool srnl_layer_tensor_at(const srnl_layer *layer, srnl_layer_tensor *tensor,
                                   size_t index);

/* values = what the tensor starts with in a new model; `range`: the standard deviation of those
 * that start normal, 0: 0.02. */
SRNN_API srnn_status srnl_layer_start(const srnl_layer *layer, size_t index, float *values,
                                      double range, uint64_t seed);

/* A projection. What all of them give stands side by side in the row of a token. */
typedef struct srnl_layer_projection {
    const char *weight, *bias; /* of the tensors; bias NULL: none */
    int64_t source, inputs;    /* columns that it reads; source -1: the layer's input */
    int64_t to, outputs;       /* columns that it gives */
} srnl_layer_projection;

SRNN_API bool srnl_layer_projection_at(const srnl_layer *layer, srnl_layer_projection *projection,
                                       size_t index);

/* A causal convolution over tokens, then SiLU unless it is plain; from columns of projections to
 * those of a second row, in which what convolutions give stands side by side. */
typedef struct srnl_layer_convolution {
    const char *weight, *bias; /* of the tensors; bias NULL: none */
    int64_t source, to, columns;
    int taps;
    bool plain;
} srnl_layer_convolution;

SRNN_API bool srnl_layer_convolution_at(const srnl_layer *layer,
                                        srnl_layer_convolution *convolution, size_t index);

/* Where the layer has an operand of the equation from. */
typedef struct srnl_layer_operand {
    const char *name;    /* of the member of srnn_operands */
    const char *learned; /* the tensor that it is, or that is added to its columns; NULL: neither */
    int rank;
    int64_t sizes[4]; /* its shape, B and T being 1 */
    bool over_tokens; /* it has columns, head by head: */
    bool convolved;   /* of the second row, else of the first */
    int64_t first, columns;
} srnl_layer_operand;

SRNN_API bool srnl_layer_operand_at(const srnl_layer *layer, srnl_layer_operand *operand,
                                    size_t index);

/* Around the equation: the projection of its output, and the RMS norm (epsilon 1e-5) of the layer's
 * input, around which there is a residual then; NULL: none. */
typedef struct srnl_layer_ends {
    const char *weight, *bias, *own_norm;
} srnl_layer_ends;

SRNN_API srnl_layer_ends srnl_layer_ends_of(const srnl_layer *layer);

/* ---- Tokenizers
 * ---------------------------------------------------------------------------------- */

typedef struct srnl_tokenizer srnl_tokenizer;

/* `where`: "bytes", a tokenizer.json, .json.gz, .model or .bin file, or a folder with one. */
SRNN_API srnn_status srnl_tokenizer_load(srnl_tokenizer **tokenizer, const char *where);

/* The tokenizer in a model's folder. */
SRNN_API srnn_status srnl_model_tokenizer(srnl_tokenizer **tokenizer, const srnl_model *model);
SRNN_API void srnl_tokenizer_free(srnl_tokenizer *tokenizer);

SRNN_API int srnl_tokenizer_vocabulary(const srnl_tokenizer *tokenizer);
SRNN_API int32_t srnl_tokenizer_begin(const srnl_tokenizer *tokenizer); /* of a text; -1: none */
SRNN_API int32_t srnl_tokenizer_end(const srnl_tokenizer *tokenizer);   /* of a text; -1: none */

/* The ids of a text, which may be any bytes; neither begin nor end is added. *count receives how
 * many there are, of which the first `capacity` are written: with more, call again. One thread at a
 * time. */
SRNN_API srnn_status srnl_tokenizer_encode(srnl_tokenizer *tokenizer, const char *text,
                                           size_t bytes, int32_t *ids, size_t capacity,
                                           size_t *count);

/* The text of ids, not terminated; *bytes and `capacity` as above. */
SRNN_API srnn_status srnl_tokenizer_decode(const srnl_tokenizer *tokenizer, const int32_t *ids,
                                           size_t count, char *text, size_t capacity,
                                           size_t *bytes);

/* ---- Sessions: sequences that are fed and continued
 * ---------------------------------------------- */

typedef struct srnl_session srnl_session;

/* B sequences side by side. A variant with a fixed-size state uses it; the others keep keys and
 * values. The model must outlive the session. */
SRNN_API srnn_status srnl_session_create(srnl_session **session, srnl_model *model, int B);
SRNN_API void srnl_session_free(srnl_session *session);

/* Forgets everything: the next token is the first. */
SRNN_API srnn_status srnl_session_reset(srnl_session *session);

/* Feeds ids (B, T). logits (B, V), or NULL, receives those of what follows the last of them. */
SRNN_API srnn_status srnl_session_feed(srnl_session *session, const int32_t *ids, int T,
                                       float *logits);

typedef struct srnl_sampling {
    double temperature; /* 0: the most probable token */
    double top_p;       /* only the most probable that make up p together; 0 or 1: all */
    int top_k;          /* only the k most probable; 0: all */
    uint64_t seed;      /* the same seed gives the same tokens */
} srnl_sampling;

/* ids (B): the next token of every sequence, chosen by what follows the tokens fed so far, and fed.
 * SRNN_ERR_ARGUMENT if nothing was fed yet. */
SRNN_API srnn_status srnl_session_next(srnl_session *session, int32_t *ids,
                                       const srnl_sampling *sampling);

SRNN_API int64_t srnl_session_position(const srnl_session *session); /* tokens fed */
SRNN_API size_t srnl_session_state_bytes(const srnl_session *session);
SRNN_API bool srnl_session_is_recurrent(const srnl_session *session); /* the state does not grow */

/* ---- Training: a run in a folder, as `softrnn train` makes it
 * ------------------------------------- */

typedef struct srnl_settings srnl_settings;

/* Every setting at its default. Their names are the options of `softrnn train` without the dashes,
 * and those of run.yaml; NULL past the end. */
SRNN_API srnn_status srnl_settings_create(srnl_settings **settings);
SRNN_API void srnl_settings_free(srnl_settings *settings);
SRNN_API const char *srnl_setting_name(size_t index);

/* Sets one by its name, as a text: "steps", "500". */
SRNN_API srnn_status srnl_settings_set(srnl_settings *settings, const char *name,
                                       const char *value);

typedef struct srnl_run srnl_run;

/* Starts a run in a new folder, or resumes the one in a folder. */
SRNN_API srnn_status srnl_run_start(srnl_run **run, const char *folder,
                                    const srnl_settings *settings);
SRNN_API srnn_status srnl_run_resume(srnl_run **run, const char *folder);
SRNN_API void srnl_run_free(srnl_run *run);

typedef struct srnl_step {
    int64_t step, tokens; /* of the whole run so far */
    double loss;          /* mean over the targets */
    double gradient_norm;
    double learning_rate;
    double validation, accuracy; /* NaN where this step had no validation */
    double seconds;
    bool applied; /* false: loss or gradient was not finite, and nothing was changed */
    bool saved;   /* a checkpoint was written */
} srnl_step;

/* The next step, with validation and checkpoint where they are due; not after the last one. */
SRNN_API srnn_status srnl_run_step(srnl_run *run, srnl_step *step);
SRNN_API bool srnl_run_done(const srnl_run *run);

/* Writes a checkpoint of the last step done, if there is none. */
SRNN_API srnn_status srnl_run_save(srnl_run *run);

/* ---- Studies: many runs and what they say, as `softrnn study` makes them
 * --------------------------- */

/* Called about twenty times a second; false: stop cleanly. `ended` of `runs` have ended. */
typedef bool srnl_study_watch(void *context, size_t ended, size_t runs);

/* What is to be done, and how it is watched. All may be zero but `out`. */
typedef struct srnl_study {
    const char *file;        /* the study in YAML; NULL: the default study */
    const char *out;         /* its folder; what has ended there stays */
    const char *text;        /* files that stand for @text: "a,b"; NULL: the King James Bible */
    const char *only, *skip; /* tasks, variants, sizes or runs: "a,b"; NULL: all, none */
    int jobs;                /* runs at a time; 0: one per core */
    srnl_study_watch *watch;
    void *context; /* of watch */
} srnl_study;

/* Runs a study, or resumes one, each run in a process of its own, and writes its records.
 * *failed, or NULL, receives how many runs failed. SRNN_ERR_INTERRUPTED if the watch stopped it. */
SRNN_API srnn_status srnl_study_run(const srnl_study *study, size_t *failed);

#ifdef __cplusplus
}
#endif

#endif
