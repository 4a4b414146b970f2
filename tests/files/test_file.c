/* test_file.c: mapping files, and replacing them atomically. */
#include "files/file.h"
#include "test.h"
#include "train/run/log_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[] = "/tmp/softrnn-file-XXXXXX";
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
    return rmdir(folder); /* fails, and with it the test, if something was left behind */
}

static int files_in_folder(void) {
    int count = 0;
    DIR *entries = opendir(folder);
    for (struct dirent *entry; (entry = readdir(entries));)
        count += entry->d_name[0] != '.';
    closedir(entries);
    return count;
}

static void assert_file_holds(const char *text) {
    sr_mapping mapping;
    assert_int_equal(sr_mapping_open(&mapping, path), SRNN_OK);
    assert_non_null(mapping.data);
    assert_int_equal(mapping.bytes, strlen(text));
    assert_memory_equal(mapping.data, text, strlen(text));
    sr_mapping_close(&mapping);
    sr_mapping_close(&mapping);
}

static void what_was_written_is_read(void **state) {
    (void)state;
    static const char *const texts[] = {"one", "a longer second text", ""};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(sr_file_replace(path, texts[i], strlen(texts[i])), SRNN_OK);
        assert_file_holds(texts[i]);
        assert_int_equal(files_in_folder(), 1);
    }
}

static void rights_and_links_stay(void **state) {
    (void)state;
    char link[160];
    struct stat facts;
    snprintf(link, sizeof link, "%s-link", path);
    assert_int_equal(sr_file_replace(path, "old", 3), SRNN_OK);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(sr_file_replace(link, "new", 3), SRNN_OK);
    assert_int_equal(lstat(link, &facts), 0);
    assert_true(S_ISLNK(facts.st_mode));
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0640);
    assert_file_holds("new");
    unlink(link);
}

static void abandoned_replacement_leaves_the_old(void **state) {
    (void)state;
    sr_replacement *replacement;
    assert_int_equal(sr_file_replace(path, "old", 3), SRNN_OK);
    assert_int_equal(sr_replacement_create(&replacement, path), SRNN_OK);
    assert_int_equal(sr_replacement_write(replacement, "new", 3), SRNN_OK);
    assert_file_holds("old");
    assert_int_equal(files_in_folder(), 2);
    sr_replacement_free(replacement);
    assert_file_holds("old");
    assert_int_equal(files_in_folder(), 1);
    sr_replacement_free(NULL);
}

static void write_left(const char *name) {
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs("half", file);
    assert_int_equal(fclose(file), 0);
}

/* What a killed writer left is replaced; what a living one writes is not touched. */
static void writers_share_a_folder(void **state) {
    (void)state;
    char left[200];
    sr_replacement *first, *second;
    snprintf(left, sizeof left, "%s.new-0", path);
    write_left(left);
    assert_int_equal(sr_file_replace(path, "old", 3), SRNN_OK);
    assert_int_equal(files_in_folder(), 1);
    write_left(left);
    assert_int_equal(sr_replacement_create(&first, path), SRNN_OK);
    assert_int_equal(sr_replacement_create(&second, path), SRNN_OK);
    assert_int_equal(sr_replacement_write(first, "one", 3), SRNN_OK);
    assert_int_equal(sr_replacement_write(second, "two", 3), SRNN_OK);
    assert_int_equal(files_in_folder(), 3);
    assert_int_equal(sr_replacement_commit(first), SRNN_OK);
    assert_file_holds("one");
    assert_int_equal(sr_replacement_commit(second), SRNN_OK);
    assert_file_holds("two");
    sr_replacement_free(first);
    sr_replacement_free(second);
    assert_int_equal(files_in_folder(), 1);
}

