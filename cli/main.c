/* main.c: setup before, and cleanup after, a command. */
#include "cli/program.h"
#include "files/json.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

/* If the caller has closed stdin, stdout or stderr, the next opened file would take its descriptor:
 * so they are opened to nothing. Output is then lost, which command_finish reports. */
static void settle_streams(void) {
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_RDWR);
}

int main(int argc, char **argv) {
    settle_streams();
    sr_json_watch();
    /* A closed pipe then appears as a failed write, which command_finish reports. */
    signal(SIGPIPE, SIG_IGN);
    /* So does a file size limit (ulimit -f). */
    signal(SIGXFSZ, SIG_IGN);
    return command_finish(program_run(argc > 0 ? argc - 1 : 0, argv + 1));
}
