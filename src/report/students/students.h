/* students.h (private): the sections of a study of students: what a trained model loses as an
 * RNN. */
#ifndef SR_REPORT_STUDENTS_STUDENTS_H
#define SR_REPORT_STUDENTS_STUDENTS_H

#include "report/page/page.h"
#include "report/records/records.h"

/* A mean over seeds with its interval; NaN: there is none. */
typedef struct sr_quantity {
    double mean, low, high;
} sr_quantity;

/* Why a quantity can be judged, or not. */
typedef enum sr_sign {
    SR_SIGN_NONE = 0, /* there is no number */
    SR_SIGN_TOO_FEW,  /* there is no interval */
    SR_SIGN_UNCLEAR,  /* the interval contains 0 */
    SR_SIGN_POSITIVE,
    SR_SIGN_NEGATIVE,
} sr_sign;

sr_sign sr_sign_of(const sr_quantity *quantity);

typedef struct sr_student {
    const char *name, *system, *budget, *keep; /* of the records */
    int style;                                 /* of the system, in charts */
    double state_bytes, cache_bytes, finished;
    sr_quantity swap_loss, teacher_loss, student_loss, kl;
    sr_quantity recovered;     /* (L_swap - L) / (L_swap - L_teacher) */
    sr_quantity above_teacher; /* L - L_teacher */
    sr_quantity behind;        /* L minus that of the best student of the budget */
    sr_quantity zeroed;        /* rise of L without the state */
    sr_quantity from_scratch;  /* L of the same from scratch, minus L */
    sr_quantity teacher_again; /* L minus that of the teacher trained again */
    sr_quantity window;        /* L of the student that is a window alone, minus L */
    sr_quantity teacher_accuracy, swap_accuracy, accuracy;
    const json_t *object;
} sr_student;

/* The students of a task with one budget. */
typedef struct sr_student_group {
    const char *budget, *keep;
    const sr_student **ranked; /* (count), owned: lowest loss first, those without one last */
    size_t count;
} sr_student_group;

/* What a share of the bytes of the teacher's cache buys. */
typedef struct sr_student_bytes {
    double share;
    const sr_student *best; /* with the lowest loss of those that take at most that; NULL: none */
    sr_quantity gain;       /* on the best of the share before */
} sr_student_bytes;

typedef struct sr_student_task {
    const char *task, *title;
    bool accuracy;        /* it is ranked by accuracy */
    sr_student *students; /* (count), owned */
    size_t count;
    sr_student_group *groups; /* (group_count), owned */
    size_t group_count;
    sr_student_bytes *bytes; /* (byte_count), owned: from the least to the most */
    size_t byte_count;
    sr_quantity teacher_again; /* L of the teacher trained again, minus L_teacher */
} sr_student_task;

/* True if the study has a teacher. */
bool sr_records_have_students(const sr_records *records);

/* Reads task `index` of summary.json's students; free with sr_student_task_free in any case. */
srnn_status sr_student_task_read(sr_student_task *task, const sr_records *records, size_t index);
void sr_student_task_free(sr_student_task *task);
size_t sr_student_task_count(const sr_records *records);

/* The question of the study, and the answer in sentences. */
srnn_status sr_students_question(sr_page *page, const sr_records *records);
void sr_students_verdict(FILE *out, const sr_student_task *task);

/* Figures and tables of a task; `stem` begins their names. */
srnn_status sr_students_recovered(sr_page *page, const sr_student_task *task, const char *stem);
srnn_status sr_students_memory(sr_page *page, const sr_student_task *task, const char *stem);
srnn_status sr_students_positions(sr_page *page, const sr_student_task *task, const char *stem);
srnn_status sr_students_layers(sr_page *page, const sr_student_task *task, const char *stem);
/* What each layer of the teacher costs; nothing if the study's folder has no layers/TASK. */
srnn_status sr_students_ranking(sr_page *page, const sr_records *records,
                                const sr_student_task *task, const char *stem);
srnn_status sr_students_controls(sr_page *page, const sr_student_task *task, const char *stem);

#endif
