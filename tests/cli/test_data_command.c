/* test_data_command.c: `softrnn data` as a program: exit codes, messages, signals. */
#include "data/shards/shard.h"
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 16, LIMIT_BYTES = 1 << 20 };

static char folder[] = "/tmp/softrnn-command-XXXXXX";
static char large[128], small[128], out[128], messages[4096], output[8192];

static void write_text(const char *path, const char *line, int documents, int lines) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int n = 0; n < documents; n++) {
        for (int i = 0; i < lines; i++)
            fprintf(file, "%s %d\n", line, i);
        fprintf(file, "<|endoftext|>\n");
    }
    assert_int_equal(fclose(file), 0);
}

static int enter_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(large, sizeof large, "%s/large.txt", folder);
    snprintf(small, sizeof small, "%s/small.txt", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    write_text(large, "a line of some length that stands here many times over", 2000, 160);
    write_text(small, "a line", 30, 3);
    return 0;
}

static void empty_out(void) {
    DIR *entries = opendir(out);
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(entries), entry->d_name, 0);
    if (entries)
        closedir(entries);
    rmdir(out);
}

static int leave_folder(void **state) {
    (void)state;
    char path[160];
    empty_out();
    unlink(large);
    unlink(small);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/std%d", folder, i);
        unlink(path);
    }
    return rmdir(folder);
}

/* Starts the program with stdout and stderr in files. */
static pid_t start(const char *const *arguments, bool limited) {
    char *argv[MOST_ARGUMENTS + 3] = {SOFTRNN_PROGRAM, "data"};
    for (int i = 0; arguments[i]; i++)
        argv[i + 2] = (char *)(uintptr_t)arguments[i];
    pid_t child = fork();
    if (child != 0)
        return child;
    char path[160];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/std%d", folder, i);
        dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666), i + 1);
    }
    if (limited) {
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){LIMIT_BYTES, LIMIT_BYTES});
    }
    execv(argv[0], argv);
    _exit(99);
}

static void read_back(char *text, size_t size, int which) {
    char path[160];
    snprintf(path, sizeof path, "%s/std%d", folder, which);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, size - 1, file)] = 0;
    fclose(file);
}

/* Waits for the end; the exit code, or minus the signal. */
static int finish(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    read_back(output, sizeof output, 0);
    read_back(messages, sizeof messages, 1);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void assert_run(const char *const *arguments, int exit_code, const char *said) {
    int got = finish(start(arguments, false));
    if (got != exit_code || !strstr(exit_code ? messages : output, said))
        fail_msg("data %s: exit %d, not %d; stdout: %s; stderr: %s", arguments[0], got, exit_code,
                 output, messages);
}

#define RUN(exit_code, said, ...) \
    assert_run((const char *const[]){__VA_ARGS__, NULL}, exit_code, said)

static void exit_codes_and_messages(void **state) {
    (void)state;
    RUN(0, "prepare", "--help");
    RUN(0, "Examples", "prepare", "--help");
    RUN(0, "Examples", "show", "--help");
    RUN(2, "did you mean 'prepare'", "preprare");
    RUN(2, "--tokenizer", "prepare", "--out", out, small);
    RUN(2, "--out", "prepare", "--tokenizer", "bytes", small);
    RUN(2, "a file of text", "prepare", "--tokenizer", "bytes", "--out", out);
    RUN(2, "--validation", "prepare", "--validation", "2", small);
    RUN(1, "/no/such", "prepare", "--tokenizer", "bytes", "--out", out, "/no/such");
    RUN(1, "is a folder", "prepare", "--tokenizer", "bytes", "--out", out, folder);
    RUN(1, "/no/such", "prepare", "--tokenizer", "/no/such", "--out", out, small);
    RUN(1, "/no/such", "info", "/no/such");
    RUN(0, "30 documents", "prepare", "--validation", "0", "--tokenizer", "bytes", "--out", out,
        small);
    RUN(2, "already holds", "prepare", "--tokenizer", "bytes", "--out", out, small);
    RUN(0, "vocabulary 257", "info", "--check", out);
    RUN(0, "\"softrnn data\"", "info", "--json", out);
    RUN(0, "a line 0", "show", "--batch", "30", "--layout", "document", out);
    RUN(0, "101>32", "show", "--ids", "--batch", "1", small);
    RUN(2, "validation", "show", "--split", "validation", out);
    RUN(1, "recall", "show", "recal:pairs=3");
    RUN(0, "16 targets", "show", "--batch", "1", "recall");
    RUN(0, "mqar:length=64", "tasks");
    char bin[160];
    snprintf(bin, sizeof bin, "%s/a.bin", folder);
    FILE *file = fopen(bin, "w");
    assert_non_null(file);
    assert_int_equal(fwrite("a\0b\0", 1, 4, file), 4);
    fclose(file);
    RUN(0, "2 of 16 bits", "info", bin);
    RUN(2, "holds tokens", "prepare", "--tokenizer", "bytes", "--out", out, bin);
    unlink(bin);
    empty_out();
}

static void assert_advice(const char *text, const char *advice) {
    RUN(0, "0 documents", "prepare", "--validation", "1e-9", "--tokenizer", "bytes", "--out", out,
        text);
    if (!strstr(messages, advice))
        fail_msg("%s", messages);
    empty_out();
}

/* The advice must help: a single document cannot be split at any fraction. */
static void no_validation_split_is_explained(void **state) {
    (void)state;
    char single[160];
    snprintf(single, sizeof single, "%s/single.txt", folder);
    write_text(single, "a line", 1, 3);
    assert_advice(small, "raise --validation (1e-09)");
    assert_advice(single, "one document");
    assert_null(strstr(messages, "raise"));
    unlink(single);
}

/* Files under final names. */
static int count_shards(bool verify) {
    int count = 0;
    DIR *entries = opendir(out);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        size_t length = strlen(entry->d_name);
        if (length < 7 || strcmp(entry->d_name + length - 7, ".tokens") != 0)
            continue;
        count++;
        if (!verify)
            continue;
        char path[512];
        sr_shard shard;
        snprintf(path, sizeof path, "%s/%s", out, entry->d_name);
        assert_int_equal(sr_shard_open(&shard, path), SRNN_OK);
        assert_int_equal(sr_shard_verify(&shard), SRNN_OK);
        sr_shard_close(&shard);
    }
    if (entries)
        closedir(entries);
    return count;
}

