/* test_train_command.c: `softrnn train` as a program: killed while it writes, interrupted, on a
 * full disk. */
#include "base/random.h"
#include "files/file.h"
#include "files/folder.h"
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 40 };

static char folder[64], text[80], whole[80], broken[80];

/* Starts the program; its output is discarded. A limit above 0 bounds the size of its files. */
static pid_t start(const char *const *arguments, rlim_t limit) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0)
        return child;
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    if (limit) {
        const struct rlimit bound = {limit, limit};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &bound);
    }
    char *list[MOST_ARGUMENTS] = {SOFTRNN_PROGRAM, "train"};
    for (int i = 0; arguments[i]; i++)
        list[i + 2] = strdup(arguments[i]);
    execv(SOFTRNN_PROGRAM, list);
    _exit(127);
}

static int finish(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* A small run with a checkpoint after every step, which spends most of its time writing them. */
static pid_t start_run(const char *out) {
    const char *const arguments[] = {"--out",
                                     out,
                                     "--data",
                                     text,
                                     "--hidden",
                                     "32",
                                     "--mlp-hidden",
                                     "48",
                                     "--layers",
                                     "2",
                                     "--heads",
                                     "2",
                                     "--batch",
                                     "2",
                                     "--length",
                                     "16",
                                     "--steps",
                                     "40",
                                     "--warmup",
                                     "4",
                                     "--save-every",
                                     "1",
                                     "--validate-every",
                                     "8",
                                     "--validate-batches",
                                     "1",
                                     "--attention",
                                     "norm",
                                     "--threads",
                                     "1",
                                     NULL};
    return start(arguments, 0);
}

static pid_t resume_run(const char *out, rlim_t limit) {
    const char *const arguments[] = {"--resume", out, NULL};
    return start(arguments, limit);
}

static bool exists(const char *run, const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", run, name);
    return access(path, F_OK) == 0;
}

static void same_file(const char *name) {
    char path[200];
    sr_mapping want, got;
    snprintf(path, sizeof path, "%s/%s", whole, name);
    assert_int_equal(sr_mapping_open(&want, path), SRNN_OK);
    snprintf(path, sizeof path, "%s/%s", broken, name);
    assert_int_equal(sr_mapping_open(&got, path), SRNN_OK);
    assert_int_equal(got.bytes, want.bytes);
    assert_memory_equal(got.data, want.data, got.bytes);
    sr_mapping_close(&want);
    sr_mapping_close(&got);
}

static void same_runs(void) {
    same_file("metrics.jsonl");
    same_file("checkpoints/step-000000040/model.safetensors");
    same_file("checkpoints/step-000000040/optimizer.safetensors");
    assert_int_equal(sr_folder_remove(broken), SRNN_OK);
}

/* How often a run is killed: 20 times, or as SOFTRNN_KILLS says (make nightly). */
static int kills_wanted(void) {
    const char *said = getenv("SOFTRNN_KILLS");
    return said ? atoi(said) : 20;
}

static void killed_runs_go_on(void **state) {
    (void)state;
    const int wanted = kills_wanted();
    int kills = 0;
    for (uint64_t round = 0; kills < wanted; round++) {
        for (uint64_t attempt = 0;; attempt++) {
            const pid_t child =
                exists(broken, "run.yaml") ? resume_run(broken, 0) : start_run(broken);
            if (kills < wanted) {
                usleep((useconds_t)(10000 + sr_random_below(3, round, attempt, 150000)));
                kill(child, SIGKILL);
            }
            const int code = finish(child);
            if (code == 0)
                break;
            assert_int_equal(code, -SIGKILL);
            kills++;
        }
        same_runs();
    }
}

/* True once the run has a checkpoint; older ones may be removed meanwhile. */
static bool has_begun(void) {
    for (int step = 1; step <= 40; step++) {
        char name[64];
        snprintf(name, sizeof name, "checkpoints/step-%09d", step);
        if (exists(broken, name))
            return true;
    }
    return false;
}

/* As shells count them, so that `train && eval` stops. */
static void interrupted_runs_leave_cleanly(void **state) {
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU};
    int interrupted = 0;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        pid_t child = start_run(broken);
        while (!has_begun())
            usleep(1000);
        kill(child, signals[i]);
        const int code = finish(child);
        if (code != 0) { /* else it ended before the signal */
            assert_int_equal(code, 128 + signals[i]);
            assert_int_equal(finish(resume_run(broken, 0)), 0);
            interrupted++;
        }
        same_runs();
    }
    assert_true(interrupted > 0);
}

