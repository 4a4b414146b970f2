/* model_names.h: names that are accepted in place of a variant and mean a model without
 * attention. */
#ifndef SR_EQUATION_MODEL_NAMES_H
#define SR_EQUATION_MODEL_NAMES_H

#include <stddef.h>

typedef enum sr_named {
    SR_NAMED_AVEY = 0,
    SR_NAMED_AVEY_CAUSAL,
} sr_named;

typedef struct sr_named_model {
    const char *name, *note;
} sr_named_model;

/* In the order of sr_named; NULL past the last. */
const sr_named_model *sr_named_model_at(size_t index);

/* NULL if no such model has this name. */
const sr_named_model *sr_named_model_find(const char *name);

#endif
