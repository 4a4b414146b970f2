/* info.c: `softrnn info`, the features of this build and this machine. */
#include "base/units.h"
#include "cli/commands.h"
#include "cli/line/libraries.h"
#include "cli/line/options.h"
#include "device/device.h"
#include "files/origin.h"

#include <stdio.h>

static srnn_status print_kind(const sr_device_kind *kind) {
    int count;
    const char *reason;
    SR_TRY(kind->count(&count, &reason));
    if (count == 0)
        printf("%-13s none: %s\n", kind->name, reason);
    for (int i = 0; i < count; i++) {
        char text[SR_DEVICE_TEXT], name[SR_DEVICE_NAME];
        SR_TRY(kind->describe(text, i));
        snprintf(name, sizeof name, kind->numbered ? "%s:%d" : "%s", kind->name, i);
        printf("%-13s %s\n", name, text);
    }
    return SRNN_OK;
}

static srnn_status print_devices(void) {
    const sr_device_kind *kind;
    for (size_t i = 0; (kind = sr_device_kind_at(i)); i++)
        SR_TRY(print_kind(kind));
    return SRNN_OK;
}

static void print_machine(void) {
    sr_machine machine;
    char memory[SR_BYTES_WORDS];
    sr_machine_look(&machine);
    printf("processor     %s, %d cores, %s\n", machine.processor, machine.processors,
           sr_bytes_words(memory, machine.memory_bytes));
    printf("instructions  %s\n", machine.instructions);
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
