/* train.c: `softrnn train`. */
#include "cli/commands.h"
#include "cli/line/options.h"
#include "cli/model/dry_run.h"
#include "cli/model/run_options.h"
#include "cli/model/run_steps.h"

#include <string.h>

/* The first given option that a resumed run does not accept, or NULL. */
static const char *not_an_end(int argc, char *const *argv) {
    static const char *const ends[] = {"--resume",       "--stop-step",     "--stop-tokens",
                                       "--stop-seconds", "--threads",       "--device",
                                       "--shard",        "--rank-patience", "--recompute",
                                       "--context-ranks"};
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        bool end = strncmp(argv[i], "--", 2) != 0; /* a value, or -h */
        for (size_t k = 0; k < sizeof ends / sizeof *ends; k++)
            end = end || options_given(1, argv + i, ends[k]);
        if (!end)
            return argv[i];
    }
    return NULL;
}

/* The command line besides the settings. */
typedef struct train_request {
    const char *out, *resume;
    const char *wrong;          /* an option that is not allowed with --resume, or NULL */
    bool step, tokens, seconds; /* which ends were given, even as 0 */
    bool shard, patience, length, recompute, context; /* given */
    sr_ranks ranks;
    bool all_batches, dry;
} train_request;

/* An end that was given; there 0 means none. */
static double end_of(double value, bool given) {
    return given && value == 0 ? -1 : value;
}

static srnn_status start_or_resume(sr_run **run, sr_run_settings *s, train_request *r) {
    const sr_run_ends ends = {.stop_step = (int64_t)end_of((double)s->stop_step, r->step),
                              .stop_tokens = (int64_t)end_of((double)s->stop_tokens, r->tokens),
                              .stop_seconds = end_of(s->stop_seconds, r->seconds),
                              .threads = s->threads,
                              .device = s->device && *s->device ? s->device : NULL,
                              .ranks = &r->ranks,
                              .context_ranks = r->context ? &s->context_ranks : NULL,
                              .shard = r->shard ? &s->shard : NULL,
                              .recompute = r->recompute ? &s->recompute : NULL,
                              .rank_patience = r->patience ? &s->rank_patience : NULL};
    s->ranks = &r->ranks;
    return r->resume ? sr_run_resume(run, r->resume, &ends) : sr_run_start(run, r->out, s);
}

/* Warns that tasks and batches fix the row length. */
static void print_length(const sr_run *run, const sr_run_settings *requested) {
    const sr_run_settings *s = sr_run_settings_of(run);
    if (s->T != requested->T)
        command_message("--length %d has no effect: rows of %s have %d tokens%s", requested->T,
                        *s->batches ? s->batches : s->data, s->T,
                        *s->batches ? "" : " (the task's own length=N sets it)");
}

static int train_together(sr_run_settings *settings, train_request *r) {
    sr_run *run;
    const srnn_status status = start_or_resume(&run, settings, r);
    if (status != SRNN_OK)
        return command_report_rank(status, &r->ranks);
    if (r->length && r->ranks.rank == 0)
        print_length(run, settings);
    const int exit_code = run_to_end(run, r->resume ? r->resume : r->out, &r->ranks);
    sr_run_free(run);
    return exit_code;
}

static int train(sr_run_settings *settings, const run_options *all, train_request *r) {
    if (r->dry ? r->resume != NULL : !r->out == !r->resume)
        return command_refuse("train needs either --out DIR or --resume DIR%s",
                              r->dry ? "; --dry-run goes with a new run" : "");
    if (r->resume && r->wrong)
        return command_refuse("%s cannot be changed when a run is resumed; a new run may begin "
                              "with its model: --out DIR --model %s",
                              r->wrong, r->resume);
    if (r->all_batches)
        settings->steps = 0;
    srnn_status status = run_options_keep(settings, all);
    if (status == SRNN_OK && r->dry)
        return command_report(dry_run(settings));
    if (status == SRNN_OK)
        status = sr_ranks_open(&r->ranks);
    if (status != SRNN_OK)
        return command_report(status);
    const int exit_code = train_together(settings, r);
    sr_ranks_close(&r->ranks);
    return exit_code;
}

int command_train(int argc, char **argv) {
    train_request r = {.wrong = not_an_end(argc, argv),
                       .step = options_given(argc, argv, "--stop-step"),
                       .tokens = options_given(argc, argv, "--stop-tokens"),
                       .seconds = options_given(argc, argv, "--stop-seconds"),
                       .shard = options_given(argc, argv, "--shard"),
                       .patience = options_given(argc, argv, "--rank-patience"),
                       .length = options_given(argc, argv, "--length"),
                       .recompute = options_given(argc, argv, "--recompute"),
                       .context = options_given(argc, argv, "--context-ranks"),
                       .all_batches = options_given(argc, argv, "--batches") &&
                                      !options_given(argc, argv, "--steps")};
    sr_run_settings settings;
    run_options all = {.count = 0};
    if (sr_run_settings_create(&settings) != SRNN_OK)
        return command_report(SRNN_ERR_MEMORY);
    all.options[all.count++] =
        (command_option)OPTION_TEXT("--out", &r.out, "DIR", "the run's folder, to be made");
    all.options[all.count++] =
        (command_option)OPTION_TEXT("--resume", &r.resume, "DIR",
                                    "continue the run in this folder; only ends may be given anew");
    all.options[all.count++] =
        (command_option)OPTION_FLAG("--dry-run", &r.dry,
                                    "print the bytes and operations of a batch, layer by layer, "
                                    "and stop");
    run_options_add(&all, &settings, NULL);
    const command_line line = {
        .usage = "softrnn train --out DIR --data WHERE [options]\n"
                 "       softrnn train --resume DIR [--stop-step N] [--stop-tokens N] "
                 "[--stop-seconds X] [--threads N] [--device NAME]\n"
                 "       mpirun -n N softrnn train ...",
        .purpose = "Trains a Llama with any attention. The folder receives run.yaml, "
                   "metrics.jsonl,\ntimings.jsonl, TensorBoard events and checkpoints in Hugging "
                   "Face layout. Ctrl-C, SIGTERM,\nSIGHUP, SIGUSR1 and SIGXCPU write a checkpoint "
                   "and leave; the resumed run has the "
                   "same bits as one never stopped.",
        .options = all.options,
        .option_count = all.count,
        .examples = "  softrnn train --out runs/norm --data shakespeare.txt --attention norm\n"
                    "  softrnn train --out runs/recall --data recall:pairs=8 --preset tiny "
                    "--attention order:2\n"
                    "  softrnn train --resume runs/norm\n"
                    "  mpirun -n 4 softrnn train --out runs/norm --data shards --threads 2\n",
    };
    int exit_code;
    if (options_parse(&line, argc, argv, &exit_code))
        exit_code = train(&settings, &all, &r);
    sr_run_settings_free(&settings);
    return exit_code;
}
