/* manual.c: writes the manual pages and completions into a folder: `softrnn_manual FOLDER`. */
#include "cli/manual/manual.h"

#include "softrnn.h"

#include <stdlib.h>

static bool write_file(const char *folder, const char *name, void (*write)(FILE *)) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "w");
    if (!out) {
        perror(path);
        return false;
    }
    write(out);
    const bool lost = ferror(out);
    if (fclose(out) == 0 && !lost)
        return true;
    fprintf(stderr, "%s: could not be written\n", path);
    return false;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: softrnn_manual FOLDER\n");
        return 2;
    }
    const bool done = manual_pages(argv[1], srnn_version()) &&
                      write_file(argv[1], "softrnn.bash", manual_bash) &&
                      write_file(argv[1], "_softrnn", manual_zsh) &&
                      write_file(argv[1], "softrnn.fish", manual_fish);
    return done ? EXIT_SUCCESS : EXIT_FAILURE;
}
