/* origin.c: where and with what a record was made. */
#include "files/origin.h"

#include "base/cpu_level.h"
#include "files/json.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

const char *sr_revision(void) {
    return SOFTRNN_REVISION;
}

static void processor_name(char *name, size_t size) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[512];
    snprintf(name, size, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (file)
        fclose(file);
}

/* The level of the x86-64 psABI that kernels are chosen for; elsewhere the machine's name. */
static const char *instruction_set(const char *machine) {
#if defined(__x86_64__)
    static const char *const words[] = {"x86-64-v2", "x86-64-v3", "x86-64-v4"};
    (void)machine;
    return words[sr_cpu_level_used()];
#else
    return machine;
#endif
}

void sr_machine_look(sr_machine *machine) {
    struct utsname system;
    const bool known = uname(&system) == 0;
    snprintf(machine->system, sizeof machine->system, "%s", known ? system.sysname : "unknown");
    snprintf(machine->machine, sizeof machine->machine, "%s", known ? system.machine : "unknown");
    processor_name(machine->processor, sizeof machine->processor);
    snprintf(machine->instructions, sizeof machine->instructions, "%s",
             instruction_set(machine->machine));
    machine->processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    machine->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

json_t *sr_origin_json(const char *command) {
    sr_machine machine;
    sr_machine_look(&machine);
    return json_pack("{s:o, s:s, s:s, s:{s:s, s:s, s:o, s:s, s:i, s:f}}", "command",
                     sr_json_plain_text(command), "softrnn", srnn_version(), "revision",
                     sr_revision(), "machine", "system", machine.system, "machine", machine.machine,
                     "processor", sr_json_plain_text(machine.processor), "instructions",
                     machine.instructions, "processors", machine.processors, "memory_bytes",
                     machine.memory_bytes);
}
