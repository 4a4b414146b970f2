/* test_shard.c: shards return what was written; files with any damage are refused. */
#include "base/memory.h"
#include "data/shards/dataset.h"
#include "data/shards/shard.h"
#include "data/shards/shard_form.h"
#include "test.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

static char folder[] = "/tmp/softrnn-shard-XXXXXX";
static char path[128];

static int enter_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int leave_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static int files_in_folder(void) {
    int count = 0;
    DIR *entries = opendir(folder);
    for (struct dirent *entry; (entry = readdir(entries));)
        count += entry->d_name[0] != '.';
    closedir(entries);
    return count;
}

/* Three documents of 3, 1 and 4 tokens: 0, 1, .. 7 plus `base`. */
static void write_shard(uint32_t vocab, uint32_t base) {
    const sr_shard_settings settings = {vocab, 7, 0x1234567890abcdef};
    uint32_t ids[8];
    for (uint32_t i = 0; i < 8; i++)
        ids[i] = base + i;
    sr_shard_writer *writer;
    assert_int_equal(sr_shard_writer_create(&writer, path, &settings), SRNN_OK);
    assert_int_equal(sr_shard_writer_append(writer, ids, 3), SRNN_OK);
    assert_int_equal(sr_shard_writer_append(writer, ids + 3, 1), SRNN_OK);
    assert_int_equal(sr_shard_writer_append(writer, ids + 4, 4), SRNN_OK);
    assert_int_equal(sr_shard_writer_tokens(writer), 8);
    assert_int_equal(sr_shard_writer_documents(writer), 3);
    assert_int_equal(sr_shard_writer_finish(writer), SRNN_OK);
    sr_shard_writer_free(writer);
}

static void what_was_written_is_read(void **state) {
    (void)state;
    const struct {
        uint32_t vocab, base;
        int width;
    } cases[] = {{100, 0, 2}, {65536, 65528, 2}, {65537, 65529, 4}, {2000000, 1999992, 4}};
    for (size_t i = 0; i < 4; i++) {
        write_shard(cases[i].vocab, cases[i].base);
        assert_int_equal(files_in_folder(), 1);
        sr_shard shard;
        assert_int_equal(sr_shard_open(&shard, path), SRNN_OK);
        assert_int_equal(shard.width, cases[i].width);
        assert_int_equal(shard.token_count, 8);
        assert_int_equal(shard.document_count, 3);
        assert_int_equal(shard.end_token, 7);
        assert_true(shard.tokenizer_hash == 0x1234567890abcdef);
        const uint64_t starts[] = {0, 3, 4, 8};
        assert_memory_equal(shard.starts, starts, sizeof starts);
        int32_t ids[6];
        assert_int_equal(sr_shard_read(&shard, ids, 2, 6), SRNN_OK);
        for (int t = 0; t < 6; t++)
            assert_int_equal(ids[t], (int)cases[i].base + 2 + t);
        const int64_t documents[] = {0, 0, 0, 1, 2, 2, 2, 2};
        for (int t = 0; t < 8; t++)
            assert_int_equal(sr_shard_document_of(&shard, t), documents[t]);
        assert_int_equal(sr_shard_verify(&shard), SRNN_OK);
        sr_shard_close(&shard);
        sr_shard_close(&shard);
    }
}

static unsigned char *read_bytes(size_t *size) {
    sr_mapping mapping;
    assert_int_equal(sr_mapping_open(&mapping, path), SRNN_OK);
    unsigned char *bytes;
    assert_int_equal(sr_alloc((void **)&bytes, mapping.bytes + 16, 1), SRNN_OK);
    memcpy(bytes, mapping.data, mapping.bytes);
    *size = mapping.bytes;
    sr_mapping_close(&mapping);
    return bytes;
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    write_shard(100, 0);
    size_t size;
    unsigned char *bytes = read_bytes(&size);
    assert_int_equal(size, 64 + 16 + 32);
    for (size_t cut = 0; cut < size + 9; cut++) {
        /* Memory of exactly this size, so that a sanitizer sees a read past the end. */
        unsigned char *piece;
        assert_int_equal(sr_alloc_zero((void **)&piece, cut, 1), SRNN_OK);
        memcpy(piece, bytes, cut < size ? cut : size);
        sr_shard shard;
        srnn_status status = sr_shard_parse(&shard, piece, cut, "piece");
        assert_int_equal(status, cut == size ? SRNN_OK : SRNN_ERR_FORMAT);
        if (cut != size)
            assert_non_null(strstr(srnn_error_detail(), "piece"));
        sr_shard_close(&shard);
        free(piece);
    }
    free(bytes);
}

