/* attention_kernels.cu: which attention kernels a GPU has. */
#include "device/cuda/attention_kernels.h"

#include "attention/attention.h"
#include "device/cuda/attention_chunked.h"
#include "device/cuda/attention_generic.h"
#include "device/cuda/attention_hopper.h"
#include "device/cuda/attention_mma.h"
#include "device/cuda/attention_states.h"

const sr_attention_kernel *const *sr_cuda_attention_kernels(void) {
    static const sr_attention_kernel *const kernels[] = {
        &sr_cuda_attention_hopper, &sr_cuda_attention_mma, &sr_cuda_attention_generic,
        &sr_cuda_attention_chunked, nullptr};
    return kernels;
}

const sr_state_kernel *sr_cuda_state_kernel(const srnn_problem *problem, bool fixed) {
    if (sr_beyond_plain(&problem->attention))
        return nullptr;
    switch (problem->dtype) {
    case SRNN_F32:
        return fixed ? &sr_cuda_state_fixed_f32 : &sr_cuda_state_kept_f32;
    case SRNN_BF16:
        return fixed ? &sr_cuda_state_fixed_bf16 : &sr_cuda_state_kept_bf16;
    case SRNN_F64:
        break;
    }
    return nullptr;
}

/* H200, linear_elu, D = 64, bf16, forward, B = 9, H = 16, T = 4096: a head takes 0.176 us a token, 396 heads at a time; the
 * parallel form 2.46e-7 us a pair of positions of a head. This is where both are equal; forward and with backward it
 * chooses right at each of the lengths that were timed, 256 to 4096 with 36864 tokens of 16 heads, and 65536 of 8. */
bool sr_cuda_chunked_pays(const srnn_problem *p) {
    const double together = 396, tokens = 717000; /* of all heads that are walked at a time */
    const double heads = (double)p->B * p->H;
    return (heads < together ? heads : together) * p->T > tokens;
}
