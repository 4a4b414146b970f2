/* made_study.h: made-up records of a study, to test and inspect reports. */
#ifndef SR_TESTS_MADE_STUDY_H
#define SR_TESTS_MADE_STUDY_H

/* A name that breaks out of HTML, script, SVG, CSV and LaTeX if it is not escaped. */
#define HOSTILE_NAME \
    "</script><script>alert(1)</script>\"'=<img src=x onerror=alert(2)>&\\end{x}$%_"

typedef enum made_kind {
    MADE_PLAIN = 0, /* three seeds, all finished */
    MADE_HOSTILE,   /* one variant, the titles and the run files have the name above */
    MADE_ONE_SEED,
    MADE_BROKEN,  /* "gate" diverged in two of three seeds of kjv, "linear elu" in all of them;
                   * "order 2" ended one seed of recall without a finite result */
    MADE_SYSTEMS, /* related systems instead of the variants */
} made_kind;

/* Writes study.json, summary.json and the runs into `folder`, which exists. 0: written. */
int made_study_write(const char *folder, made_kind kind);

#endif
