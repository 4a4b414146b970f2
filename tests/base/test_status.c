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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(detail_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
