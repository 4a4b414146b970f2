/* main.c: the table of commands. */
#include "command.h"

#include <stdio.h>
#include <string.h>

static const command commands[] = {
    {"help", "this list", NULL},
};

int main(int argc, char **argv) {
    (void)argc;
    (void)argv;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        printf("%s\n", commands[i].name);
    return EXIT_OK;
}
