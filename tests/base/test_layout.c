/* test_layout.c: arrays of one block do not overlap; in a build with AddressSanitizer an access
 * past the end of one is caught. */
#include "base/memory.h"
#include "test.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NUMBERS = 13 };

typedef struct arrays {
    float *first, *second;
} arrays;

static arrays place(sr_layout *layout) {
    arrays a;
    a.first = sr_layout_take(layout, NUMBERS, sizeof *a.first);
    a.second = sr_layout_take(layout, NUMBERS, sizeof *a.second);
    return a;
}

static void *block_for(bool apart) {
    sr_layout measured = {.apart = apart};
    void *block;
    place(&measured);
    assert_int_equal(sr_alloc(&block, measured.used, 1), SRNN_OK);
    return block;
}

static void arrays_are_adjacent(void **state) {
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        char *block = block_for(apart);
        sr_layout layout = {.base = block, .apart = apart};
        const arrays a = place(&layout);
        assert_ptr_equal(a.first, block);
        assert_true(a.second >= a.first + NUMBERS);
        assert_int_equal((uintptr_t)a.second % 64, 0);
        for (int i = 0; i < NUMBERS; i++)
            a.first[i] = a.second[i] = 1;
        free(block);
    }
}

#ifdef SOFTRNN_SANITIZED
/* Writes number `index` of the first array in a child process; true if that crashed. */
static bool is_caught(int index) {
    const pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);
        sr_layout layout = {.base = block_for(true), .apart = true};
        ((volatile float *)place(&layout).first)[index] = 1;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void steps_beyond_are_caught(void **state) {
    (void)state;
    assert_false(is_caught(NUMBERS - 1));
    assert_true(is_caught(NUMBERS));
    assert_true(is_caught(16)); /* past what alignment leaves */
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_are_adjacent),
#ifdef SOFTRNN_SANITIZED
        cmocka_unit_test(steps_beyond_are_caught),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
