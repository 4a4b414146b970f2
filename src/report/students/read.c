/* read.c: reads the students of summary.json. */
#include "report/students/students.h"

#include "base/memory.h"
#include "files/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sr_quantity quantity_of(const json_t *object, const char *name) {
    const json_t *part = sr_json_object_of(object, name);
    return (sr_quantity){sr_json_number_of(part, "mean"), sr_json_number_of(part, "low"),
                         sr_json_number_of(part, "high")};
}

sr_sign sr_sign_of(const sr_quantity *q) {
    if (!isfinite(q->mean))
        return SR_SIGN_NONE;
    if (!isfinite(q->low) || !isfinite(q->high))
        return SR_SIGN_TOO_FEW;
    return q->low > 0 ? SR_SIGN_POSITIVE : q->high < 0 ? SR_SIGN_NEGATIVE : SR_SIGN_UNCLEAR;
}

static void read_student(sr_student *s, const json_t *object) {
    *s = (sr_student){.name = sr_json_text_of(object, "variant"),
                      .system = sr_json_text_of(object, "system"),
                      .budget = sr_json_text_of(object, "budget"),
                      .keep = sr_json_text_of(object, "keep"),
                      .state_bytes = sr_json_number_of(object, "state_bytes"),
                      .cache_bytes = sr_json_number_of(object, "cache_bytes"),
                      .finished = sr_json_number_of(object, "finished"),
                      .swap_loss = quantity_of(object, "swap_loss"),
                      .teacher_loss = quantity_of(object, "teacher_loss"),
                      .student_loss = quantity_of(object, "student_loss"),
                      .kl = quantity_of(object, "kl"),
                      .recovered = quantity_of(object, "recovered"),
                      .above_teacher = quantity_of(object, "above_teacher"),
                      .behind = quantity_of(object, "behind"),
                      .zeroed = quantity_of(object, "zeroed"),
                      .from_scratch = quantity_of(object, "from_scratch"),
                      .teacher_again = quantity_of(object, "teacher_again"),
                      .window = quantity_of(object, "window"),
                      .teacher_accuracy = quantity_of(object, "teacher_accuracy"),
                      .swap_accuracy = quantity_of(object, "swap_accuracy"),
                      .accuracy = quantity_of(object, "accuracy"),
                      .object = object};
}

static int by_loss(const void *a, const void *b) {
    const sr_student *left = *(const sr_student *const *)a, *right = *(const sr_student *const *)b;
    const double x = left->student_loss.mean, y = right->student_loss.mean;
    if (isfinite(x) != isfinite(y))
        return isfinite(x) ? -1 : 1;
    return isfinite(x) && x != y ? (x > y) - (x < y) : (left > right) - (left < right);
}

static sr_student_group *group_of(sr_student_task *task, const sr_student *student) {
    for (size_t i = 0; i < task->group_count; i++)
        if (strcmp(task->groups[i].budget, student->budget) == 0)
            return &task->groups[i];
    return NULL;
}

static srnn_status make_groups(sr_student_task *task) {
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, task->count, sizeof *task->groups));
    task->groups = memory;
    for (size_t i = 0; i < task->count; i++) {
        const sr_student *student = &task->students[i];
        sr_student_group *group = group_of(task, student);
        if (!group) {
            group = &task->groups[task->group_count++];
            *group = (sr_student_group){.budget = student->budget, .keep = student->keep};
            SR_TRY(sr_alloc_zero(&memory, task->count, sizeof *group->ranked));
            group->ranked = memory;
        }
        group->ranked[group->count++] = student;
    }
    for (size_t i = 0; i < task->group_count; i++)
        qsort(task->groups[i].ranked, task->groups[i].count, sizeof *task->groups[i].ranked,
              by_loss);
    return SRNN_OK;
}

/* One colour for each system, whatever its budget. */
static void set_styles(sr_student_task *task) {
    int next = 1;
    for (size_t i = 0; i < task->count; i++) {
        sr_student *s = &task->students[i];
        for (size_t before = 0; before < i && !s->style; before++)
            if (strcmp(task->students[before].system, s->system) == 0)
                s->style = task->students[before].style;
        s->style = s->style ? s->style : next++;
    }
}

static srnn_status read_bytes(sr_student_task *task, const json_t *object) {
    void *memory;
    task->teacher_again = quantity_of(object, "teacher_again");
    task->byte_count = sr_json_count_of(object, "bytes");
    SR_TRY(sr_alloc_zero(&memory, task->byte_count, sizeof *task->bytes));
    task->bytes = memory;
    for (size_t i = 0; i < task->byte_count; i++) {
        const json_t *part = sr_json_element_of(object, "bytes", i);
        const char *name = sr_json_text_of(part, "variant");
        task->bytes[i].share = sr_json_number_of(part, "share");
        task->bytes[i].gain = quantity_of(part, "gain");
        for (size_t k = 0; k < task->count && *name; k++)
            if (strcmp(task->students[k].name, name) == 0)
                task->bytes[i].best = &task->students[k];
    }
    return SRNN_OK;
}

/* The task in study.json; NULL: it is not there. */
static const json_t *plan_of(const sr_records *records, const char *task) {
    for (size_t i = 0; i < sr_json_count_of(records->plan, "tasks"); i++) {
        const json_t *object = sr_json_element_of(records->plan, "tasks", i);
        if (strcmp(sr_json_text_of(object, "name"), task) == 0)
            return object;
    }
    return NULL;
}

bool sr_records_have_students(const sr_records *records) {
    return json_is_array(json_object_get(records->summary, "students"));
}

size_t sr_student_task_count(const sr_records *records) {
    return sr_json_count_of(records->summary, "students");
}

srnn_status sr_student_task_read(sr_student_task *task, const sr_records *records, size_t index) {
    const json_t *object = sr_json_element_of(records->summary, "students", index);
    void *memory;
    *task = (sr_student_task){.task = sr_json_text_of(object, "task")};
    const json_t *plan = plan_of(records, task->task);
    task->title = *sr_json_text_of(plan, "title") ? sr_json_text_of(plan, "title") : task->task;
    task->accuracy = strcmp(sr_json_text_of(plan, "measure"), "accuracy") == 0;
    task->count = sr_json_count_of(object, "students");
    SR_TRY(sr_alloc_zero(&memory, task->count, sizeof *task->students));
    task->students = memory;
    for (size_t i = 0; i < task->count; i++)
        read_student(&task->students[i], sr_json_element_of(object, "students", i));
    set_styles(task);
    SR_TRY(read_bytes(task, object));
    return make_groups(task);
}

void sr_student_task_free(sr_student_task *task) {
    for (size_t i = 0; i < task->group_count; i++)
        free(task->groups[i].ranked);
    free(task->groups);
    free(task->bytes);
    free(task->students);
    *task = (sr_student_task){0};
}
