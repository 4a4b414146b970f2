/* avey.c: what an Avey model is made of: its text form, sizes and tensors. */
#include "model/avey/avey.h"

#include "equation/model_names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_MAX = 4096, CHUNKS_MAX = 1024, EXPANSION_MAX = 64 };

/* ---- the text form */

static const char *name_of(bool causal) {
    return sr_named_model_at(causal ? SR_NAMED_AVEY_CAUSAL : SR_NAMED_AVEY)->name;
}

static bool begins_with_name(const char *text, bool causal) {
    const char *name = name_of(causal);
    return strcspn(text, ",") == strlen(name) && strncmp(text, name, strlen(name)) == 0;
}

static srnn_status wrong(const char *text) {
    return SR_FAIL(SRNN_ERR_FORMAT,
                   "%s: avey and avey_causal take chunk=, chunks=, expansion= (whole numbers) and "
                   "share= (of 0 to 1)",
                   text);
}

/* A whole number of at least 1 as the value of `name`. */
static bool take_count(int *value, const char *name, const char *word, int most) {
    const size_t length = strlen(name);
    char *end;
    if (strncmp(word, name, length) != 0 || word[length] != '=')
        return false;
    const long number = strtol(word + length + 1, &end, 10);
    *value = !*end && number >= 1 && number <= most ? (int)number : 0;
    return true;
}

static bool take_share(double *share, const char *word) {
    static const char name[] = "share=";
    char *end;
    if (strncmp(word, name, strlen(name)) != 0)
        return false;
    const double number = strtod(word + strlen(name), &end);
    *share = !*end && number > 0 && number <= 1 ? number : 0;
    return true;
}

static srnn_status parse_changes(sr_avey *a, char *words, const char *text) {
    char *rest = NULL;
    for (char *word = strtok_r(words, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
        if (!take_count(&a->chunk, "chunk", word, CHUNK_MAX) &&
            !take_count(&a->chunks, "chunks", word, CHUNKS_MAX) &&
            !take_count(&a->expansion, "expansion", word, EXPANSION_MAX) &&
            !take_share(&a->share, word))
            return wrong(text);
    return a->chunk && a->chunks && a->expansion && a->share > 0 ? SRNN_OK : wrong(text);
}

srnn_status sr_avey_parse(sr_avey *avey, bool *known, const char *text) {
    const bool causal = begins_with_name(text, true);
    *known = causal || begins_with_name(text, false);
    *avey = (sr_avey){.chunk = 64, .chunks = 8, .expansion = 4, .share = 0.5, .causal = causal};
    if (!*known)
        return SRNN_OK;
    char *words = strdup(text + strlen(name_of(causal)));
    if (!words)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a text");
    const srnn_status status = parse_changes(avey, words, text);
    free(words);
    return status;
}

int sr_avey_print(char *text, size_t size, const sr_avey *a) {
    return snprintf(text, size, "%s,chunk=%d,chunks=%d,expansion=%d,share=%.15g",
                    name_of(a->causal), a->chunk, a->chunks, a->expansion, a->share);
}

/* ---- sizes */

int64_t sr_avey_rows(const sr_avey *a) {
    return (int64_t)a->chunk * a->chunks;
}

/* An odd share is made even upwards, as the authors do, as long as the block is that wide. */
int64_t sr_avey_mixed(const sr_avey *a, int C) {
    const int64_t wide = (int64_t)a->expansion * C, shared = (int64_t)(a->share * (double)wide);
    return (shared < wide ? shared + 1 : shared) / 2;
}

int64_t sr_avey_joined(const sr_avey *a, int C) {
    return (int64_t)a->expansion * C - sr_avey_mixed(a, C);
}

sr_ranking sr_avey_ranking(const sr_avey *a, int64_t B, int64_t N, int C) {
    return (sr_ranking){.B = B,
                        .N = N,
                        .C = C,
                        .stride = N * a->chunk,
                        .chunk = a->chunk,
                        .chunks = a->chunks,
                        .causal = a->causal};
}

/* ---- tensors */

static srnn_status add(sr_tensor_table *table, const char *prefix, const char *name, int slot,
                       sr_tensor_spec spec) {
    snprintf(spec.name, sizeof spec.name, "%s%s", prefix, name);
    spec.slot = slot;
    return sr_tensor_table_add(table, &spec);
}

static srnn_status add_linear(sr_tensor_table *table, const char *prefix, const char *name,
                              int slot, const int64_t shape[2]) {
    const double bound = 1.0 / sqrt((double)shape[1]);
    char text[SR_SPEC_NAME];
    snprintf(text, sizeof text, "%s.weight", name);
    SR_TRY(add(table, prefix, text, slot,
               (sr_tensor_spec){.rank = 2,
                                .shape = {shape[0], shape[1]},
                                .initialiser = SR_INIT_UNIFORM,
                                .size = bound}));
    snprintf(text, sizeof text, "%s.bias", name);
    return add(table, prefix, text, slot + 1,
               (sr_tensor_spec){
                   .rank = 1, .shape = {shape[0]}, .initialiser = SR_INIT_UNIFORM, .size = bound});
}

srnn_status sr_avey_tensors(sr_tensor_table *table, const char *prefix, const sr_avey *a, int C) {
    const int64_t rows = sr_avey_rows(a);
    SR_TRY(add_linear(table, prefix, "enricher", SR_LAYER_PROJECTIONS,
                      (const int64_t[]){(int64_t)a->expansion * C, C}));
    SR_TRY(add(table, prefix, "contextualizer.spatial_proj", SR_LAYER_SPATIAL,
               (sr_tensor_spec){.rank = 2,
                                .shape = {rows, rows},
                                .initialiser = SR_INIT_NORMAL_OF,
                                .size = sqrt(1.0 / (double)rows)}));
    return add_linear(table, prefix, "fuser", SR_LAYER_OUTPUT,
                      (const int64_t[]){C, sr_avey_joined(a, C)});
}
