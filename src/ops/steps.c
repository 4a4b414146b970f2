/* steps.c: ops that some backends fuse, as a sequence of others. */
#include "ops/backend.h"

srnn_status sr_linear_backward_steps(sr_backend *backend, const sr_linear_backward *of) {
    SR_TRY(backend->linear_backward_input(backend, of->d_x, of->d_y, of->layers, of->count));
    return backend->linear_backward_weight(backend, of->gradients, of->count, of->d_y, of->x);
}

srnn_status sr_norm_linear_steps(sr_backend *backend, sr_matrix y, const sr_norm_linear *of) {
    const sr_matrix normed = sr_matrix_of(of->normed, of->norm.rows, of->norm.C, backend->number);
    SR_TRY(backend->rmsnorm_forward(backend, of->normed, &of->norm));
    SR_TRY(backend->linear_forward(backend, y, (sr_matrix){0}, normed, of->layers, of->count));
    if (of->rope_applied)
        *of->rope_applied = false;
    if (!of->rope || of->rope_applied)
        return SRNN_OK;
    const int64_t rope_columns = (int64_t)of->rope->heads * of->rope->D;
    return backend->rope_forward(backend, sr_matrix_columns(y, 0, rope_columns), of->rope);
}

srnn_status sr_norm_swiglu_steps(sr_backend *backend, sr_matrix out, sr_matrix up,
                                 const sr_norm_linear *of) {
    SR_TRY(sr_norm_linear_steps(backend, up, of));
    return backend->swiglu_forward(backend, out, up);
}
