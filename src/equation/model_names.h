/* model_names.h: names that stand where an attention's does, and mean a model without one. */
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

/* In the order of sr_whole; NULL past the last. */
const sr_named_model *sr_named_model_at(size_t index);

/* NULL if no such model has this name. */
const sr_named_model *sr_named_model_find(const char *name);

#endif
