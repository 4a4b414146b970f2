/* sections.h (private): the sections of a study's report, in the order of the page. */
#ifndef SR_REPORT_STUDY_SECTIONS_H
#define SR_REPORT_STUDY_SECTIONS_H

#include "report/page/page.h"
#include "report/records/records.h"

/* The question of the study: the paper, the tasks, the variants in words. */
srnn_status sr_section_question(sr_page *page, const sr_records *records);

/* The result in a sentence or two, at the start of the verdict. */
void sr_headline_write(FILE *out, const sr_records *records);

/* Warnings about unfinished runs, damaged records and stale statistics. */
void sr_warnings_write(FILE *out, const sr_records *records);

/* The results in words. */
srnn_status sr_section_verdict(sr_page *page, const sr_records *records);

/* The paper's claims and the results of this study: a part of the verdict. */
srnn_status sr_section_claims(sr_page *page, const sr_records *records);

/* Cell `index`: differences, orders, curves, costs. */
srnn_status sr_section_cell(sr_page *page, const sr_records *records, size_t index);

/* Variants that differ from the baseline in a single axis, grouped by axis, if there are two or
 * more. */
srnn_status sr_cell_axes(sr_page *page, const sr_cell_record *cell, const char *stem);

/* Quality over the order of the Taylor series, if the cell has orders. */
srnn_status sr_cell_orders(sr_page *page, const sr_cell_record *cell, const char *stem);

/* The curves of a cell over the steps of its runs; `stem` begins the names of the charts. */
srnn_status sr_cell_curves(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                           const char *stem);

/* Loss against the learning rate, for the rates tried in a cell before its runs; omitted if there
 * was no tuning. */
srnn_status sr_cell_tuning(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                           const char *stem);

/* Whether learning rates were tuned, and at what cost: a part of the verdict. */
void sr_tuning_write(FILE *out, const sr_records *records);

/* Accuracy of the finished runs on their test tasks, over the settings in which these differ;
 * omitted if there are none. */
srnn_status sr_cell_tests(sr_page *page, const sr_cell_record *cell, const char *stem);

/* Text that the finished runs wrote; omitted if there is none. */
void sr_cell_samples(sr_page *page, const sr_cell_record *cell);

/* Quality against cost in a cell. */
srnn_status sr_cell_costs(sr_page *page, const sr_cell_record *cell, const char *stem);

/* The orders of those runs that `softrnn orders` measured (docs/ORDERS.md), each with its own page;
 * omitted if there are none. */
srnn_status sr_section_orders(sr_page *page, const sr_records *records);

/* Accuracy over the length of the sequence, if the study has several lengths. */
srnn_status sr_section_lengths(sr_page *page, const sr_records *records);

/* Each variant's equation and text form. */
srnn_status sr_section_variants(sr_page *page, const sr_records *records);

/* The symbols of the equations, and one variant's equation with remarks. */
extern const char sr_variant_symbols[];
void sr_variant_write_equation(FILE *out, const sr_variant_record *variant);

/* True if the study has one of the related systems; softmax does not count. */
bool sr_study_has_systems(const sr_records *records);

/* A page for each related system of the study, and links to them; omitted if there is none. */
srnn_status sr_section_systems(sr_page *page, const sr_records *records);

/* All runs, their settings, the program and the machine, and how to reproduce it. */
srnn_status sr_section_provenance(sr_page *page, const sr_records *records);

#endif