/* Weights do not fit under the limit, records do. */
static void full_disks_keep_the_last_checkpoint(void **state) {
    (void)state;
    pid_t child = start_run(broken);
    while (!exists(broken, "checkpoints/step-000000003") && waitpid(child, NULL, WNOHANG) == 0)
        usleep(1000);
    kill(child, SIGKILL);
    finish(child);
    char before[200] = "";
    for (int step = 0; step < 40; step++) {
        char name[64];
        snprintf(name, sizeof name, "checkpoints/step-%09d", step);
        if (exists(broken, name))
            snprintf(before, sizeof before, "%s", name);
    }
    assert_int_equal(finish(resume_run(broken, 20000)), 1);
    assert_true(exists(broken, before));
    assert_int_equal(finish(resume_run(broken, 0)), 0);
    same_runs();
}

static void wrong_usage(void **state) {
    (void)state;
    const char *const nothing[] = {NULL};
    const char *const both[] = {"--out", "a", "--resume", "b", NULL};
    const char *const no_data[] = {"--out", broken, NULL};
    const char *const bad_variant[] = {"--out",       broken,   "--data", text,
                                       "--attention", "sofmax", NULL};
    assert_int_equal(finish(start(nothing, 0)), 2);
    assert_int_equal(finish(start(both, 0)), 2);
    assert_int_equal(finish(start(no_data, 0)), 2);
    assert_int_equal(finish(start(bad_variant, 0)), 1);
    assert_false(exists(broken, "run.yaml"));
}

