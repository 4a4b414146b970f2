/* model.c: runs a model with the series of exp truncated at a finite order. */
#include "analysis/truncated/model.h"

#include "analysis/truncated/centred_layers.h"
#include "base/memory.h"
#include "equation/facts.h"
#include "equation/support.h"
#include "model/pass.h"
#include "model/sampler.h"
#include "model/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Attention that can be measured order by order: softmax with any epilogue of one value per head
 * and position, or with a gate per channel and no norm. */
static const char MEASURED[] =
    "score=exp position=rope|none scale=inverse_sqrt|one clamp=any value_gate=off|sigmoid "
    "normaliser=row_sum|row_sum_min1|row_length|none|cumulative_gate|value_power detach=off|on "
    "epsilon=any output_gate=none|sigmoid|inverse_exp|inverse_cumulative post_gate=off|sigmoid "
    "gate_width=head|channel norm=none|layer|rms|l2|l2_scaled";

bool sr_attention_has_orders(const srnn_attention *a) {
    const bool plain = a->norm == SRNN_NORM_NONE && !a->post_gate;
    return sr_has_equation(a) && sr_computes(MEASURED, a, NULL) &&
           (plain || a->gate_width == SRNN_WIDTH_HEAD);
}

srnn_attention sr_attention_truncated(const srnn_attention *attention, int order) {
    srnn_attention truncated = *attention;
    truncated.score = SRNN_SCORE_TAYLOR;
    truncated.order = order;
    truncated.clamp = 0; /* a clamp is not a power series */
    return truncated;
}

/* *view = the model with a separate list of attentions, for the caller to change and to free;
 * everything else is shared. */
static srnn_status view_of(sr_model *view, const sr_model *model) {
    const size_t L = (size_t)model->config.L;
    void *memory;
    SR_TRY(sr_alloc(&memory, L, sizeof *view->config.attention));
    *view = *model;
    view->config.attention = memcpy(memory, model->config.attention, L * sizeof(srnn_attention));
    return SRNN_OK;
}

static void cut_layer(sr_model *view, int layer, int order) {
    srnn_attention *own = &view->config.attention[layer];
    if (order > 0 && sr_attention_has_orders(own))
        *own = sr_attention_truncated(own, order);
}

static srnn_status logits_of(float *logits, sr_model *model, const sr_trial *trial,
                             sr_observer observer) {
    const sr_pass_setup setup = {.B = trial->B,
                                 .T = trial->T,
                                 .form = SRNN_FORM_PARALLEL,
                                 .observer = observer};
    sr_pass *pass;
    SR_TRY(sr_pass_create(&pass, model, &setup));
    const srnn_status status = sr_pass_logits(pass, logits, trial->ids);
    sr_pass_free(pass);
    return status;
}

/* Minus the log probability of the target. */
static double loss_of(const float *logits, int V, int32_t target) {
    double largest = (double)logits[0], sum = 0;
    for (int v = 1; v < V; v++)
        largest = fmax(largest, (double)logits[v]);
    for (int v = 0; v < V; v++)
        sum += exp((double)logits[v] - largest);
    return log(sum) + largest - (double)logits[target];
}

static double mean_loss(const float *logits, const sr_trial *trial, int V) {
    const int64_t rows = (int64_t)trial->B * trial->T;
    int64_t targets = 0;
    double sum = 0;
    for (int64_t row = 0; row < rows; row++)
        if (trial->targets[row] >= 0) {
            sum += loss_of(logits + row * V, V, trial->targets[row]);
            targets++;
        }
    return targets > 0 ? sum / (double)targets : 0;
}

static double mean_of(const float *x, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += (double)x[i];
    return sum / count;
}

static double relative_error(const float *logits, const float *wanted, int64_t rows, int V) {
    double differences = 0, size = 0;
    for (int64_t row = 0; row < rows; row++, logits += V, wanted += V) {
        const double mean = mean_of(logits, V), wanted_mean = mean_of(wanted, V);
        for (int v = 0; v < V; v++) {
            const double is = (double)logits[v] - mean, should = (double)wanted[v] - wanted_mean;
            differences += (is - should) * (is - should);
            size += should * should;
        }
    }
    return sr_truncation_error(differences, size);
}

static srnn_status check_targets(const sr_trial *trial, int V) {
    for (int64_t row = 0; row < (int64_t)trial->B * trial->T; row++)
        if (trial->targets[row] >= V)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "token %d: the model has only %d",
                           trial->targets[row], V);
    return SRNN_OK;
}

static srnn_status take_logits(float **logits, const sr_trial *trial, int V) {
    void *memory;
    SR_TRY(sr_alloc(&memory, (size_t)trial->B * (size_t)trial->T * (size_t)V, sizeof **logits));
    *logits = memory;
    return SRNN_OK;
}

srnn_status sr_trial_begin(sr_trial *trial, sr_model *model) {
    trial->logits = NULL;
    SR_TRY(check_targets(trial, model->config.V));
    SR_TRY(take_logits(&trial->logits, trial, model->config.V));
    SR_TRY(logits_of(trial->logits, model, trial, (sr_observer){0}));
    trial->loss = mean_loss(trial->logits, trial, model->config.V);
    return SRNN_OK;
}

void sr_trial_end(sr_trial *trial) {
    free(trial->logits);
    trial->logits = NULL;
}

