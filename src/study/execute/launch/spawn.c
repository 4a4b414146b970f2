/* spawn.c: runs other programs and captures their output. */
#include "study/execute/launch/spawn.h"

#include "files/memory_stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOT_THERE = 127 };

static srnn_status read_all(char **output, int descriptor) {
    char block[4096];
    size_t length;
    ssize_t got;
    FILE *text = sr_memory_stream(output, &length);
    if (!text)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for what a program says");
    while ((got = read(descriptor, block, sizeof block)) > 0 || (got < 0 && errno == EINTR))
        if (got > 0)
            fwrite(block, 1, (size_t)got, text);
    return fclose(text) == 0 ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory for what it says");
}

static srnn_status wait_for(pid_t process) {
    int status;
    while (waitpid(process, &status, 0) < 0)
        if (errno != EINTR)
            return SR_FAIL(SRNN_ERR_IO, "cannot wait for a program: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_IO, "%s",
                   WIFEXITED(status) && WEXITSTATUS(status) == NOT_THERE ? "is not on the path"
                                                                         : "failed");
}

static void become(char *const *arguments, const int pipe_ends[2]) {
    dup2(pipe_ends[1], STDOUT_FILENO);
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    execvp(arguments[0], arguments);
    _exit(NOT_THERE);
}

srnn_status sr_spawn_read(char **output, char *const *arguments) {
    int ends[2];
    *output = NULL;
    if (pipe(ends) != 0)
        return SR_FAIL(SRNN_ERR_IO, "cannot start %s: %s", arguments[0], strerror(errno));
    const pid_t process = fork();
    if (process == 0)
        become(arguments, ends);
    close(ends[1]);
    srnn_status status =
        process < 0 ? SR_FAIL(SRNN_ERR_IO, "cannot start %s: %s", arguments[0], strerror(errno))
                    : read_all(output, ends[0]);
    close(ends[0]);
    if (process > 0 && wait_for(process) != SRNN_OK && status == SRNN_OK) {
        char why[64];
        snprintf(why, sizeof why, "%s", srnn_error_detail());
        status = SR_FAIL(SRNN_ERR_IO, "%s %s: %.300s", arguments[0], why, *output ? *output : "");
    }
    return status;
}