/* Runs a shell command in the folder, with the program's name in $S; its exit code. */
static int shell(const char *command) {
    char whole_command[2048];
    snprintf(whole_command, sizeof whole_command, "cd '%s' && S='%s' && { %s; } >out 2>errors",
             folder, SOFTRNN_PROGRAM, command);
    const int status = system(whole_command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define SIZES "--hidden 16 --mlp-hidden 16 --layers 1 --heads 2 --batch 2 --length 16 --threads 1 "

/* As the documentation has it: prepare, train into a new folder, generate; convert keeps
 * everything. */
static void tokenizers_follow(void **state) {
    (void)state;
    assert_int_equal(shell("$S tokenizer train text.txt --vocab 300 --out tok.json && "
                           "$S data prepare --tokenizer tok.json --out shards text.txt"),
                     0);
    assert_int_equal(shell("$S train --out new/runs/a --data shards --steps 4 " SIZES), 0);
    assert_int_equal(shell("$S generate --model new/runs/a --prompt line --tokens 4"), 0);
    assert_int_equal(shell("grep -qx 'rope-theta: 10000' new/runs/a/run.yaml && "
                           "grep -qx 'epsilon: 1e-07' new/runs/a/run.yaml"),
                     0);
    assert_int_equal(shell("grep -q 'tokenizer: \".*/shards/tokenizer.json\"' new/runs/a/run.yaml"),
                     0);
    assert_int_equal(shell("$S convert --in new/runs/a --out new/model"), 0);
    assert_int_equal(shell("$S generate --model new/model --prompt line --tokens 4"), 0);
    /* The model's, if the data has none. */
    assert_int_equal(shell("$S train --out b --model new/model --data recall:pairs=2,length=16 "
                           "--steps 2 --threads 1 && cmp b/tokenizer.json tok.json && "
                           "cmp b/checkpoints/step-000000002/tokenizer.json tok.json"),
                     0);
    assert_int_equal(shell("$S train --out c --data shards --tokenizer nothing --steps 2 " SIZES),
                     1);
    assert_int_equal(
        shell("$S train --out named --data text.txt --tokenizer tok.json --steps 1 " SIZES
              " 2>said"),
        2);
    assert_int_equal(shell("grep -q 'data prepare --tokenizer' said && test ! -e named/run.yaml"),
                     0);
    assert_int_equal(shell(
                         "$S train --out named --data text.txt --tokenizer bytes --steps 1 " SIZES),
                     0);
    assert_int_equal(shell("$S convert --in new/model --out d --tokenizer nothing"), 1);
    assert_int_equal(shell("$S convert --in new/model --out d.bin --type float16"), 2);
}

/* A tokenizer of llama2.c: the three special tokens, the bytes, and words that no text has. */
static void write_tokenizer(const char *name, int tokens) {
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    const uint32_t longest = 8;
    fwrite(&longest, sizeof longest, 1, out);
    for (int i = 0; i < tokens; i++) {
        char word[16];
        const float score = (float)-i;
        if (i < 3)
            snprintf(word, sizeof word, "%s", special[i]);
        else
            snprintf(word, sizeof word, i < 259 ? "<0x%02X>" : "#%d#", i - 3);
        const uint32_t length = (uint32_t)strlen(word);
        fwrite(&score, sizeof score, 1, out);
        fwrite(&length, sizeof length, 1, out);
        fputs(word, out);
    }
    assert_int_equal(fclose(out), 0);
}

/* A text is bytes: a model with a tokenizer of its own would read them as other tokens. */
static void texts_are_not_read_as_other_tokens(void **state) {
    (void)state;
    static const char *const models[] = {"new/model", "new/runs/a", "bin/model.bin"};
    char command[256];
    assert_int_equal(shell("mkdir bin && cp new/model/tokenizer.json bin && "
                           "$S convert --in new/model --out bin/model.bin"),
                     0);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        snprintf(command, sizeof command, "$S eval --model %s --data text.txt 2>said", models[i]);
        assert_int_equal(shell(command), 2);
        assert_int_equal(shell("grep -q 'text is read as bytes.*data prepare --tokenizer' said"),
                         0);
        snprintf(command, sizeof command,
                 "$S eval --model %s --text text.txt && "
                 "$S eval --model %s --data shards --split train | grep 'bits per byte'",
                 models[i], models[i]);
        assert_int_equal(shell(command), 0);
    }
    /* A tokenizer next to a .bin file may belong to another model: a byte model ignores it, others
     * report it. */
    assert_int_equal(shell("$S train --out named/bytes --data text.txt --steps 1 " SIZES " && "
                           "$S convert --in named/bytes --out bin/bytes.bin && "
                           "$S eval --model bin/bytes.bin --data text.txt && "
                           "$S eval --model bin/bytes.bin --text text.txt && "
                           "$S generate --model bin/bytes.bin --prompt line --tokens 4"),
                     0);
    assert_int_equal(shell("mkdir alien && $S tokenizer train text.txt --vocab 290 "
                           "--out alien/tokenizer.json && cp bin/model.bin alien && "
                           "$S eval --model alien/model.bin --text text.txt 2>said"),
                     1);
    assert_int_equal(shell("grep -q 'no tokenizer for its [0-9]* tokens .*tokenizer.json, "
                           ".*tok[0-9]*.bin, .*--tokenizer' said"),
                     0);
    /* llama2.c's name for a tokenizer of 300 tokens. */
    assert_int_equal(shell("mkdir numbered && cp bin/model.bin numbered"), 0);
    write_tokenizer("numbered/tok300.bin", 300);
    assert_int_equal(shell("$S eval --model numbered/model.bin --text text.txt && "
                           "$S convert --in numbered/model.bin --out numbered/converted && "
                           "cmp numbered/tok300.bin numbered/converted/tokenizer.bin"),
                     0);
    /* A padded vocabulary still fits its tokenizer. */
    assert_int_equal(shell("mkdir padded && cp tok.json padded/tokenizer.json && "
                           "$S train --out padded/run --data shards --vocab 320 --steps 1 " SIZES
                           " && $S convert --in padded/run --out padded/model.bin && "
                           "$S eval --model padded/model.bin --text text.txt"),
                     0);
    assert_int_equal(shell("$S eval --model alien/model.bin --data shards --split train"), 0);
    assert_int_equal(shell("$S eval --model alien/model.bin --tokenizer new/model --text text.txt"),
                     0);
    assert_int_equal(shell("$S train --out fine --model new/model --data text.txt --length 16 "
                           "--steps 1 2>said"),
                     2);
    assert_int_equal(shell("grep -q 'text is read as bytes.*data prepare --tokenizer new/model ' "
                           "said && test ! -e fine/run.yaml"),
                     0);
    assert_int_equal(shell("$S train --out fine --model new/model --data shards --length 16 "
                           "--steps 1"),
                     0);
    /* A model of bytes, with their tokenizer as a file. */
    assert_int_equal(shell("$S convert --in named --out named_model && test -e "
                           "named_model/tokenizer.json && $S train --out more --model "
                           "named_model --data text.txt --length 16 --steps 1 && $S eval --model "
                           "named_model --data text.txt | grep 'bits per byte'"),
                     0);
    /* The tokens of a task have no text. */
    assert_int_equal(shell("$S eval --model new/model --data recall:pairs=2,length=16 >said && "
                           "grep -q accuracy said && ! grep -q 'bits per byte' said"),
                     0);
}

/* convert reports which programs can load a folder, and adds the byte tokenizer to it. */
static void converted_models_say_who_loads_them(void **state) {
    (void)state;
    assert_int_equal(shell("$S train --out p --data text.txt --steps 1 " SIZES
                           " && $S convert --in p --out pm 2>said && "
                           "grep -q 'LlamaForCausalLM, which transformers loads' said && "
                           "grep -q '\"bos_token\"' pm/tokenizer_config.json && "
                           "$S generate --model pm --prompt line --tokens 2"),
                     0);
    assert_int_equal(shell("$S train --out q --data text.txt --attention norm --steps 1 " SIZES
                           " && $S convert --in q --out qm 2>said && grep -q 'model_type "
                           "softrnn: transformers .* refuses .* softrnn.hf' said && ! grep -q "
                           "'\"llama\"' qm/config.json && $S generate --model qm --prompt line "
                           "--tokens 2"),
                     0);
}

/* A model is not written into a folder that has a run, a model or other files. */
static void converted_models_get_folders_of_their_own(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"q", "holds a run"},
                                           {"pm", "holds a model"},
                                           {"notes", "holds other files"}};
    char command[256];
    assert_int_equal(shell("mkdir notes empty && echo mine > notes/list && cp -r q q2"), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(command, sizeof command, "$S convert --in pm --out %s 2>said", cases[i][0]);
        assert_int_equal(shell(command), 2);
        snprintf(command, sizeof command, "grep -q 'this folder %s; name a new' said", cases[i][1]);
        assert_int_equal(shell(command), 0);
    }
    assert_int_equal(shell("diff -r q q2 && test \"$(ls notes)\" = list"), 0);
    assert_int_equal(shell("$S convert --in pm --out empty && test -e empty/config.json && "
                           "test ! -e empty/lock"),
                     0);
    /* A folder that another process is using is unchanged. */
    assert_int_equal(shell("mkdir held && ! flock held/lock $S convert --in pm --out held 2>said "
                           "&& grep -q 'held: another process is at work in this folder' said && "
                           "test \"$(ls held)\" = lock && $S convert --in pm --out held && cmp "
                           "held/model.safetensors empty/model.safetensors"),
                     0);
    /* Of several concurrent processes one writes it, undisturbed. */
    assert_int_equal(shell("for i in 1 2 3 4; do ($S convert --in pm --out raced 2>said$i && "
                           "echo $i >>first) & done; wait; test $(wc -l <first) = 1 && "
                           "diff -r raced empty"),
                     0);
    /* An attempt that fails half-way does not block the next. */
    assert_int_equal(shell("cp -r pm pb && rm pb/tokenizer.json && mkdir pb/tokenizer.json && "
                           "! $S convert --in pb --out twice && $S convert --in pm --out twice"),
                     0);
}