static double seconds_of_replacing(void) {
    const clock_t start = clock();
    for (int n = 0; n < 100; n++)
        assert_int_equal(sr_file_replace(path, "new", 3), SRNN_OK);
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* Replacing a file takes as long in a folder of many files: five times as long when each
 * replacement looked through the folder. */
static void other_files_cost_nothing(void **state) {
    (void)state;
    enum { FILES = 3000 };
    char other[200];
    const double alone = seconds_of_replacing();
    for (int n = 0; n < FILES; n++) {
        snprintf(other, sizeof other, "%s-%d", path, n);
        write_left(other);
    }
    const double among = seconds_of_replacing();
    for (int n = 0; n < FILES; n++) {
        snprintf(other, sizeof other, "%s-%d", path, n);
        assert_int_equal(unlink(other), 0);
    }
    assert_true(among < 2.5 * alone + 0.01);
}

/* A file size limit makes writes fail like a full disk. */
static void full_disk_leaves_the_old(void **state) {
    (void)state;
    static char large[1 << 20];
    struct rlimit before, low;
    assert_int_equal(sr_file_replace(path, "old", 3), SRNN_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = before;
    low.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    srnn_status status = sr_file_replace(path, large, sizeof large);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, SRNN_ERR_IO);
    assert_non_null(strstr(srnn_error_detail(), path));
    assert_file_holds("old");
    assert_int_equal(files_in_folder(), 1);
}

static void what_is_no_file_is_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"/", "/dev/null", "/nonexistent/file", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sr_mapping mapping;
        assert_int_equal(sr_mapping_open(&mapping, wrong[i]), SRNN_ERR_IO);
        assert_null(mapping.data);
        sr_mapping_close(&mapping);
    }
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    sr_mapping mapping;
    assert_int_equal(sr_mapping_open(&mapping, path), SRNN_ERR_IO);
    assert_int_equal(sr_file_replace(path, "x", 1), SRNN_ERR_IO);
    assert_int_equal(files_in_folder(), 1);
    unlink(path);
    assert_int_equal(sr_file_replace("/nonexistent/file", "x", 1), SRNN_ERR_IO);
}

/* A process that is killed while it writes. */
static void leave_half_a_file(void) {
    const pid_t child = fork();
    if (child == 0) {
        sr_replacement *replacement;
        if (sr_replacement_create(&replacement, path) == SRNN_OK)
            sr_replacement_write(replacement, "half", 4);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void what_a_killed_writer_left_is_removed(void **state) {
    (void)state;
    assert_int_equal(sr_file_replace(path, "old", 3), SRNN_OK);
    leave_half_a_file();
    leave_half_a_file();
    assert_true(files_in_folder() > 1);
    /* The file of an active writer stays. */
    sr_replacement *replacement;
    assert_int_equal(sr_replacement_create(&replacement, path), SRNN_OK);
    assert_int_equal(sr_replacement_write(replacement, "mine", 4), SRNN_OK);
    assert_int_equal(sr_file_replace(path, "new", 3), SRNN_OK);
    assert_int_equal(files_in_folder(), 2);
    assert_file_holds("new");
    assert_int_equal(sr_replacement_commit(replacement), SRNN_OK);
    sr_replacement_free(replacement);
    assert_int_equal(files_in_folder(), 1);
    assert_file_holds("mine");
}

/* The caller may have closed stdin, stdout and stderr. */
static void low_descriptors_are_left_alone(void **state) {
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        for (int descriptor = 0; descriptor < 3; descriptor++)
            close(descriptor);
        sr_log_file *log;
        sr_replacement *replacement;
        const bool made = sr_log_file_open(&log, path, 0) == SRNN_OK &&
                          sr_replacement_create(&replacement, path) == SRNN_OK;
        for (int descriptor = 0; descriptor < 3; descriptor++)
            if (fcntl(descriptor, F_GETFD) >= 0)
                _exit(2);
        _exit(made ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(sr_file_replace(path, "", 0), SRNN_OK);
}

static void a_file_cut_short_is_noticed(void **state) {
    (void)state;
    sr_mapping mapping;
    assert_int_equal(sr_file_replace(path, "0123456789", 10), SRNN_OK);
    assert_int_equal(sr_mapping_open(&mapping, path), SRNN_OK);
    assert_int_equal(sr_mapping_check(&mapping, path), SRNN_OK);
    assert_int_equal(truncate(path, 9), 0);
    assert_int_equal(sr_mapping_check(&mapping, path), SRNN_ERR_IO);
    sr_mapping_close(&mapping);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(rights_and_links_stay),
        cmocka_unit_test(abandoned_replacement_leaves_the_old),
        cmocka_unit_test(writers_share_a_folder),
        cmocka_unit_test(other_files_cost_nothing),
        cmocka_unit_test(full_disk_leaves_the_old),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(what_a_killed_writer_left_is_removed),
        cmocka_unit_test(low_descriptors_are_left_alone),
        cmocka_unit_test(a_file_cut_short_is_noticed),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
