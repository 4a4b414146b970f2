/* made_study.h: the records of a study that nobody ran, to test and to look at reports. */
#ifndef SR_TESTS_MADE_STUDY_H
#define SR_TESTS_MADE_STUDY_H

/* A name that breaks out of HTML, script, SVG, CSV and LaTeX wherever it is not escaped. */
#define HOSTILE_NAME \
    "</script><script>alert(1)</script>\"'=<img src=x onerror=alert(2)>&\\end{x}$%_"

/* Writes study.json, summary.json and the runs into `folder`, which exists. With `hostile`, one
 * variant, the tasks' titles and the study's title have the name above. 0: written. */
int made_study_write(const char *folder, int hostile);

#endif