/* Files that are not models, and missing files. */
static void what_is_no_model_is_called_so(void **state) {
    (void)state;
    assert_int_equal(shell("printf GGUF > x.gguf; $S generate --model x.gguf --prompt a 2>said"),
                     1);
    assert_int_equal(shell("grep -q 'x.gguf: GGUF is not read' said"), 0);
    assert_int_equal(shell("$S eval --model text.txt --text text.txt 2>said"), 1);
    assert_int_equal(shell("grep -q 'text.txt: not a model' said"), 0);
    assert_int_equal(shell("$S eval --model nosuch --text text.txt 2>said"), 1);
    assert_int_equal(shell("grep -q 'nosuch: No such file' said"), 0);
}

/* Options that a resumed run would ignore are refused, and so is a second process. */
static void resumed_runs_keep_their_settings(void **state) {
    (void)state;
    assert_int_equal(shell("$S train --out e --data text.txt --steps 6 --stop-step 2 " SIZES), 0);
    assert_int_equal(shell("$S train --resume e --learning-rate 5 2>said"), 2);
    assert_int_equal(shell("grep -q -- --learning-rate said"), 0);
    assert_int_equal(shell("$S train --resume e --attention=norm"), 2);
    assert_int_equal(shell("flock e/lock $S train --resume e"), 1);
    assert_int_equal(shell("cd new && $S train --resume ../e --stop-step 0 --threads 2"), 0);
    assert_true(exists(folder, "e/checkpoints/step-000000006"));
}