/* The same; each must be complete. */
static int check_shards(void) {
    return count_shards(true);
}

static const char *const slow_work[] = {"prepare", "--tokenizer",    "bytes",  "--out", out,
                                        large,     "--shard-tokens", "100000", NULL};

static bool has_ended(pid_t child) {
    siginfo_t info = {0};
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid == child;
}

/* Signals the process once that many of its about 180 shards are there. Exit code 0: it was
 * faster than this process, whose folder is then emptied for another try. */
static int signal_after(int shards, int signal) {
    for (;;) {
        pid_t child = start(slow_work, false);
        while (count_shards(false) < shards && !has_ended(child))
            poll(NULL, 0, 1);
        kill(child, signal);
        int code = finish(child);
        if (code != 0)
            return code;
        empty_out();
    }
}

static void a_killed_process_leaves_whole_shards_only(void **state) {
    (void)state;
    for (int shards = 0; shards <= 64; shards = shards ? 4 * shards : 1) {
        empty_out();
        assert_int_equal(signal_after(shards, SIGKILL), -SIGKILL);
        assert_true(check_shards() >= shards);
        RUN(1, out, "info", out);
    }
    /* What a killed process left does not stand in the way of the next. */
    RUN(0, "documents", "prepare", "--tokenizer", "bytes", "--out", out, small);
    RUN(0, "as it was written", "info", "--check", out);
    assert_int_equal(check_shards(), 1);
    empty_out();
}

static void an_interrupt_cleans_up(void **state) {
    (void)state;
    for (int shards = 1; shards <= 64; shards *= 4) {
        assert_int_equal(signal_after(shards, SIGINT), 128 + SIGINT);
        assert_non_null(strstr(messages, "stopped"));
        assert_int_equal(check_shards(), 0);
        empty_out();
    }
}

static void a_full_disk_is_a_message(void **state) {
    (void)state;
    const char *const arguments[] = {"prepare", "--tokenizer", "bytes", "--out", out, large, NULL};
    assert_int_equal(finish(start(arguments, true)), 1);
    assert_non_null(strstr(messages, "could not write"));
    assert_int_equal(check_shards(), 0);
    empty_out();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_codes_and_messages),
        cmocka_unit_test(no_validation_split_is_explained),
        cmocka_unit_test(a_killed_process_leaves_whole_shards_only),
        cmocka_unit_test(an_interrupt_cleans_up),
        cmocka_unit_test(a_full_disk_is_a_message),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
