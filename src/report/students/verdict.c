/* verdict.c: what a trained model loses as an RNN, in sentences. */
#include "files/json.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/students/students.h"

#include <math.h>
#include <string.h>

#define NNBSP "\u202f" /* a narrow no-break space */

/* "+0.064 [+0.051, +0.078]". */
static sr_formatted interval(const sr_quantity *q) {
    return sr_format_interval(q->mean, q->low, q->high);
}

/* The same in parentheses, where "(no interval)" would not read well. */
static sr_formatted brief(const sr_quantity *q) {
    sr_formatted all = interval(q);
    char *none = strstr(all.text, " (no interval)");
    if (none)
        *none = '\0';
    return all;
}

static void write_name(FILE *out, const sr_student *s) {
    fputs("<b>", out);
    sr_escape_html(out, s->name);
    fputs("</b>", out);
}

/* "61.2 %", with a minus where there is one. */
static sr_formatted percent(double share) {
    const sr_formatted number = sr_format_fixed(100 * share, 1);
    const bool minus = number.text[0] == '-';
    sr_formatted words;
    snprintf(words.text, sizeof words.text, "%s%.60s" NNBSP "%%", minus ? "\u2212" : "",
             number.text + minus);
    return words;
}

/* "[+0.051, +0.078]"; "" without an interval. */
static sr_formatted bounds(const sr_quantity *q) {
    sr_formatted all = interval(q), own = {""};
    const char *from = strchr(all.text, '[');
    snprintf(own.text, sizeof own.text, "%s", from ? from : "");
    return own;
}

/* "a", "a and b", "a, b and c": what comes before item i of count. */
static const char *joint(size_t i, size_t count) {
    return i == 0 ? "" : i + 1 == count ? " and " : ", ";
}

/* ---- the best student of a budget */

/* Of a list of layers such as 3-/4: its first layer and its step; false for others. */
static bool is_periodic(const char *keep, int *first, int *step) {
    int end = 0;
    return sscanf(keep, "%d-/%d%n", first, step, &end) == 2 && !keep[end];
}

static void write_budget(FILE *out, const sr_student_group *group) {
    int first, step;
    fputs("<span class=\"task\">", out);
    sr_escape_html(out, group->budget);
    if (is_periodic(group->keep, &first, &step)) {
        fprintf(out,
                ": every layer whose number is %d plus a multiple of %d keeps the teacher\u2019s "
                "attention and its cache",
                first, step);
    } else if (*group->keep) {
        const bool several = strpbrk(group->keep, ",-") != NULL;
        fputs(several ? ": layers " : ": layer ", out);
        sr_escape_html(out, group->keep);
        fputs(several ? " keep the teacher\u2019s attention and their caches"
                      : " keeps the teacher\u2019s attention and its cache",
              out);
    } else {
        fputs(": every layer is replaced", out);
    }
    fputs("</span> ", out);
}

/* An interval around zero that is wider than this, nats, does not show that nothing is lost. */
static const double wide = 0.1;

static void write_unclear(FILE *out, const sr_quantity *q) {
    if (q->high - q->low <= wide)
        fprintf(out, " <strong>cannot be told from the teacher</strong> (%s nats)",
                interval(q).text);
    else
        fprintf(out,
                " comes closest, and <strong>these seeds cannot say how close</strong>: %s nats "
                "from the teacher,",
                interval(q).text);
}

static void write_above(FILE *out, const sr_student *s) {
    const sr_quantity *q = &s->above_teacher;
    switch (sr_sign_of(q)) {
    case SR_SIGN_POSITIVE:
        fprintf(out, " stays <strong>%s nats</strong> above the teacher %s",
                sr_format_size(q->mean).text, bounds(q).text);
        return;
    case SR_SIGN_NEGATIVE:
        fprintf(out,
                " ends <strong>%s nats below</strong> the teacher %s, which has not seen "
                "these tokens again,",
                sr_format_size(q->mean).text, bounds(q).text);
        return;
    case SR_SIGN_UNCLEAR:
        write_unclear(out, q);
        return;
    case SR_SIGN_TOO_FEW:
        fprintf(out, " is %s nats from the teacher, of too few runs to judge", brief(q).text);
        return;
    case SR_SIGN_NONE:
        break;
    }
    fputs(" has no finished run", out);
}

