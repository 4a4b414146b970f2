/* test_status.c: a failure keeps its status and its detail. */
#include "base/status.h"
#include "test.h"

static srnn_status forwards(void) {
    SR_TRY(SR_FAIL(SRNN_ERR_FORMAT, "line %d", 7));
    return SRNN_OK;
}

static void detail_is_kept(void **state) {
    (void)state;
    assert_int_equal(forwards(), SRNN_ERR_FORMAT);
    assert_string_equal(srnn_error_detail(), "line 7");
    assert_string_equal(srnn_status_name(SRNN_ERR_FORMAT), "malformed file or text");
}

/* An untrusted name from a file is escaped before it reaches a terminal. */
static void detail_is_plain_text(void **state) {
    (void)state;
    assert_int_equal(SR_FAIL(SRNN_ERR_FORMAT, "tensor %s", "a\x1b]0;title\a"), SRNN_ERR_FORMAT);
    assert_string_equal(srnn_error_detail(), "tensor a\\x1b]0;title\\x07");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(detail_is_kept),
                                       cmocka_unit_test(detail_is_plain_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
