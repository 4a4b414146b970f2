/* model_names.c: names that are accepted in place of a variant and mean a model without
 * attention. */
#include "equation/model_names.h"

#include <string.h>

static const sr_named_model models[] = {
    [SR_NAMED_AVEY] = {"avey", "Avey (2506.11305) as published, which is not causal"},
    [SR_NAMED_AVEY_CAUSAL] = {"avey_causal", "Avey made causal: the previous chunk is the query"},
};

const sr_named_model *sr_named_model_at(size_t index) {
    return index < sizeof models / sizeof *models ? &models[index] : NULL;
}

const sr_named_model *sr_named_model_find(const char *name) {
    for (size_t i = 0; sr_named_model_at(i); i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    return NULL;
}
