/* support.h: which kernels compute which variants, from the kernels' declarations. */
#ifndef SR_CLI_ATTENTION_SUPPORT_H
#define SR_CLI_ATTENTION_SUPPORT_H

#include "softrnn.h"

/* Prints a Markdown table for each available device and each of its number types: a line per
 * variant with the kernel of each form and the kind of state. row_at: false past the last
 * variant. */
srnn_status support_print(bool (*row_at)(srnn_variant *row, size_t index), int D);

#endif
