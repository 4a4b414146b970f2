/* test_input.c: compressed files are decompressed; broken ones are refused. */
#include "data/text/input.h"
#include "test.h"

#include <lzma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { TEXT_BYTES = 700001, MOST = 1 << 20 };

static char folder[] = "/tmp/softrnn-input-XXXXXX";
static char path[128];
static unsigned char text[TEXT_BYTES], packed[2 * MOST], got[2 * TEXT_BYTES + 1];

static int enter_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    unsigned random = 1;
    for (size_t i = 0; i < TEXT_BYTES; i++) {
        random = random * 1664525 + 1013904223;
        text[i] = (unsigned char)("aaabcde\n"[random >> 29] + (i % 977 == 0));
    }
    return 0;
}

static int leave_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

/* Without syncing, which would take most of the time for a thousand files. */
static void write_file(const unsigned char *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static size_t pack_plain(unsigned char *out, size_t bytes) {
    memcpy(out, text, bytes);
    return bytes;
}

static size_t pack_gzip(unsigned char *out, size_t bytes) {
    z_stream stream = {.next_in = text,
                       .avail_in = (uInt)bytes,
                       .next_out = out,
                       .avail_out = MOST};
    assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    deflateEnd(&stream);
    return stream.total_out;
}

static size_t pack_zstd(unsigned char *out, size_t bytes) {
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    size_t size = ZSTD_compress2(context, out, MOST, text, bytes);
    assert_false(ZSTD_isError(size));
    ZSTD_freeCCtx(context);
    return size;
}

static size_t pack_xz(unsigned char *out, size_t bytes) {
    size_t size = 0;
    assert_int_equal(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC32, NULL, text, bytes, out, &size,
                                             MOST),
                     LZMA_OK);
    return size;
}

static size_t (*const packers[])(unsigned char *, size_t) = {pack_plain, pack_gzip, pack_zstd,
                                                             pack_xz};

static srnn_status read_all(size_t *count, size_t piece) {
    sr_input *input;
    *count = 0;
    srnn_status status = sr_input_open(&input, path);
    if (status != SRNN_OK)
        return status;
    size_t bytes;
    do {
        size_t left = sizeof got - *count;
        status = sr_input_read(input, got + *count, piece < left ? piece : left, &bytes);
        *count += bytes;
    } while (status == SRNN_OK && bytes > 0);
    sr_input_free(input);
    return status;
}

static void bytes_come_back(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 5, 6, 7, 1000, TEXT_BYTES};
    for (size_t packer = 0; packer < 4; packer++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t bytes = packers[packer](packed, sizes[i]), count;
            write_file(packed, bytes);
            assert_int_equal(read_all(&count, i % 2 ? 4096 : 777777), SRNN_OK);
            assert_int_equal(count, sizes[i]);
            assert_memory_equal(got, text, count);
        }
    }
}

static void members_follow_each_other(void **state) {
    (void)state;
    for (size_t packer = 0; packer < 4; packer++) {
        size_t first = packers[packer](packed, TEXT_BYTES), count;
        size_t second = packers[packer](packed + first, 1000);
        write_file(packed, first + second);
        assert_int_equal(read_all(&count, 65536), SRNN_OK);
        assert_int_equal(count, TEXT_BYTES + 1000);
        assert_memory_equal(got + TEXT_BYTES, text, 1000);
    }
}

static void a_file_cut_off_is_refused(void **state) {
    (void)state;
    for (size_t packer = 1; packer < 4; packer++) {
        size_t bytes = packers[packer](packed, 400), count;
        /* From the magic on: before it, the file is a plain one. */
        for (size_t cut = 6; cut < bytes; cut++) {
            write_file(packed, cut);
            assert_int_equal(read_all(&count, 4096), SRNN_ERR_FORMAT);
            assert_non_null(strstr(srnn_error_detail(), path));
            assert_non_null(strstr(srnn_error_detail(), "byte"));
        }
    }
}

/* Some header bytes do not affect the content; whatever is read must be the text. */
static void a_changed_byte_never_changes_the_text(void **state) {
    (void)state;
    for (size_t packer = 1; packer < 4; packer++) {
        size_t bytes = packers[packer](packed, 400), count, refused = 0;
        for (size_t at = 6; at < bytes; at++) {
            packed[at] ^= 0x24;
            write_file(packed, bytes);
            if (read_all(&count, 4096) == SRNN_OK) {
                assert_int_equal(count, 400);
                assert_memory_equal(got, text, 400);
            } else {
                refused++;
            }
            packed[at] ^= 0x24;
        }
        assert_true(refused > bytes * 3 / 4);
    }
}

static void padding_is_no_data(void **state) {
    (void)state;
    size_t bytes = pack_gzip(packed, 400), count;
    memset(packed + bytes, 0, 512);
    write_file(packed, bytes + 512);
    assert_int_equal(read_all(&count, 4096), SRNN_OK);
    assert_int_equal(count, 400);
    static const unsigned char skipped[] = {0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'a', 'b', 'c'};
    memcpy(packed, skipped, sizeof skipped);
    bytes = pack_zstd(packed + sizeof skipped, 400);
    write_file(packed, sizeof skipped + bytes);
    assert_int_equal(read_all(&count, 4096), SRNN_OK);
    assert_int_equal(count, 400);
    assert_memory_equal(got, text, 400);
}

static void rubbish_behind_a_member_is_refused(void **state) {
    (void)state;
    for (size_t packer = 1; packer < 4; packer++) {
        size_t bytes = packers[packer](packed, 400), count;
        memcpy(packed + bytes, "rubbish", 7);
        write_file(packed, bytes + 7);
        assert_int_equal(read_all(&count, 4096), SRNN_ERR_FORMAT);
    }
}

static void what_cannot_be_opened_is_named(void **state) {
    (void)state;
    sr_input *input;
    assert_int_equal(sr_input_open(&input, "/no/such/file"), SRNN_ERR_IO);
    assert_non_null(strstr(srnn_error_detail(), "/no/such/file"));
    assert_int_equal(sr_input_open(&input, folder), SRNN_ERR_IO);
    sr_input_free(NULL);
}

/* A few kilobytes that decompress to gigabytes of zeros. */
static void bombs_are_refused(void **state) {
    (void)state;
    enum { ZEROS = 64 << 20 };
    unsigned char *zeros = calloc(1, ZEROS), *buffer = malloc(1 << 20);
    assert_true(zeros && buffer);
    const size_t size = ZSTD_compress(packed, sizeof packed, zeros, ZEROS, 1);
    assert_false(ZSTD_isError(size));
    write_file(packed, size);
    sr_input *input;
    size_t bytes, given = 0;
    assert_int_equal(sr_input_open(&input, path), SRNN_OK);
    srnn_status status;
    do {
        status = sr_input_read(input, buffer, 1 << 20, &bytes);
        given += bytes;
    } while (status == SRNN_OK && bytes > 0);
    assert_int_equal(status, SRNN_ERR_LIMIT);
    assert_true(given < 32 << 20);
    sr_input_free(input);
    free(zeros);
    free(buffer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bombs_are_refused),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(members_follow_each_other),
        cmocka_unit_test(a_file_cut_off_is_refused),
        cmocka_unit_test(a_changed_byte_never_changes_the_text),
        cmocka_unit_test(padding_is_no_data),
        cmocka_unit_test(rubbish_behind_a_member_is_refused),
        cmocka_unit_test(what_cannot_be_opened_is_named),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
