/* test_small_gpu.c: GPUs whose blocks have 99 KB of shared memory: what needs more is refused by the
 * plan, not by a launch. Builds with CUDA only: the size is changed in the device's facts. */
#include "device/cuda/device.h"
#include "test.h"

#include <stdint.h>
#include <stdio.h>

static srnn_device *gpu;

static void small_shared_memory(void **state) {
    (void)state;
    sr_cuda_device *const facts = (sr_cuda_device *)(uintptr_t)sr_cuda_facts(gpu);
    const size_t usual = facts->shared_bytes;
    srnn_problem problem = {.B = 1, .H = 1, .T = 40, .D = 192, .Dv = 192, .device = gpu};
    srnn_plan *plan;
    facts->shared_bytes = 99 << 10;
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_ERR_UNSUPPORTED);
    problem.kernel = "pairs";
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_ERR_UNSUPPORTED);
    problem.D = problem.Dv = 128;
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
    srnn_plan_free(plan);
    facts->shared_bytes = usual;
}

int main(void) {
    if (srnn_device_open(&gpu, "cuda") != SRNN_OK) {
        fprintf(stderr, "left out: %s\n", srnn_error_detail());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_shared_memory),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    srnn_device_close(gpu);
    return failed;
}
