/* settle.c: executes a study seed by seed, and ends each comparison once it is settled. */
#include "study/execute/settle.h"

#include "study/execute/folder.h"
#include "study/results/summary.h"

#include <stdlib.h>

typedef struct settler {
    const sr_study *study;
    const char *folder;
    sr_study_options *options;
    bool *settled; /* (run_count): the run's comparison was settled at an earlier seed */
} settler;

/* The index of a run's seed in the study's list. */
static size_t seed_of(const sr_study *study, size_t run) {
    size_t i = 0;
    while (i + 1 < study->seed_count && study->seeds[i] != study->runs[run].settings.seed)
        i++;
    return i;
}

static bool same_cell(const sr_study *study, const sr_study_run *a, const sr_study_run *b) {
    return a->task == b->task && (!study->size_count || a->size == b->size) &&
           (study->tune_count || a->settings.learning_rate == b->settings.learning_rate);
}

/* Executes the runs of the first `seeds` seeds, except those of settled comparisons. */
static srnn_status execute_seeds(const settler *s, size_t seeds, sr_run_view *views,
                                 sr_executor *execute) {
    sr_study_options some = *s->options;
    srnn_status status = SRNN_OK;
    some.skip = (sr_word_list){0};
    for (size_t i = 0; status == SRNN_OK && i < s->options->skip.count; i++)
        status = sr_word_list_add(&some.skip, s->options->skip.words[i]);
    for (size_t i = 0; status == SRNN_OK && i < s->study->run_count; i++)
        if (s->settled[i] || seed_of(s->study, i) >= seeds)
            status = sr_word_list_add(&some.skip, s->study->runs[i].id);
    bool any = false;
    for (size_t i = 0; i < s->study->run_count; i++)
        any = any || sr_study_selects(s->study, &some, &s->study->runs[i]);
    if (status == SRNN_OK && any)
        status = execute(s->study, s->folder, &some, views);
    sr_word_list_free(&some.skip);
    return status;
}

/* Reads the records of the first `seeds` seeds only. */
static srnn_status read_seeds(sr_record *records, const settler *s, size_t seeds) {
    for (size_t i = 0; i < s->study->run_count; i++) {
        char path[SR_PATH_BYTES];
        if (seed_of(s->study, i) >= seeds)
            continue;
        SR_TRY(sr_study_run_path(path, s->folder, s->study->runs[i].id));
        SR_TRY(sr_record_read(&records[i], path));
    }
    return SRNN_OK;
}

/* Settles the runs of later seeds of a variant in a cell. */
static void end_variant(const settler *s, const sr_summary_cell *cell,
                        const sr_summary_variant *variant, size_t seeds) {
    for (size_t i = 0; i < s->study->run_count; i++) {
        const sr_study_run *run = &s->study->runs[i];
        if (run->variant == variant->variant && run->task == cell->task &&
            (!s->study->size_count || run->size == cell->size) &&
            run->settings.learning_rate == variant->learning_rate && seed_of(s->study, i) >= seeds)
            s->settled[i] = true;
    }
}

/* A baseline is settled when no open comparison needs it. */
static void end_baselines(const settler *s, size_t seeds) {
    const sr_study *study = s->study;
    for (size_t i = 0; i < study->run_count; i++) {
        if (study->runs[i].variant != study->baseline || seed_of(study, i) < seeds)
            continue;
        bool open = false;
        for (size_t j = 0; j < study->run_count; j++)
            open = open || (study->runs[j].variant != study->baseline &&
                            study->runs[j].settings.seed == study->runs[i].settings.seed &&
                            same_cell(study, &study->runs[i], &study->runs[j]) && !s->settled[j] &&
                            sr_study_selects(study, s->options, &study->runs[j]));
        s->settled[i] = !open;
    }
}

static srnn_status look(const settler *s, size_t seeds) {
    const sr_study *study = s->study;
    sr_summary summary = {0};
    sr_record *records = calloc(study->run_count, sizeof *records);
    if (!records)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the records of %zu runs", study->run_count);
    srnn_status status = read_seeds(records, s, seeds);
    if (status == SRNN_OK)
        status = sr_summary_make(&summary, study, records, NULL);
    for (size_t c = 0; status == SRNN_OK && c < summary.count; c++)
        for (size_t v = 0; v < summary.cells[c].count; v++) {
            const sr_summary_variant *variant = &summary.cells[c].variants[v];
            if (variant->variant != study->baseline &&
                sr_difference_settled(&variant->difference, study->settle))
                end_variant(s, &summary.cells[c], variant, seeds);
        }
    if (status == SRNN_OK)
        end_baselines(s, seeds);
    sr_summary_free(&summary);
    for (size_t i = 0; i < study->run_count; i++)
        sr_record_free(&records[i]);
    free(records);
    return status;
}

/* True if a run of the first `seeds` seeds failed: it will be tried again, and what to run after it
 * depends on it. */
static srnn_status find_failure(bool *failed, const settler *s, size_t seeds) {
    *failed = false;
    for (size_t i = 0; i < s->study->run_count && !*failed; i++) {
        char path[SR_PATH_BYTES];
        sr_result result;
        if (s->settled[i] || seed_of(s->study, i) >= seeds)
            continue;
        SR_TRY(sr_study_run_path(path, s->folder, s->study->runs[i].id));
        SR_TRY(sr_result_read(&result, path));
        *failed = result.ending == SR_ENDING_FAILED;
    }
    return SRNN_OK;
}

static srnn_status execute_all(const settler *s, sr_run_view *views, sr_executor *execute) {
    bool failed = false;
    for (size_t seeds = 2; seeds <= s->study->seed_count && !failed; seeds++) {
        SR_TRY(execute_seeds(s, seeds, views, execute));
        SR_TRY(find_failure(&failed, s, seeds));
        if (!failed && seeds < s->study->seed_count)
            SR_TRY(look(s, seeds));
    }
    for (size_t i = 0; i < s->study->run_count; i++)
        if (s->settled[i])
            SR_TRY(sr_word_list_add(&s->options->skip, s->study->runs[i].id));
    return SRNN_OK;
}

srnn_status sr_study_execute_settling(const sr_study *study, const char *folder,
                                      sr_study_options *options, sr_run_view *views,
                                      sr_executor *execute) {
    settler s = {study, folder, options, calloc(study->run_count, sizeof *s.settled)};
    if (options->launcher == SR_LAUNCHER_MPI) {
        free(s.settled);
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "settle: a study that may end early is run with "
                                             "--launcher local or slurm, not mpi");
    }
    const srnn_status status = s.settled
                                   ? execute_all(&s, views, execute)
                                   : SR_FAIL(SRNN_ERR_MEMORY, "no memory to settle comparisons");
    free(s.settled);
    return status;
}
