/* sections.h (private): the sections of a study's report, in the order of the page. */
#ifndef SR_REPORT_STUDY_SECTIONS_H
#define SR_REPORT_STUDY_SECTIONS_H

#include "report/page/page.h"
#include "report/records/records.h"

/* What the study asks: the paper, the tasks, the variants in words. */
srnn_status sr_section_question(sr_page *page, const sr_records *records);

/* What was found, in a sentence or two, for the head of the verdict. */
void sr_headline_write(FILE *out, const sr_records *records);

/* Runs that have not ended, records that are damaged, statistics that are stale. */
void sr_warnings_write(FILE *out, const sr_records *records);

/* What was found, in words. */
srnn_status sr_section_verdict(sr_page *page, const sr_records *records);

/* What the paper says, and what the numbers of this study say to it: a part of the verdict. */
srnn_status sr_section_claims(sr_page *page, const sr_records *records);

/* Cell `index`: differences, orders, curves, costs. */
srnn_status sr_section_cell(sr_page *page, const sr_records *records, size_t index);

/* Variants that differ from the baseline in one axis alone, axis by axis, if there are two or
 * more. */
srnn_status sr_cell_axes(sr_page *page, const sr_cell_record *cell, const char *stem);

/* Quality over the order of the Taylor series, where a cell has orders. */
srnn_status sr_cell_orders(sr_page *page, const sr_cell_record *cell, const char *stem);

/* The curves of a cell over the steps of its runs; `stem` begins the names of the charts. */
srnn_status sr_cell_curves(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                           const char *stem);

/* Accuracy on the tasks that the finished runs were tested on, over what these differ in; nothing
 * if there are none. */
srnn_status sr_cell_tests(sr_page *page, const sr_cell_record *cell, const char *stem);

/* What quality costs in a cell. */
srnn_status sr_cell_costs(sr_page *page, const sr_cell_record *cell, const char *stem);

/* The orders of those runs that `softrnn orders` measured (docs/ORDERS.md), each with a page of its
 * own; nothing if there are none. */
srnn_status sr_section_orders(sr_page *page, const sr_records *records);

/* Accuracy over the length of the sequence, where the study has more than one length. */
srnn_status sr_section_lengths(sr_page *page, const sr_records *records);

/* Each variant's equation and text form. */
srnn_status sr_section_variants(sr_page *page, const sr_records *records);

/* What the letters of the equations mean, and one variant's equation with what it does not show. */
extern const char sr_variant_symbols[];
void sr_variant_write_equation(FILE *out, const sr_variant_record *variant);

/* True if the study has one of the neighbouring systems; softmax alone is none. */
bool sr_study_has_systems(const sr_records *records);

/* A page for each of the neighbouring systems that the study has, and links to them; nothing if it
 * has none. */
srnn_status sr_section_systems(sr_page *page, const sr_records *records);

/* All runs, their settings, the program and the machine, and how to repeat it. */
srnn_status sr_section_provenance(sr_page *page, const sr_records *records);

#endif