static void every_changed_byte_is_noticed(void **state) {
    (void)state;
    write_shard(100, 0);
    size_t size;
    unsigned char *bytes = read_bytes(&size);
    for (size_t at = 0; at < size; at++) {
        for (int bit = 0; bit < 8; bit++) {
            bytes[at] ^= (unsigned char)(1 << bit);
            sr_shard shard;
            srnn_status status = sr_shard_parse(&shard, bytes, size, "changed");
            if (status == SRNN_OK)
                status = sr_shard_verify(&shard);
            assert_int_not_equal(status, SRNN_OK);
            sr_shard_close(&shard);
            bytes[at] ^= (unsigned char)(1 << bit);
        }
    }
    free(bytes);
}

/* A hostile file has valid checksums. */
static srnn_status parse_with_right_checksums(unsigned char *bytes, size_t size, size_t index) {
    sr_shard_header header;
    memcpy(&header, bytes, sizeof header);
    header.index_crc = (uint32_t)crc32_z(0, bytes + size - index, index);
    header.header_crc =
        (uint32_t)crc32(0, (const Bytef *)&header, offsetof(sr_shard_header, header_crc));
    memcpy(bytes, &header, sizeof header);
    sr_shard shard;
    srnn_status status = sr_shard_parse(&shard, bytes, size, "hostile");
    sr_shard_close(&shard);
    return status;
}

static void hostile_numbers_are_refused(void **state) {
    (void)state;
    write_shard(100, 0);
    size_t size;
    unsigned char *bytes = read_bytes(&size);
    assert_int_equal(parse_with_right_checksums(bytes, size, 32), SRNN_OK);
    const struct {
        size_t at, bytes;
        uint64_t value;
    } changes[] = {
        {12, 4, 0},          {12, 4, 1},          {12, 4, 3}, {12, 4, 8},
        {16, 8, 0},          {16, 8, 7},          {16, 8, 9}, {16, 8, UINT64_MAX},
        {16, 8, 1ull << 63}, {24, 8, 0},          {24, 8, 2}, {24, 8, 4},
        {24, 8, UINT64_MAX}, {24, 8, 1ull << 61}, {40, 4, 0}, {40, 4, UINT32_MAX},
        {44, 4, 101},        {56, 4, 1},          {80, 8, 1}, {88, 8, 0},
        {88, 8, 4},          {88, 8, UINT64_MAX}, {96, 8, 8}, {104, 8, 9},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        unsigned char before[8];
        memcpy(before, bytes + changes[i].at, changes[i].bytes);
        memcpy(bytes + changes[i].at, &changes[i].value, changes[i].bytes);
        if (parse_with_right_checksums(bytes, size, 32) != SRNN_ERR_FORMAT)
            fail_msg("change %zu was accepted", i);
        memcpy(bytes + changes[i].at, before, changes[i].bytes);
    }
    free(bytes);
}

static void an_id_out_of_range_is_noticed(void **state) {
    (void)state;
    write_shard(5, 0); /* the writer trusts its caller: ids 5, 6 and 7 are too large */
    sr_shard shard;
    assert_int_not_equal(sr_shard_open(&shard, path), SRNN_OK); /* end token 7 of 5 */
    const sr_bin_settings settings = {.vocab = 3};
    const uint16_t ids[] = {0, 1, 2, 3};
    assert_int_equal(sr_file_replace(path, ids, sizeof ids), SRNN_OK);
    assert_int_equal(sr_shard_open_bin(&shard, path, &settings), SRNN_OK);
    int32_t read[4];
    assert_int_equal(sr_shard_read(&shard, read, 0, 3), SRNN_OK);
    assert_int_equal(sr_shard_read(&shard, read, 0, 4), SRNN_ERR_FORMAT);
    assert_non_null(strstr(srnn_error_detail(), "token 3"));
    assert_int_equal(sr_shard_verify(&shard), SRNN_ERR_FORMAT);
    sr_shard_close(&shard);
}

