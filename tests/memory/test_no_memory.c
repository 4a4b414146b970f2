/* test_no_memory.c: each allocation of a command fails once in turn: an error or the right files, nothing
 * else, come out. All of them with SOFTRNN_ALLOCATIONS=all (make nightly), else some. */
#include "base/random.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/safetensors.h"
#include "test.h"

#include <ctype.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_WORDS = 48, SOME_TRIES = 24 };

static char folder[] = "/tmp/softrnn-memory-XXXXXX";

/* ---- what is tried */

#define TASK  "recall:pairs=2,vocab=32,length=12"
#define SHAPE "--hidden 16 --heads 2 --mlp-hidden 16 --layers 1 --batch 2 --threads 1 "
#define ORDERS \
    "--data " TASK " --tokens 24 --trial-tokens 12 --orders 4 --most-order 4 --threads 1 "

typedef struct work {
    const char *name;
    const char *arguments; /* in a folder that is a copy of `base` */
    bool parts;            /* a failure may leave other files than the whole has: those of runs that
                              were not finished, or failed */
} work;

static const work works[] = {
    {"train", "train --out made --data " TASK " --steps 2 --validate-batches 1 " SHAPE, true},
    {"resume", "train --resume begun --stop-step 0 --threads 1", true},
    {"attend", "attend --in qkv --out made --backward --attention norm --threads 1", false},
    {"layer", "attend --in x --out made --attention gate --threads 1", false},
    {"convert", "convert --in model --out made", false},
    {"convert to llama2.c", "convert --in model --out made.bin", false},
    {"prepare", "data prepare --tokenizer bytes --out made text.txt --threads 1", false},
    {"tokenizer", "tokenizer train text.txt --vocab 300 --out made.json --threads 1", false},
    {"study", "study study.yaml --out made --jobs 1", true},
    {"report", "report studied --out made", true},
    {"orders", "orders --model model --text-tokens 0 --out made " ORDERS, false},
    {"report of orders", "report ordered --out made", true},
};

static const char study[] =
    "name: tiny\nbaseline: softmax\nvariants: {softmax: softmax, norm: norm}\nseeds: [1]\n"
    "tasks: {recall: {measure: accuracy, settings: {data: '" TASK "'}}}\n"
    "settings: {hidden: 16, heads: 2, mlp-hidden: 16, layers: 1, batch: 2, steps: 2,\n"
    "  validate-every: 2, validate-batches: 1}\n";

/* ---- running the program */

static void at(char path[256], const char *where) {
    assert_true(snprintf(path, 256, "%s/%s", folder, where) < 256);
}

/* $F is the folder. */
static void shell(const char *line) {
    char command[512];
    snprintf(command, sizeof command, "F=%s; %s", folder, line);
    if (system(command) != 0)
        fail_msg("%s", command);
}

static void split(char **words, char *text) {
    int count = 0;
    words[count++] = (char *)SOFTRNN_PROGRAM;
    for (char *word = strtok(text, " "); word && count < MOST_WORDS; word = strtok(NULL, " "))
        words[count++] = word;
    words[count] = NULL;
}

/* Runs the program in a folder, with its words in `out` and `err` beside that; the allocation with this
 * number fails. Returns its exit code, or minus a signal. */
