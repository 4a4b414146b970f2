/* words.h (private): a variant of attention in words, for readers who have not read the paper. */
#ifndef SR_REPORT_DRAW_WORDS_H
#define SR_REPORT_DRAW_WORDS_H

#include "softrnn.h"

#include <stdio.h>

/* "no denominator; the output scaled to length one": what the variant changes in softmax attention,
 * ignoring a bound on q.k; plain text without a full stop. */
void sr_words_write(FILE *out, const srnn_attention *attention);

#endif
