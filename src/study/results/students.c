/* students.c: what the students of a study recover. */
#include "study/results/students.h"

#include "files/json.h"
#include "study/results/shrinkage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct maker {
    const sr_study *study;
    const sr_record *records; /* (run_count) */
    json_t *const *measured;  /* (run_count) */
    size_t task;
    size_t *students; /* (count): indices of variants; owned */
    size_t count;
    size_t seeds;
} maker;

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* ---- runs */

/* The finished run of a variant with the seed of this index; run_count: there is none. */
static size_t run_of(const maker *m, size_t variant, size_t seed) {
    const sr_study *study = m->study;
    for (size_t i = 0; i < study->run_count; i++)
        if (study->runs[i].task == m->task && study->runs[i].variant == variant &&
            study->runs[i].settings.seed == study->seeds[seed] &&
            m->records[i].result.ending == SR_ENDING_FINISHED)
            return i;
    return study->run_count;
}

/* The variant from scratch that has the shape of a student. */
static size_t scratch_of(const maker *m, size_t student) {
    const sr_study_variant *s = &m->study->variants[student];
    for (size_t v = 0; v < m->study->variant_count; v++) {
        const sr_study_variant *other = &m->study->variants[v];
        if (other->role == SR_ROLE_SCRATCH && other->budget == s->budget &&
            strcmp(other->system, s->system) == 0)
            return v;
    }
    return m->study->variant_count;
}

/* A number of student.json: of member `part`, or of the record itself. */
static double measured_of(const maker *m, size_t variant, size_t seed, const char *part,
                          const char *name) {
    const size_t run = run_of(m, variant, seed);
    const json_t *record = run < m->study->run_count ? m->measured[run] : NULL;
    return sr_json_number_of(part ? sr_json_object_of(record, part) : record, name);
}

/* The student with a window alone, of the same budget: what only the last tokens are worth. */
static size_t window_of(const maker *m, size_t student) {
    const size_t budget = m->study->variants[student].budget;
    for (size_t v = 0; v < m->study->variant_count; v++) {
        const sr_study_variant *other = &m->study->variants[v];
        if (other->role == SR_ROLE_STUDENT && other->budget == budget && other->descriptor.window)
            return v;
    }
    return m->study->variant_count;
}

/* ---- quantities: one number for a student and a seed; NaN: there is none */

typedef double quantity(const maker *m, size_t variant, size_t seed);

static double swap_loss(const maker *m, size_t variant, size_t seed) {
    return measured_of(m, variant, seed, "copied", "loss");
}

static double teacher_loss(const maker *m, size_t variant, size_t seed) {
    return measured_of(m, variant, seed, "teacher", "loss");
}

static double student_loss(const maker *m, size_t variant, size_t seed) {
    return measured_of(m, variant, seed, "student", "loss");
}

static double student_kl(const maker *m, size_t variant, size_t seed) {
    return measured_of(m, variant, seed, "student", "kl");
}

static double swap_accuracy(const maker *m, size_t variant, size_t seed) {
    return measured_of(m, variant, seed, "copied", "accuracy");
}

static double teacher_accuracy(const maker *m, size_t variant, size_t seed) {
    return measured_of(m, variant, seed, "teacher", "accuracy");
}

static double student_accuracy(const maker *m, size_t variant, size_t seed) {
    return measured_of(m, variant, seed, "student", "accuracy");
}

/* (L_swap - loss) / (L_swap - L_teacher). Where replacing loses less than this many nats, there is
 * nothing to recover, and the ratio is noise. */
static const double least_lost = 0.01;

static double recovered_by(const maker *m, size_t variant, size_t seed, double loss) {
    const double swap = swap_loss(m, variant, seed), teacher = teacher_loss(m, variant, seed);
    return swap - teacher >= least_lost ? (swap - loss) / (swap - teacher) : NAN;
}

static double recovered(const maker *m, size_t variant, size_t seed) {
    return recovered_by(m, variant, seed, student_loss(m, variant, seed));
}

static double above_teacher(const maker *m, size_t variant, size_t seed) {
    return student_loss(m, variant, seed) - teacher_loss(m, variant, seed);
}

/* How much the loss rises if the state is zeroed before every token. */
static double zeroed(const maker *m, size_t variant, size_t seed) {
    return measured_of(m, variant, seed, "zeroed", "loss") - student_loss(m, variant, seed);
}

