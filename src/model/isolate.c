/* isolate.c: layers of a pass whose state is zeroed before every token. */
#include "base/memory.h"
#include "model/pass_parts.h"

#include <stdlib.h>

static srnn_status check_isolated(const sr_pass *pass, const bool *layers) {
    const int L = sr_model_config_attention_layers(&pass->model->config);
    if (pass->setup.train)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a pass with gradients keeps the states of its layers");
    for (int a = 0; a < L; a++)
        for (int b = 0; b < L; b++)
            if (layers[a] && !layers[b] && pass->kinds.of_layer[a] == pass->kinds.of_layer[b])
                return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                               "layers %d and %d have the same attention: one of them cannot lose "
                               "its state alone",
                               a, b);
    return SRNN_OK;
}

/* Every token is the first of its document. */
static srnn_status take_starts(sr_pass *pass) {
    void *memory;
    const size_t bytes = (size_t)pass->rows * sizeof *pass->starts;
    if (pass->starts)
        return SRNN_OK;
    SR_TRY(sr_device_allocate(pass->backend->device, &memory, bytes));
    pass->memory[pass->memories++] = memory;
    pass->bytes += bytes;
    pass->starts = memory;
    return sr_device_zero(pass->backend->device, memory, bytes);
}

srnn_status sr_pass_isolate(sr_pass *pass, const bool *layers) {
    void *memory;
    SR_TRY(check_isolated(pass, layers));
    SR_TRY(take_starts(pass));
    SR_TRY(sr_alloc(&memory, (size_t)pass->rows + 1, sizeof(int64_t)));
    int64_t *offsets = memory;
    for (int64_t row = 0; row <= pass->rows; row++)
        offsets[row] = row;
    const sr_documents each = {.offsets = offsets, .count = pass->rows};
    srnn_status status = SRNN_OK;
    for (int layer = 0; layer < sr_model_config_attention_layers(&pass->model->config); layer++)
        if (layers[layer] && status == SRNN_OK) {
            status = sr_mixer_documents(pass->kinds.of_layer[layer], &each);
            sr_mixer_place(pass->kinds.of_layer[layer], pass->starts);
        }
    free(offsets);
    return status;
}
