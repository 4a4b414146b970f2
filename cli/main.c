/* main.c: the program's signals and exit code. */
#include "program.h"

#include <signal.h>

int main(int argc, char **argv) {
    /* A closed pipe then shows as a failed write, which command_finish reports. */
    signal(SIGPIPE, SIG_IGN);
    /* So does a file that may not grow further (ulimit -f). */
    signal(SIGXFSZ, SIG_IGN);
    return command_finish(program_run(argc > 0 ? argc - 1 : 0, argv + 1));
}
