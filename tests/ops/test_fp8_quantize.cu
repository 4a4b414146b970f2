/* test_fp8_quantize.cu: tensors as numbers of 8 bits and their transposes, as cuBLASLt reads them,
 * on an emulated GPU: products there take the same numbers in bf16, so nothing else looks at these.
 */
#include "ops/cuda/fp8/format.h"
#include "ops/cuda/fp8/quantize.h"

extern "C" {
#include "test.h"
}

#include <string.h>
#include <vector>

static sr_backend *gpu;

template <class T> struct on_device {
    std::vector<T> host;
    T *there = nullptr;

    explicit on_device(size_t count, T fill = {}) : host(count, fill) {
        assert_int_equal(sr_device_allocate(gpu->device, (void **)&there, count * sizeof(T)),
                         SRNN_OK);
        assert_int_equal(sr_device_copy_in(gpu->device, there, host.data(), count * sizeof(T)),
                         SRNN_OK);
    }
    void fetch() {
        assert_int_equal(sr_device_copy_out(gpu->device, host.data(), there,
                                            host.size() * sizeof(T)),
                         SRNN_OK);
    }
    ~on_device() {
        sr_device_release(gpu->device, there);
    }
};

template <class Format>
static void check(int64_t rows, int64_t columns, int64_t stride, sr_fp8_format format) {
    const int64_t padded = sr_fp8_padded(rows);
    on_device<sr_bf16> x((size_t)(rows * stride));
    on_device<uint8_t> along((size_t)(rows * columns), 0xee),
        across((size_t)(columns * padded), 0xee);
    on_device<sr_bf16> rounded((size_t)(rows * columns));
    on_device<float> scale(1);
    on_device<uint32_t> largest(1, 0x7fffffffu);
    for (size_t i = 0; i < x.host.size(); i++)
        x.host[i] = to_bf16((float)((i * 2654435761u >> 7) % 2001) / 100 - 10);
    assert_int_equal(sr_device_copy_in(gpu->device, x.there, x.host.data(),
                                       x.host.size() * sizeof(sr_bf16)),
                     SRNN_OK);
    const sr_fp8_tensor to = {along.there, across.there, rounded.there, scale.there, largest.there};
    assert_int_equal(sr_cuda_fp8_quantize(gpu, &to,
                                          {x.there, rows, columns, stride, SRNN_BF16,
                                           SR_HANDED_NUMBERS, nullptr},
                                          format),
                     SRNN_OK);
    along.fetch();
    across.fetch();
    rounded.fetch();
    scale.fetch();
    for (int64_t r = 0; r < padded; r++)
        for (int64_t c = 0; c < columns; c++) {
            const uint8_t transposed = across.host[(size_t)(c * padded + r)];
            if (r >= rows) {
                assert_int_equal(transposed, 0);
                continue;
            }
            const size_t at = (size_t)(r * columns + c);
            const float number = Format::widen(along.host[at]) * scale.host[0];
            const float given = to_float(x.host[(size_t)(r * stride + c)]);
            assert_int_equal(transposed, along.host[at]);
            assert_true(number == to_float(rounded.host[at]));
            assert_true(fabsf(number - given) <= fabsf(given) / (2 << Format::mantissa) + 1e-4f);
        }
}

static void forms_agree(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {
        {1, 16, 16}, {33, 16, 24}, {128, 64, 64}, {129, 80, 80}, {300, 144, 152}};
    for (const auto &s : shapes) {
        check<sr_e4m3>(s[0], s[1], s[2], SR_FP8_E4M3);
        check<sr_e5m2>(s[0], s[1], s[2], SR_FP8_E5M2);
    }
}

int main() {
    const sr_backend_settings settings = {.device = "cuda",
                                          .threads = 0,
                                          .bf16 = true,
                                          .fp8 = false,
                                          .fp8_head = false,
                                          .fp8_bytes = 0};
    assert_int_equal(sr_backend_create(&gpu, &settings), SRNN_OK);
    const struct CMUnitTest tests[] = {cmocka_unit_test(forms_agree)};
    const int failed = cmocka_run_group_tests(tests, nullptr, nullptr);
    sr_backend_free(gpu);
    return failed;
}
