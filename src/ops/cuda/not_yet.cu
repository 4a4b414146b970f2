/* not_yet.cu: ops that models of some families need and the GPU does not have yet. */
#include "ops/cuda/backend.h"

static srnn_status not_yet(const char *what) {
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s on the GPU not yet: use --device cpu", what);
}

srnn_status sr_cuda_activation_forward(sr_backend *, sr_matrix, sr_matrix,
                                       const sr_mlp_activation *) {
    return not_yet("MLPs other than SwiGLU and the exact GELU");
}

srnn_status sr_cuda_activation_backward(sr_backend *, sr_matrix, float *const *, sr_matrix,
                                        sr_matrix, const sr_mlp_activation *) {
    return not_yet("MLPs other than SwiGLU and the exact GELU");
}

srnn_status sr_cuda_norm_forward(sr_backend *, sr_matrix, const sr_norm *) {
    return not_yet("norms of q and k, norms after a mixer, LayerNorm and weights stored as w - 1");
}

srnn_status sr_cuda_norm_backward(sr_backend *, const sr_norm_gradient *, sr_matrix,
                                  const sr_norm *) {
    return not_yet("norms of q and k, norms after a mixer, LayerNorm and weights stored as w - 1");
}

srnn_status sr_cuda_scale(sr_backend *, sr_matrix, float) {
    return not_yet("multipliers of embeddings, q and logits");
}

srnn_status sr_cuda_add_scaled(sr_backend *, sr_matrix, sr_matrix, sr_matrix, float) {
    return not_yet("norms after a mixer and multipliers of the residual");
}

srnn_status sr_cuda_cap_forward(sr_backend *, sr_matrix, float) {
    return not_yet("capped logits");
}

srnn_status sr_cuda_cap_backward(sr_backend *, sr_matrix, sr_matrix, float) {
    return not_yet("capped logits");
}
