/* measurement.h: what a student that has gone through its stages is worth, next to its teacher. */
#ifndef SR_DISTIL_MEASUREMENT_H
#define SR_DISTIL_MEASUREMENT_H

#include "distil/stages.h"

typedef struct sr_measurement_request {
    const char *folder; /* of stages that are complete */
    int threads;        /* 0: as planned */
    const char *device; /* NULL: as planned */
} sr_measurement_request;

/* On the rows of the last stage's validation: teacher, copy, every stage, the student with its
 * state zeroed before every token, losses by position, and each replaced layer alone in the
 * teacher. Of a student from scratch only itself and the teacher.
 * *record = {"format": "softrnn-student", ...}, as docs/RECORDS.md has it; free with
 * json_decref. */
srnn_status sr_measurement_make(json_t **record, const sr_measurement_request *request);

#endif
