/* sizes.c: the sizes of layers in config.json, member "softrnn_sizes". */
#include "model/config/sizes.h"

#include "files/json.h"

#include <stddef.h>
#include <string.h>

static const char MEMBER[] = "softrnn_sizes";

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
    {"heads", offsetof(sr_layer_sizes, H)},    {"groups", offsetof(sr_layer_sizes, Hkv)},
    {"key_size", offsetof(sr_layer_sizes, D)}, {"value_size", offsetof(sr_layer_sizes, Dv)},
    {"rank", offsetof(sr_layer_sizes, rank)},  {"levels", offsetof(sr_layer_sizes, levels)},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static int *field_of(sr_layer_sizes *sizes, int i) {
    return (int *)(void *)((char *)sizes + fields[i].offset);
}

static void read_one(sr_config_reader *r, sr_layer_sizes *sizes, const json_t *object) {
    for (int i = 0; i < FIELDS; i++) {
        const json_t *value = sr_config_value(object, fields[i].name);
        const json_int_t number = json_integer_value(value);
        if (!value)
            continue;
        if (!json_is_integer(value) || number < 0 || number > SR_WIDTH_MAX)
            sr_config_refuse(r, MEMBER, "has a size that makes no sense");
        else
            *field_of(sizes, i) = (int)number;
    }
}

void sr_config_sizes_read(sr_config_reader *r, sr_model_config *config) {
    const json_t *found = sr_config_value(r->root, MEMBER);
    const int groups = sr_config_integer(r, "n_groups", 0);
    const bool list = json_is_array(found);
    if (found && !json_is_object(found) && !(list && (int)json_array_size(found) == config->L))
        sr_config_refuse(r, MEMBER, "is neither an object nor a list of one for each layer");
    for (int layer = 0; layer < config->L && r->status == SRNN_OK; layer++) {
        if (groups > 0 && sr_shares_queries(&config->attention[layer]))
            config->sizes[layer].Hkv = groups;
        if (found)
            read_one(r, &config->sizes[layer], list ? json_array_get(found, (size_t)layer) : found);
    }
}

static json_t *one_json(const sr_layer_sizes *sizes) {
    sr_layer_sizes copy = *sizes;
    json_t *object = json_object();
    for (int i = 0; i < FIELDS; i++)
        sr_json_set(object, fields[i].name, json_integer(*field_of(&copy, i)));
    return object;
}

/* A list with one object for each layer. */
void sr_config_parallel_sizes_read(sr_config_reader *r, sr_model_config *config,
                                   const json_t *found) {
    if (found && (!json_is_array(found) || (int)json_array_size(found) != config->L))
        sr_config_refuse(r, "parallel_sizes", "is not a list of one object for each layer");
    for (int layer = 0; found && layer < config->L && r->status == SRNN_OK; layer++)
        read_one(r, &config->parallel_sizes[layer], json_array_get(found, (size_t)layer));
}

json_t *sr_config_parallel_sizes_json(const sr_model_config *c) {
    json_t *list = json_array();
    for (int layer = 0; layer < c->L; layer++)
        sr_json_append(list, one_json(&c->parallel_sizes[layer]));
    return list;
}

static bool all_are(const sr_model_config *c, const sr_layer_sizes *sizes) {
    for (int layer = 0; layer < c->L; layer++)
        if (memcmp(&c->sizes[layer], sizes, sizeof *sizes) != 0)
            return false;
    return true;
}

/* Whether a reader that finds no sizes takes the same. */
static bool are_usual(const sr_model_config *c) {
    for (int layer = 0; layer < c->L; layer++) {
        const sr_layer_sizes usual =
            sr_layer_sizes_usual(&c->attention[layer], c->H, c->Hkv, c->D, &(sr_layer_sizes){0});
        if (memcmp(&c->sizes[layer], &usual, sizeof usual) != 0)
            return false;
    }
    return true;
}

json_t *sr_config_sizes_json(const sr_model_config *c) {
    const sr_layer_sizes plain = {.H = c->H, .Hkv = c->Hkv, .D = c->D, .Dv = c->D};
    if (all_are(c, &plain) && are_usual(c))
        return NULL;
    if (all_are(c, &c->sizes[0]))
        return one_json(&c->sizes[0]);
    json_t *list = json_array();
    for (int layer = 0; layer < c->L; layer++)
        sr_json_append(list, one_json(&c->sizes[layer]));
    return list;
}