static void an_unfinished_shard_leaves_nothing(void **state) {
    (void)state;
    unlink(path);
    const sr_shard_settings settings = {100, -1, 0};
    const uint32_t id = 1;
    sr_shard_writer *writer;
    assert_int_equal(sr_shard_writer_create(&writer, path, &settings), SRNN_OK);
    assert_int_equal(sr_shard_writer_append(writer, &id, 1), SRNN_OK);
    assert_int_not_equal(access(path, F_OK), 0);
    sr_shard_writer_free(writer);
    assert_int_equal(files_in_folder(), 0);
}

static void a_full_disk_is_reported(void **state) {
    (void)state;
    const sr_shard_settings settings = {100, -1, 0};
    static const uint32_t ids[1 << 18];
    struct rlimit before, small = {1 << 20, 1 << 20};
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    sr_shard_writer *writer;
    srnn_status status = sr_shard_writer_create(&writer, path, &settings);
    for (int i = 0; i < 4 && status == SRNN_OK; i++)
        status = sr_shard_writer_append(writer, ids, 1 << 18);
    sr_shard_writer_free(writer);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, SRNN_ERR_IO);
    assert_int_equal(files_in_folder(), 0);
}

static void bin_files_are_read(void **state) {
    (void)state;
    uint16_t file[512 + 6] = {0};
    const uint16_t ids[] = {9, 1, 2, 9, 3, 4};
    const int32_t header[] = {20240520, 1, 6};
    memcpy(file, header, sizeof header);
    memcpy(file + 512, ids, sizeof ids);
    const struct {
        sr_boundary boundary;
        int64_t documents;
        uint64_t starts[4];
    } cases[] = {{SR_BOUNDARY_NONE, 1, {0, 6}},
                 {SR_BOUNDARY_AFTER, 3, {0, 1, 4, 6}},
                 {SR_BOUNDARY_BEFORE, 2, {0, 3, 6}}};
    for (int form = 0; form < 2; form++) {
        if (form == 0)
            assert_int_equal(sr_file_replace(path, ids, sizeof ids), SRNN_OK);
        else
            assert_int_equal(sr_file_replace(path, file, sizeof file), SRNN_OK);
        for (size_t i = 0; i < 3; i++) {
            const sr_bin_settings settings = {cases[i].boundary, 9, 0};
            sr_shard shard;
            assert_int_equal(sr_shard_open_bin(&shard, path, &settings), SRNN_OK);
            assert_int_equal(shard.token_count, 6);
            assert_memory_equal(shard.tokens, ids, sizeof ids);
            assert_int_equal(shard.document_count, cases[i].documents);
            assert_memory_equal(shard.starts, cases[i].starts,
                                ((size_t)cases[i].documents + 1) * sizeof(uint64_t));
            sr_shard_close(&shard);
        }
    }
}

/* Those that llm.c writes for Llama-3. */
static void bin_files_of_32_bits_are_read(void **state) {
    (void)state;
    uint32_t file[256 + 4] = {20240801, 7, 4};
    const uint32_t ids[] = {128000, 1, 70000, 128000};
    const uint64_t starts[] = {0, 3, 4};
    const sr_bin_settings settings = {SR_BOUNDARY_BEFORE, 128000, 0};
    sr_shard shard;
    int32_t read[4];
    memcpy(file + 256, ids, sizeof ids);
    assert_int_equal(sr_file_replace(path, file, sizeof file), SRNN_OK);
    assert_int_equal(sr_shard_open_bin(&shard, path, &settings), SRNN_OK);
    assert_int_equal(shard.token_count, 4);
    assert_int_equal(shard.document_count, 2);
    assert_memory_equal(shard.starts, starts, sizeof starts);
    assert_int_equal(sr_shard_read(&shard, read, 0, 4), SRNN_OK);
    assert_memory_equal(read, ids, sizeof ids);
    sr_shard_close(&shard);
}

