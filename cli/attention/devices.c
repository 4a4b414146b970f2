/* devices.c: `softrnn devices`, the devices this program can use. */
#include "cli/commands.h"
#include "cli/line/options.h"
#include "device/device.h"

#include <stdio.h>

static void print_kernels(const srnn_device *device) {
    const char *name;
    printf("  kernels:");
    for (size_t i = 0; (name = srnn_kernel_name(device, i)); i++)
        printf(" %s", name);
    printf("\n");
}

static srnn_status print_device(const sr_device_kind *kind, int index) {
    char text[SR_DEVICE_TEXT], name[SR_DEVICE_NAME];
    srnn_device *device;
    snprintf(name, sizeof name, kind->numbered ? "%s:%d" : "%s", kind->name, index);
    SR_TRY(kind->describe(text, index));
    printf("%-8s %s\n", name, text);
    if (kind->open(&device, index, 0) != SRNN_OK) {
        printf("  cannot be used: %s\n", srnn_error_detail());
        return SRNN_OK;
    }
    print_kernels(device);
    srnn_device_close(device);
    return SRNN_OK;
}

static srnn_status print_devices(void) {
    const sr_device_kind *kind;
    for (size_t i = 0; (kind = sr_device_kind_at(i)); i++) {
        int count;
        const char *reason;
        SR_TRY(kind->count(&count, &reason));
        if (count == 0)
            printf("%-8s none: %s\n", kind->name, reason);
        for (int index = 0; index < count; index++)
            SR_TRY(print_device(kind, index));
    }
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
