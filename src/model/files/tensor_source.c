/* tensor_source.c: where the numbers of a tensor lie in files that may join several of them. */
#include "model/files/tensor_source.h"

#include <stdio.h>
#include <string.h>

static bool is_linear(const srnn_attention *a) {
    return a->wiring.layer != SRNN_LAYER_PLAIN && a->wiring.layer != SRNN_LAYER_NALA;
}

static const sr_layer_names *layer_names(const sr_tensor_names *names, bool linear) {
    return linear && names->linear.pairs[0].here ? &names->linear : &names->layers;
}

/* What follows the beginning of a name and is nothing or begins with a point; else NULL. */
static const char *suffix_of(const char *name, const char *beginning) {
    const size_t length = strlen(beginning);
    if (strncmp(name, beginning, length) != 0 || (name[length] && name[length] != '.'))
        return NULL;
    return name + length;
}

/* The other part of what is joined: the same layer, the same ending. */
static const sr_tensor_spec *part_spec(const sr_tensor_source *s, int part, size_t prefix,
                                       const sr_tensor_table *table) {
    char name[2 * SR_SPEC_NAME];
    snprintf(name, sizeof name, "%.*s%s%s", (int)prefix, s->spec->name, s->joined->here[part],
             s->suffix);
    return sr_tensor_table_find(table, name);
}

static int64_t groups_of(const sr_tensor_source *s, const sr_layer_sizes *sizes) {
    switch (s->joined->groups) {
    case SR_JOINED_ONE:
        break;
    case SR_JOINED_HEADS:
        return sizes->H;
    case SR_JOINED_KEY_HEADS:
        return sizes->Hkv;
    }
    return 1;
}

/* Where the part lies in a group of all parts; false if one of them is not in this model. */
static bool measure(sr_tensor_source *s, size_t prefix, const sr_model_config *config,
                    const sr_tensor_table *table) {
    s->groups = groups_of(s, &config->sizes[s->spec->layer]);
    s->stride = s->first = 0;
    for (int p = 0; p < SR_JOINED_PARTS && s->joined->here[p]; p++) {
        const sr_tensor_spec *spec = part_spec(s, p, prefix, table);
        if (!spec || spec->count % (size_t)s->groups)
            return false;
        const int64_t count = (int64_t)spec->count / s->groups;
        if (p == s->part) {
            s->first = s->stride;
            s->count = count;
        }
        s->stride += count;
    }
    return true;
}

bool sr_tensor_source_is_indexed(const sr_tensor_source *s) {
    return s->joined && strstr(s->joined->there[0], "%d");
}

bool sr_tensor_source_is_transposed(const sr_tensor_source *s) {
    return s->joined && s->joined->transposed;
}

sr_transposed sr_tensor_source_transposed(const sr_tensor_source *s) {
    const int64_t *shape = s->spec->shape;
    const int64_t columns = s->spec->rank == 3 ? shape[2] : 1;
    return (sr_transposed){shape[0], shape[1], columns, s->joined->here[1] ? 2 : 1};
}

static int file_count(const sr_tensor_source *s) {
    int files = 0;
    if (sr_tensor_source_is_indexed(s))
        return (int)s->spec->shape[0];
    while (files < SR_JOINED_PARTS && s->joined->there[files])
        files++;
    return files;
}

static bool find_joined(sr_tensor_source *s, const sr_model_config *config,
                        const sr_tensor_table *table) {
    int layer;
    const size_t prefix = sr_tensor_layer_prefix(s->spec->name, &layer);
    if (!prefix || !s->names)
        return false;
    const sr_layer_names *names = layer_names(s->names, s->linear);
    for (int j = 0; j < SR_JOINED && names->joined[j].there[0]; j++)
        for (int p = 0; p < SR_JOINED_PARTS && names->joined[j].here[p]; p++) {
            s->suffix = suffix_of(s->spec->name + prefix, names->joined[j].here[p]);
            s->joined = &names->joined[j];
            s->part = p;
            if (s->suffix && measure(s, prefix, config, table)) {
                s->files = file_count(s);
                return true;
            }
        }
    s->joined = NULL;
    return false;
}

