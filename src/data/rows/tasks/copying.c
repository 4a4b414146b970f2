/* copying.c: copying and induction tasks. */
#include "data/rows/tasks/task.h"

enum { COUNT = SR_TASK_VOCAB + 1 };
enum { SHORTEST = COUNT };

/* ---- induction: random symbols; a mark occurs twice, the second time at the end */

static srnn_status induction_prepare(sr_synthetic *self) {
    int vocab = sr_task_setting(self, SR_TASK_VOCAB);
    return sr_task_set_size(self, sr_task_setting(self, SR_TASK_LENGTH), vocab, vocab - 1);
}

static srnn_status induction_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                  int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int32_t mark = source->vocab - 1;
    int last = source->T - 1, first = sr_draw_below(&from, source->T - 2);
    for (int t = 0; t < last; t++)
        row->ids[t] = sr_draw_below(&from, mark);
    row->ids[first] = mark;
    row->ids[last] = mark;
    row->targets[last] = row->ids[first + 1];
    return SRNN_OK;
}

/* ---- copy: selective copying, Gu and Dao, "Mamba", 2023, section 4.1.1 */

static srnn_status copy_prepare(sr_synthetic *self) {
    int count = sr_task_setting(self, COUNT), length = sr_task_setting(self, SR_TASK_LENGTH);
    int vocab = sr_task_setting(self, SR_TASK_VOCAB);
    if (length < 2 * count)
        return SR_FAIL(SRNN_ERR_FORMAT, "copy: %d tokens need length=%d or more", count, 2 * count);
    return sr_task_set_size(self, length, vocab, vocab - 2);
}

static srnn_status copy_fill(const sr_source *source, sr_token_row *row, sr_split split,
                             int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int32_t blank = source->vocab - 2, mark = source->vocab - 1;
    int count = sr_task_setting(self, COUNT), body = source->T - count, placed = 0;
    for (int t = 0; t < body; t++) {
        /* Selection sampling: every choice of places is equally likely. */
        bool chosen = sr_draw_below(&from, body - t) < count - placed;
        row->ids[t] = chosen ? sr_draw_below(&from, blank) : blank;
        if (chosen)
            row->targets[body + placed++] = row->ids[t];
    }
    for (int t = body; t < source->T; t++)
        row->ids[t] = mark;
    return SRNN_OK;
}

/* ---- copying: a string of any length up to half the row, a mark, and the string again: Jelassi et
 * al., "Repeat after me", 2024, section 3 */

static srnn_status copying_prepare(sr_synthetic *self) {
    int shortest = sr_task_setting(self, SHORTEST), length = sr_task_setting(self, SR_TASK_LENGTH);
    int vocab = sr_task_setting(self, SR_TASK_VOCAB);
    if (length < 2 * shortest)
        return SR_FAIL(SRNN_ERR_FORMAT, "copying: shortest=%d needs length=%d or more", shortest,
                       2 * shortest);
    return sr_task_set_size(self, length, vocab, vocab - 1);
}

static srnn_status copying_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int32_t mark = source->vocab - 1;
    int shortest = sr_task_setting(self, SHORTEST);
    int count = shortest + sr_draw_below(&from, source->T / 2 - shortest + 1);
    sr_task_pad(row, count, source->T, mark);
    for (int t = 0; t < count; t++) {
        row->ids[t] = sr_draw_below(&from, mark);
        row->targets[count + t] = row->ids[t];
        if (t + 1 < count)
            row->ids[count + 1 + t] = row->ids[t];
    }
    return SRNN_OK;
}

const sr_synthetic_task sr_tasks_copying[] = {
    {{"induction", "random symbols; what followed the mark the first time?"},
     {{"length", 48, 3, SR_TASK_MOST_LENGTH, false}, {"vocab", 16, 2, SR_TASK_MOST_VOCAB, false}},
     induction_prepare,
     induction_fill},
    {{"copy", "symbols among blanks, to be repeated in their order"},
     {{"length", 48, 2, SR_TASK_MOST_LENGTH, false},
      {"vocab", 16, 3, SR_TASK_MOST_VOCAB, false},
      {"tokens", 8, 1, SR_TASK_MOST_LENGTH, false}},
     copy_prepare,
     copy_fill},
    {{"copying", "a string of `shortest` to length/2 symbols, a mark, and the string again"},
     {{"length", 48, 2, SR_TASK_MOST_LENGTH, false},
      {"vocab", 27, 2, SR_TASK_MOST_VOCAB, false},
      {"shortest", 1, 1, SR_TASK_MOST_LENGTH, false}},
     copying_prepare,
     copying_fill},
    {{NULL, NULL}, {{NULL, 0, 0, 0, false}}, NULL, NULL},
};
