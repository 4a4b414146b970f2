/* test_cpu_quota.c: the smallest limits of a process's control groups, and of memory. */
#include "base/cpu_quota.h"
#include "base/memory.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char root[] = "/tmp/softrnn-quota-XXXXXX";

static void write_file(const char *name, const char *text) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void make_folder(const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static double quota(void) {
    char own[200];
    snprintf(own, sizeof own, "%s/own", root);
    return sr_cpu_quota(root, own);
}

static double memory(void) {
    char own[200];
    snprintf(own, sizeof own, "%s/own", root);
    return sr_memory_quota(root, own);
}

static void least_of_all_groups(void **state) {
    (void)state;
    char remove[200];
    assert_non_null(mkdtemp(root));
    assert_true(isinf(quota())); /* nothing is known */
    write_file("own", "4:cpu,cpuacct:/old\n0::/a/b\n");
    assert_true(isinf(quota()));
    make_folder("a");
    make_folder("a/b");
    write_file("a/b/cpu.max", "max 100000\n");
    assert_true(isinf(quota()));
    write_file("a/cpu.max", "150000 100000\n");
    assert_true(quota() == 1.5);
    write_file("a/b/cpu.max", "50000 100000\n");
    assert_true(quota() == 0.5);
    write_file("a/b/cpu.max", "nonsense");
    assert_true(quota() == 1.5);
    write_file("own", "0::/\n"); /* as in a container */
    assert_true(isinf(quota()));
    write_file("cpu.max", "200000 100000\n");
    assert_true(quota() == 2);
    write_file("own", "0::/a/b\n");
    assert_true(isinf(memory()));
    write_file("a/memory.max", "max\n");
    assert_true(isinf(memory()));
    write_file("a/memory.max", "3000000000\n");
    assert_true(memory() == 3e9);
    write_file("a/b/memory.max", "1000000000\n");
    assert_true(memory() == 1e9);
    assert_true(sr_memory_bytes() > 0 && !isinf(sr_memory_bytes()));
    snprintf(remove, sizeof remove, "rm -r %s", root);
    assert_int_equal(system(remove), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(least_of_all_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
