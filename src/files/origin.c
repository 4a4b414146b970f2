/* origin.c: provenance of a record: command, version, machine. */
#include "files/origin.h"

#include "base/cpu_level.h"
#include "files/json.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

const char *sr_revision(void) {
    return SOFTRNN_REVISION;
}

/* Reads without a stream, so that a failed allocation does not change the record. */
static void processor_name(char *name, size_t size) {
    char text[4096];
    const int file = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    const ssize_t count = file < 0 ? 0 : read(file, text, sizeof text - 1);
    text[count > 0 ? count : 0] = '\0';
    if (file >= 0)
        close(file);
    const char *line = strstr(text, "model name"), *colon = line ? strchr(line, ':') : NULL;
    const char *begin = colon ? colon + 1 + strspn(colon + 1, " ") : "unknown";
    snprintf(name, size, "%.*s", (int)strcspn(begin, "\n"), begin);
}

/* The level of the x86-64 psABI that kernels are selected for, and what multiplies bf16; on other
 * machines the machine's name. */
static const char *instruction_set(const char *machine) {
#if defined(__x86_64__)
    static const char *const words[] = {"x86-64-v2", "x86-64-v3", "x86-64-v4",
                                        "x86-64-v4 avx512_bf16", "x86-64-v4 amx_bf16"};
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
