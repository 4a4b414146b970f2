/* dry_run.c: what a run would compute and exchange, without starting it. */
#include "cli/model/dry_run.h"

#include "data/rows/source.h"
#include "model/context_cost.h"
#include "model/mixers.h"
#include "train/run/data.h"
#include "train/run/model.h"

#include <math.h>
#include <stdio.h>

enum { COLUMN = 9 };

/* What crosses in this layer: "state*" where a ring would send less, but compute more. */
static const char *way_of(const sr_context_cost *cost) {
    if (cost->refused)
        return "none";
    switch (cost->way) {
    case SR_CONTEXT_HEADS:
        break;
    case SR_CONTEXT_STATE:
        return cost->ring_bytes < cost->passed_bytes ? "state*" : "state";
    case SR_CONTEXT_RING:
        return "ring";
    }
    return "heads";
}

/* A number that is not finite is not there. */
static void print_number(double value) {
    if (isfinite(value))
        printf("  %*.*f", COLUMN, value < 10 ? 3 : 1, value);
    else
        printf("  %*s", COLUMN, "-");
}

static void print_layer(const sr_model_config *config, int layer, const sr_context_cost *cost) {
    char text[2 * SR_ATTENTION_TEXT];
    sr_mixer_row_of(config)->print(text, sizeof text, config, layer);
    printf("%5d", layer);
    print_number(1e-6 * (cost->state_bytes + cost->input_bytes));
    print_number(1e-6 * cost->passed_bytes);
    print_number(1e-6 * cost->ring_bytes);
    print_number(1e-9 * cost->state_flops);
    print_number(1e-9 * cost->pair_flops);
    printf("  %-6s  %s\n", way_of(cost), text);
}

static srnn_status print_layers(const sr_model_config *config, const sr_run_settings *s,
                                srnn_device *device) {
    const sr_context_batch batch = {.B = s->B,
                                    .T = s->T,
                                    .ranks = s->context_ranks,
                                    .number =
                                        s->precision == SR_PRECISION_BF16 ? SRNN_BF16 : SRNN_F32,
                                    .device = device};
    double sum = 0;
    printf("a batch of %d x %d tokens on %d context ranks, forward and backward; operations of a "
           "rank forward\n",
           s->B, s->T, s->context_ranks);
    printf("%5s  %*s  %*s  %*s  %*s  %*s  way     attention\n", "layer", COLUMN, "MB a cut", COLUMN,
           "MB in all", COLUMN, "MB ring", COLUMN, "GF states", COLUMN, "GF pairs");
    for (int layer = 0; layer < config->L; layer++) {
        sr_context_cost cost;
        SR_TRY(sr_context_cost_of(&cost, config, layer, &batch));
        print_layer(config, layer, &cost);
        sum += cost.passed_bytes;
    }
    if (isfinite(sum))
        printf("all layers: %.6f MB pass between the ranks of a group in a batch\n", 1e-6 * sum);
    else
        printf("way none: context ranks cannot compute this layer, and training refuses it\n");
    return SRNN_OK;
}

static srnn_status print_model(const sr_model_config *config, const sr_run_settings *s) {
    sr_tensor_table table = {0};
    const srnn_status status = sr_model_tensors(&table, config);
    if (status == SRNN_OK)
        printf("%.3f M parameters, %d layers\n", 1e-6 * (double)table.numbers, config->L);
    sr_tensor_table_free(&table);
    SR_TRY(status);
    if (!sr_mixer_row_of(config)->attends)
        return SRNN_OK;
    srnn_device *device = NULL; /* what its kernels take from other ranks decides */
    if (s->context_ranks > 1)
        SR_TRY(srnn_device_open(&device, *s->device ? s->device : NULL));
    const srnn_status printed = print_layers(config, s, device);
    srnn_device_close(device);
    return printed;
}

srnn_status dry_run(sr_run_settings *settings) {
    sr_source *source;
    sr_model_config config;
    SR_TRY(sr_run_data_tokenizer(settings));
    SR_TRY(sr_run_data_open(&source, settings));
    srnn_status status = sr_run_model_config(&config, settings, "", source->vocab);
    sr_source_free(source);
    SR_TRY(status);
    status = print_model(&config, settings);
    sr_model_config_free(&config);
    return status;
}
