/* layer.c: the wiring of layers, for the C API. */
#include "base/memory.h"
#include "model/config/config.h"
#include "model/layer/sizes.h"
#include "softrnn_lab.h"

#include <stdlib.h>

struct srnl_layer {
    srnn_attention attention;
    sr_layer_dims dims;
    sr_layer_wiring wiring;
    sr_tensor_table table;
};

void srnl_layer_usual(srnl_layer_sizes *sizes, const srnn_attention *attention) {
    const sr_layer_sizes given = {.Dv = sizes->value_size,
                                  .rank = sizes->rank,
                                  .levels = sizes->levels};
    const sr_layer_sizes usual =
        sr_layer_sizes_usual(attention, sizes->heads, sizes->kv_heads, sizes->key_size, &given);
    sizes->heads = usual.H;
    sizes->kv_heads = usual.Hkv;
    sizes->key_size = usual.D;
    sizes->value_size = usual.Dv;
    sizes->rank = usual.rank;
    sizes->levels = usual.levels;
}

static srnn_status check_size(const char *name, int size, int least) {
    if (size < least || size > SR_WIDTH_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s is %d; a layer takes %d to %d", name, size, least,
                       SR_WIDTH_MAX);
    return SRNN_OK;
}

/* Parts that the description of a layer does not list: code that follows it would omit them. */
static srnn_status check_parts(const srnn_wiring *w) {
    if (w->qk_norm || w->rope_part != 0 || w->rope_pairs || w->rope_theta != 0 ||
        w->softmax_scale != 0 || w->block_norm)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "qk_norm, rope_part, rope_pairs, rope_theta, softmax_scale and block_norm "
                       "are parts of whole models (softrnn.lab.Model), not of a single layer");
    return SRNN_OK;
}

static srnn_status check(const srnn_attention *attention, const srnl_layer_sizes *s) {
    SR_TRY(srnn_attention_check(attention));
    SR_TRY(check_parts(&attention->wiring));
    SR_TRY(check_size("dim", s->dim, 1));
    SR_TRY(check_size("heads", s->heads, 1));
    SR_TRY(check_size("kv_heads", s->kv_heads, 1));
    SR_TRY(check_size("key_size", s->key_size, 1));
    SR_TRY(check_size("value_size", s->value_size, 1));
    SR_TRY(check_size("rank", s->rank, 0));
    SR_TRY(check_size("levels", s->levels, 0));
    SR_TRY(check_size("layers", s->layers, 0));
    if (s->heads % s->kv_heads)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%d query heads cannot share %d key and value heads",
                       s->heads, s->kv_heads);
    return SRNN_OK;
}

static srnn_status fill(srnl_layer *layer, const srnl_layer_sizes *s) {
    layer->dims = (sr_layer_dims){.C = s->dim,
                                  .H = s->heads,
                                  .Hkv = s->kv_heads,
                                  .D = s->key_size,
                                  .Dv = s->value_size,
                                  .rank = s->rank,
                                  .levels = s->levels,
                                  .layers = s->layers,
                                  .qkv_bias = s->bias,
                                  .o_bias = s->output_bias};
    SR_TRY(sr_layer_wire(&layer->wiring, &layer->attention, &layer->dims));
    if (layer->wiring.shift_count)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "a layer with token shifts is not described as "
                                             "projections and convolutions: build a model of it");
    return sr_layer_tensors(&layer->table, "", &layer->attention, &layer->dims);
}

srnn_status srnl_layer_create(srnl_layer **layer, const srnn_attention *attention,
                              const srnl_layer_sizes *sizes) {
    void *memory;
    *layer = NULL;
    SR_TRY(check(attention, sizes));
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **layer));
    srnl_layer *created = memory;
    created->attention = *attention;
    const srnn_status status = fill(created, sizes);
    if (status != SRNN_OK) {
        srnl_layer_free(created);
        return status;
    }
    *layer = created;
    return SRNN_OK;
}