/* The end of a run, its TensorBoard events, and comparisons of several. */
static void runs_are_shown(void **state) {
    (void)state;
    assert_int_equal(shell("for seed in 1 2; do $S train --out seed$seed --data text.txt --steps 4 "
                           "--validate-every 2 --seed $seed " SIZES " 2>said || exit 1; done"),
                     0);
    assert_int_equal(shell("grep -q 'finished: loss [0-9.]*, validation loss [0-9.]*, at step 4 "
                           "' said"),
                     0);
    assert_int_equal(shell("grep -qa tokens_per_second seed1/events.out.tfevents.softrnn && "
                           "grep -qa 'rope-theta: 10000$' seed1/events.out.tfevents.softrnn"),
                     0);
    assert_int_equal(shell("$S train --out norm-with-a-name-that-is-rather-long-for-a-column "
                           "--data text.txt --steps 4 --stop-step 2 --attention norm " SIZES
                           "2>said && grep -q 'stopped: loss .* at step 2 ' said"),
                     0);
    assert_int_equal(shell("$S compare seed1 seed2 norm-with* >table"), 0);
    assert_int_equal(shell("grep -q '^c norm-with-a-name-that-is-rather-long-for-a-column norm ' "
                           "table"),
                     0);
    assert_int_equal(shell("grep -q '^  softmax *2  *[0-9.]* +- [0-9.]* ' table"), 0);
    assert_int_equal(shell("$S compare seed1 seed2 norm-with* --json | python3 -c 'import json, "
                           "sys; all = json.load(sys.stdin); assert len(all[\"runs\"]) == 3; "
                           "assert [g[\"seeds\"] for g in all[\"means\"]] == [2, 1]'"),
                     0);
    assert_int_equal(shell("$S report seed1 seed2 --out page && grep -q 'seed2' page/report.html "
                           "&& grep -q '<th scope=\"row\">seed</th><td>1</td><td>2</td>' "
                           "page/report.html && test -s page/figures/training-loss.svg"),
                     0);
    assert_int_equal(shell("$S report seed1 text.txt --out nowhere"), 2);
    assert_int_equal(shell("test -e nowhere"), 1);
}

/* Paths of a study are relative to its file; errors in it are reported with their line. */
static void studies_say_where(void **state) {
    (void)state;
    assert_int_equal(shell("mkdir -p away && cp text.txt away/near.txt && printf 'seeds: [1]\n"
                           "variants: {a: softmax}\ntasks:\n  t:\n    settings:\n"
                           "      data: near.txt\n      hidden: 16\n' >away/s.yaml && "
                           "$S study away/s.yaml --dry-run"),
                     0);
    assert_int_equal(shell("sed 's/near/far/' away/s.yaml >away/t.yaml; "
                           "$S study away/t.yaml --dry-run 2>said"),
                     1);
    assert_int_equal(shell("grep -q 'away/t.yaml: line 6: far.txt: ' said"), 0);
    assert_int_equal(shell("sed 's/hidden/hiden/' away/s.yaml >away/t.yaml; "
                           "$S study away/t.yaml --dry-run 2>said"),
                     1);
    assert_int_equal(shell("grep -q 'away/t.yaml: line 7: there is no setting \"hiden\"' said"), 0);
    assert_int_equal(shell("sed '1i baseline: b' away/s.yaml >away/t.yaml; "
                           "$S study away/t.yaml --dry-run 2>said"),
                     1);
    assert_int_equal(shell("grep -q 'away/t.yaml: line 1: no variant' said"), 0);
}

/* A file that may not grow is an error, not a signal; the run can then be resumed elsewhere. */
static void small_files_end_nothing(void **state) {
    (void)state;
    assert_int_equal(shell("ulimit -f 8; $S train --out f --data text.txt --steps 60 "
                           "--save-every 0 --validate-every 0 " SIZES "2>said"),
                     1);
    assert_int_equal(shell("grep -q 'continuing with records in memory' said"), 0);
}

/* stdin, stdout and stderr may be closed: messages must not end up in files. */
static void closed_streams_stay_out_of_files(void **state) {
    (void)state;
    assert_int_equal(shell("$S train --out g --data text.txt --steps 12 --validate-every 4 " SIZES
                           "<&- >&- 2>&-"),
                     1); /* the losses it should print are lost */
    assert_int_equal(shell("test -d g/checkpoints/step-000000012"), 0);
    assert_int_equal(shell("test $(grep -c '^{\"step\": ' g/metrics.jsonl) = 12"), 0);
    assert_int_equal(shell("test $(wc -l <g/metrics.jsonl) = 12 && test ! -s g/lock && "
                           "test $(wc -l <g/timings.jsonl) = 12"),
                     0);
}

