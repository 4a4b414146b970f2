/* tune.c: tunes the learning rate of every variant, task and size before they are compared. */
#include "study/execute/tune.h"

#include "data/rows/shuffle.h"
#include "files/folder.h"
#include "files/json.h"
#include "study/execute/files.h"
#include "study/execute/folder.h"
#include "study/execute/worker.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A variant, task and size whose rate is tuned. */
typedef struct place {
    size_t task, size, variant;
    bool *left;          /* (rates): not eliminated yet; owned */
    double *losses;      /* (rates): mean over seeds in the last round of each; owned */
    json_t *trials;      /* the results of every round; owned */
    double step_seconds; /* most of a run in the last round */
} place;

typedef struct tuner {
    sr_study *study;
    const char *folder, *text;
    const sr_study_options *options;
    place *places; /* (count), owned */
    size_t count;
    sr_study *studies; /* (rounds), owned */
    int rounds;
    double runs, tokens, flops, seconds; /* total cost */
} tuner;

static srnn_status no_memory(void) {
    return SR_FAIL(SRNN_ERR_MEMORY, "no memory to tune learning rates");
}

static const char *size_name(const sr_study *study, size_t size) {
    return study->size_count ? study->sizes[size].name : "";
}

static bool same_place(const place *p, const sr_study *study, const sr_study_run *run) {
    return p->task == run->task && p->variant == run->variant &&
           (!study->size_count || p->size == run->size);
}

/* ---- tuning.json */

static srnn_status read_found(json_t **root, const char *folder) {
    *root = NULL;
    return sr_path_has(folder, "tuning.json")
               ? sr_json_read(root, folder, "tuning.json", "softrnn-tuning")
               : SRNN_OK;
}

/* What a tuned rate depends on, as written in the study's file. NULL: no memory. */
static json_t *conditions_of(const sr_study *study, size_t task, size_t size, size_t variant) {
    const sr_study_variant *v = &study->variants[variant];
    const sr_pairs none = {0};
    json_t *rates = json_array();
    for (size_t i = 0; i < study->tune_count; i++)
        sr_json_append(rates, json_sprintf("%.12g", study->tune_rates[i]));
    json_t *share = study->tune_share < 0.5 || study->tune_share > 0.5
                        ? json_sprintf("%.12g", study->tune_share)
                        : NULL; /* the default was not always recorded */
    return json_pack("{s:o, s:o*, s:o, s:o, s:o, s:o, s:o}", "rates", rates, "share", share,
                     "attention", sr_json_plain_text(v->attention), "study",
                     sr_study_settings_json(&study->settings), "task",
                     sr_study_settings_json(&study->tasks[task].settings), "size",
                     sr_study_settings_json(study->size_count ? &study->sizes[size].settings
                                                              : &none),
                     "variant", sr_study_settings_json(&v->settings));
}

static bool names_place(const json_t *object, const sr_study *study, size_t task, size_t size,
                        size_t variant) {
    return strcmp(sr_json_text_of(object, "task"), study->tasks[task].name) == 0 &&
           strcmp(sr_json_text_of(object, "variant"), study->variants[variant].name) == 0 &&
           strcmp(sr_json_text_of(object, "size"), size_name(study, size)) == 0;
}

/* What was found for a run; NULL: nothing, or with other rates or other settings. */
static const json_t *found_for(const json_t *root, const sr_study *study, const sr_study_run *run) {
    for (size_t i = 0; i < sr_json_count_of(root, "rates"); i++) {
        const json_t *object = sr_json_element_of(root, "rates", i);
        if (!names_place(object, study, run->task, run->size, run->variant))
            continue;
        json_t *conditions = conditions_of(study, run->task, run->size, run->variant);
        const bool same = json_equal(json_object_get(object, "conditions"), conditions);
        json_decref(conditions);
        return same ? object : NULL;
    }
    return NULL;
}

static bool has_rate(const json_t *root, const sr_study *study, const sr_study_run *run) {
    return sr_json_number_of(found_for(root, study, run), "learning_rate") > 0;
}

