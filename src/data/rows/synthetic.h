/* synthetic.h: tasks that need no files, as sources of rows, named by a text form.
 *
 *     recall:pairs=8,vocab=32,length=48     one task; `softrnn data tasks` lists them
 *     3*parity + parity:length=80           a mixture: three rows of four are of the first
 *
 * A row is a pure function of the seed, the split and its number; the splits use disjoint streams
 * of the generator. Rows of a mixture that are shorter than the longest are padded with id 0,
 * without targets. */
#ifndef SR_DATA_ROWS_SYNTHETIC_H
#define SR_DATA_ROWS_SYNTHETIC_H

#include "data/rows/source.h"

#include <stdbool.h>
#include <stddef.h>

/* True if the text begins like a task or a mixture of tasks. */
bool sr_synthetic_is(const char *text);

/* Reads the text form; settings that are not given have their default. A wrong word fails with
 * SRNN_ERR_FORMAT; the detail names its position and the nearest right word. */
srnn_status sr_synthetic_create(sr_source **source, const char *text, uint64_t seed);

/* The accuracy of random guessing among the task's possible answers. */
double sr_synthetic_chance(const sr_source *source);

/* The text form with every setting spelled out; like snprintf. `source` is one task. */
size_t sr_synthetic_print(char *text, size_t size, const sr_source *source);

/* Name and one-line explanation of a task; NULL past the end. Static text. */
typedef struct sr_synthetic_entry {
    const char *name;
    const char *summary;
} sr_synthetic_entry;
const sr_synthetic_entry *sr_synthetic_at(size_t index);

#endif
