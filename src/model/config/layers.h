/* layers.h: some layers of a model, as a text. */
#ifndef SR_MODEL_CONFIG_LAYERS_H
#define SR_MODEL_CONFIG_LAYERS_H

#include "base/status.h"

#include <stdbool.h>

/* some (L) = the layers that the text names: "0,5,11"; "0-3" or "8-" for all from the first to the
 * last; "3-/4" for every fourth from 3 on; "": none. */
srnn_status sr_layers_parse(bool *some, int L, const char *text);

/* text (bytes) = the same layers in that form, without steps; truncated where it does not fit. */
void sr_layers_print(char *text, size_t bytes, const bool *some, int L);

#endif