srnn_status sr_study_take_rates(sr_study *study, const char *folder,
                                const sr_study_options *options, bool *missing) {
    json_t *root = NULL;
    *missing = false;
    if (!study->tune_count)
        return SRNN_OK;
    SR_TRY(read_found(&root, folder));
    for (size_t i = 0; i < study->run_count; i++) {
        sr_study_run *run = &study->runs[i];
        const json_t *found = found_for(root, study, run);
        const double rate = sr_json_number_of(found, "learning_rate");
        const double step_seconds = sr_json_number_of(found, "step_seconds");
        if (rate > 0)
            run->settings.learning_rate = rate;
        else
            *missing = *missing || sr_study_selects(study, options, run);
        run->expected_seconds = step_seconds > 0 ? step_seconds * (double)run->steps : 0;
    }
    json_decref(root);
    return SRNN_OK;
}

srnn_status sr_study_check_rate(const sr_study *study, const char *folder, const char *id) {
    json_t *root = NULL;
    bool known = true;
    if (!study->tune_count)
        return SRNN_OK;
    SR_TRY(read_found(&root, folder));
    for (size_t i = 0; i < study->run_count; i++)
        if (strcmp(study->runs[i].id, id) == 0)
            known = has_rate(root, study, &study->runs[i]);
    json_decref(root);
    return known ? SRNN_OK
                 : SR_FAIL(SRNN_ERR_ARGUMENT,
                           "run %s has no tuned learning rate in %s/tuning.json: run the study "
                           "without --run first, which tunes it",
                           id, folder);
}

/* ---- the places without a rate */

static void free_places(tuner *t) {
    for (size_t i = 0; i < t->count; i++) {
        free(t->places[i].left);
        free(t->places[i].losses);
        json_decref(t->places[i].trials);
    }
    free(t->places);
}

static srnn_status add_place(tuner *t, const sr_study_run *run) {
    const size_t rates = t->study->tune_count;
    for (size_t i = 0; i < t->count; i++)
        if (same_place(&t->places[i], t->study, run))
            return SRNN_OK;
    place *p = &t->places[t->count++];
    *p = (place){.task = run->task,
                 .size = run->size,
                 .variant = run->variant,
                 .left = calloc(rates, sizeof *p->left),
                 .losses = calloc(rates, sizeof *p->losses),
                 .trials = json_array()};
    if (!p->left || !p->losses || !p->trials)
        return no_memory();
    for (size_t i = 0; i < rates; i++)
        p->left[i] = true;
    return SRNN_OK;
}

static srnn_status find_places(tuner *t, const json_t *found) {
    t->places = calloc(t->study->run_count ? t->study->run_count : 1, sizeof *t->places);
    if (!t->places)
        return no_memory();
    for (size_t i = 0; i < t->study->run_count; i++) {
        const sr_study_run *run = &t->study->runs[i];
        if (sr_study_selects(t->study, t->options, run) && !has_rate(found, t->study, run))
            SR_TRY(add_place(t, run));
    }
    return SRNN_OK;
}

/* ---- a round, as a study */

static size_t rate_index(const sr_study *study, double rate) {
    size_t i = 0;
    while (i < study->tune_count && study->tune_rates[i] != rate)
        i++;
    return i;
}

static place *place_of(const tuner *t, const sr_study_run *run) {
    for (size_t i = 0; i < t->count; i++)
        if (same_place(&t->places[i], t->study, run))
            return &t->places[i];
    return NULL;
}

/* Seeds that no comparison has, also not one with seeds added later; one more in every round. */
static srnn_status set_seeds(sr_study *round, int number) {
    free(round->seeds);
    round->seed_count = (size_t)number;
    round->seeds = calloc(round->seed_count, sizeof *round->seeds);
    for (size_t i = 0; round->seeds && i < round->seed_count; i++)
        round->seeds[i] = SR_TUNING_SEED + (int64_t)i;
    return round->seeds ? SRNN_OK : no_memory();
}

/* Of a run's steps in round 1, 2, .. */
static double share_of(const sr_study *study, int rounds, int number) {
    return study->tune_share / (double)(1 << (rounds - number));
}

static int64_t shorter(int64_t steps, double share) {
    const int64_t cut = (int64_t)((double)steps * share);
    return cut > 0 || steps == 0 ? cut : 1;
}