static double scratch(const maker *m, size_t variant, size_t seed) {
    return student_loss(m, scratch_of(m, variant), seed) - student_loss(m, variant, seed);
}

static double window(const maker *m, size_t variant, size_t seed) {
    const size_t only = window_of(m, variant);
    return only == variant ? NAN : student_loss(m, only, seed) - student_loss(m, variant, seed);
}

/* The teacher, trained again on as many tokens: variant 0. */
static double again(const maker *m, size_t variant, size_t seed) {
    const size_t run = run_of(m, 0, seed);
    return run < m->study->run_count ? student_loss(m, variant, seed) - m->records[run].last_loss
                                     : NAN;
}

/* ---- intervals */

/* The mean over seeds, with the variance shrunk towards that of all students. */
static json_t *interval_json(const maker *m, const double *values, const sr_prior *prior) {
    json_t *list = json_array();
    double finite[256];
    size_t count = 0;
    for (size_t s = 0; s < m->seeds; s++) {
        sr_json_append(list, number(values[s]));
        if (isfinite(values[s]) && count < sizeof finite / sizeof *finite)
            finite[count++] = values[s];
    }
    const sr_interval i = sr_interval_shrunk(finite, count, prior, SR_CONFIDENCE);
    return json_pack("{s:o, s:o, s:o, s:f, s:o}", "mean", number(i.mean), "low", number(i.low),
                     "high", number(i.high), "degrees", i.degrees, "values", list);
}

/* Sets `name` of every student's object (count) to the interval of its row of table (count,
 * seeds). */
static void set_intervals(const maker *m, json_t *const *objects, const char *name,
                          const double *table) {
    const sr_prior prior = sr_prior_of(table, m->count, m->seeds);
    for (size_t i = 0; i < m->count; i++)
        sr_json_set(objects[i], name, interval_json(m, table + i * m->seeds, &prior));
}

static void set_quantity(const maker *m, json_t *const *objects, const char *name, quantity *of,
                         double *table) {
    for (size_t i = 0; i < m->count; i++)
        for (size_t s = 0; s < m->seeds; s++)
            table[i * m->seeds + s] = of(m, m->students[i], s);
    set_intervals(m, objects, name, table);
}

/* ---- R against tokens */

/* The validated steps of a student's first finished run; NULL: there is none. */
static const sr_record *curve_of(const maker *m, size_t student) {
    for (size_t s = 0; s < m->seeds; s++) {
        const size_t run = run_of(m, student, s);
        if (run < m->study->run_count)
            return &m->records[run];
    }
    return NULL;
}

static double loss_at(const maker *m, size_t variant, size_t seed, int64_t step) {
    const size_t run = run_of(m, variant, seed);
    const sr_record *record = run < m->study->run_count ? &m->records[run] : NULL;
    for (size_t i = 0; record && i < record->count; i++)
        if (record->points[i].step == step)
            return record->points[i].validation;
    return NAN;
}

static double tokens_of_a_step(const maker *m, size_t variant) {
    for (size_t i = 0; i < m->study->run_count; i++)
        if (m->study->runs[i].task == m->task && m->study->runs[i].variant == variant)
            return m->study->runs[i].tokens / (double)m->study->runs[i].steps;
    return NAN;
}

/* Adds a point at this step to the curves (count) of all students. */
static void add_point(const maker *m, json_t *const *curves, int64_t step, double *table) {
    for (size_t i = 0; i < m->count; i++)
        for (size_t s = 0; s < m->seeds; s++)
            table[i * m->seeds + s] =
                recovered_by(m, m->students[i], s, loss_at(m, m->students[i], s, step));
    const sr_prior prior = sr_prior_of(table, m->count, m->seeds);
    for (size_t i = 0; i < m->count; i++) {
        json_t *point = interval_json(m, table + i * m->seeds, &prior);
        sr_json_set(point, "tokens", number((double)step * tokens_of_a_step(m, m->students[i])));
        sr_json_append(curves[i], point);
    }
}

