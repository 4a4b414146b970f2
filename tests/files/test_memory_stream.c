/* test_memory_stream.c: everything written is returned, or closing fails. */
#include "files/memory_stream.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void text_comes_out(void **state) {
    (void)state;
    char *text;
    size_t bytes;
    FILE *out = sr_memory_stream(&text, &bytes);
    assert_non_null(out);
    assert_int_equal(ftell(out), 0);
    for (int i = 0; i < 10000; i++)
        fprintf(out, "%d,", i % 10);
    assert_int_equal(ftell(out), 20000);
    assert_int_equal(fflush(out), 0);
    assert_int_equal(bytes, 20000);
    fputs("end", out);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(bytes, 20003);
    assert_string_equal(text + 19998, "9,end");
    free(text);
    out = sr_memory_stream(&text, &bytes);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "");
    free(text);
}

/* Text that does not fit is lost in the middle; later writes do not hide it. */
static void lost_text_is_reported(void **state) {
    (void)state;
    enum { LARGE = 1 << 26 };
    char *text, *large = malloc(LARGE);
    size_t bytes;
    struct rlimit before, low;
    assert_non_null(large);
    memset(large, 'a', LARGE);
    FILE *out = sr_memory_stream(&text, &bytes);
    assert_non_null(out);
    fputs("begin", out);
    assert_int_equal(fflush(out), 0);
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    low = (struct rlimit){1 << 20, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    fwrite(large, 1, LARGE, out);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    fputs("end", out);
    assert_int_not_equal(fclose(out), 0);
    assert_true(bytes < LARGE && !strstr(text, "end"));
    free(text);
    free(large);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_comes_out),
        cmocka_unit_test(lost_text_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
