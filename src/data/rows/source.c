/* source.c: batches from the rows of a source, and accuracy. */
#include "data/rows/source.h"

#include <stddef.h>
#include <string.h>

void sr_source_free(sr_source *source) {
    if (source)
        source->free(source);
}

srnn_status sr_source_batch(const sr_source *source, sr_batch *batch, sr_split split,
                            int64_t step) {
    int64_t ranks = batch->ranks > 0 ? batch->ranks : 1;
    if (source->rows[split] == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "the %s split of this data holds no row of %d tokens",
                       sr_split_name(split), source->T);
    if (batch->B < 1 || batch->rank < 0 || batch->rank >= ranks)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a batch of %d rows for rank %d of %lld is impossible",
                       batch->B, batch->rank, (long long)ranks);
    if (step < 0 || step > INT64_MAX / 2 / (batch->B * ranks))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "there is no step %lld", (long long)step);
    batch->documents = 0;
    for (int64_t b = 0; b < batch->B; b++) {
        int64_t *starts = batch->offsets + batch->documents;
        sr_token_row row = {batch->ids + b * source->T, batch->targets + b * source->T, starts, 0};
        int64_t number = step * batch->B * ranks + batch->rank + b * ranks;
        SR_TRY(source->fill(source, &row, split, number));
        for (int64_t n = 0; n < row.documents; n++)
            starts[n] += b * source->T;
        batch->documents += row.documents;
    }
    batch->offsets[batch->documents] = (int64_t)batch->B * source->T;
    return SRNN_OK;
}

/* Shifts one document, tokens first .. past-1 of a row, to the right by `shift`, with empty tokens
 * before it. Documents are moved last to first, so that none is overwritten. */
static void move_document(sr_token_row *row, int64_t first, int64_t past, int64_t shift,
                          int64_t front, int64_t T) {
    for (int64_t t = past - 1; t >= first; t--)
        if (t + shift < T) {
            row->ids[t + shift] = row->ids[t];
            row->targets[t + shift] = row->targets[t];
        }
    for (int64_t t = first + shift - front; t < first + shift && t < T; t++) {
        row->ids[t] = 0;
        row->targets[t] = -1;
    }
}

void sr_batch_front(sr_batch *batch, int T, int front) {
    int64_t count = 0, next = 0;
    for (int64_t b = 0; b < batch->B; b++) {
        const int64_t begin = b * T, first = next;
        sr_token_row row = {batch->ids + begin, batch->targets + begin, NULL, 0};
        while (next < batch->documents && batch->offsets[next] < begin + T)
            next++;
        for (int64_t n = next - 1; n >= first; n--)
            move_document(&row, batch->offsets[n] - begin, batch->offsets[n + 1] - begin,
                          (n - first + 1) * front, front, T);
        for (int64_t n = first; n < next; n++) {
            const int64_t start = batch->offsets[n] + (n - first) * front;
            if (start < begin + T)
                batch->offsets[count++] = start;
        }
    }
    batch->offsets[count] = (int64_t)batch->B * T;
    batch->documents = count;
}

void sr_batch_cut(sr_batch *batch, int T, int first, int count) {
    for (int64_t b = 0; b < batch->B; b++) {
        const int64_t from = b * T + first, to = b * count;
        memmove(batch->ids + to, batch->ids + from, (size_t)count * sizeof *batch->ids);
        memmove(batch->targets + to, batch->targets + from, (size_t)count * sizeof *batch->targets);
    }
}

static int largest(const float *logits, int V) {
    int best = -1;
    for (int id = 0; id < V; id++)
        if (best < 0 ? logits[id] == logits[id] : logits[id] > logits[best])
            best = id;
    return best;
}

void sr_accuracy_add(int64_t *correct, int64_t *counted, const float *logits,
                     const int32_t *targets, int64_t positions, int V) {
    for (int64_t i = 0; i < positions; i++) {
        if (targets[i] < 0)
            continue;
        *counted += 1;
        *correct += largest(logits + i * V, V) == targets[i];
    }
}