/* All students have the same stages, and so the same validated steps. */
static void add_curves(const maker *m, json_t *const *objects, json_t **curves, double *table) {
    const sr_record *first = NULL;
    for (size_t i = 0; i < m->count; i++) {
        curves[i] = json_array();
        sr_json_set(objects[i], "curve", curves[i]);
        first = first ? first : curve_of(m, m->students[i]);
    }
    for (size_t p = 0; first && p < first->count; p++)
        if (isfinite(first->points[p].validation))
            add_point(m, curves, first->points[p].step, table);
}

/* ---- positions and layers: means over seeds */

/* A number of the elements of a list in student.json. */
typedef struct listed {
    const char *part; /* the member that has the list; NULL: the record */
    const char *list;
    const char *inner; /* the member of an element that has the number; NULL: the element */
    const char *name;
} listed;

static double listed_of(const maker *m, size_t variant, size_t seed, size_t index,
                        const listed *what) {
    const size_t run = run_of(m, variant, seed);
    const json_t *record = run < m->study->run_count ? m->measured[run] : NULL;
    const json_t *element =
        sr_json_element_of(what->part ? sr_json_object_of(record, what->part) : record, what->list,
                           index);
    return sr_json_number_of(what->inner ? sr_json_object_of(element, what->inner) : element,
                             what->name);
}

/* Mean over the seeds; NaN: none has the element. */
static double mean_of(const maker *m, size_t variant, size_t index, const listed what) {
    double sum = 0, count = 0;
    for (size_t s = 0; s < m->seeds; s++) {
        const double value = listed_of(m, variant, s, index, &what);
        sum += isfinite(value) ? value : 0;
        count += isfinite(value);
    }
    return count > 0 ? sum / count : NAN;
}

static listed position(const char *of, const char *name) {
    return (listed){of, "positions", NULL, name};
}

static json_t *position_json(const maker *m, size_t variant, size_t i) {
    const double from = mean_of(m, variant, i, position("student", "from"));
    const double to = mean_of(m, variant, i, position("student", "to"));
    const double teacher = mean_of(m, variant, i, position("teacher", "loss"));
    const double copied = mean_of(m, variant, i, position("copied", "loss"));
    const double student = mean_of(m, variant, i, position("student", "loss"));
    return json_pack("{s:o, s:f, s:o, s:o, s:o}", "from", number(from), "to", to, "teacher",
                     number(teacher), "copied", number(copied), "student", number(student));
}

static json_t *positions_json(const maker *m, size_t variant) {
    json_t *list = json_array();
    for (size_t i = 0; isfinite(mean_of(m, variant, i, position("student", "to"))); i++)
        sr_json_append(list, position_json(m, variant, i));
    return list;
}

/* Of every range of positions the loss above the teacher's, with its interval. */
static void add_position_intervals(const maker *m, json_t *const *objects, double *table) {
    const listed student = position("student", "loss"), teacher = position("teacher", "loss");
    bool any = true;
    for (size_t range = 0; any; range++) {
        any = false;
        for (size_t i = 0; i < m->count; i++)
            for (size_t s = 0; s < m->seeds; s++)
                table[i * m->seeds + s] = listed_of(m, m->students[i], s, range, &student) -
                                          listed_of(m, m->students[i], s, range, &teacher);
        const sr_prior prior = sr_prior_of(table, m->count, m->seeds);
        for (size_t i = 0; i < m->count; i++) {
            json_t *own = json_array_get(json_object_get(objects[i], "positions"), range);
            if (own)
                sr_json_set(own, "above_teacher", interval_json(m, table + i * m->seeds, &prior));
            any = any || own;
        }
    }
}

static json_t *layers_json(const maker *m, size_t variant) {
    const listed layer = {NULL, "layers", NULL, "layer"};
    json_t *list = json_array();
    for (size_t i = 0; isfinite(mean_of(m, variant, i, layer)); i++) {
        const double at = mean_of(m, variant, i, layer);
        const double copied = mean_of(m, variant, i, (listed){NULL, "layers", "copied", "kl"});
        const double aligned = mean_of(m, variant, i, (listed){NULL, "layers", "aligned", "kl"});
        sr_json_append(list, json_pack("{s:f, s:o, s:o}", "layer", at, "copied_kl", number(copied),
                                       "aligned_kl", number(aligned)));
    }
    return list;
}

/* ---- ranking */