/* A file in place of the records may be a link to another file, or block a reader. */
static void records_are_files(void **state) {
    (void)state;
    const char *const train = "timeout 20 $S train --out h --data text.txt --steps 2 " SIZES;
    char command[1024];
    static const char *const places[] = {"metrics.jsonl", "timings.jsonl", "lock"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        assert_int_equal(shell("rm -rf h; mkdir h; echo mine >mine"), 0);
        snprintf(command, sizeof command, "ln -s ../mine h/%s; %s", places[i], train);
        assert_int_equal(shell(command), 1);
        assert_int_equal(shell("echo mine | cmp - mine"), 0);
        snprintf(command, sizeof command, "rm h/%s; mkfifo h/%s; %s", places[i], places[i], train);
        assert_int_equal(shell(command), 1);
    }
}

/* A checkpoint belongs to a run by identity, not by its step. */
static void checkpoints_belong_to_their_run(void **state) {
    (void)state;
    assert_int_equal(shell("$S train --out i --data text.txt --steps 4 " SIZES), 0);
    assert_int_equal(shell("cp -r i i2 && rm i/run.yaml i/metrics.jsonl && "
                           "$S train --out i --data text.txt --steps 4 --seed 7 " SIZES),
                     2);
    assert_int_equal(shell("diff -r i/checkpoints i2/checkpoints"), 0);
    /* Nor does a copied one. */
    assert_int_equal(
        shell("rm -r i && $S train --out i --data text.txt --steps 4 --stop-step 2 " SIZES), 0);
    assert_int_equal(shell("cp -r i2/checkpoints/step-000000004 i/checkpoints"), 0);
    assert_int_equal(shell("$S train --resume i --stop-step 0 2>said"), 1);
    assert_int_equal(shell("grep -q 'of another run' said"), 0);
    assert_int_equal(shell("grep -q 'step-000000002 is whole' said"), 0);
}

/* All values in a checkpoint are validated, and any changed file is refused. */
static void damaged_checkpoints_are_refused(void **state) {
    (void)state;
    static const char *const edits[] = {
        "s/.step.: 6/\"step\": 5/",
        "s/.step.: 6/\"step\": 9223372036854775807/",
        "s/.updates.: [0-9]*/\"updates\": 9223372036854775807/",
        "s/.updates.: [0-9]*/\"updates\": -1/",
        "s/.updates.: [0-9]*/\"updates\": 0/",
        "s/.tokens.: [0-9]*/\"tokens\": -5/",
        "s/.tokens.: [0-9]*/\"tokens\": 9223372036854775807/",
        "s/.skipped.: [0-9]*/\"skipped\": 9/",
        "s/.skipped_in_row.: [0-9]*/\"skipped_in_row\": 1/",
        "s/.metrics_bytes.: [0-9]*/\"metrics_bytes\": 100/",
        "s/.metrics_bytes.: [0-9]*/\"metrics_bytes\": -1/",
        "s/.metrics_bytes.: [0-9]*/\"metrics_bytes\": 99999999/",
        "s/.timings_bytes.: [0-9]*/\"timings_bytes\": 0/",
        "s/.events_bytes.: [0-9]*/\"events_bytes\": 77/",
        "s/.run.: ./\"run\": \"0/",
        "s/.files./\"field\"/",
        "s/[{]/[/",
    };
    char command[512];
    assert_int_equal(shell("$S train --out j --data text.txt --steps 8 --stop-step 6 --save-every "
                           "2 --keep 3 " SIZES),
                     0);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        snprintf(command, sizeof command,
                 "rm -rf k; cp -r j k && sed -i '%s' k/checkpoints/step-000000006/run.json && "
                 "! cmp -s j/checkpoints/step-000000006/run.json "
                 "k/checkpoints/step-000000006/run.json || exit 99; "
                 "timeout 20 $S train --resume k --stop-step 0",
                 edits[i]);
        const int code = shell(command);
        if (code != 1)
            fail_msg("%s: exit code %d", edits[i], code);
        assert_int_equal(shell("cmp j/metrics.jsonl k/metrics.jsonl"), 0);
    }
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors",
                                        "config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(command, sizeof command,
                 "rm -rf k; cp -r j k; f=k/checkpoints/step-000000006/%s; s=$(stat -c %%s $f); "
                 "printf X | dd of=$f bs=1 seek=$((s - 2)) conv=notrunc; "
                 "$S train --resume k --stop-step 0 2>said",
                 files[i]);
        assert_int_equal(shell(command), 1);
        assert_int_equal(shell("grep -q 'damaged.*step-000000004 is whole.*remove "
                               "step-000000006$' said"),
                         0);
        assert_int_equal(shell("$S eval --model k --data text.txt"), i == 1 ? 0 : 1);
    }
    /* A file that cannot be opened is not reported as damaged. */
    assert_int_equal(shell("rm -rf k; cp -r j k; f=k/checkpoints/step-000000006/model.safetensors; "
                           "mv $f there; ln -s there $f; $S train --resume k --stop-step 0 2>said"),
                     1);
    assert_int_equal(shell("grep -q 'step-000000004 is whole' said && ! grep -q remove said"), 0);
    assert_int_equal(shell("rm -r k/checkpoints/step-000000006; "
                           "$S train --resume k --stop-step 0 && $S train --resume j --stop-step 0 "
                           "&& cmp j/metrics.jsonl k/metrics.jsonl"),
                     0);
}

