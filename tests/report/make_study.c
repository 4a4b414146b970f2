/* make_study.c: writes a made study into a folder: make_study FOLDER
 * [hostile|one-seed|broken|systems]. */
#include "made_study.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *const kinds[] = {
    [MADE_PLAIN] = "plain",   [MADE_HOSTILE] = "hostile", [MADE_ONE_SEED] = "one-seed",
    [MADE_BROKEN] = "broken", [MADE_SYSTEMS] = "systems",
};

int main(int argc, char **argv) {
    const char *wanted = argc > 2 ? argv[2] : "plain";
    for (size_t i = 0; argc > 1 && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i], wanted) == 0) {
            mkdir(argv[1], 0777);
            return made_study_write(argv[1], (made_kind)i) == 0 ? 0 : 1;
        }
    fprintf(stderr, "usage: make_study FOLDER [plain|hostile|one-seed|broken|systems]\n");
    return 2;
}
