/* libraries.h: the versions of the libraries that this program runs with. */
#ifndef SR_CLI_LINE_LIBRARIES_H
#define SR_CLI_LINE_LIBRARIES_H

#include <stdio.h>

/* One line: "jansson 2.14, libyaml 0.2.5, ...". */
void libraries_print(FILE *out);

#endif
