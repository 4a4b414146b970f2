/* kinds.c: the kinds of variants that the paper's claims are about. */
#include "report/study/kinds.h"

static bool is_plain(const srnn_attention *a) {
    return a->feature == SRNN_FEATURE_IDENTITY && a->output_gate == SRNN_GATE_NONE &&
           a->value_gate == SRNN_VALUE_GATE_OFF && a->decay == SRNN_DECAY_NONE &&
           a->write == SRNN_WRITE_ADD && a->levels == SRNN_LEVELS_NONE && !a->pool &&
           a->skip == SRNN_SKIP_NONE && !a->post_gate;
}

bool sr_kind_softmax(const srnn_attention *a) {
    return is_plain(a) && a->score == SRNN_SCORE_EXP && a->norm == SRNN_NORM_NONE &&
           a->normaliser == SRNN_NORMALISER_ROW_SUM;
}

bool sr_kind_linear(const srnn_attention *a) {
    return a->score == SRNN_SCORE_LINEAR && a->layer == SRNN_LAYER_PLAIN;
}

bool sr_kind_truncated(const srnn_attention *a) {
    return is_plain(a) && a->score == SRNN_SCORE_TAYLOR && a->norm == SRNN_NORM_NONE &&
           a->normaliser == SRNN_NORMALISER_ROW_SUM;
}

static bool is_bare(const srnn_attention *a) {
    return is_plain(a) && a->score == SRNN_SCORE_EXP && a->normaliser == SRNN_NORMALISER_NONE;
}

bool sr_kind_normed(const srnn_attention *a) {
    return is_bare(a) && a->norm == SRNN_NORM_L2;
}

bool sr_kind_unbounded(const srnn_attention *a) {
    return is_bare(a) && a->norm == SRNN_NORM_NONE;
}

bool sr_entry_is(const sr_entry *entry, sr_kind *kind) {
    return entry->variant->known && sr_entry_compared(entry) && kind(&entry->variant->descriptor);
}

bool sr_cell_has_softmax(const sr_cell_record *cell) {
    return cell->baseline && cell->baseline->variant->known &&
           sr_kind_softmax(&cell->baseline->variant->descriptor);
}

const sr_entry *sr_cell_extreme_order(const sr_cell_record *cell, bool most) {
    const sr_entry *found = NULL;
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = &cell->entries[i];
        if (!sr_entry_is(entry, sr_kind_truncated))
            continue;
        const int order = entry->variant->descriptor.order;
        if (!found || (most ? order > found->variant->descriptor.order
                            : order < found->variant->descriptor.order))
            found = entry;
    }
    return found;
}
