/* model_names.h: names that stand where an attention's does, and mean a model without one. */
#ifndef SR_EQUATION_MODEL_NAMES_H
#define SR_EQUATION_MODEL_NAMES_H

#include <stddef.h>

typedef enum sr_whole {
    SR_WHOLE_AVEY = 0,
    SR_WHOLE_AVEY_CAUSAL,
} sr_whole;

typedef struct sr_whole_model {
    const char *name, *note;
} sr_whole_model;

/* In the order of sr_whole; NULL past the last. */
const sr_whole_model *sr_whole_model_at(size_t index);

/* NULL if no such model has this name. */
const sr_whole_model *sr_whole_model_find(const char *name);

#endif