/* A pass of a truncated model, with what changes its layers. */
typedef srnn_status truncated_pass(void *out, const sr_trial *trial, sr_model *model,
                                   sr_observer observer);

/* Layers cut about zero are truncated in a view of the model, the others by an observer. */
static srnn_status run_cuts(truncated_pass *pass, void *out, const sr_trial *trial, sr_model *model,
                            const sr_survey *survey, const sr_cut *cuts) {
    sr_centred_layers *layers;
    sr_model view;
    SR_TRY(view_of(&view, model));
    for (int layer = 0; layer < model->config.L; layer++)
        if (!sr_is_centred(&model->config.attention[layer], cuts[layer]))
            cut_layer(&view, layer, cuts[layer].order);
    srnn_status status = sr_centred_layers_create(&layers, &view, survey, cuts, trial->B, trial->T);
    if (status == SRNN_OK) {
        status = pass(out, trial, &view, sr_centred_layers_observer(layers));
        sr_centred_layers_free(layers);
    }
    free(view.config.attention);
    return status;
}

typedef struct trial_result {
    double loss, error;
} trial_result;

static srnn_status compare_logits(void *out, const sr_trial *trial, sr_model *model,
                                  sr_observer observer) {
    const int V = model->config.V;
    trial_result *result = out;
    float *logits;
    SR_TRY(take_logits(&logits, trial, V));
    const srnn_status status = logits_of(logits, model, trial, observer);
    if (status == SRNN_OK) {
        result->loss = mean_loss(logits, trial, V);
        result->error = relative_error(logits, trial->logits, (int64_t)trial->B * trial->T, V);
    }
    free(logits);
    return status;
}

srnn_status sr_trial_run(double *loss, double *error, const sr_trial *trial, sr_model *model,
                         const sr_survey *survey, const sr_cut *cuts) {
    trial_result result = {0, 0};
    SR_TRY(run_cuts(compare_logits, &result, trial, model, survey, cuts));
    *loss = result.loss;
    *error = result.error;
    return SRNN_OK;
}

static srnn_status losses_of(void *out, const sr_trial *trial, sr_model *model,
                             sr_observer observer) {
    const sr_pass_setup setup = {.B = trial->B,
                                 .T = trial->T,
                                 .form = SRNN_FORM_PARALLEL,
                                 .observer = observer};
    sr_pass *pass;
    SR_TRY(sr_pass_create(&pass, model, &setup));
    const srnn_status status = sr_pass_losses(pass, out, trial->ids, trial->targets);
    sr_pass_free(pass);
    return status;
}

srnn_status sr_trial_losses(float *losses, const sr_trial *trial, sr_model *model,
                            const sr_survey *survey, const sr_cut *cuts) {
    return run_cuts(losses_of, losses, trial, model, survey, cuts);
}

/* Feeds the prompt, then token after token. */
static srnn_status generate(sr_tokens *sequence, sr_session *session, sr_sampler *sampler,
                            float *logits, int tokens, const sr_model_config *config) {
    for (size_t i = 0; i < sequence->count; i++) {
        const int32_t id = (int32_t)sequence->ids[i];
        SR_TRY(sr_session_feed(session, logits, &id, 1));
    }
    for (int i = 0; i < tokens && (int64_t)sequence->count < config->positions; i++) {
        const int32_t id = sr_sampler_choose(sampler, logits, 0, (uint64_t)i);
        if (id == config->eos || id == config->bos)
            break;
        SR_TRY(sr_tokens_push(sequence, (uint32_t)id));
        SR_TRY(sr_session_feed(session, logits, &id, 1));
    }
    return SRNN_OK;
}

static srnn_status generate_with(sr_tokens *sequence, sr_model *model, int tokens) {
    const sr_session_setup setup = {.B = 1, .T = 1, .form = SRNN_FORM_PARALLEL};
    const sr_sampler_settings settings = {.temperature = 0};
    sr_session *session = NULL;
    sr_sampler *sampler = NULL;
    void *logits = NULL;
    srnn_status status = sr_session_create(&session, model, &setup);
    if (status == SRNN_OK)
        status = sr_sampler_create(&sampler, &settings, model->config.V);
    if (status == SRNN_OK)
        status = sr_alloc(&logits, (size_t)model->config.V, sizeof(float));
    if (status == SRNN_OK)
        status = generate(sequence, session, sampler, logits, tokens, &model->config);
    free(logits);
    sr_sampler_free(sampler);
    sr_session_free(session);
    return status;
}

srnn_status sr_truncated_text(sr_bytes *text, sr_model *model, const sr_tokenizer *tokenizer,
                              const sr_tokens *prompt, int order, int tokens) {
    sr_tokens sequence = {0};
    sr_model view;
    SR_TRY(view_of(&view, model));
    for (int layer = 0; layer < model->config.L; layer++)
        cut_layer(&view, layer, order);
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < prompt->count && status == SRNN_OK; i++)
        status = sr_tokens_push(&sequence, prompt->ids[i]);
    if (status == SRNN_OK)
        status = generate_with(&sequence, &view, tokens);
    if (status == SRNN_OK)
        status = sr_tokenizer_decode(tokenizer, text, sequence.ids, sequence.count);
    sr_tokens_free(&sequence);
    free(view.config.attention);
    return status;
}