/* A change of one byte anywhere is detected, whether or not its row has been used. */
static void changed_data_is_refused(void **state) {
    (void)state;
    assert_int_equal(shell("cp text.txt mine.txt && $S data prepare --tokenizer bytes --out own "
                           "--validation 0 mine.txt"),
                     0);
    static const char *const data[] = {"mine.txt", "own/train-00000.tokens"};
    for (int i = 0; i < 2; i++) {
        char command[512];
        snprintf(command, sizeof command,
                 "rm -rf l; cp %s kept; $S train --out l --data %s --steps 4 --stop-step 2 " SIZES
                 "&& printf '#' | dd of=%s bs=1 seek=4320 conv=notrunc && ! cmp -s %s kept",
                 data[i], i ? "own" : data[i], data[i], data[i]);
        assert_int_equal(shell(command), 0);
        assert_int_not_equal(shell("$S train --resume l --stop-step 0"), 0);
        /* A copy with the same bytes is the same data. */
        snprintf(command, sizeof command, "cp kept %s && $S train --resume l --stop-step 0",
                 data[i]);
        assert_int_equal(shell(command), 0);
    }
}

/* Adapters are added to a model that lies elsewhere. */
static void changed_models_of_adapters_are_refused(void **state) {
    (void)state;
    assert_int_equal(shell("for seed in 1 2; do $S train --out base$seed --data text.txt --steps 1 "
                           "--seed $seed " SIZES " || exit 1; done; ln -s base1 base"),
                     0);
    assert_int_equal(shell("$S train --out added --model base --lora-rank 2 --data text.txt "
                           "--steps 4 --stop-step 2 " SIZES " && cp -r added copy"),
                     0);
    assert_int_equal(shell("$S train --resume added --stop-step 0"), 0);
    assert_int_equal(shell("ln -sfn base2 base && $S train --resume copy --stop-step 0 2>said"), 1);
    assert_int_equal(shell("grep -q 'not what the adapters of this run were added to' said"), 0);
}

static void a_missing_record_is_explained(void **state) {
    (void)state;
    assert_int_equal(shell("$S train --out moved --data text.txt --steps 4 --stop-step 2 " SIZES
                           "&& mv moved/metrics.jsonl elsewhere"),
                     0);
    assert_int_equal(shell("$S train --resume moved --stop-step 0 2>said"), 1);
    assert_int_equal(shell("grep -q 'metrics.jsonl: .*put it back.*--model moved' said"), 0);
    assert_int_equal(shell("$S compare moved 2>said"), 1);
    assert_int_equal(shell("grep -q 'moved/metrics.jsonl: no record.*moved or emptied' said"), 0);
    assert_int_equal(shell("$S report moved && grep -q 'No records: moved' moved/report.html"), 0);
    assert_int_equal(shell("mv elsewhere moved/metrics.jsonl && $S train --resume moved "
                           "--stop-step 0"),
                     0);
}

static void other_instruction_sets_are_reported(void **state) {
    (void)state;
    assert_int_equal(shell("$S train --out m --data text.txt --steps 4 --stop-step 2 " SIZES), 0);
    assert_int_equal(shell("cp -r m n; $S train --resume m --stop-step 0 2>said; ! grep -q bits "
                           "said"),
                     0);
    assert_int_equal(shell("sed -i 's/^instructions: .*/instructions: \"z80\"/' n/run.yaml && "
                           "$S train --resume n --stop-step 0 2>said && grep -q 'z80.*bits' said"),
                     0);
    assert_int_equal(shell("sed -i 's/^instructions: .*/instructions: \"\\\\e[31mz80\"/' "
                           "n/run.yaml && $S train --resume n --stop-step 0 2>said && grep -qF "
                           "'\\x1b[31mz80' said"),
                     0);
}

