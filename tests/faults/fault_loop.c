/* fault_loop.c: makes each call of a command fail in turn, and checks the outcome. */
#include "fault_loop.h"

#include "base/random.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/safetensors.h"
#include "test.h"

#include <assert.h>
#include <ctype.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_WORDS = 48 };

/* In memory if possible, to avoid waiting for a disk. */
static char in_memory[] = "/dev/shm/softrnn-faults-XXXXXX", other[] = "/tmp/softrnn-faults-XXXXXX";
static const char *folder;

/* ---- the commands */

#define TASK  "recall:pairs=2,vocab=32,length=12"
#define SHAPE "--hidden 16 --heads 2 --mlp-hidden 16 --layers 1 --batch 2 --threads 1 "
#define SAVES "--save-every 1 --keep 1 --validate-batches 1 "
#define ORDERS \
    "--data " TASK " --tokens 24 --trial-tokens 12 --orders 4 --most-order 4 --threads 1 "

typedef struct work {
    const char *name;
    const char *arguments; /* in a folder that is a copy of `base` */
    const char *again;     /* completes the work if repeating the command fails, or NULL */
    const char *keeps;     /* a file that a failure must leave, or NULL */
    bool parts;            /* a failure may leave additional files, of unfinished runs */
} work;

static const work works[] = {
    {.name = "train",
     .arguments = "train --out made --data " TASK " --test " TASK " --steps 2 " SAVES SHAPE,
     .again = "train --resume made",
     .parts = true},
    {.name = "resume",
     .arguments = "train --resume begun --stop-step 0 --threads 1",
     .keeps = "step-*",
     .parts = true},
    {.name = "distil",
     .arguments = "distil --teacher model --attention norm --data " TASK " --out made "
                  "--align-steps 1 --distil-steps 1 --batch 2 --threads 1 --save-every 1 "
                  "--validate-batches 1",
     .again = "distil --resume made",
     .parts = true},
    {.name = "rank layers",
     .arguments = "distil --rank-layers --teacher model --attention norm --data " TASK
                  " --out made --align-steps 1 --batch 2 --threads 1 --validate-batches 1",
     .again = "distil --rank-layers --resume made",
     .parts = true},
    {.name = "attend",
     .arguments = "attend --in qkv --out made --backward --attention norm --threads 1"},
    {.name = "layer", .arguments = "attend --in x --out made --attention gate --threads 1"},
    {.name = "convert", .arguments = "convert --in model --out made"},
    {.name = "convert to llama2.c", .arguments = "convert --in model --out made.bin"},
    {.name = "prepare",
     .arguments = "data prepare --tokenizer bytes --out made text.txt --threads 1"},
    {.name = "tokenizer",
     .arguments = "tokenizer train text.txt --vocab 300 --out made.json --threads 1"},
    {.name = "study", .arguments = "study study.yaml --out made --jobs 1", .parts = true},
    {.name = "tuned study", .arguments = "study tuned.yaml --out made --jobs 1", .parts = true},
    {.name = "report", .arguments = "report studied --out made", .parts = true},
    {.name = "orders", .arguments = "orders --model model --text-tokens 0 --out made " ORDERS},
    {.name = "report of orders", .arguments = "report ordered --out made", .parts = true},
};

static const char study[] =
    "name: tiny\nbaseline: softmax\nvariants: {softmax: softmax, norm: norm}\nseeds: [1]\n"
    "tasks: {recall: {measure: accuracy, settings: {data: '" TASK "'}}}\n"
    "settings: {hidden: 16, heads: 2, mlp-hidden: 16, layers: 1, batch: 2, steps: 2,\n"
    "  validate-every: 2, validate-batches: 1}\n";

/* It tunes, may end early, and has an axis of optimizers. */
static const char tuned[] =
    "variants: {softmax: softmax}\nseeds: [1, 2, 3]\nsettle: 0.1\noptimizers: [adamw, muon]\n"
    "tune: {learning-rate: [0.001, 0.01]}\n"
    "tasks: {recall: {settings: {data: '" TASK "', test: '" TASK "'}}}\n"
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

/* Runs the program in a folder, with its output in `out` and `err` next to it; the call with this
 * number fails. Returns its exit code, or minus a signal. */