static void write_share(FILE *out, const sr_student *s) {
    if (s->cache_bytes > 0 && isfinite(s->state_bytes))
        fprintf(out, " with %.0f" NNBSP "%% of the bytes of its cache (%s instead of %s)",
                100 * s->state_bytes / s->cache_bytes, sr_format_bytes(s->state_bytes).text,
                sr_format_bytes(s->cache_bytes).text);
}

static void write_recovered(FILE *out, const sr_student *s) {
    const sr_quantity *q = &s->recovered;
    const double lost = s->swap_loss.mean - s->teacher_loss.mean;
    if (!isfinite(q->mean)) {
        fputs(isfinite(lost) ? ". Replacing attention alone lost less than 0.01 nats here, so "
                               "there is nothing to recover"
                             : ". What replacing attention alone lost is not finite, so the "
                               "share that is recovered is unknown",
              out);
        return;
    }
    fprintf(out,
            ". Of the <strong>%s nats</strong> that replacing attention loses before training, "
            "<strong>%s</strong> are recovered",
            sr_format_size(lost).text, percent(q->mean).text);
    if (isfinite(q->low))
        fprintf(out, " [%s, %s]", percent(q->low).text, percent(q->high).text);
}

/* Of a task that is ranked by accuracy: before, after, and the teacher's. */
static void write_accuracy(FILE *out, const sr_student *s) {
    if (isfinite(s->accuracy.mean))
        fprintf(out,
                ". Its accuracy is <strong>%s</strong>, that of the teacher %s, and %s as copied",
                sr_format_fixed(s->accuracy.mean, 3).text,
                sr_format_fixed(s->teacher_accuracy.mean, 3).text,
                sr_format_fixed(s->swap_accuracy.mean, 3).text);
}

/* ---- the others of the budget */

/* Where a student stands next to the best of its budget. */
typedef struct standing {
    sr_sign sign;  /* of its distance */
    bool finished; /* without a distance: whether it has a finished run */
    bool wide;     /* around zero: whether the interval is too wide to call that a tie */
} standing;

static bool stands(const sr_student *s, standing where) {
    const sr_quantity *q = &s->behind;
    const sr_sign sign = sr_sign_of(q);
    return sign == where.sign &&
           (sign != SR_SIGN_NONE || where.finished == isfinite(s->student_loss.mean)) &&
           (sign != SR_SIGN_UNCLEAR || where.wide == (q->high - q->low > wide));
}

static size_t count_standing(const sr_student_group *group, standing where) {
    size_t count = 0;
    for (size_t i = 1; i < group->count; i++)
        count += stands(group->ranked[i], where);
    return count;
}

/* Those who stand there, with the words after their names. */
static void write_others(FILE *out, const sr_student_group *group, standing where, const char *one,
                         const char *many) {
    const size_t count = count_standing(group, where);
    size_t said = 0;
    if (!count)
        return;
    putc(' ', out);
    for (size_t i = 1; i < group->count; i++) {
        const sr_student *s = group->ranked[i];
        if (!stands(s, where))
            continue;
        fputs(joint(said++, count), out);
        write_name(out, s);
        fprintf(out, " (%s)", brief(&s->behind).text);
    }
    fprintf(out, " %s.", count == 1 ? one : many);
}

static void write_group(FILE *out, const sr_student_group *group, bool accuracy) {
    const sr_student *best = group->ranked[0];
    fputs("<p class=\"headline\">", out);
    write_budget(out, group);
    if (!isfinite(best->student_loss.mean)) {
        fputs("No student has a finished run.</p>\n", out);
        return;
    }
    write_name(out, best);
    write_above(out, best);
    write_share(out, best);
    write_recovered(out, best);
    if (accuracy)
        write_accuracy(out, best);
    fputs(".</p>\n<p>", out);
    fputs(group->count > 1 ? "Next to it, in nats above it:" : "", out);
    write_others(out, group, (standing){SR_SIGN_UNCLEAR, true, false},
                 "ties with it: the interval includes zero",
                 "tie with it: the intervals include zero");
    write_others(out, group, (standing){SR_SIGN_UNCLEAR, true, true},
                 "cannot be told from it with these seeds: the interval is wide",
                 "cannot be told from it with these seeds: the intervals are wide");
    write_others(out, group, (standing){SR_SIGN_POSITIVE, true, false}, "is worse", "are worse");
    write_others(out, group, (standing){SR_SIGN_NEGATIVE, true, false},
                 "is better on the seeds that both have", "are better on the seeds that both have");
    write_others(out, group, (standing){SR_SIGN_TOO_FEW, true, false}, "has too few runs to judge",
                 "have too few runs to judge");
    write_others(out, group, (standing){SR_SIGN_NONE, true, false},
                 "has no finished run with a seed of the best student\u2019s",
                 "have no finished run with a seed of the best student\u2019s");
    write_others(out, group, (standing){SR_SIGN_NONE, false, false}, "has no finished run",
                 "have no finished run");
    fputs("</p>\n", out);
}