static void wrong_bin_files_are_refused(void **state) {
    (void)state;
    uint16_t file[512 + 6] = {0};
    const struct {
        int32_t header[3];
        size_t bytes;
    } cases[] = {{{20240520, 1, 7}, sizeof file},
                 {{20240520, 1, -6}, sizeof file},
                 {{20240520, 2, 6}, sizeof file},
                 {{20240520, 1, 6}, sizeof file - 1},
                 {{20240520, 1, 0}, 1024},
                 {{20240801, 7, 6}, sizeof file},
                 {{20240801, 1, 3}, sizeof file},
                 {{0, 0, 0}, 0},
                 {{0, 0, 0}, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(file, cases[i].header, sizeof cases[i].header);
        assert_int_equal(sr_file_replace(path, file, cases[i].bytes), SRNN_OK);
        sr_shard shard;
        assert_int_not_equal(sr_shard_open_bin(&shard, path, &(sr_bin_settings){0}), SRNN_OK);
        assert_non_null(strstr(srnn_error_detail(), path));
        sr_shard_close(&shard);
    }
}

/* One text as one shard and as many gives the same dataset. */
static void shards_make_one_sequence(void **state) {
    (void)state;
    const char text[] = "the quick brown fox";
    sr_shard *shards;
    assert_int_equal(sr_alloc((void **)&shards, 4, sizeof *shards), SRNN_OK);
    const size_t cuts[] = {0, 4, 5, 10, 19};
    for (size_t n = 0; n < 4; n++)
        assert_int_equal(sr_shard_from_text(&shards[n], text + cuts[n], cuts[n + 1] - cuts[n]),
                         SRNN_OK);
    sr_dataset dataset;
    assert_int_equal(sr_dataset_create(&dataset, shards, 4), SRNN_OK);
    assert_int_equal(dataset.token_count, 19);
    assert_int_equal(dataset.document_count, 4);
    for (int64_t begin = 0; begin < 19; begin++) {
        for (int64_t count = 1; begin + count <= 19; count++) {
            int32_t ids[19];
            assert_int_equal(sr_dataset_read(&dataset, ids, begin, count), SRNN_OK);
            for (int64_t t = 0; t < count; t++)
                assert_int_equal(ids[t], text[begin + t]);
        }
        int64_t document = sr_dataset_document_of(&dataset, begin), first, count;
        assert_int_equal(sr_dataset_document(&dataset, document, &first, &count), SRNN_OK);
        assert_int_equal(first, cuts[document]);
        assert_int_equal(first + count, cuts[document + 1]);
        assert_in_range(begin, first, first + count - 1);
    }
    sr_dataset_free(&dataset);
}

static void shards_of_two_tokenizers_do_not_mix(void **state) {
    (void)state;
    sr_shard *shards;
    assert_int_equal(sr_alloc((void **)&shards, 2, sizeof *shards), SRNN_OK);
    assert_int_equal(sr_shard_from_text(&shards[0], "a", 1), SRNN_OK);
    assert_int_equal(sr_shard_from_text(&shards[1], "b", 1), SRNN_OK);
    shards[1].tokenizer_hash = 1;
    sr_dataset dataset;
    assert_int_equal(sr_dataset_create(&dataset, shards, 2), SRNN_ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_changed_byte_is_noticed),
        cmocka_unit_test(hostile_numbers_are_refused),
        cmocka_unit_test(an_id_out_of_range_is_noticed),
        cmocka_unit_test(an_unfinished_shard_leaves_nothing),
        cmocka_unit_test(a_full_disk_is_reported),
        cmocka_unit_test(bin_files_are_read),
        cmocka_unit_test(bin_files_of_32_bits_are_read),
        cmocka_unit_test(wrong_bin_files_are_refused),
        cmocka_unit_test(shards_make_one_sequence),
        cmocka_unit_test(shards_of_two_tokenizers_do_not_mix),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