static int run(const char *where, const char *arguments, const fault *f, long fail_at) {
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
        if (f) {
            setenv("SOFTRNN_FAIL_WITH", f->with, 1);
            setenv("LD_PRELOAD", f->library, 1);
        }
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

/* The number of calls in the last run, and the name of the one that failed. */
static long counted(char name[32]) {
    char path[256];
    long count = 0;
    at(path, "count");
    FILE *file = fopen(path, "r");
    assert_true(file && fscanf(file, "%31s %ld", name, &count) == 2);
    fclose(file);
    return count;
}

/* ---- comparing what came out */

/* The folder of one run of the program, at this place of a text: where it ends; 0: none is here.
 * Both names are equally long, so that binary files have the same size. */
static size_t folder_at(const sr_mapping *file, size_t i) {
    static const char *const names[] = {"try", "ref"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        char path[256];
        at(path, names[n]);
        const size_t length = strlen(path);
        if (length <= file->bytes - i && memcmp(file->data + i, path, length) == 0)
            return i + length;
    }
    return 0;
}

/* The bytes of a separator of groups of digits at this place of a text, a narrow space or LaTeX's;
 * or 0. */
static size_t separator_at(const sr_mapping *file, size_t i) {
    static const char *const separators[] = {"\xE2\x80\xAF", "\\,"};
    for (size_t n = 0; n < sizeof separators / sizeof *separators; n++) {
        const size_t length = strlen(separators[n]);
        if (length <= file->bytes - i && memcmp(file->data + i, separators[n], length) == 0)
            return length;
    }
    return 0;
}

/* Numbers that differ from run to run become #: times and identities of runs. The folder of the run
 * is left out. */
static char *without_numbers(const sr_mapping *file) {
    char *text = malloc(file->bytes + 1);
    assert_non_null(text);
    size_t length = 0;
    for (size_t i = 0; i < file->bytes;) {
        size_t end = folder_at(file, i);
        if (end) {
            i = end;
            continue;
        }
        end = i;
        bool number = false;
        while (end < file->bytes && (isxdigit(file->data[end]) || strchr("+-.", file->data[end]))) {
            number |= isdigit(file->data[end++]) != 0;
            end += number ? separator_at(file, end) : 0;
        }
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

/* Files that contain times or identities. */
static bool varies(const char *name) {
    static const char *const names[] = {"run.yaml",
                                        "copy.yaml",
                                        "align.yaml",
                                        "distil.yaml",
                                        "run.json",
                                        "timings.jsonl",
                                        "result.json",
                                        "study.json",
                                        "summary.json",
                                        "tuning.json",
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

/* JSON files are valid and arrays are readable, whatever else happened. */
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
    const char *with;
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
    char call[32] = "none";
    if (c->fail_at > 0 && c->code >= 0)
        (void)counted(call);
    fail_msg("%s, %s of call %ld (%s), exit %d: %s %s\n%s", c->work->name, c->with, c->fail_at,
             call, c->code, what, path, said);
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

/* The search for a file in a folder: its name, up to a `*`, and whether it was found. */
static struct {
    const char *name;
    bool found;
} wanted;

static int look(const char *path, const struct stat *facts, int kind, struct FTW *where) {
    const char *name = path + where->base, *star = strchr(wanted.name, '*');
    const size_t length = star ? (size_t)(star - wanted.name) : strlen(wanted.name) + 1;
    (void)facts, (void)kind;
    wanted.found |= *wanted.name == '*' ? strstr(name, wanted.name + 1) != NULL
                                        : strncmp(name, wanted.name, length) == 0;
    return 0;
}

/* True if there is a file of this name in `try`: exactly, NAME* or *PART. */
static bool finds(const char *name) {
    char path[256];
    at(path, "try");
    wanted.name = name;
    wanted.found = false;
    assert_int_equal(nftw(path, look, 16, FTW_PHYS), 0);
    return wanted.found;
}

/* True if the program printed an error message. */
static bool has_message(void) {
    char path[256];
    sr_mapping said;
    at(path, "err");
    assert_int_equal(sr_mapping_open(&said, path), SRNN_OK);
    const bool has = memmem(said.data, said.bytes, "softrnn: ", 9) != NULL;
    sr_mapping_close(&said);
    return has;
}

/* Exit code 0 requires the right files; 1 a message and readable files. */
static void check_end(const comparison *c) {
    char got[256], want[256];
    at(got, "try");
    at(want, "ref");
    if (c->code != 0 && c->code != 1)
        complain(c, "neither success nor failure", "");
    compare(c, got, want, c->code == 0);
    if (c->code == 1 && !has_message())
        complain(c, "fails without a message", "");
}

/* Nothing is lost: a second attempt gives exactly the right files. */
static void check_again(const comparison *failed) {
    comparison c = *failed;
    c.code = run("try", c.work->arguments, NULL, 0);
    if (c.code != 0 && c.work->again)
        c.code = run("try", c.work->again, NULL, 0);
    if (c.code != 0)
        complain(&c, "once more does not work", "");
    check_end(&c);
}

static void try_one(const fault *f, const work *w, long fail_at) {
    char call[32] = "none";
    shell("rm -rf $F/try && cp -r $F/base $F/try");
    comparison c = {w, f->with, fail_at, run("try", w->arguments, f, fail_at)};
    check_end(&c);
    (void)counted(call);
    if (finds("*.new-") && strcmp(call, "unlink") != 0)
        complain(&c, "leaves a file half written", "");
    if (w->keeps && !finds(w->keeps))
        complain(&c, "there is no", w->keeps);
    if (c.code != 0)
        check_again(&c);
}

typedef struct loop {
    const fault *fault;
    const work *work;
    char name[64];
} loop;

/* Which of `count` calls fail: number i of those that are tried, and the step to the next one. */
typedef struct choice {
    long tries, first, step;
    bool random; /* one of each interval, the same each time */
} choice;

static choice choose(long some, long count) {
    const char *said = getenv("SOFTRNN_FAULTS");
    long share, shares;
    if (said && strcmp(said, "all") == 0)
        return (choice){.tries = count, .step = 1};
    if (said && sscanf(said, "%ld/%ld", &share, &shares) == 2 && share > 0 && share <= shares)
        return (choice){.tries = count < share ? 0 : (count - share) / shares + 1,
                        .first = share - 1,
                        .step = shares};
    return (choice){.tries = some < count ? some : count, .random = true};
}

static long call_of(const choice *c, long i, long count) {
    const long begin = i * count / c->tries, end = (i + 1) * count / c->tries;
    return 1 + (c->random ? begin + (long)sr_random_below(1, (uint64_t)count, (uint64_t)i,
                                                          (uint64_t)(end - begin))
                          : c->first + i * c->step);
}

static void one_call_fails(void **state) {
    const loop *l = *state;
    const work *w = l->work;
    char call[32];
    shell("rm -rf $F/ref && cp -r $F/base $F/ref");
    comparison first_time = {w, l->fault->with, 0, run("ref", w->arguments, l->fault, 0)};
    if (first_time.code != 0)
        complain(&first_time, "does not work at all", "");
    const long count = counted(call);
    const choice chosen = choose(l->fault->tries, count);
    assert_true(count > 5);
    for (long i = 0; i < chosen.tries; i++)
        try_one(l->fault, w, call_of(&chosen, i, count));
    print_message("%s: %ld of %ld calls failed in turn with %s\n", w->name, chosen.tries, count,
                  l->fault->with);
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
    if (run("base", arguments, NULL, 0) != 0)
        fail_msg("softrnn %s", arguments);
}

/* Creates the inputs of all commands. */
static int enter(void **state) {
    (void)state;
    char path[256];
    folder = mkdtemp(in_memory) ? in_memory : mkdtemp(other);
    if (!folder)
        return -1;
    at(path, "base");
    assert_int_equal(sr_folder_make(path), SRNN_OK);
    write_operands();
    at(path, "base/study.yaml");
    assert_int_equal(sr_file_replace(path, study, strlen(study)), SRNN_OK);
    at(path, "base/tuned.yaml");
    assert_int_equal(sr_file_replace(path, tuned, strlen(tuned)), SRNN_OK);
    shell("for i in $(seq 60); do echo \"line $i of a text says $((i * 7 % 13))\"; done "
          ">$F/base/text.txt");
    need("train --out begun --data " TASK " --steps 3 --stop-step 2 " SAVES SHAPE);
    need("convert --in begun --out model");
    need("study study.yaml --out studied --jobs 1");
    need("orders --model model --out ordered --text-tokens 0 " ORDERS);
    return 0;
}

static int leave(void **state) {
    (void)state;
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

int fault_loop(const fault *faults, size_t fault_count) {
    enum { WORKS = sizeof works / sizeof *works };
    struct CMUnitTest tests[2 * WORKS];
    loop loops[2 * WORKS];
    assert(fault_count <= 2);
    for (size_t i = 0; i < fault_count * WORKS; i++) {
        loops[i] = (loop){.fault = &faults[i / WORKS], .work = &works[i % WORKS]};
        snprintf(loops[i].name, sizeof loops[i].name, "%s, %s", loops[i].work->name,
                 loops[i].fault->with);
        tests[i] = (struct CMUnitTest){loops[i].name, one_call_fails, NULL, NULL, &loops[i]};
    }
    return _cmocka_run_group_tests("faults", tests, fault_count * WORKS, enter, leave);
}
