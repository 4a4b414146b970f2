/* info.c: `softrnn info`, what this build and this machine offer. */
#include "base/threads.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/line/libraries.h"
#include "cli/line/options.h"
#include "device/cuda/device.h"
#include "files/origin.h"

#include <stdio.h>

static srnn_status print_devices(void) {
    int count;
    const char *reason;
    SR_TRY(sr_cuda_device_count(&count, &reason));
    printf("GPUs          %d%s%s\n", count, reason ? ": " : "", reason ? reason : "");
    for (int i = 0; i < count; i++) {
        sr_cuda_device device;
        SR_TRY(sr_cuda_device_describe(&device, i));
        printf("GPU %-9d %s, %.1f GiB, %d multiprocessors, compute capability %d.%d\n", i,
               device.name, (double)device.memory_bytes / 0x1p30, device.multiprocessors,
               device.capability_major, device.capability_minor);
    }
    return SRNN_OK;
}

static void print_machine(void) {
    sr_machine machine;
    char memory[SR_BYTES_WORDS];
    sr_machine_look(&machine);
    printf("processor     %s, %d cores, %s\n", machine.processor, machine.processors,
           sr_bytes_words(memory, machine.memory_bytes));
    printf("instructions  %s\n", machine.instructions);
    printf("threads       %d\n", sr_thread_count(0));
}

int command_info(int argc, char **argv) {
    const command_line line = {
        .usage = "softrnn info",
        .purpose = "What this build and this machine offer.",
        .examples = "  softrnn info\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    printf("version       %s\nrevision      %s\nlibraries     ", srnn_version(), sr_revision());
    libraries_print(stdout);
    print_machine();
    return command_report(print_devices());
}