sr_tensor_source sr_tensor_source_of(const sr_tensor_spec *spec, const sr_model_config *config,
                                     const sr_tensor_table *table) {
    int layer;
    sr_tensor_source s = {.names = config->names, .spec = spec};
    if (sr_tensor_layer_prefix(spec->name, &layer) &&
        layer < sr_model_config_attention_layers(config))
        s.linear = is_linear(&config->attention[layer]);
    if (!find_joined(&s, config, table)) {
        const int64_t count = (int64_t)spec->count;
        s.files = 1;
        s.groups = 1;
        s.first = 0;
        s.stride = s.count = count;
    }
    return s;
}

void sr_tensor_source_name(char out[SR_SPEC_NAME], const sr_tensor_source *s, int file) {
    int layer;
    if (!s->joined) {
        sr_tensor_name_there(out, s->names, s->spec->name, s->linear);
        return;
    }
    const size_t prefix = sr_tensor_layer_prefix(s->spec->name, &layer);
    const bool indexed = sr_tensor_source_is_indexed(s);
    const char *there = s->joined->there[indexed ? 0 : file], *at = strstr(there, "%d");
    char inside[SR_SPEC_NAME];
    if (indexed)
        snprintf(inside, sizeof inside, "%.*s%d%s", (int)(at - there), there, file, at + 2);
    else
        snprintf(inside, sizeof inside, "%s", there);
    const size_t root = strlen(sr_tensor_root(NULL));
    if ((size_t)snprintf(out, SR_SPEC_NAME, "%s%.*s", s->names->root, (int)(prefix - root),
                         s->spec->name + root) < SR_SPEC_NAME)
        strncat(out, inside, SR_SPEC_NAME - strlen(out) - 1);
    strncat(out, s->suffix, SR_SPEC_NAME - strlen(out) - 1);
}

bool sr_tensor_source_is_shared(const sr_tensor_source *s) {
    return s->joined && s->joined->here[1] && s->files == 1;
}

int sr_tensor_source_shape(int64_t shape[SR_SPEC_RANK], const sr_tensor_source *s) {
    const int skipped = sr_tensor_source_is_indexed(s) ? 1 : 0;
    if (sr_tensor_source_is_transposed(s)) {
        const sr_transposed t = sr_tensor_source_transposed(s);
        shape[0] = t.experts;
        shape[1] = t.columns;
        shape[s->spec->rank - 1] = t.rows * t.parts;
        return s->spec->rank;
    }
    for (int d = skipped; d < s->spec->rank; d++)
        shape[d - skipped] = s->spec->shape[d];
    if (sr_tensor_source_is_shared(s))
        shape[0] = s->groups * s->stride * s->spec->shape[0] / (int64_t)s->spec->count;
    return s->spec->rank - skipped;
}

/* Where tensors stand end to end the cuts between them do not matter. */
srnn_status sr_tensor_source_check(const sr_tensor_source *source, const sr_tensor *tensor,
                                   const char *folder) {
    int64_t shape[SR_SPEC_RANK];
    char here[SR_SHAPE_BYTES], wanted[SR_SHAPE_BYTES];
    const int rank = sr_tensor_source_shape(shape, source);
    if (source->files > 1 && !sr_tensor_source_is_indexed(source) && rank > 0 &&
        tensor->rank == rank)
        shape[0] = tensor->shape[0];
    if (sr_tensor_has_shape(tensor, rank, shape))
        return SRNN_OK;
    sr_shape_print(here, tensor->rank, tensor->shape);
    sr_shape_print(wanted, rank, shape);
    return SR_FAIL(SRNN_ERR_FORMAT, "%s: %s has the shape %s, but config.json requires %s", folder,
                   tensor->name, here, wanted);
}
