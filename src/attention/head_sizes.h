/* head_sizes.h: how wide the values of a head may be. */
#ifndef SR_ATTENTION_HEAD_SIZES_H
#define SR_ATTENTION_HEAD_SIZES_H

/* Dv on the CPU: published models of gated linear attention and of the gated delta rule have values of 512. Keys, and both on
 * GPUs, are narrower: SR_HEAD_SIZE_MAX. */
enum { SR_VALUE_SIZE_MAX = 512 };

#endif