/* ---- bytes */

/* After the student's distance from the teacher: its distance from the best one with fewer
 * bytes. */
static void write_gain(FILE *out, const sr_quantity *gain) {
    const sr_quantity more = {-gain->mean, -gain->high, -gain->low};
    switch (sr_sign_of(&more)) {
    case SR_SIGN_POSITIVE: /* of the seeds that both have, which need not be all */
    case SR_SIGN_NEGATIVE:
        fprintf(out, ", and <strong>%s</strong> from the best with fewer bytes", brief(&more).text);
        return;
    case SR_SIGN_UNCLEAR:
        fprintf(out,
                ", and %s from the best with fewer bytes: <strong>no difference shows</strong>",
                brief(&more).text);
        return;
    case SR_SIGN_TOO_FEW:
        fprintf(out, ", and %s from the best with fewer bytes, of too few runs to judge",
                brief(&more).text);
        return;
    case SR_SIGN_NONE:
        break;
    }
}

static void write_bought(FILE *out, const sr_student_bytes *bytes, const sr_student *before,
                         bool accuracy) {
    const sr_student *s = bytes->best;
    fprintf(out, "<li><strong>At most %.0f" NNBSP "%%:</strong> ", 100 * bytes->share);
    if (!s) {
        fputs("no student with a finished run takes so few bytes.</li>\n", out);
        return;
    }
    write_name(out, s);
    if (s == before) {
        fputs(" again: none that takes more bytes has a lower loss.</li>\n", out);
        return;
    }
    fprintf(out, " takes %.1f" NNBSP "%%", 100 * s->state_bytes / s->cache_bytes);
    if (accuracy && isfinite(s->accuracy.mean))
        fprintf(out, " and has an accuracy of %s", sr_format_fixed(s->accuracy.mean, 3).text);
    if (isfinite(s->above_teacher.mean))
        fprintf(out, "; its loss is %s nats from the teacher\u2019s",
                brief(&s->above_teacher).text);
    if (before)
        write_gain(out, &bytes->gain);
    fputs(".</li>\n", out);
}

/* All bytes are the teacher's own cache: the teacher, trained on as many tokens again. */
static void write_all_bytes(FILE *out, const sr_student_task *task, const sr_student *before) {
    if (!isfinite(task->teacher_again.mean))
        return;
    fprintf(out,
            "<li><strong>100" NNBSP "%%:</strong> the teacher itself, trained on as many tokens "
            "again, has a loss %s nats from what it was",
            brief(&task->teacher_again).text);
    if (before && isfinite(before->teacher_again.mean)) {
        fputs("; ", out);
        write_name(out, before);
        fprintf(out, " is %s from that", brief(&before->teacher_again).text);
    }
    fputs(".</li>\n", out);
}

static void write_bytes(FILE *out, const sr_student_task *task) {
    const sr_student *before = NULL;
    if (!task->byte_count)
        return;
    fputs("<p>What the bytes of the teacher\u2019s cache buy: of the students that take at most "
          "a share of them, the one with the lowest mean loss.</p>\n<ul>\n",
          out);
    for (size_t i = 0; i < task->byte_count; i++) {
        write_bought(out, &task->bytes[i], before, task->accuracy);
        before = task->bytes[i].best ? task->bytes[i].best : before;
    }
    write_all_bytes(out, task, before);
    fputs("</ul>\n", out);
}

/* ---- controls */

typedef const sr_quantity *picker(const sr_student *s);

static const sr_quantity *scratch_of(const sr_student *s) {
    return &s->from_scratch;
}

static const sr_quantity *again_of(const sr_student *s) {
    return &s->teacher_again;
}

static const sr_quantity *zeroed_of(const sr_student *s) {
    return &s->zeroed;
}

static const sr_quantity *window_of(const sr_student *s) {
    return &s->window;
}

typedef struct control {
    picker *of;
    const char *title;
    const char *one, *many;     /* what the students do whose quantity is positive */
    const char *other, *others; /* and negative */
} control;

