/* documents.c: packed documents of parts of rows. */
#include "model/layer/context/documents.h"

/* Seven parameters: rows of two kinds, each with its arrays. */
sr_documents sr_documents_of_part(const sr_row_part *part, int B, int tokens, const int64_t *whole,
                                  int64_t count, int64_t *offsets, int32_t *before) {
    sr_documents cut = {.whole = whole, .whole_count = count};
    if (!whole)
        return cut;
    cut.offsets = offsets;
    cut.before = before;
    for (int64_t n = 0; n < count; n++) {
        const int64_t b = whole[n] / part->T, first = b * part->T + part->first;
        const int64_t start = whole[n] > first ? whole[n] : first;
        if (start >= first + tokens || whole[n + 1] <= first)
            continue;
        if (start == first)
            before[b] = (int32_t)(first - whole[n]);
        offsets[cut.count++] = b * tokens + start - first;
    }
    offsets[cut.count] = (int64_t)B * tokens;
    return cut;
}
