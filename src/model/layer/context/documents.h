/* documents.h: packed documents of rows, and of parts of them. */
#ifndef SR_MODEL_LAYER_CONTEXT_DOCUMENTS_H
#define SR_MODEL_LAYER_CONTEXT_DOCUMENTS_H

#include "model/layer/context/part.h"

/* As in srnn_problem; offsets NULL: every row is one document. */
typedef struct sr_documents {
    const int64_t *offsets;
    int64_t count;
    /* Where rows are parts of longer ones: how many tokens of the first document of each row come
     * before it (B; NULL: all that the part has before it), and the documents of the whole rows. */
    const int32_t *before;
    const int64_t *whole;
    int64_t whole_count;
} sr_documents;

/* The documents of a part of B rows, of those of the whole rows, which must outlive them; offsets
 * (B * tokens of the part + 1) and before (B) receive them. Seven parameters: rows of two kinds,
 * each with its arrays. */
sr_documents sr_documents_of_part(const sr_row_part *part, int B, int tokens, const int64_t *whole,
                                  int64_t count, int64_t *offsets, int32_t *before);

#endif
