/* kinds.h (private): the kinds of variants that the paper's claims are about. */
#ifndef SR_REPORT_STUDY_KINDS_H
#define SR_REPORT_STUDY_KINDS_H

#include "report/records/records.h"

/* Identified by their descriptors, never by their names. */
typedef bool sr_kind(const srnn_attention *attention);

bool sr_kind_softmax(const srnn_attention *attention);   /* plain */
bool sr_kind_linear(const srnn_attention *attention);    /* not in the layer of another system */
bool sr_kind_truncated(const srnn_attention *attention); /* truncated exp, without gates */
bool sr_kind_normed(const srnn_attention *attention);    /* a norm in place of the denominator */
bool sr_kind_unbounded(const srnn_attention *attention); /* neither denominator nor norm */

/* True if the entry has a verdict, is of the kind, and differs from the baseline in nothing but its
 * attention. */
bool sr_entry_is(const sr_entry *entry, sr_kind *kind);

/* True if the paper's claims apply to most variants that the study compares with plain softmax. */
bool sr_study_is_about_paper(const sr_records *records);

/* True if claims can be tested in the cell: its baseline is plain softmax. */
bool sr_cell_has_softmax(const sr_cell_record *cell);

/* The compared entry of the kind with the lowest or, if `most`, the highest order; NULL: none. */
const sr_entry *sr_cell_extreme_order(const sr_cell_record *cell, bool most);

#endif
