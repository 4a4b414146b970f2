/* test_cpu_level.c: levels of instruction sets are chosen and requested. */
#include "base/cpu_level.h"
#include "softrnn.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static void levels_do_not_pass_the_machine(void **state) {
    (void)state;
    const sr_cpu_level best = sr_cpu_level_machine();
    for (int level = SR_CPU_BASE; level <= SR_CPU_AMX; level++) {
        sr_cpu_level_use((sr_cpu_level)level);
        assert_int_equal(sr_cpu_level_used(), level < (int)best ? level : (int)best);
    }
}

/* A word that is not a level is refused when a plan is created. */
static void wrong_words_are_refused(void **state) {
    (void)state;
    const srnn_problem problem = {.B = 1, .H = 1, .T = 1, .D = 4};
    srnn_plan *plan;
    setenv("SOFTRNN_CPU", "avx2", 1);
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_ERR_ARGUMENT);
    assert_non_null(strstr(srnn_error_detail(), "base, v3, v4, bf16 and amx"));
    setenv("SOFTRNN_CPU", "v3", 1);
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
    srnn_plan_free(plan);
    unsetenv("SOFTRNN_CPU");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_do_not_pass_the_machine),
        cmocka_unit_test(wrong_words_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