void srnl_layer_free(srnl_layer *layer) {
    if (!layer)
        return;
    sr_tensor_table_free(&layer->table);
    free(layer);
}

/* The tensor in a slot, or NULL. */
static const char *name_in(const srnl_layer *layer, int slot) {
    for (size_t i = 0; i < layer->table.count; i++)
        if (layer->table.specs[i].slot == slot)
            return layer->table.specs[i].name;
    return NULL;
}

bool srnl_layer_tensor_at(const srnl_layer *layer, srnl_layer_tensor *tensor, size_t index) {
    if (index >= layer->table.count)
        return false;
    const sr_tensor_spec *spec = &layer->table.specs[index];
    *tensor = (srnl_layer_tensor){.name = spec->name, .rank = spec->rank};
    for (int axis = 0; axis < spec->rank; axis++)
        tensor->sizes[axis] = spec->shape[axis];
    return true;
}

srnn_status srnl_layer_start(const srnl_layer *layer, size_t index, float *values, double range,
                             uint64_t seed) {
    if (index >= layer->table.count)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "index out of range: the layer has %zu tensors",
                       layer->table.count);
    sr_tensor_initialise(values, &layer->table.specs[index], range > 0 ? range : 0.02, seed, 1);
    return SRNN_OK;
}

bool srnl_layer_projection_at(const srnl_layer *layer, srnl_layer_projection *projection,
                              size_t index) {
    if (index >= (size_t)layer->wiring.projection_count)
        return false;
    const sr_wire_projection *p = &layer->wiring.projections[index];
    *projection = (srnl_layer_projection){.weight = name_in(layer, (int)p->weight),
                                          .bias = name_in(layer, (int)p->weight + 1),
                                          .source = p->from_input ? -1 : p->from.first,
                                          .inputs = p->from_input ? layer->dims.C : p->from.count,
                                          .to = p->to.first,
                                          .outputs = p->to.count};
    return true;
}

bool srnl_layer_convolution_at(const srnl_layer *layer, srnl_layer_convolution *convolution,
                               size_t index) {
    if (index >= (size_t)layer->wiring.conv_count)
        return false;
    const sr_wire_conv *conv = &layer->wiring.convs[index];
    *convolution = (srnl_layer_convolution){.weight = name_in(layer, (int)conv->weight),
                                            .bias = name_in(layer, (int)conv->weight + 1),
                                            .source = conv->from.first,
                                            .to = conv->to.first,
                                            .columns = conv->to.count,
                                            .taps = conv->width,
                                            .plain = conv->plain};
    return true;
}

static bool is_there(const srnl_layer *layer, int which) {
    return layer->wiring.places[which].there || layer->wiring.learned[which];
}

bool srnl_layer_operand_at(const srnl_layer *layer, srnl_layer_operand *operand, size_t index) {
    int which = 0;
    while (which < SR_OPERANDS && (!is_there(layer, which) || index-- > 0))
        which++;
    if (which == SR_OPERANDS)
        return false;
    const sr_wire_place *place = &layer->wiring.places[which];
    const srnn_problem problem = sr_layer_problem(&layer->attention, &layer->dims);
    const sr_shape shape = sr_operand_shape((sr_operand)which, &problem);
    *operand =
        (srnl_layer_operand){.name = sr_operand_at((sr_operand)which)->name,
                             .learned =
                                 name_in(layer, (int)sr_layer_operand_slot((sr_operand)which)),
                             .rank = shape.rank,
                             .over_tokens = place->there,
                             .convolved = place->convolved,
                             .first = place->at.first,
                             .columns = place->at.count};
    for (int axis = 0; axis < shape.rank; axis++)
        operand->sizes[axis] = shape.sizes[axis];
    return true;
}

srnl_layer_ends srnl_layer_ends_of(const srnl_layer *layer) {
    return (srnl_layer_ends){.weight = name_in(layer, SR_LAYER_OUTPUT),
                             .bias = name_in(layer, SR_LAYER_OUTPUT + 1),
                             .own_norm = name_in(layer, SR_LAYER_OWN_NORM)};
}
