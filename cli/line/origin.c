/* origin.c: the command that produces a record, quoted for a shell. */
#include "cli/line/origin.h"
#include "files/memory_stream.h"

#include <string.h>

void origin_quote(FILE *out, const char *word) {
    if (*word && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                    "0123456789-_./,:=@+")]) {
        fputs(word, out);
        return;
    }
    putc('\'', out);
    for (; *word; word++)
        *word == '\'' ? fputs("'\\''", out) : putc(*word, out);
    putc('\'', out);
}

srnn_status origin_command(char **text, const char *command, int argc, char **argv) {
    size_t length;
    *text = NULL;
    FILE *out = sr_memory_stream(text, &length);
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a line");
    fputs(command, out);
    for (int i = 0; i < argc; i++) {
        putc(' ', out);
        origin_quote(out, argv[i]);
    }
    return fclose(out) == 0 ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory for a line");
}