/* The whole schedule in fewer steps, on the other half of the validation rows. */
static void shorten(sr_run_settings *s, double share) {
    s->steps = shorter(s->steps, share);
    s->warmup = (int64_t)((double)s->warmup * share);
    s->decay = shorter(s->decay, share);
    s->save_every = 0;
    s->keep = 1;
    s->validate_every = s->steps;
    s->stop_step = s->stop_tokens = 0;
    s->validation_half = SR_HALF_SECOND;
}

/* Drops eliminated rates and runs that are not tuned. */
static void keep_left(const tuner *t, sr_study *round) {
    size_t count = 0;
    for (size_t i = 0; i < round->run_count; i++) {
        sr_study_run *run = &round->runs[i];
        const place *p = place_of(t, run);
        if (p && p->left[rate_index(t->study, run->settings.learning_rate)]) {
            round->runs[count++] = *run;
        } else {
            free(run->id);
            sr_run_settings_free(&run->settings);
        }
    }
    round->run_count = count;
}

/* Round 1, 2, .. of the study's own file, with the rates as an axis. */
static srnn_status make_round(sr_study *round, const tuner *t, int number) {
    const sr_study *study = t->study;
    SR_TRY(sr_study_read(round, study->where, study->text, strlen(study->text)));
    round->folder = study->folder ? strdup(study->folder) : NULL;
    round->rates = round->tune_rates;
    round->rate_count = round->tune_count;
    round->tune_rates = NULL;
    round->tune_count = 0;
    sr_word_list_free(&round->only); /* already applied to the plan */
    sr_word_list_free(&round->skip);
    SR_TRY(set_seeds(round, number));
    SR_TRY(sr_study_list_runs(round, t->text));
    keep_left(t, round);
    for (size_t i = 0; i < round->run_count; i++) {
        sr_run_settings *s = &round->runs[i].settings;
        shorten(s, share_of(study, t->rounds, number));
        SR_TRY(sr_run_settings_text(&s->test, ""));
    }
    return sr_study_price(round);
}

/* ---- the result of a round */

/* The loss that a run ended with; infinite: without one. Its cost counts. */
static srnn_status read_loss(tuner *t, place *here, double *loss, const sr_study_run *run,
                             const char *folder) {
    char path[SR_PATH_BYTES];
    sr_record record;
    SR_TRY(sr_study_run_path(path, folder, run->id));
    const srnn_status status = sr_record_read(&record, path);
    const bool finished = record.result.ending == SR_ENDING_FINISHED;
    *loss = finished && isfinite(record.last_loss) ? record.last_loss : INFINITY;
    t->runs++;
    t->tokens += run->tokens;
    t->flops += run->flops;
    t->seconds += record.seconds;
    const double step_seconds = (record.result.ended - record.result.started) / (double)run->steps;
    here->step_seconds = fmax(here->step_seconds, step_seconds);
    sr_record_free(&record);
    return status;
}

/* A round that has ended. */
typedef struct ended_round {
    const sr_study *study;
    const char *folder;
    int number;
} ended_round;

/* The runs of one place and rate: what they say together. */
static srnn_status read_rate(tuner *t, place *here, size_t rate, const ended_round *round) {
    const double tried = t->study->tune_rates[rate];
    json_t *losses = json_array();
    double sum = 0, count = 0;
    srnn_status status = SRNN_OK;
    for (size_t i = 0; status == SRNN_OK && i < round->study->run_count; i++) {
        const sr_study_run *run = &round->study->runs[i];
        double loss = INFINITY;
        if (place_of(t, run) != here || run->settings.learning_rate != tried)
            continue;
        status = read_loss(t, here, &loss, run, round->folder);
        sr_json_append(losses, isfinite(loss) ? json_real(loss) : json_null());
        sum += loss;
        count++;
    }
    here->losses[rate] = sum / count;
    sr_json_append(here->trials, json_pack("{s:f, s:i, s:o}", "learning_rate", tried, "round",
                                           round->number, "losses", losses));
    return status;
}

static srnn_status read_round(tuner *t, const ended_round *round) {
    const size_t rates = t->study->tune_count;
    for (size_t i = 0; i < t->count; i++)
        t->places[i].step_seconds = 0;
    for (size_t i = 0; i < t->count * rates; i++)
        if (t->places[i / rates].left[i % rates])
            SR_TRY(read_rate(t, &t->places[i / rates], i % rates, round));
    return SRNN_OK;
}