/* Settings that would train something unintended are refused or reported. */
static void misunderstandings_are_reported(void **state) {
    (void)state;
    assert_int_equal(shell("$S train --out o --data text.txt --steps 1 --hidden 65 --heads 2 "
                           "2>said"),
                     2);
    assert_int_equal(shell("grep -q 'divided among 2 heads' said"), 0);
    assert_int_equal(shell("$S train --out o --data text.txt --steps 2 " SIZES), 0);
    assert_int_equal(shell("$S convert --in o --out llama2c.bin && "
                           "$S train --out p2 --data llama2c.bin --steps 2 " SIZES "2>said"),
                     2);
    assert_int_equal(shell("grep -q 'a model, not tokens' said"), 0);
    assert_int_equal(shell("$S train --out p2 --data text.txt --validation-share 0 --steps 2 " SIZES
                           "2>said && grep -q 'no validation split' said"),
                     0);
    assert_int_equal(
        shell("$S data prepare --tokenizer bytes --out unsplit --validation 0 text.txt && "
              "$S train --out p3 --data unsplit --validation text.txt --steps 2 " SIZES "2>said"),
        2);
    assert_int_equal(shell("grep -q 'data prepare --tokenizer bytes .*text.txt, then' said"), 0);
    /* Tokens read as text would be validated on without a word. */
    assert_int_equal(shell("head -c 4000 text.txt >ids.bin && $S train --out p3 --data text.txt "
                           "--validation ids.bin --steps 2 " SIZES "2>said"),
                     2);
    assert_int_equal(shell("grep -q 'ids.bin is a .bin file of tokens, but .* is text' said"), 0);
    assert_int_equal(shell("$S train --out p3 --data ids.bin --validation unsplit --steps 2 " SIZES
                           "2>said"),
                     2);
    assert_int_equal(shell("grep -q 'unsplit is a folder of shards, but .*tokens:' said"), 0);
    assert_int_equal(shell("$S train --out p3 --data unsplit --validation unsplit --steps 2 " SIZES
                           "2>said && grep -q ' validation loss [0-9.]*, at step 2' said"),
                     0);
    assert_int_equal(shell("$S train --out with_split --data text.txt --steps 2 " SIZES
                           "2>said && ! grep -q 'no validation split' said"),
                     0);
    assert_int_equal(shell("$S train --out task --data recall:pairs=4 --steps 1 " SIZES
                           "2>said && grep -q -- '--length 16 has no effect.*recall.* 48' said"),
                     0);
    assert_int_equal(shell("$S train --out task2 --data recall:pairs=2,length=16 --steps 1 " SIZES
                           "2>said && ! grep -q 'no effect' said"),
                     0);
    assert_int_equal(shell("$S train --out never --data text.txt --objective kl --teacher o "
                           "--z-loss 0.1 --steps 1 " SIZES "2>said"),
                     2);
    assert_int_equal(shell("grep -q 'z-loss 0.1 is a part of the cross entropy' said"), 0);
}

static int enter(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/softrnn-train-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(text, sizeof text, "%s/text.txt", folder);
    snprintf(whole, sizeof whole, "%s/whole", folder);
    snprintf(broken, sizeof broken, "%s/broken", folder);
    FILE *out = fopen(text, "w");
    for (int i = 0; out && i < 400; i++)
        fprintf(out, "line %d says %d times %d\n", i, i * 7 % 31, i * i % 17);
    return out && fclose(out) == 0 && finish(start_run(whole)) == 0 ? 0 : -1;
}

static int leave(void **state) {
    (void)state;
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_runs_go_on),
        cmocka_unit_test(interrupted_runs_leave_cleanly),
        cmocka_unit_test(full_disks_keep_the_last_checkpoint),
        cmocka_unit_test(wrong_usage),
        cmocka_unit_test(tokenizers_follow),
        cmocka_unit_test(texts_are_not_read_as_other_tokens),
        cmocka_unit_test(converted_models_say_who_loads_them),
        cmocka_unit_test(converted_models_get_folders_of_their_own),
        cmocka_unit_test(what_is_no_model_is_called_so),
        cmocka_unit_test(resumed_runs_keep_their_settings),
        cmocka_unit_test(runs_are_shown),
        cmocka_unit_test(studies_say_where),
        cmocka_unit_test(small_files_end_nothing),
        cmocka_unit_test(closed_streams_stay_out_of_files),
        cmocka_unit_test(records_are_files),
        cmocka_unit_test(checkpoints_belong_to_their_run),
        cmocka_unit_test(damaged_checkpoints_are_refused),
        cmocka_unit_test(changed_data_is_refused),
        cmocka_unit_test(changed_models_of_adapters_are_refused),
        cmocka_unit_test(other_instruction_sets_are_reported),
        cmocka_unit_test(a_missing_record_is_explained),
        cmocka_unit_test(misunderstandings_are_reported),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
