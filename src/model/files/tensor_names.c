/* tensor_names.c: what files of other programs call the tensors of a model. */
#include "model/files/tensor_names.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char ROOT[] = "model.", LAYERS[] = "model.layers.";

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

size_t sr_tensor_layer_prefix(const char *name, int *layer) {
    char *end;
    const size_t length = strlen(LAYERS);
    if (!begins(name, LAYERS) || !isdigit((unsigned char)name[length]))
        return 0;
    *layer = (int)strtol(name + length, &end, 10);
    return *end == '.' ? (size_t)(end - name) + 1 : 0;
}

void sr_tensor_name_there(char out[SR_SPEC_NAME], const sr_tensor_names *names, const char *name,
                          bool linear) {
    int number;
    if (!names || !begins(name, ROOT)) {
        snprintf(out, SR_SPEC_NAME, "%s", name);
        return;
    }
    const size_t prefix = sr_tensor_layer_prefix(name, &number), root = strlen(ROOT);
    const size_t layer = prefix ? prefix - root : 0; /* "layers.N." */
    const bool other = linear && names->linear.pairs[0].here;
    const sr_name_pair *pairs = !layer  ? names->whole
                                : other ? names->linear.pairs
                                        : names->layers.pairs;
    sr_name_pair found = {"", ""};
    name += root;
    for (int i = 0; i < SR_NAME_PAIRS && pairs[i].here; i++)
        if (begins(name + layer, pairs[i].here))
            found = pairs[i];
    snprintf(out, SR_SPEC_NAME, "%s%.*s%s%s", names->root, (int)layer, name, found.there,
             name + layer + strlen(found.here));
}

bool sr_tensor_name_alias(char out[SR_SPEC_NAME], const sr_tensor_names *names, const char *name,
                          int alias) {
    const sr_name_pair *pair = names ? &names->aliases[alias] : NULL;
    const char *at = pair && pair->here ? strstr(name, pair->here) : NULL;
    if (at)
        snprintf(out, SR_SPEC_NAME, "%.*s%s%s", (int)(at - name), name, pair->there,
                 at + strlen(pair->here));
    return at;
}

const char *sr_tensor_root(const sr_tensor_names *names) {
    return names ? names->root : ROOT;
}