/* Without a finite loss no rate is better than another. */
static srnn_status check_losses(const tuner *t, const place *p) {
    for (size_t i = 0; i < t->study->tune_count; i++)
        if (p->left[i] && isfinite(p->losses[i]))
            return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT,
                   "tuning: task %s, variant %s: no learning rate ended with a finite validation "
                   "loss; give smaller rates, or data with more validation rows",
                   t->study->tasks[p->task].name, t->study->variants[p->variant].name);
}

/* The better half stays, at least one; among equals the smaller rates. */
static void halve(const tuner *t, place *p) {
    const size_t rates = t->study->tune_count;
    size_t left = 0;
    for (size_t i = 0; i < rates; i++)
        left += p->left[i];
    for (size_t stay = (left + 1) / 2; left > stay; left--) {
        size_t worst = rates;
        for (size_t i = 0; i < rates; i++)
            if (p->left[i] && (worst == rates || p->losses[i] > p->losses[worst] ||
                               (p->losses[i] == p->losses[worst] &&
                                t->study->tune_rates[i] > t->study->tune_rates[worst])))
                worst = i;
        p->left[worst] = false;
    }
}

static size_t chosen_of(const tuner *t, const place *p) {
    size_t i = 0;
    while (i + 1 < t->study->tune_count && !p->left[i])
        i++;
    return i;
}

/* ---- all rounds */

static srnn_status check_ended(const sr_study *round, const sr_run_view *views) {
    for (size_t i = 0; i < round->run_count; i++)
        if (views[i].ending == SR_ENDING_FAILED)
            return SR_FAIL(SRNN_ERR_IO, "tuning: run %s failed: %s", round->runs[i].id,
                           views[i].message);
    return SRNN_OK;
}

static srnn_status execute_round(tuner *t, sr_study *round, int number) {
    char folder[SR_PATH_BYTES];
    const sr_study_options options = {.jobs = t->options->jobs,
                                      .together = t->options->together,
                                      .deadline = t->options->deadline,
                                      .watch = t->options->watch,
                                      .context = t->options->context};
    SR_TRY(sr_path_print(folder, "%s/tuning/round-%d", t->folder, number));
    SR_TRY(sr_folders_make(folder));
    for (size_t i = 0; i < round->run_count; i++) {
        char path[SR_PATH_BYTES];
        SR_TRY(sr_study_run_path(path, folder, round->runs[i].id));
        const srnn_status status = sr_worker_check(&round->runs[i], path);
        if (status == SRNN_ERR_ARGUMENT) /* of a tuning with other settings */
            SR_TRY(sr_folder_remove(path));
        else
            SR_TRY(status);
    }
    sr_run_view *views = calloc(round->run_count ? round->run_count : 1, sizeof *views);
    if (!views)
        return no_memory();
    srnn_status status = sr_study_execute(round, folder, &options, views);
    if (status == SRNN_OK)
        status = check_ended(round, views);
    if (status == SRNN_OK)
        status = read_round(t, &(ended_round){round, folder, number});
    free(views);
    return status;
}

/* The number of rounds until one of `rates` is left. */
static int rounds_of(size_t rates) {
    int rounds = 0;
    while ((size_t)1 << rounds < rates)
        rounds++;
    return rounds;
}

static srnn_status run_rounds(tuner *t) {
    t->rounds = rounds_of(t->study->tune_count);
    t->studies = calloc((size_t)t->rounds, sizeof *t->studies);
    if (!t->studies)
        return no_memory();
    for (int number = 1; number <= t->rounds; number++) {
        sr_study *round = &t->studies[number - 1];
        SR_TRY(make_round(round, t, number));
        SR_TRY(execute_round(t, round, number));
        for (size_t i = 0; i < t->count; i++) {
            SR_TRY(check_losses(t, &t->places[i]));
            halve(t, &t->places[i]);
        }
    }
    return SRNN_OK;
}

