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
    return a->score == SRNN_SCORE_LINEAR && a->wiring.layer == SRNN_LAYER_PLAIN;
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
    return entry->variant->known && entry->variant->trained_alike && sr_entry_compared(entry) &&
           kind(&entry->variant->descriptor);
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

static bool is_of_paper(const sr_variant_record *variant) {
    sr_kind *const kinds[] = {sr_kind_linear, sr_kind_truncated, sr_kind_normed, sr_kind_unbounded};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (variant->known && variant->trained_alike && kinds[k](&variant->descriptor))
            return true;
    return false;
}

bool sr_study_is_about_paper(const sr_records *records) {
    size_t others = 0, of_paper = 0;
    bool softmax = false;
    for (size_t i = 0; i < records->variant_count; i++) {
        const sr_variant_record *variant = &records->variants[i];
        if (variant->style == 0)
            softmax = variant->known && sr_kind_softmax(&variant->descriptor);
        else if (variant->used) {
            others++;
            of_paper += is_of_paper(variant);
        }
    }
    return softmax && of_paper > 0 && 2 * of_paper >= others;
}
