/* make_study.c: writes a made study into a folder: make_study FOLDER [hostile]. */
#include "made_study.h"

#include <stdio.h>
#include <sys/stat.h>

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: make_study FOLDER [hostile]\n");
        return 2;
    }
    mkdir(argv[1], 0777);
    return made_study_write(argv[1], argc > 2) == 0 ? 0 : 1;
}
