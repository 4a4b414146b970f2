/* sizes.h: the sizes of one layer's attention: its form's defaults, and what follows from the
 * shapes of its tensors. */
#ifndef SR_MODEL_LAYER_SIZES_H
#define SR_MODEL_LAYER_SIZES_H

#include "files/tensor.h"
#include "model/layer/tensors.h"

typedef struct sr_layer_sizes {
    int H, Hkv;       /* heads; heads of what a group of them shares */
    int D, Dv;        /* widths of a head of keys and of values */
    int rank, levels; /* 0: the layer has none */
} sr_layer_sizes;

/* The sizes of a layer in a model of H heads, Hkv of keys and values, D wide. Members of `given`
 * that are not 0 override the form's defaults; its H and Hkv are not read. */
sr_layer_sizes sr_layer_sizes_usual(const srnn_attention *attention, int H, int Hkv, int D,
                                    const sr_layer_sizes *given);

/* The same sizes with those of the model around them. */
sr_layer_dims sr_layer_sizes_dims(const sr_layer_sizes *sizes, int C);

/* Where tensors are looked for by name; NULL if there is none. */
typedef struct sr_tensor_finder {
    const sr_tensor *(*find)(const void *context, const char *name);
    const void *context;
} sr_tensor_finder;

/* Sizes, widths of convolutions and biases of a layer whose tensors are there, `prefix` before
 * their names, as far as they follow from shapes; others are left. dims->C is
 * known. */
srnn_status sr_layer_sizes_find(sr_layer_dims *dims, srnn_attention *attention, const char *prefix,
                                sr_tensor_finder finder);

#endif