static double mean_loss(const maker *m, size_t student) {
    double sum = 0, count = 0;
    for (size_t s = 0; s < m->seeds; s++) {
        const double loss = student_loss(m, student, s);
        sum += isfinite(loss) ? loss : 0;
        count += isfinite(loss);
    }
    return count > 0 ? sum / count : NAN;
}

/* The student of a budget with the lowest loss; NaN ranks last. */
static size_t best_of(const maker *m, size_t budget) {
    size_t best = m->study->variant_count;
    for (size_t i = 0; i < m->count; i++) {
        const double loss = mean_loss(m, m->students[i]);
        if (m->study->variants[m->students[i]].budget == budget && isfinite(loss) &&
            (best == m->study->variant_count || loss < mean_loss(m, best)))
            best = m->students[i];
    }
    return best;
}

/* The loss of a student above that of the best one of its budget, on the same seeds: those whose
 * interval includes 0 tie with it. */
static void add_behind(const maker *m, json_t *const *objects, double *table) {
    for (size_t i = 0; i < m->count; i++) {
        const size_t own = m->students[i], best = best_of(m, m->study->variants[own].budget);
        for (size_t s = 0; s < m->seeds; s++)
            table[i * m->seeds + s] =
                best == own ? NAN : student_loss(m, own, s) - student_loss(m, best, s);
    }
    set_intervals(m, objects, "behind", table);
}

/* ---- what bytes buy */

/* Shares of the bytes of the teacher's cache; the last is the teacher itself. */
static const double shares[] = {0.1, 0.3, 1};
enum { SHARES = sizeof shares / sizeof *shares };

/* Of the bytes of the teacher's cache; NaN: no run has finished. */
static double share_of(const maker *m, size_t variant) {
    for (size_t s = 0; s < m->seeds; s++) {
        const double share = measured_of(m, variant, s, NULL, "state_bytes") /
                             measured_of(m, variant, s, NULL, "cache_bytes");
        if (isfinite(share))
            return share;
    }
    return NAN;
}

/* The student with the lowest loss of those that take at most this share; count: there is none. */
static size_t best_within(const maker *m, double share) {
    size_t best = m->count;
    for (size_t i = 0; i < m->count; i++) {
        const double loss = mean_loss(m, m->students[i]);
        if (share_of(m, m->students[i]) <= share && isfinite(loss) &&
            (best == m->count || loss < mean_loss(m, m->students[best])))
            best = i;
    }
    return best;
}

/* The loss of student `from` above that of student `to`, with the variance of all such
 * differences; null for the same one. */
static json_t *gain_json(const maker *m, size_t from, size_t to, double *table) {
    if (from == m->count || to == m->count || from == to)
        return json_null();
    for (size_t i = 0; i < m->count; i++)
        for (size_t s = 0; s < m->seeds; s++)
            table[i * m->seeds + s] = i == from ? NAN
                                                : student_loss(m, m->students[from], s) -
                                                      student_loss(m, m->students[i], s);
    const sr_prior prior = sr_prior_of(table, m->count, m->seeds);
    return interval_json(m, table + to * m->seeds, &prior);
}

/* The loss of the teacher that was trained again above that of the teacher. */
static json_t *again_json(const maker *m, double *table) {
    for (size_t s = 0; s < m->seeds; s++) {
        const size_t run = run_of(m, 0, s);
        table[s] = NAN;
        for (size_t i = 0; i < m->count && run < m->study->run_count && isnan(table[s]); i++)
            table[s] = m->records[run].last_loss - teacher_loss(m, m->students[i], s);
    }
    const sr_prior prior = sr_prior_of(table, 1, m->seeds);
    return interval_json(m, table, &prior);
}

/* For each share but the whole: the best student, and how much it gains on that of the share
 * before. */
static json_t *bytes_json(const maker *m, double *table) {
    json_t *list = json_array();
    size_t before = m->count;
    for (int i = 0; i + 1 < SHARES; i++) {
        const size_t best = best_within(m, shares[i]);
        const char *name = best < m->count ? m->study->variants[m->students[best]].name : NULL;
        sr_json_append(list, json_pack("{s:f, s:o, s:o}", "share", shares[i], "variant",
                                       name ? sr_json_plain_text(name) : json_null(), "gain",
                                       gain_json(m, before, best, table)));
        before = best;
    }
    return list;
}

/* ---- one task */

