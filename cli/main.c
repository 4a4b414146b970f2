/* main.c: what the program does before and after its command. */
#include "cli/program.h"
#include "files/json.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

/* Where the caller has closed input, output or messages, the next file to be opened would take
 * their place: so they lead nowhere. What is written to the output then is lost, as command_finish
 * tells. */
static void settle_streams(void) {
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_RDWR);
}

int main(int argc, char **argv) {
    settle_streams();
    sr_json_watch();
    /* A closed pipe then shows as a failed write, which command_finish reports. */
    signal(SIGPIPE, SIG_IGN);
    /* So does a file that may not grow further (ulimit -f). */
    signal(SIGXFSZ, SIG_IGN);
    return command_finish(program_run(argc > 0 ? argc - 1 : 0, argv + 1));
}
