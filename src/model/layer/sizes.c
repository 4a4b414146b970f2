/* sizes.c: the sizes of one layer's attention. */
#include "model/layer/sizes.h"

#include <limits.h>
#include <stdio.h>

static int first_given(int given, int otherwise) {
    return given ? given : otherwise;
}

/* x times / over, at most INT_MAX: sizes come from files, and are checked afterwards. */
static int scaled(int x, int times, int over) {
    const int64_t product = (int64_t)x * times / over;
    return product > INT_MAX ? INT_MAX : (int)product;
}

sr_layer_sizes sr_layer_sizes_usual(const srnn_attention *a, int H, int Hkv, int D,
                                    const sr_layer_sizes *given) {
    const sr_form_sizes *form = &sr_layer_form_of(a)->sizes;
    const int times = first_given(form->heads, 1);
    const int key =
        scaled(D, first_given(form->key_numerator, 1), first_given(form->key_denominator, 1));
    /* Of shared queries: H would share nothing, which some forms do. */
    const int groups = Hkv < H ? Hkv : form->unshared ? H : 1;
    const bool ranked = form->rank > 0 || form->value_rank,
               levelled = a->levels != SRNN_LEVELS_NONE;
    const int value = first_given(given->Dv, D), rank = form->value_rank ? value : form->rank;
    return (sr_layer_sizes){
        .H = scaled(H, times, 1),
        .Hkv = sr_shares_queries(a) ? groups : scaled(Hkv, times, 1),
        .D = first_given(given->D, first_given(form->key, key)),
        .Dv = value,
        .rank = ranked ? first_given(given->rank, rank) : 0,
        .levels = levelled ? first_given(given->levels, SR_LEVELS_USUAL) : 0,
    };
}

sr_layer_dims sr_layer_sizes_dims(const sr_layer_sizes *s, int C) {
    return (sr_layer_dims){.C = C,
                           .H = s->H,
                           .Hkv = s->Hkv,
                           .D = s->D,
                           .Dv = s->Dv,
                           .rank = s->rank,
                           .levels = s->levels};
}

/* ---- what shapes say */

typedef struct search {
    sr_layer_dims *dims;
    srnn_attention *attention;
    const char *prefix;
    sr_tensor_finder finder;
} search;

static const sr_tensor *find(const search *s, const char *name) {
    char full[SR_SPEC_NAME];
    const char *inner = sr_layer_form_of(s->attention)->prefix;
    const int length = snprintf(full, sizeof full, "%s%s%s", s->prefix, inner ? inner : "", name);
    return length < (int)sizeof full ? s->finder.find(s->finder.context, full) : NULL;
}

/* The variant and sizes with one of them set. Heads of keys and values grow with the others where
 * nothing is shared. */
static void set_size(sr_layer_dims *d, srnn_attention *a, sr_form_size which, int value) {
    switch (which) {
    case SR_SIZE_NONE:
        break;
    case SR_SIZE_HEADS:
        d->Hkv = d->Hkv == d->H && !sr_shares_queries(a) ? value : d->Hkv;
        d->H = value;
        break;
    case SR_SIZE_GROUPS:
        d->Hkv = value;
        break;
    case SR_SIZE_KEY:
        d->D = value;
        break;
    case SR_SIZE_VALUE:
        d->Dv = value;
        break;
    case SR_SIZE_RANK:
        d->rank = value;
        break;
    case SR_SIZE_LEVELS:
        d->levels = value;
        break;
    case SR_SIZE_CONV:
        a->wiring.short_conv = value;
        break;
    case SR_SIZE_SKIP_CONV:
        a->skip_conv = value;
        break;
    }
}

/* The extent that the rule's tensor has with this value of the rule's size; 0: the layer has no
 * such tensor. */
static srnn_status extent_with(int64_t *extent, const search *s, const sr_form_rule *rule,
                               int value) {
    sr_layer_dims dims = *s->dims;
    srnn_attention attention = *s->attention;
    sr_tensor_table table = {0};
    char name[SR_SPEC_NAME];
    const char *inner = sr_layer_form_of(s->attention)->prefix;
    *extent = 0;
    set_size(&dims, &attention, rule->size, value);
    snprintf(name, sizeof name, "%s%s", inner ? inner : "", rule->tensor);
    const srnn_status status = sr_layer_tensors(&table, "", &attention, &dims);
    const sr_tensor_spec *spec = status == SRNN_OK ? sr_tensor_table_find(&table, name) : NULL;
    if (spec && rule->axis < spec->rank)
        *extent = spec->shape[rule->axis];
    sr_tensor_table_free(&table);
    return status;
}

/* Shapes are linear in every size, so the shapes at two values determine the size. */
static srnn_status apply(const search *s, const sr_form_rule *rule) {
    const sr_tensor *tensor = find(s, rule->tensor);
    int64_t one, two;
    if (!tensor || rule->axis >= tensor->rank)
        return SRNN_OK;
    SR_TRY(extent_with(&one, s, rule, 1));
    SR_TRY(extent_with(&two, s, rule, 2));
    const int64_t more = tensor->shape[rule->axis] - one, slope = two - one;
    if (one < 1 || slope < 1 || more < 0 || more % slope || more / slope >= INT_MAX)
        return SRNN_OK; /* not this layer's shape: loading will report it */
    set_size(s->dims, s->attention, rule->size, (int)(1 + more / slope));
    return SRNN_OK;
}

srnn_status sr_layer_sizes_find(sr_layer_dims *dims, srnn_attention *attention, const char *prefix,
                                sr_tensor_finder finder) {
    const search s = {dims, attention, prefix, finder};
    const sr_layer_form *form = sr_layer_form_of(attention);
    char bias[SR_SPEC_NAME];
    snprintf(bias, sizeof bias, "%s.bias", form->projections[0].name);
    dims->qkv_bias = form->projections[0].bias == SR_FORM_BIAS_OF_MODEL && find(&s, bias);
    snprintf(bias, sizeof bias, "%s.bias", form->output.name);
    dims->o_bias = form->output.bias == SR_FORM_BIAS_OF_MODEL && find(&s, bias);
    for (int i = 0; i < SR_FORM_RULES && form->rules[i].size; i++)
        SR_TRY(apply(&s, &form->rules[i]));
    return SRNN_OK;
}
