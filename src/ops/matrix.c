/* matrix.c: a matrix in the memory of a device, read by the host. */
#include "ops/matrix.h"

#include "base/bf16.h"
#include "device/device.h"

srnn_status sr_matrix_fetch(float *out, srnn_device *device, sr_matrix m) {
    const size_t count = (size_t)(m.rows * m.columns), bytes = sr_element_bytes(m.dtype);
    /* bf16 numbers are read into the upper half of the buffer, then widened from the first on. */
    char *raw = (char *)out + count * (sizeof *out - bytes);
    SR_TRY(sr_device_copy_out(device, raw, m.data, count * bytes));
    for (size_t i = 0; m.dtype == SRNN_BF16 && i < count; i++) {
        uint16_t number;
        memcpy(&number, raw + i * bytes, bytes);
        out[i] = sr_bf16_float(number);
    }
    return SRNN_OK;
}
