/* test_safetensors.c: arrays round-trip, and hostile files are refused. */
#include "files/file.h"
#include "files/safetensors.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/softrnn-safetensors-XXXXXX";

static int make_path(void **state) {
    (void)state;
    int descriptor = mkstemp(path);
    return descriptor < 0 ? -1 : close(descriptor);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

static const float weights[6] = {1, -2, 3.5f, 0, 1e-30f, 1e30f};
static const double scalar[1] = {-0.1};
static const uint8_t bytes[3] = {0, 1, 255};
static const sr_tensor tensors[] = {
    {.name = "model.weights", .dtype = SR_DTYPE_F32, .rank = 2, .shape = {2, 3}, .data = weights},
    {.name = "a \"quoted\" näme", .dtype = SR_DTYPE_U8, .rank = 1, .shape = {3}, .data = bytes},
    {.name = "scalar", .dtype = SR_DTYPE_F64, .rank = 0, .data = scalar},
    {.name = "empty", .dtype = SR_DTYPE_I16, .rank = 3, .shape = {4, 0, INT64_MAX}, .data = bytes},
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

/* Writes the tensors, beginning at number `first`. */
static void write_file(size_t first) {
    sr_safetensors_writer *writer;
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    assert_int_equal(sr_safetensors_writer_metadata(writer, "format", "wrong"), SRNN_OK);
    assert_int_equal(sr_safetensors_writer_metadata(writer, "format", "pt"), SRNN_OK);
    for (size_t i = 0; i < TENSORS; i++)
        assert_int_equal(sr_safetensors_writer_add(writer, &tensors[(first + i) % TENSORS]),
                         SRNN_OK);
    assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
    sr_safetensors_writer_free(writer);
}

static void round_trip(void **state) {
    (void)state;
    write_file(0);
    sr_safetensors *file;
    assert_int_equal(sr_safetensors_open(&file, path), SRNN_OK);
    assert_int_equal(sr_safetensors_count(file), TENSORS);
    for (size_t i = 0; i < TENSORS; i++) {
        const sr_tensor *found = sr_safetensors_find(file, tensors[i].name);
        assert_non_null(found);
        assert_string_equal(found->name, tensors[i].name);
        assert_int_equal(found->dtype, tensors[i].dtype);
        assert_true(sr_tensor_has_shape(found, tensors[i].rank, tensors[i].shape));
        if (found->bytes > 0)
            assert_memory_equal(found->data, tensors[i].data, found->bytes);
        assert_int_equal((uintptr_t)found->data % sr_dtype_bytes(found->dtype), 0);
    }
    assert_int_equal(sr_safetensors_find(file, "empty")->count, 0);
    assert_string_equal(sr_safetensors_at(file, 0)->name, "scalar");
    assert_string_equal(sr_safetensors_metadata(file, "format"), "pt");
    assert_null(sr_safetensors_metadata(file, "other"));
    const sr_tensor *missing;
    assert_null(sr_safetensors_find(file, "missing"));
    assert_int_equal(sr_safetensors_require(&missing, file, "missing"), SRNN_ERR_FORMAT);
    assert_non_null(strstr(srnn_error_detail(), "'missing'"));
    sr_safetensors_free(file);
}

static void order_of_adding_does_not_matter(void **state) {
    (void)state;
    sr_mapping first, second;
    write_file(0);
    assert_int_equal(sr_mapping_open(&first, path), SRNN_OK);
    write_file(2);
    assert_int_equal(sr_mapping_open(&second, path), SRNN_OK);
    assert_int_equal(first.bytes, second.bytes);
    assert_memory_equal(first.data, second.data, first.bytes);
    sr_mapping_close(&first);
    sr_mapping_close(&second);
}

static void writer_refuses_what_it_could_not_read(void **state) {
    (void)state;
    static const sr_tensor twice[] = {
        {.name = "x", .rank = 0, .data = weights},
        {.name = "x", .rank = 0, .data = weights},
    };
    static const sr_tensor wrong_name[] = {{.name = "__metadata__", .data = weights},
                                           {.name = "\xff", .data = weights}};
    static const sr_tensor wrong_shape[] = {
        {.name = "x", .rank = 1, .shape = {-1}, .data = weights},
        {.name = "x", .rank = 9, .data = weights},
        {.name = "x", .rank = 2, .shape = {INT64_MAX, 3}, .data = weights},
    };
    sr_safetensors_writer *writer;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
        assert_int_equal(sr_safetensors_writer_add(writer, &wrong_shape[i]), SRNN_ERR_ARGUMENT);
        assert_int_equal(sr_safetensors_writer_metadata(writer, "k", "\xff"), SRNN_ERR_ARGUMENT);
        assert_int_equal(sr_safetensors_writer_add(writer, i < 2 ? &wrong_name[i] : &twice[0]),
                         SRNN_OK);
        assert_int_equal(sr_safetensors_writer_add(writer, &twice[1]), SRNN_OK);
        assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_ERR_ARGUMENT);
        sr_safetensors_writer_free(writer);
    }
}

