/* test_folder.c: paths that are too long, a folder's lock, checksums, and JSON in files. */
#include "base/clock.h"
#include "files/file.h"
#include "files/file_sums.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/path.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

static char folder[] = "/tmp/softrnn-folder-XXXXXX";

static int enter_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int leave_folder(void **state) {
    (void)state;
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

static void long_paths_are_refused(void **state) {
    (void)state;
    char path[SR_PATH_BYTES], name[SR_PATH_BYTES];
    memset(name, 'a', sizeof name);
    name[sizeof name - 1] = '\0';
    assert_int_equal(sr_path_print(path, "%s", name), SRNN_OK); /* just fits */
    assert_string_equal(path, name);
    assert_int_equal(sr_path_join(path, "/", name), SRNN_ERR_ARGUMENT);
    assert_non_null(strstr(srnn_error_detail(), "path too long"));
    assert_false(sr_path_has(folder, name));
    assert_false(sr_path_has(folder, "nothing"));
    assert_true(sr_path_has(folder, "."));
}

/* Tries to lock from another process, which does not hold the lock. */
static srnn_status lock_elsewhere(double patience) {
    const pid_t child = fork();
    if (child == 0) {
        int lock;
        _exit((int)sr_folder_lock(&lock, folder, patience));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return (srnn_status)WEXITSTATUS(status);
}

static void a_lock_keeps_others_out(void **state) {
    (void)state;
    int lock;
    assert_int_equal(sr_folder_lock(&lock, folder, 0), SRNN_OK);
    assert_int_equal(lock_elsewhere(0), SRNN_ERR_IO);
    const double begin = sr_clock_seconds();
    assert_int_equal(lock_elsewhere(0.2), SRNN_ERR_IO);
    assert_true(sr_clock_seconds() - begin >= 0.2);
    sr_folder_unlock(lock);
    assert_int_equal(lock_elsewhere(0), SRNN_OK);
    assert_int_equal(sr_folder_lock(&lock, "/nowhere/at/all", 0), SRNN_ERR_IO);
    assert_int_equal(lock, -1);
}

/* A waiting process gets a lock that is released meanwhile. */
static void patience_is_rewarded(void **state) {
    (void)state;
    int lock, ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    const pid_t holder = fork();
    if (holder == 0) {
        const bool held = sr_folder_lock(&lock, folder, 0) == SRNN_OK;
        if (write(ready[1], "", 1) != 1)
            _exit(1);
        usleep(200000);
        _exit(held ? 0 : 1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(sr_folder_lock(&lock, folder, 0), SRNN_ERR_IO);
    assert_int_equal(sr_folder_lock(&lock, folder, 60), SRNN_OK);
    sr_folder_unlock(lock);
    int status;
    assert_int_equal(waitpid(holder, &status, 0), holder);
    assert_int_equal(status, 0);
    close(ready[0]);
    close(ready[1]);
}

/* A lock file that was removed while a process waited for it locks nothing: the process must lock
 * one that exists. */
static void a_lock_that_went_is_made_again(void **state) {
    (void)state;
    int lock, status;
    char name[SR_PATH_BYTES];
    assert_int_equal(sr_path_join(name, folder, "lock"), SRNN_OK);
    assert_int_equal(sr_folder_lock(&lock, folder, 0), SRNN_OK);
    const pid_t waiting = fork();
    if (waiting == 0) {
        int own;
        sr_folder_unlock(lock);
        _exit(sr_folder_lock(&own, folder, 60) == SRNN_OK && access(name, F_OK) == 0 ? 0 : 1);
    }
    usleep(200000);
    assert_int_equal(unlink(name), 0);
    sr_folder_unlock(lock);
    assert_int_equal(waitpid(waiting, &status, 0), waiting);
    assert_int_equal(status, 0);
}

typedef struct seen_lines {
    size_t lines, broken, stop_at;
    double sum;
} seen_lines;

static srnn_status see(void *context, const json_t *object, size_t line) {
    seen_lines *seen = context;
    assert_int_equal(line, ++seen->lines);
    if (object)
        seen->sum += sr_json_number_of(object, "x");
    else
        seen->broken = line;
    return line == seen->stop_at ? SRNN_ERR_LIMIT : SRNN_OK;
}

static void whole_lines_are_read(void **state) {
    (void)state;
    static const char text[] = "{\"x\": 1}\n[]\n{\"x\": 2}\n{\"x\": 4";
    char path[SR_PATH_BYTES];
    assert_int_equal(sr_path_join(path, folder, "lines"), SRNN_OK);
    seen_lines seen = {0};
    assert_int_equal(sr_json_lines_read(path, see, &seen), SRNN_OK); /* there is no file */
    assert_int_equal(seen.lines, 0);
    assert_int_equal(sr_file_replace(path, text, sizeof text - 1), SRNN_OK);
    assert_int_equal(sr_json_lines_read(path, see, &seen), SRNN_OK);
    assert_int_equal(seen.lines, 3);
    assert_int_equal(seen.broken, 2);
    assert_true(seen.sum == 3);
    seen = (seen_lines){.stop_at = 1};
    assert_int_equal(sr_json_lines_read(path, see, &seen), SRNN_ERR_LIMIT);
    assert_int_equal(seen.lines, 1);
}

static void records_read_back(void **state) {
    (void)state;
    json_t *record = json_pack("{s:s, s:i, s:o, s:i}", "format", "some", "version", 1, "text",
                               sr_json_plain_text("a\xff"), "count", 7);
    json_t *read;
    assert_int_equal(sr_json_replace(record, folder, "record.json", 0), SRNN_OK);
    assert_int_equal(sr_json_read(&read, folder, "record.json", "some"), SRNN_OK);
    assert_string_equal(sr_json_text_of(read, "text"), "a\\xff");
    assert_int_equal(sr_json_integer_of(read, "count"), 7);
    assert_int_equal(sr_json_integer_of(read, "text"), 0);
    assert_true(isnan(sr_json_number_of(read, "none")));
    json_decref(read);
    assert_int_equal(sr_json_read(&read, folder, "record.json", "other"), SRNN_ERR_FORMAT);
    assert_int_equal(sr_json_replace(NULL, folder, "record.json", 0), SRNN_ERR_MEMORY);
}

/* A known checksum is used only for a file that exists here. */
static void known_sums_are_of_files_here(void **state) {
    (void)state;
    json_t *sums;
    sr_file_sum known = {.name = "record.json", .bytes = 5, .crc = 6};
    assert_int_equal(sr_json_replace(json_object(), folder, "record.json", 0), SRNN_OK);
    assert_int_equal(sr_file_sums_make(&sums, folder, &known, 1), SRNN_OK);
    assert_int_equal(sr_json_integer_of(json_object_get(sums, "record.json"), "crc32"), 6);
    json_decref(sums);
    snprintf(known.name, sizeof known.name, "elsewhere.json");
    assert_int_equal(sr_file_sums_make(&sums, folder, &known, 1), SRNN_ERR_IO);
    assert_non_null(strstr(srnn_error_detail(), "has no elsewhere.json"));
    assert_null(sums);
}

/* Of a file in several parts, the last of which is not whole. */
static void sums_are_of_whole_files(void **state) {
    (void)state;
    const size_t bytes = ((size_t)35 << 20) + 3;
    unsigned char *data = malloc(bytes);
    char path[SR_PATH_BYTES];
    sr_file_sum sum;
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 23);
    assert_int_equal(sr_path_join(path, folder, "large"), SRNN_OK);
    for (size_t length = bytes; length > 0; length = length > 7 ? 7 : 0) {
        assert_int_equal(sr_file_replace(path, data, length), SRNN_OK);
        assert_int_equal(sr_file_sum_make(&sum, folder, "large"), SRNN_OK);
        assert_int_equal(sum.bytes, length);
        assert_int_equal(sum.crc, crc32_z(crc32(0, NULL, 0), data, length));
    }
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_paths_are_refused),         cmocka_unit_test(a_lock_keeps_others_out),
        cmocka_unit_test(a_lock_that_went_is_made_again), cmocka_unit_test(patience_is_rewarded),
        cmocka_unit_test(whole_lines_are_read),           cmocka_unit_test(records_read_back),
        cmocka_unit_test(known_sums_are_of_files_here),   cmocka_unit_test(sums_are_of_whole_files),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
