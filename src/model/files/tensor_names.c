/* tensor_names.c: what files of other programs call the tensors of a model. */
#include "model/files/tensor_names.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char ROOT[] = "model.", LAYERS[] = "layers.";

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* Characters of "layers.N." at the start, or 0. */
static size_t layer_length(const char *name) {
    size_t length = strlen(LAYERS);
    if (!begins(name, LAYERS) || !isdigit((unsigned char)name[length]))
        return 0;
    while (isdigit((unsigned char)name[length]))
        length++;
    return name[length] == '.' ? length + 1 : 0;
}

static sr_name_pair swapped(sr_name_pair pair, bool back) {
    return back ? (sr_name_pair){pair.there, pair.here} : pair;
}

static void translate(char out[SR_SPEC_NAME], const sr_tensor_names *names, const char *name,
                      bool back) {
    const sr_name_pair root = swapped((sr_name_pair){ROOT, sr_tensor_root(names)}, back);
    if (!names || !begins(name, root.here)) {
        snprintf(out, SR_SPEC_NAME, "%s", name);
        return;
    }
    name += strlen(root.here);
    const size_t layer = layer_length(name);
    const sr_name_pair *pairs = layer ? names->layers : names->whole;
    sr_name_pair found = {"", ""};
    for (int i = 0; i < SR_NAME_PAIRS && pairs[i].here; i++)
        if (begins(name + layer, swapped(pairs[i], back).here))
            found = swapped(pairs[i], back);
    snprintf(out, SR_SPEC_NAME, "%s%.*s%s%s", root.there, (int)layer, name, found.there,
             name + layer + strlen(found.here));
}

void sr_tensor_name_there(char out[SR_SPEC_NAME], const sr_tensor_names *names, const char *name) {
    translate(out, names, name, false);
}

void sr_tensor_name_here(char out[SR_SPEC_NAME], const sr_tensor_names *names, const char *name) {
    translate(out, names, name, true);
}

const char *sr_tensor_root(const sr_tensor_names *names) {
    return names ? names->root : ROOT;
}
