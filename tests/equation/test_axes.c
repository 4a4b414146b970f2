/* test_axes.c: the tables of axes and operands are complete. */
#include "equation/axes.h"
#include "equation/facts.h"
#include "equation/operands.h"
#include "test.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Marks the bytes of a field. */
static void mark(unsigned char *bytes, size_t offset, size_t size) {
    memset(bytes + offset, 0, size);
}

#if defined(__has_builtin) && __has_builtin(__builtin_clear_padding)
static size_t size_of(sr_axis_kind kind) {
    switch (kind) {
    case SR_AXIS_WORD:
    case SR_AXIS_COUNT:
        return sizeof(int);
    case SR_AXIS_SWITCH:
        return sizeof(bool);
    case SR_AXIS_NUMBER:
        return sizeof(double);
    }
    return 0;
}
#endif

/* Every byte of the descriptor belongs to a row or is padding. */
static void every_field_has_a_row(void **state) {
    (void)state;
#if defined(__has_builtin) && __has_builtin(__builtin_clear_padding)
    srnn_attention a;
    unsigned char bytes[sizeof a];
    const sr_axis *axis;
    memset(&a, 0xff, sizeof a);
    __builtin_clear_padding(&a);
    memcpy(bytes, &a, sizeof a);
    for (size_t i = 0; (axis = sr_axis_at(i)); i++) {
        mark(bytes, axis->offset, size_of(axis->kind));
        if (axis->counted)
            mark(bytes, axis->count_offset, sizeof(int));
    }
    for (size_t i = 0; i < sizeof a; i++)
        if (bytes[i])
            fail_msg("byte %zu of srnn_attention has no row in src/equation/axes.c", i);
#else
    skip();
#endif
}

/* True if the text contains the whole word. */
static bool mentions(const char *text, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at++)
        if ((at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_')) &&
            !(isalnum((unsigned char)at[length]) || at[length] == '_'))
            return true;
    return false;
}

/* Every value of every axis can be written, read back, and found in the documents. */
static void every_word_is_documented(void **state) {
    (void)state;
    static char text[65536];
    FILE *file = fopen(SOFTRNN_TEST_INPUTS "/../../docs/VARIANTS.md", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    const sr_axis *axis;
    for (size_t i = 0; (axis = sr_axis_at(i)); i++) {
        char row[64];
        snprintf(row, sizeof row, "\n| %s |", axis->name);
        const char *found = strstr(text, row);
        if (!found && !strstr(text, axis->name))
            fail_msg("docs/VARIANTS.md does not name the axis %s", axis->name);
        for (size_t word = 0; word < sr_axis_words(axis); word++)
            if (!mentions(found ? found : text, axis->words[word]))
                fail_msg("docs/VARIANTS.md does not say what %s=%s is", axis->name,
                         axis->words[word]);
    }
}

static void check_refused(const sr_axis *axis, double value) {
    srnn_attention attention = {0};
    sr_axis_set(axis, &attention, value);
    if (sr_attention_check_values(&attention) == SRNN_OK)
        fail_msg("src/equation/facts.c accepts %s=%g", axis->name, value);
}

/* Values that no axis takes are refused, and numbers after words too. */
static void every_axis_has_a_range(void **state) {
    (void)state;
    const sr_axis *axis;
    for (size_t i = 0; (axis = sr_axis_at(i)); i++) {
        if (axis->kind == SR_AXIS_WORD)
            check_refused(axis, (double)sr_axis_words(axis));
        if (axis->kind == SR_AXIS_COUNT) {
            check_refused(axis, -1);
            check_refused(axis, INT_MAX);
        }
        if (axis->kind == SR_AXIS_NUMBER) {
            check_refused(axis, NAN);
            check_refused(axis, -INFINITY);
        }
        if (axis->counted) {
            srnn_attention attention = {0};
            sr_axis_set_count(axis, &attention, -1);
            assert_int_not_equal(sr_attention_check_values(&attention), SRNN_OK);
        }
    }
}

static void every_operand_has_a_row(void **state) {
    (void)state;
    srnn_operands operands;
    unsigned char bytes[sizeof operands];
    memset(bytes, 0xff, sizeof bytes);
    for (int which = 0; which < SR_OPERANDS; which++)
        mark(bytes, sr_operand_at((sr_operand)which)->offset,
             sr_operand_is_tensor((sr_operand)which) ? sizeof(srnn_tensor) : sizeof(void *));
    for (size_t i = 0; i < sizeof bytes; i++)
        if (bytes[i])
            fail_msg("byte %zu of srnn_operands has no row in src/equation/operands.c", i);
}

/* Learned operands have a name in files. */
static void learned_operands_have_files(void **state) {
    (void)state;
    for (int which = 0; which < SR_OPERANDS; which++) {
        const sr_operand_row *row = sr_operand_at((sr_operand)which);
        if (row->origin != SR_ORIGIN_INPUTS && !row->file)
            fail_msg("the operand %s has no name for files", row->name);
        if (row->origin == SR_ORIGIN_LEARNED)
            assert_true(row->file_rank == 1 || row->file_rank == 2 || row->file_rank == 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_has_a_row),       cmocka_unit_test(every_word_is_documented),
        cmocka_unit_test(every_axis_has_a_range),      cmocka_unit_test(every_operand_has_a_row),
        cmocka_unit_test(learned_operands_have_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
