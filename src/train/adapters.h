/* adapters.h (private): low-rank adapters of a model's matrices: W = W0 + B A, with A (rank, in)
 * and B (out, rank), of which A and B learn (Hu et al., "LoRA", 2106.09685, with alpha = rank).
 *
 * The model holds W, so that its passes need not know of adapters; their gradients follow from that
 * of W: dB = dW A^T, dA = B^T dW. */
#ifndef SR_TRAIN_ADAPTERS_H
#define SR_TRAIN_ADAPTERS_H

#include "model/model.h"

/* One matrix of the model. */
typedef struct sr_adapted {
    size_t matrix;     /* its index in the model's table */
    size_t a, b, base; /* first numbers of A^T (in, rank), of B and of W0 */
    int64_t rows, columns;
} sr_adapted;

typedef struct sr_adapters {
    sr_model *model;
    int rank;
    sr_tensor_table table; /* NAME.lora_A (in, rank: transposed) and NAME.lora_B */
    sr_adapted *matrices;  /* (count), owned */
    size_t count;
    float *weights, *gradient; /* (table.numbers), device memory */
    float *base;               /* W0 of all, device memory */
    size_t base_numbers;
} sr_adapters;

/* Adapters of the matrices of all layers, or of the attention of some (L; NULL: all). A has normal
 * numbers of this range, B is 0, and W0 is what the model holds when sr_adapters_keep is called.
 * The model computes with floats. */
typedef struct sr_adapters_setup {
    int rank;
    const bool *attention_of;
} sr_adapters_setup;
srnn_status sr_adapters_create(sr_adapters **adapters, sr_model *model,
                               const sr_adapters_setup *setup);
void sr_adapters_free(sr_adapters *adapters);
size_t sr_adapters_bytes(const sr_adapters *adapters);

/* Sets A and B to their initial values. */
srnn_status sr_adapters_initialise(sr_adapters *adapters, double range, uint64_t seed);

/* W0 = what the model holds. */
srnn_status sr_adapters_keep(sr_adapters *adapters);

/* adapters->gradient = that of A and B, from the model's gradient, laid out by its table. */
srnn_status sr_adapters_gradient(sr_adapters *adapters, const float *gradient);

/* W = W0 + B A, in the model. */
srnn_status sr_adapters_merge(sr_adapters *adapters);

/* A and B apart from the model, as PEFT writes them, and its adapter_config.json under another
 * name: next to a merged model, transformers would find it and add the adapters a second time.
 * Reading sets A and B, and leaves W. */
#define SR_ADAPTERS_FILE   "adapter_model.safetensors"
#define SR_ADAPTERS_CONFIG "peft_config.json"
srnn_status sr_adapters_write(const sr_adapters *adapters, const char *folder);
srnn_status sr_adapters_read(sr_adapters *adapters, const char *folder);

#endif