/* ---- hostile files */

/* Parses a copy that ends where its memory ends, so that a sanitizer detects every access past the
 * end. */
static srnn_status parse_copy(const void *data, size_t size) {
    void *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    sr_safetensors *file;
    srnn_status status = sr_safetensors_parse(&file, "hostile", copy, size);
    if (status == SRNN_OK)
        sr_safetensors_free(file);
    else
        assert_null(file);
    free(copy);
    return status;
}

static void every_cut_is_noticed(void **state) {
    (void)state;
    sr_mapping mapping;
    write_file(0);
    assert_int_equal(sr_mapping_open(&mapping, path), SRNN_OK);
    for (size_t size = 0; size < mapping.bytes; size++)
        assert_int_equal(parse_copy(mapping.data, size), SRNN_ERR_FORMAT);
    assert_int_equal(parse_copy(mapping.data, mapping.bytes), SRNN_OK);
    sr_mapping_close(&mapping);
}

static srnn_status parse_header(const char *header, size_t header_bytes, size_t data_bytes) {
    size_t size = 8 + header_bytes + data_bytes;
    uint8_t *whole = calloc(size, 1);
    assert_non_null(whole);
    for (int i = 0; i < 8; i++)
        whole[i] = (uint8_t)((uint64_t)header_bytes >> 8 * i);
    memcpy(whole + 8, header, header_bytes);
    srnn_status status = parse_copy(whole, size);
    free(whole);
    return status;
}

#define TENSOR(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void headers_are_distrusted(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *reason; /* a part of the message; NULL: the file is right */
    } cases[] = {
        {"{}", 0, NULL},
        {"{}   ", 0, NULL},
        {"{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 8, NULL},
        {"{" TENSOR("b", "F32", "[]", "[4,8]") "," TENSOR("a", "I8", "[4]", "[0,4]") "}", 8, NULL},
        {"{" TENSOR("a", "U8", "[0]", "[0,0]") "," TENSOR("b", "U8", "[1]", "[0,1]") "}", 1, NULL},
        {"", 0, "header"},
        {"[]", 0, "not a JSON object"},
        {"7", 0, "header"},
        {"{", 0, "header"},
        {"{}x", 0, "header"},
        {"{\"\xff\":1}", 0, "unable to decode"},
        {"{\"a\\u0000\":1}", 0, "header"},
        {"{\"a\":1}", 0, "'a': is not described by an object"},
        {"{}", 1, "1 bytes at the end belong to no tensor"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ 'k' is not a text"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("a", "F32", "[1]", "[4,8]") "}", 8,
         "duplicate"},
        {"{" TENSOR("a", "F31", "[1]", "[0,4]") "}", 4, "cannot read dtype 'F31'"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "has no dtype"},
        {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "has no dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "has no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no pair of data_offsets"},
        {"{" TENSOR("a", "F32", "1", "[0,4]") "}", 4, "has no shape"},
        {"{" TENSOR("a", "F32", "[-1]", "[0,4]") "}", 4, "whole number"},
        {"{" TENSOR("a", "F32", "[1.0]", "[0,4]") "}", 4, "whole number"},
        {"{" TENSOR("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "whole number"},
        {"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "8 dimensions"},
        {"{" TENSOR("a", "F32", "[4611686018427387905]", "[0,4]") "}", 4, "too large"},
        {"{" TENSOR("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "too large"},
        {"{" TENSOR("a", "U8", "[9223372036854775807,3]", "[0,1]") "}", 1, "too large"},
        {"{" TENSOR("a", "U8", "[9223372036854775808]", "[0,1]") "}", 1, "too big integer"},
        {"{" TENSOR("a", "F32", "[1]", "[0]") "}", 4, "no pair of data_offsets"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4,8]") "}", 4, "no pair of data_offsets"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4.0]") "}", 4, "no pair of data_offsets"},
        {"{" TENSOR("a", "F32", "[1]", "[4,0]") "}", 4, "wrong order"},
        {"{" TENSOR("a", "F32", "[1]", "[-4,0]") "}", 4, "wrong order"},
        {"{" TENSOR("a", "F32", "[1]", "[-9223372036854775808,9223372036854775807]") "}", 4,
         "wrong order"},
        {"{" TENSOR("a", "F32", "[1]", "[1,5]") "}", 4, "beyond the end"},
        {"{" TENSOR("a", "F32", "[1]", "[9223372036854775803,9223372036854775807]") "}", 4,
         "beyond the end"},
        {"{" TENSOR("a", "F32", "[1]", "[0,8]") "}", 8, "span 8 bytes"},
        {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[2,6]") "}", 6,
         "'b': shares bytes"},
        {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[0,4]") "}", 4,
         "'b': shares bytes"},
        {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[1]", "[5,6]") "}", 6,
         "'b': has unused bytes"},
        {"{" TENSOR("a", "U8", "[4]", "[1,5]") "}", 5, "'a': has unused bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        srnn_status status =
            parse_header(cases[i].header, strlen(cases[i].header), cases[i].data_bytes);
        if ((status == SRNN_OK) != !cases[i].reason)
            fail_msg("%s: status %d", cases[i].header, status);
        if (!cases[i].reason)
            continue;
        if (!strstr(srnn_error_detail(), cases[i].reason) ||
            !strstr(srnn_error_detail(), "hostile: "))
            fail_msg("%s: unexpected message '%s'", cases[i].header, srnn_error_detail());
    }
}