/* The best rate at either end of the list means that a better one may lie beyond. */
static json_t *place_json(const tuner *t, const place *p) {
    const sr_study *study = t->study;
    const size_t chosen = chosen_of(t, p);
    size_t smaller = 0;
    for (size_t i = 0; i < study->tune_count; i++)
        smaller += study->tune_rates[i] < study->tune_rates[chosen];
    return json_pack("{s:o, s:o, s:o, s:f, s:b, s:f, s:o, s:O}", "task",
                     sr_json_plain_text(study->tasks[p->task].name), "size",
                     sr_json_plain_text(size_name(study, p->size)), "variant",
                     sr_json_plain_text(study->variants[p->variant].name), "learning_rate",
                     study->tune_rates[chosen], "edge",
                     smaller == 0 || smaller + 1 == study->tune_count, "step_seconds",
                     p->step_seconds, "conditions",
                     conditions_of(study, p->task, p->size, p->variant), "trials", p->trials);
}

static bool tuned_again(const tuner *t, const json_t *object) {
    for (size_t i = 0; i < t->count; i++) {
        const place *p = &t->places[i];
        if (names_place(object, t->study, p->task, p->size, p->variant))
            return true;
    }
    return false;
}

static srnn_status write_found(const tuner *t, const json_t *before) {
    json_t *rates = json_array();
    for (size_t i = 0; i < sr_json_count_of(before, "rates"); i++)
        if (!tuned_again(t, sr_json_element_of(before, "rates", i)))
            sr_json_append(rates, json_deep_copy(sr_json_element_of(before, "rates", i)));
    for (size_t i = 0; i < t->count; i++)
        sr_json_append(rates, place_json(t, &t->places[i]));
    const double known[] = {sr_json_number_of(before, "runs"), sr_json_number_of(before, "tokens"),
                            sr_json_number_of(before, "flops"),
                            sr_json_number_of(before, "seconds")};
    json_t *root =
        json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:o}", "format", "softrnn-tuning", "version", 1,
                  "runs", t->runs + (before ? known[0] : 0), "tokens",
                  t->tokens + (before ? known[1] : 0), "flops", t->flops + (before ? known[2] : 0),
                  "seconds", t->seconds + (before ? known[3] : 0), "rates", rates);
    return sr_json_replace(root, t->folder, "tuning.json",
                           JSON_INDENT(1) | JSON_REAL_PRECISION(12));
}

sr_tuning_cost sr_study_tuning_cost(const sr_study *study, const sr_study_options *options) {
    sr_tuning_cost cost = {0};
    const int rounds = study->tune_count ? rounds_of(study->tune_count) : 0;
    for (size_t i = 0; i < study->run_count; i++) {
        const sr_study_run *run = &study->runs[i];
        if (run->settings.seed != study->seeds[0] || !sr_study_selects(study, options, run))
            continue;
        size_t left = study->tune_count;
        for (int number = 1; number <= rounds; number++, left = (left + 1) / 2) {
            const double runs = (double)left * number;
            const double share =
                (double)shorter(run->steps, share_of(study, rounds, number)) / (double)run->steps;
            cost.runs += runs;
            cost.tokens += runs * share * run->tokens;
            cost.flops += runs * share * run->flops;
        }
    }
    return cost;
}

static srnn_status check_launcher(const sr_study_options *options) {
    return options->launcher == SR_LAUNCHER_LOCAL
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_UNSUPPORTED,
                         "learning rates are tuned with --launcher local; the other launchers "
                         "use the rates in tuning.json once it is there");
}

srnn_status sr_study_tune(sr_study *study, const char *folder, const char *text,
                          const sr_study_options *options) {
    tuner t = {.study = study, .folder = folder, .text = text, .options = options};
    json_t *before = NULL;
    bool missing;
    SR_TRY(check_launcher(options));
    SR_TRY(read_found(&before, folder));
    srnn_status status = find_places(&t, before);
    if (status == SRNN_OK)
        status = run_rounds(&t);
    if (status == SRNN_OK)
        status = write_found(&t, before);
    for (int i = 0; t.studies && i < t.rounds; i++)
        sr_study_free(&t.studies[i]);
    free(t.studies);
    free_places(&t);
    json_decref(before);
    SR_TRY(status);
    return sr_study_take_rates(study, folder, options, &missing);
}
