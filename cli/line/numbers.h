/* numbers.h: the options of commands that run a model: device, threads, precision. */
#ifndef SR_CLI_LINE_NUMBERS_H
#define SR_CLI_LINE_NUMBERS_H

#include "cli/line/options.h"
#include "ops/backend.h"

/* --device, --threads, --precision, in a table of options. */
/* clang-format off */
#define OPTIONS_NUMBERS(settings) \
    OPTION_DEVICE(&(settings)->device), \
    OPTION_INTEGER("--threads", &(settings)->threads, 0, 4096, "N", "of the host; 0: all cores"), \
    OPTION_FLAG("--bf16", &(settings)->bf16, \
                "products in bf16 with sums in float: faster, less exact")
/* clang-format on */

#endif
