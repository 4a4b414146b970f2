/* table.h: a study's plan and its results as tables of text. */
#ifndef SR_CLI_STUDY_TABLE_H
#define SR_CLI_STUDY_TABLE_H

#include "study/execute/power.h"
#include "study/execute/runner.h"
#include "study/results/summary.h"

/* Every run with its cost, and the sum. */
void study_table_plan(const sr_study *study, const sr_study_options *options);

/* The number of seeds each comparison needs to detect a difference of this size. */
void study_table_power(const sr_study *study, const sr_power_row *rows, size_t count,
                       double difference);

/* One table per cell: variants sorted from best to worst. */
void study_table_summary(const sr_study *study, const sr_summary *summary);

#endif
