/* orders_sections.h (private): the sections of the page about orders. */
#ifndef SR_REPORT_ORDERS_ORDERS_SECTIONS_H
#define SR_REPORT_ORDERS_ORDERS_SECTIONS_H

#include "report/page/page.h"

#include <jansson.h>

/* The verdict and what it is about; the bill behind it. */
srnn_status sr_orders_section_verdict(sr_page *page, const json_t *record);
srnn_status sr_orders_section_bill(sr_page *page, const json_t *record);

/* The paper's three figures: dominant order per layer, sizes of orders, and their logarithms. */
srnn_status sr_orders_section_sizes(sr_page *page, const json_t *record);

/* Maps of layers and heads. */
srnn_status sr_orders_section_heads(sr_page *page, const json_t *record);

/* Losses and errors over the order of truncation; what truncated models say. */
srnn_status sr_orders_section_truncation(sr_page *page, const json_t *record);

/* A run's checkpoints: orders over steps. */
srnn_status sr_orders_section_steps(sr_page *page, const json_t *record);

/* Where the record comes from; `model` is its part about one model. */
srnn_status sr_orders_section_origin(sr_page *page, const json_t *record, const json_t *model);

/* Paragraphs: what model, how much text. */
void sr_orders_put_subject(sr_page *page, const json_t *record);

#endif