static void impossible_lengths_are_refused(void **state) {
    (void)state;
    static const uint64_t lengths[] = {3,         100,        100 * 1024 * 1024 + 1,
                                       INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint8_t whole[10] = {[8] = '{', [9] = '}'};
        for (int byte = 0; byte < 8; byte++)
            whole[byte] = (uint8_t)(lengths[i] >> 8 * byte);
        assert_int_equal(parse_copy(whole, sizeof whole), SRNN_ERR_FORMAT);
    }
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    static const char *const openings[] = {"[", "{\"a\":"};
    for (size_t i = 0; i < 2; i++) {
        size_t step = strlen(openings[i]), levels = 200000;
        char *header = malloc(step * levels);
        assert_non_null(header);
        for (size_t level = 0; level < levels; level++)
            memcpy(header + step * level, openings[i], step);
        assert_int_equal(parse_header(header, step * levels, 0), SRNN_ERR_FORMAT);
        free(header);
    }
}

/* ---- conversions */

static void numbers_convert(void **state) {
    (void)state;
    static const uint8_t f16[] = {0x01, 0x00, 0xff, 0x03, 0x00, 0x3c, 0xff, 0x7b, 0x00,
                                  0xfc, 0x00, 0x80, 0x55, 0xb5, 0x01, 0x7e, 0x00, 0x04};
    static const double f16_values[] = {0x1p-24, 1023 * 0x1p-24, 1,   65504,  (double)-INFINITY,
                                        -0.0,    -0x1.554p-2,    NAN, 0x1p-14};
    static const uint8_t bf16[] = {0x80, 0x3f, 0x01, 0x00, 0xff, 0xff, 0x80, 0xff, 0x49, 0xc0};
    static const double bf16_values[] = {1, 0x1p-133, NAN, (double)-INFINITY, -0x1.92p1};
    static const int64_t wide[] = {INT64_MIN, -1, 7};
    static const double wide_values[] = {-0x1p63, -1, 7};
    static const int8_t narrow[] = {-128, 127};
    static const double narrow_values[] = {-128, 127};
    static const uint8_t truths[] = {0, 1, 2};
    static const double truth_values[] = {0, 1, 1};
    static const struct {
        sr_dtype dtype;
        int64_t count;
        const void *data;
        const double *values;
    } cases[] = {
        {SR_DTYPE_F16, 9, f16, f16_values},       {SR_DTYPE_BF16, 5, bf16, bf16_values},
        {SR_DTYPE_I64, 3, wide, wide_values},     {SR_DTYPE_I8, 2, narrow, narrow_values},
        {SR_DTYPE_BOOL, 3, truths, truth_values}, {SR_DTYPE_F64, 9, f16_values, f16_values},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint8_t odd[1 + 9 * sizeof(double)]; /* the data at an odd address */
        sr_tensor tensor = {.dtype = cases[c].dtype, .rank = 1, .shape = {cases[c].count}};
        assert_true(sr_tensor_measure(&tensor));
        memcpy(odd + 1, cases[c].data, tensor.bytes);
        tensor.data = odd + 1;
        double wide_out[9];
        float out[9];
        sr_tensor_to_double(wide_out, &tensor);
        sr_tensor_to_float(out, &tensor);
        for (size_t i = 0; i < tensor.count; i++) {
            double expected = cases[c].values[i];
            assert_true(isnan(expected) ? isnan(wide_out[i]) : wide_out[i] == expected);
            assert_true(isnan(expected) ? isnan(out[i]) : out[i] == (float)expected);
            assert_true(isnan(expected) || signbit(expected) == signbit(wide_out[i]));
        }
    }
}

static void long_arrays_convert(void **state) {
    (void)state;
    enum { COUNT = 1300 };
    static int16_t numbers[COUNT];
    static float out[COUNT];
    for (int i = 0; i < COUNT; i++)
        numbers[i] = (int16_t)(i - 600);
    sr_tensor tensor = {.dtype = SR_DTYPE_I16, .rank = 1, .shape = {COUNT}, .data = numbers};
    assert_true(sr_tensor_measure(&tensor));
    sr_tensor_to_float(out, &tensor);
    for (int i = 0; i < COUNT; i++)
        assert_true(out[i] == (float)(i - 600));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(order_of_adding_does_not_matter),
        cmocka_unit_test(writer_refuses_what_it_could_not_read),
        cmocka_unit_test(every_cut_is_noticed),
        cmocka_unit_test(headers_are_distrusted),
        cmocka_unit_test(impossible_lengths_are_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(numbers_convert),
        cmocka_unit_test(long_arrays_convert),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
