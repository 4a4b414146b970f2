/* ranking_show.h: the ranking of layers as tables. */
#ifndef SR_CLI_MODEL_RANKING_SHOW_H
#define SR_CLI_MODEL_RANKING_SHOW_H

#include <jansson.h>

/* Prints the record of `softrnn distil --rank-layers` to stdout. */
void ranking_show(const json_t *record);

#endif