static int run(const char *where, const char *arguments, long fail_at) {
    const pid_t child = fork();
    if (child == 0) {
        char path[256], text[512], number[32], *words[MOST_WORDS + 1];
        at(path, "out");
        const int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        at(path, "err");
        const int err = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        at(path, "count");
        setenv("SOFTRNN_FAIL_COUNT", path, 1);
        snprintf(number, sizeof number, "%ld", fail_at);
        setenv("SOFTRNN_FAIL_AT", number, 1);
        setenv("LD_PRELOAD", SOFTRNN_FAILING_ALLOCATOR, 1);
        at(path, where);
        snprintf(text, sizeof text, "%s", arguments);
        split(words, text);
        alarm(60);
        if (chdir(path) == 0)
            execv(SOFTRNN_PROGRAM, words);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static long counted(void) {
    char path[256];
    long count = 0;
    at(path, "count");
    FILE *file = fopen(path, "r");
    assert_true(file && fscanf(file, "%ld", &count) == 1);
    fclose(file);
    return count;
}

/* ---- comparing what came out */

/* Numbers that differ from run to run become #: those of clocks, and who a run is. */
static char *without_numbers(const sr_mapping *file) {
    char *text = malloc(file->bytes + 1);
    assert_non_null(text);
    size_t length = 0;
    for (size_t i = 0; i < file->bytes;) {
        size_t end = i;
        bool number = false;
        while (end < file->bytes && (isxdigit(file->data[end]) || strchr("+-.", file->data[end])))
            number |= isdigit(file->data[end++]) != 0;
        if (number) {
            text[length++] = '#';
            i = end;
        } else {
            do
                text[length++] = (char)file->data[i++];
            while (i < end);
        }
    }
    text[length] = '\0';
    return text;
}

static bool ends_in(const char *name, const char *ending) {
    const size_t length = strlen(name), size = strlen(ending);
    return length >= size && strcmp(name + length - size, ending) == 0;
}

/* Files in which clocks or identities stand. */
static bool varies(const char *name) {
    static const char *const names[] = {"run.yaml",
                                        "run.json",
                                        "timings.jsonl",
                                        "result.json",
                                        "study.json",
                                        "summary.json",
                                        "report.html",
                                        "orders.json",
                                        "costs.csv",
                                        "costs.tex",
                                        "summary.csv",
                                        "summary.tex",
                                        "events.out.tfevents.softrnn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ends_in(name, names[i]))
            return true;
    return ends_in(name, ".svg") || ends_in(name, ".csv") || ends_in(name, ".tex");
}

static bool same(const char *got_path, const char *want_path) {
    sr_mapping got, want;
    if (sr_mapping_open(&got, got_path) != SRNN_OK)
        return false;
    assert_int_equal(sr_mapping_open(&want, want_path), SRNN_OK);
    bool equal = got.bytes == want.bytes && memcmp(got.data, want.data, got.bytes) == 0;
    if (!equal && varies(want_path) && !ends_in(want_path, "softrnn")) {
        char *a = without_numbers(&got), *b = without_numbers(&want);
        equal = strcmp(a, b) == 0;
        free(a);
        free(b);
    }
    equal |= ends_in(want_path, "softrnn") && got.bytes == want.bytes; /* times in binary */
    sr_mapping_close(&got);
    sr_mapping_close(&want);
    return equal;
}

/* JSON is JSON, arrays are readable, whatever else happened. */
static bool readable(const char *path) {
    if (ends_in(path, ".json")) {
        json_error_t error;
        json_t *root = json_load_file(path, 0, &error);
        json_decref(root);
        return root != NULL;
    }
    if (ends_in(path, ".safetensors")) {
        sr_safetensors *file;
        if (sr_safetensors_open(&file, path) != SRNN_OK)
            return false;
        sr_safetensors_free(file);
    }
    return true;
}

typedef struct comparison {
    const work *work;
    long fail_at;
    int code;
} comparison;

static void complain(const comparison *c, const char *what, const char *path) {
    char said[512] = "", name[256];
    at(name, "err");
    FILE *file = fopen(name, "r");
    if (file) {
        said[fread(said, 1, sizeof said - 1, file)] = '\0';
        fclose(file);
    }
    fail_msg("%s, allocation %ld, exit %d: %s %s\n%s", c->work->name, c->fail_at, c->code, what,
             path, said);
}

static bool is_folder(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* Every file of `want` must be in `got`; `all` false: those that are in both must agree. */
static void compare(const comparison *c, const char *got, const char *want, bool all) {
    sr_names names;
    assert_int_equal(sr_folder_list(&names, want), SRNN_OK);
    for (size_t i = 0; i < names.count; i++) {
        char a[512], b[512];
        snprintf(a, sizeof a, "%s/%s", got, names.names[i]);
        snprintf(b, sizeof b, "%s/%s", want, names.names[i]);
        const bool there = access(a, F_OK) == 0;
        if (all && !there)
            complain(c, "there is no", a);
        if (there && is_folder(b))
            compare(c, a, b, all);
        else if (there && !readable(a))
            complain(c, "cannot be read:", a);
        else if (there && (all || !c->work->parts) && !same(a, b))
            complain(c, "is wrong:", a);
    }
    sr_names_free(&names);
}

/* ---- the loop */

static void try_one(const work *w, long fail_at) {
    char got[256], want[256];
    shell("rm -rf $F/try && cp -r $F/base $F/try");
    comparison c = {w, fail_at, run("try", w->arguments, fail_at)};
    at(got, "try");
    at(want, "right");
    if (c.code != 0 && c.code != 1)
        complain(&c, "neither success nor failure", "");
    compare(&c, got, want, c.code == 0);
    char command[512];
    snprintf(command, sizeof command, "test -z \"$(find %s -name '*.new-*')\"", got);
    if (system(command) != 0)
        complain(&c, "leaves a file half written in", got);
    at(got, "err");
    snprintf(command, sizeof command, "grep -q '^softrnn: ' %s", got);
    if (c.code == 1 && system(command) != 0)
        complain(&c, "fails without a message", "");
}

static void one_allocation_fails(void **state) {
    const work *w = *state;
    shell("rm -rf $F/right && cp -r $F/base $F/right");
    comparison first_time = {w, 0, run("right", w->arguments, 0)};
    if (first_time.code != 0)
        complain(&first_time, "does not work at all", "");
    const long count = counted();
    const char *said = getenv("SOFTRNN_ALLOCATIONS");
    const bool all = said && strcmp(said, "all") == 0;
    const long tries = all || count < SOME_TRIES ? count : SOME_TRIES;
    assert_true(count > 20);
    for (long i = 0; i < tries; i++) {
        /* Some: one of each stretch, the first ones too; the same each time. */
        const long first = i * count / tries, next = (i + 1) * count / tries;
        const long offset =
            all ? 0
                : (long)sr_random_below(1, (uint64_t)count, (uint64_t)i, (uint64_t)(next - first));
        try_one(w, first + offset + 1);
    }
    print_message("%s: %ld of %ld allocations failed in turn\n", w->name, tries, count);
}

static void add_tensor(sr_safetensors_writer *writer, const char *name, int rank,
                       const int64_t *shape) {
    static float numbers[4096];
    for (size_t i = 0; i < 4096; i++)
        numbers[i] = (float)sr_random_normal(5, 0, i);
    sr_tensor tensor = {.name = name, .rank = rank, .data = numbers};
    memcpy(tensor.shape, shape, (size_t)rank * sizeof *shape);
    assert_int_equal(sr_safetensors_writer_add(writer, &tensor), SRNN_OK);
}

static void write_operands(void) {
    static const char *const weights[] = {"q_proj.weight", "k_proj.weight", "v_proj.weight",
                                          "o_proj.weight", "out_gate_proj.weight"};
    sr_safetensors_writer *writer;
    char path[256];
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    add_tensor(writer, "q", 4, (const int64_t[]){1, 2, 5, 8});
    add_tensor(writer, "k", 4, (const int64_t[]){1, 2, 5, 8});
    add_tensor(writer, "v", 4, (const int64_t[]){1, 2, 5, 8});
    add_tensor(writer, "do", 4, (const int64_t[]){1, 2, 5, 8});
    add_tensor(writer, "norm_weight", 1, (const int64_t[]){8});
    at(path, "base/qkv");
    assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
    sr_safetensors_writer_free(writer);
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    add_tensor(writer, "x", 3, (const int64_t[]){1, 5, 16});
    for (size_t i = 0; i < 4; i++)
        add_tensor(writer, weights[i], 2, (const int64_t[]){16, 16});
    add_tensor(writer, weights[4], 2, (const int64_t[]){2, 16});
    add_tensor(writer, "out_gate_proj.bias", 1, (const int64_t[]){2});
    assert_int_equal(sr_safetensors_writer_metadata(writer, "num_attention_heads", "2"), SRNN_OK);
    at(path, "base/x");
    assert_int_equal(sr_safetensors_writer_write(writer, path), SRNN_OK);
    sr_safetensors_writer_free(writer);
}

static void need(const char *arguments) {
    if (run("base", arguments, 0) != 0)
        fail_msg("softrnn %s", arguments);
}

/* Whatever the commands begin from. */
static int enter(void **state) {
    (void)state;
    char path[256];
    if (!mkdtemp(folder))
        return -1;
    at(path, "base");
    assert_int_equal(sr_folder_make(path), SRNN_OK);
    write_operands();
    at(path, "base/study.yaml");
    assert_int_equal(sr_file_replace(path, study, strlen(study)), SRNN_OK);
    shell("for i in $(seq 60); do echo \"line $i of a text says $((i * 7 % 13))\"; done "
          ">$F/base/text.txt");
    need("train --out begun --data " TASK " --steps 3 --stop-step 2 " SHAPE);
    need("convert --in begun --out model");
    need("study study.yaml --out studied --jobs 1");
    need("orders --model model --out ordered --text-tokens 0 " ORDERS);
    return 0;
}

static int leave(void **state) {
    (void)state;
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

int main(void) {
    struct CMUnitTest tests[sizeof works / sizeof *works];
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        tests[i] = (struct CMUnitTest){works[i].name, one_allocation_fails, NULL, NULL,
                                       (void *)(uintptr_t)&works[i]};
    return cmocka_run_group_tests(tests, enter, leave);
}