static json_t *student_json(const maker *m, size_t variant) {
    const sr_study_variant *v = &m->study->variants[variant];
    size_t finished = 0;
    double state = NAN, cache = NAN;
    for (size_t s = 0; s < m->seeds; s++) {
        finished += run_of(m, variant, s) < m->study->run_count;
        const double bytes = measured_of(m, variant, s, NULL, "state_bytes");
        state = isfinite(bytes) ? bytes : state;
        cache = isfinite(bytes) ? measured_of(m, variant, s, NULL, "cache_bytes") : cache;
    }
    return json_pack("{s:o, s:o, s:o, s:s, s:I, s:o, s:o, s:o, s:o}", "variant",
                     sr_json_plain_text(v->name), "system", sr_json_plain_text(v->system), "budget",
                     sr_json_plain_text(m->study->budgets[v->budget].name), "keep",
                     m->study->budgets[v->budget].keep, "finished", (json_int_t)finished,
                     "state_bytes", number(state), "cache_bytes", number(cache), "positions",
                     positions_json(m, variant), "layers", layers_json(m, variant));
}

static void fill_task(const maker *m, json_t **objects, json_t **curves, double *table) {
    static const struct {
        const char *name;
        quantity *of;
    } quantities[] = {{"swap_loss", swap_loss},
                      {"teacher_loss", teacher_loss},
                      {"student_loss", student_loss},
                      {"kl", student_kl},
                      {"recovered", recovered},
                      {"above_teacher", above_teacher},
                      {"zeroed", zeroed},
                      {"from_scratch", scratch},
                      {"teacher_again", again},
                      {"window", window},
                      {"swap_accuracy", swap_accuracy},
                      {"accuracy", student_accuracy},
                      {"teacher_accuracy", teacher_accuracy}};
    for (size_t i = 0; i < m->count; i++)
        objects[i] = student_json(m, m->students[i]);
    for (size_t q = 0; q < sizeof quantities / sizeof *quantities; q++)
        set_quantity(m, objects, quantities[q].name, quantities[q].of, table);
    add_behind(m, objects, table);
    add_position_intervals(m, objects, table);
    add_curves(m, objects, curves, table);
}

static srnn_status task_json(json_t **object, const maker *m) {
    json_t *list = json_array(), *bytes = NULL, *again_loss = NULL;
    json_t **objects = calloc(2 * m->count + 1, sizeof *objects);
    double *table = calloc((m->count + 1) * m->seeds, sizeof *table);
    srnn_status status =
        objects && table ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory for the students");
    if (status == SRNN_OK) {
        fill_task(m, objects, objects + m->count, table);
        bytes = bytes_json(m, table);
        again_loss = again_json(m, table);
    }
    for (size_t i = 0; status == SRNN_OK && i < m->count; i++)
        sr_json_append(list, objects[i]);
    free(objects);
    free(table);
    *object = json_pack("{s:o, s:o, s:o?, s:o?}", "task",
                        sr_json_plain_text(m->study->tasks[m->task].name), "students", list,
                        "bytes", bytes, "teacher_again", again_loss);
    return status;
}

/* The students that the task has. */
static void find_students(maker *m) {
    m->count = 0;
    for (size_t v = 0; v < m->study->variant_count; v++) {
        bool has = false;
        for (size_t i = 0; i < m->study->run_count; i++)
            has = has || (m->study->runs[i].variant == v && m->study->runs[i].task == m->task);
        if (has && m->study->variants[v].role == SR_ROLE_STUDENT)
            m->students[m->count++] = v;
    }
}

srnn_status sr_students_summarise(json_t **list, const sr_study *study, const sr_record *records,
                                  json_t *const *measured) {
    maker m = {.study = study,
               .records = records,
               .measured = measured,
               .seeds = study->seed_count};
    *list = NULL;
    if (!study->teacher.wanted)
        return SRNN_OK;
    *list = json_array();
    m.students = calloc(study->variant_count, sizeof *m.students);
    srnn_status status =
        m.students ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory for the students");
    for (m.task = 0; m.task < study->task_count && status == SRNN_OK; m.task++) {
        json_t *task;
        find_students(&m);
        status = task_json(&task, &m);
        sr_json_append(*list, task);
    }
    free(m.students);
    if (status != SRNN_OK) {
        json_decref(*list);
        *list = NULL;
    }
    return status;
}
