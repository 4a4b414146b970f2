/* test_file.c: a mapped file has its bytes; a replaced one is whole, old or new. */
#include "files/file.h"
#include "test.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

/* A limit on the size of files fails writes the way a full disk does. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(rights_and_links_stay),
        cmocka_unit_test(abandoned_replacement_leaves_the_old),
        cmocka_unit_test(full_disk_leaves_the_old),
        cmocka_unit_test(what_is_no_file_is_refused),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
