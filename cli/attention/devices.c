/* devices.c: `softrnn devices`, where this program can compute. */
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/line/options.h"
#include "device/cuda/device.h"
#include "equation/facts.h"

#include <stdio.h>

static void print_kernels(const srnn_device *device) {
    const char *name;
    printf("  kernels:");
    for (size_t i = 0; (name = srnn_kernel_name(device, i)); i++)
        printf(" %s", name);
    printf("\n");
}

static srnn_status print_gpu(int index) {
    sr_cuda_device facts;
    char name[24];
    srnn_device *device;
    snprintf(name, sizeof name, "cuda:%d", index);
    SR_TRY(sr_cuda_device_describe(&facts, index));
    printf("%-8s %s, %.1f GiB, %d multiprocessors, compute capability %d.%d\n", name, facts.name,
           (double)facts.memory_bytes / 0x1p30, facts.multiprocessors, facts.capability_major,
           facts.capability_minor);
    if (srnn_device_open(&device, name) != SRNN_OK) {
        printf("  cannot be used: %s\n", srnn_error_detail());
        return SRNN_OK;
    }
    print_kernels(device);
    srnn_device_close(device);
    return SRNN_OK;
}

static srnn_status print_devices(void) {
    int count;
    const char *reason;
    printf("%-8s %d threads\n", "cpu", sr_thread_count(0));
    print_kernels(NULL);
    SR_TRY(sr_cuda_device_count(&count, &reason));
    if (reason)
        printf("%-8s none: %s\n", "cuda", reason);
    for (int index = 0; index < count; index++)
        SR_TRY(print_gpu(index));
    return SRNN_OK;
}

int command_devices(int argc, char **argv) {
    const command_line line = {
        .usage = "softrnn devices",
        .purpose =
            "Where this program can compute, the names that --device takes, and the attention\n"
            "kernels there, best first; or why there is no GPU.",
        .examples = "  softrnn devices\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    return command_report(print_devices());
}