typedef struct sign_counts {
    size_t all, signs[SR_SIGN_NEGATIVE + 1];
    double least, most; /* of those that are positive */
} sign_counts;

static sign_counts count(const sr_student_task *task, picker *of) {
    sign_counts t = {.least = INFINITY, .most = 0};
    for (size_t i = 0; i < task->count; i++) {
        const sr_quantity *q = of(&task->students[i]);
        const sr_sign sign = sr_sign_of(q);
        t.signs[sign]++;
        t.all += sign != SR_SIGN_NONE;
        if (sign == SR_SIGN_POSITIVE) {
            t.least = fmin(t.least, q->mean);
            t.most = fmax(t.most, q->mean);
        }
    }
    return t;
}

/* The students of this sign by name, with their numbers. */
static void write_names(FILE *out, const sr_student_task *task, picker *of, sr_sign sign,
                        size_t count_of) {
    size_t said = 0;
    for (size_t i = 0; i < task->count; i++) {
        const sr_student *s = &task->students[i];
        if (sr_sign_of(of(s)) != sign)
            continue;
        fputs(joint(said++, count_of), out);
        write_name(out, s);
        fprintf(out, " (%s)", brief(of(s)).text);
    }
}

static void write_positive(FILE *out, const control *c, const sign_counts *t) {
    char least[96];
    snprintf(least, sizeof least, "%s", sr_format_size(t->least).text);
    const sr_formatted most = sr_format_size(t->most);
    fprintf(out, "<strong>%zu of %zu</strong> student%s %s, by %s%s%s nats",
            t->signs[SR_SIGN_POSITIVE], t->all, t->all == 1 ? "" : "s",
            t->signs[SR_SIGN_POSITIVE] == 1 ? c->one : c->many, least,
            strcmp(least, most.text) == 0 ? "" : " to ",
            strcmp(least, most.text) == 0 ? "" : most.text);
}

static void write_control(FILE *out, const sr_student_task *task, const control *c) {
    const sign_counts t = count(task, c->of);
    const char *before = "";
    if (!t.all)
        return;
    fprintf(out, "<li><strong>%s</strong> ", c->title);
    if (t.signs[SR_SIGN_POSITIVE]) {
        write_positive(out, c, &t);
        before = "; ";
    }
    if (t.signs[SR_SIGN_NEGATIVE]) {
        fputs(before, out);
        write_names(out, task, c->of, SR_SIGN_NEGATIVE, t.signs[SR_SIGN_NEGATIVE]);
        fprintf(out, " %s", t.signs[SR_SIGN_NEGATIVE] == 1 ? c->other : c->others);
        before = "; ";
    }
    if (t.signs[SR_SIGN_UNCLEAR]) {
        fprintf(out, "%sno difference shows for ", before);
        write_names(out, task, c->of, SR_SIGN_UNCLEAR, t.signs[SR_SIGN_UNCLEAR]);
        before = "; ";
    }
    if (t.signs[SR_SIGN_TOO_FEW]) {
        fprintf(out, "%stoo few runs to judge ", before);
        write_names(out, task, c->of, SR_SIGN_TOO_FEW, t.signs[SR_SIGN_TOO_FEW]);
    }
    fputs(".</li>\n", out);
}

void sr_students_verdict(FILE *out, const sr_student_task *task) {
    static const control controls[] = {
        {scratch_of, "Is the teacher needed?",
         "is better than the same model trained from scratch on as many tokens",
         "are better than the same model trained from scratch on as many tokens",
         "is worse than the same model from scratch", "are worse than the same model from scratch"},
        {again_of, "Is it the tokens?",
         "stays above the teacher that learned from as many tokens again",
         "stay above the teacher that learned from as many tokens again", "ends below that teacher",
         "end below that teacher"},
        {zeroed_of, "Is the state used?", "gets worse if it is zeroed before every token",
         "get worse if it is zeroed before every token", "gets better if it is zeroed",
         "get better if it is zeroed"},
        {window_of, "Would a window do?", "is better than the window of the same budget",
         "are better than the window of the same budget", "is worse than that window",
         "are worse than that window"},
    };
    fputs("<h3>", out);
    sr_escape_html(out, task->title);
    fputs("</h3>\n", out);
    for (size_t i = 0; i < task->group_count; i++)
        write_group(out, &task->groups[i], task->accuracy);
    write_bytes(out, task);
    fputs("<p>The controls:</p>\n<ul>\n", out);
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++)
        write_control(out, task, &controls[i]);
    fputs("</ul>\n", out);
}
