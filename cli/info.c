/* info.c: `softrnn info`, what this build and this machine offer. */
#include "base/threads.h"
#include "commands.h"
#include "options.h"

#include <stdio.h>

int command_info(int argc, char **argv) {
    const command_line line = {
        .usage = "softrnn info",
        .purpose = "What this build and this machine offer.",
        .examples = "  softrnn info\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    printf("version  %s\n", srnn_version());
    printf("threads  %d\n", sr_thread_count(0));
    return EXIT_OK;
}
