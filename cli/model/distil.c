/* distil.c: `softrnn distil`. */
#include "cli/commands.h"
#include "cli/line/options.h"
#include "cli/line/progress.h"
#include "cli/model/ranking_show.h"
#include "cli/model/run_options.h"
#include "cli/model/run_steps.h"
#include "distil/ranking.h"
#include "files/json.h"

#include <stdio.h>
#include <string.h>

static const char *const decays[] = {"usual", "teacher", NULL};
static const char *const ways[] = {"forward", "reverse", NULL};

typedef struct distil_line {
    const char *out, *resume, *keep, *stages;
    bool rank, json;
    sr_ranking_request ranking;
    int way, learn, adapter_rank, decays;
    sr_distil_request request;
    sr_run_settings common;
    sr_ranks ranks;
    sr_run_ends ends; /* of a resumed one */
} distil_line;

/* What a stage decides, and what a student takes from its teacher. */
static const char *const without[] = {
    "batches",        "test",        "model",        "preset",        "objective",
    "only-attention", "lora-rank",   "vocab",        "hidden",        "mlp-hidden",
    "layers",         "heads",       "kv-heads",     "head-size",     "mlp",
    "tied",           "rope-theta",  "norm-epsilon", "steps",         "keep",
    "stop-step",      "stop-tokens", "stop-seconds", "context-ranks", NULL};

static void print_copy(const distil_line *l, const sr_student_parts *made) {
    command_message("%s/copy: %d layers with attention %s; %zu of %zu tensors are the teacher's%s",
                    l->out, made->replaced, l->common.attention, made->copied + made->joined,
                    made->tensors,
                    made->copied + made->joined < made->tensors ? ", the others new" : "");
}

/* Rank 0 writes; the others wait for it. */
static srnn_status prepare(distil_line *l) {
    sr_student_parts made = {0};
    if (l->ranks.rank != 0)
        return sr_ranks_agree(&l->ranks, SRNN_OK);
    const srnn_status status =
        l->resume ? sr_distil_continue(l->resume) : sr_distil_begin(l->out, &l->request, &made);
    if (status == SRNN_OK && !l->resume)
        print_copy(l, &made);
    return sr_ranks_agree(&l->ranks, status);
}

static int run_stage(distil_line *l, const char *folder, sr_stage stage) {
    char path[SR_PATH_BYTES];
    sr_run *run;
    srnn_status status = sr_path_join(path, folder, sr_stage_name(stage));
    if (status == SRNN_OK)
        status = sr_distil_open(&run, folder, stage, &l->ends);
    if (status != SRNN_OK)
        return command_report_rank(status, &l->ranks);
    if (!run)
        return EXIT_OK;
    const int exit_code = run_to_end(run, path, &l->ranks);
    sr_run_free(run);
    return exit_code;
}

/* ---- --rank-layers */

static bool show_progress(void *context, double share) {
    progress_show(context, share, "each layer alone");
    return progress_interrupted();
}

static srnn_status write_ranking(const distil_line *l, const sr_ranking_result *result) {
    json_t *record;
    SR_TRY(sr_ranking_record(&record, result));
    srnn_status status = sr_json_replace(json_incref(record), l->ranking.folder, "layers.json",
                                         JSON_REAL_PRECISION(9));
    if (status == SRNN_OK && l->json)
        status = sr_json_print(stdout, record, JSON_REAL_PRECISION(9));
    else if (status == SRNN_OK)
        ranking_show(record);
    json_decref(record);
    return status;
}

static int rank_layers(distil_line *l) {
    progress_bar bar;
    sr_ranking_result result;
    l->ranking.folder = l->resume ? l->resume : l->out;
    l->ranking.threads = l->common.threads;
    l->ranking.device = *l->common.device ? l->common.device : NULL;
    l->ranking.tolerance = 0.01;
    l->ranking.tolerable = 0.01;
    l->ranking.progress = show_progress;
    l->ranking.context = &bar;
    progress_begin(&bar);
    srnn_status status = sr_ranking_measure(&result, &l->ranking);
    progress_end(&bar);
    if (status == SRNN_OK) {
        status = write_ranking(l, &result);
        sr_ranking_free(&result);
    }
    return command_report(status);
}

static int run_stages(distil_line *l) {
    const char *folder = l->resume ? l->resume : l->out;
    char path[SR_PATH_BYTES];
    int exit_code = command_report_rank(prepare(l), &l->ranks);
    if (l->rank) {
        exit_code = exit_code == EXIT_OK ? run_stage(l, folder, SR_STAGE_ALIGN) : exit_code;
        return exit_code == EXIT_OK ? rank_layers(l) : exit_code;
    }
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES && exit_code == EXIT_OK; stage++)
        exit_code = run_stage(l, folder, (sr_stage)stage);
    if (exit_code == EXIT_OK && l->ranks.rank == 0 && sr_distil_student(path, folder) == SRNN_OK)
        command_message("the student is %s: softrnn eval --model %s", path, path);
    return exit_code;
}

/* The first given option that a resumed one does not accept, or NULL. */
static const char *not_for_resume(int argc, char *const *argv) {
    static const char *const allowed[] = {"--resume",      "--threads",     "--device",
                                          "--rank-layers", "--state-bytes", "--window",
                                          "--most-order",  "--json"};
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        bool fine = strncmp(argv[i], "--", 2) != 0;
        for (size_t k = 0; k < sizeof allowed / sizeof *allowed; k++)
            fine = fine || options_given(1, argv + i, allowed[k]);
        if (!fine)
            return argv[i];
    }
    return NULL;
}

/* Refuses an option that would change nothing. */
static int check_pairs(const distil_line *l, int argc, char *const *argv) {
    static const char *const of_ranking[] = {"--state-bytes", "--window", "--most-order", "--json"};
    for (size_t i = 0; i < sizeof of_ranking / sizeof *of_ranking; i++)
        if (!l->rank && options_given(argc, argv, of_ranking[i]))
            return command_refuse("%s goes with --rank-layers only", of_ranking[i]);
    if (strcmp(sr_distil_learns[l->learn], "lora") != 0 && options_given(argc, argv, "--lora-rank"))
        return command_refuse("--lora-rank goes with --learn lora only");
    return EXIT_OK;
}

static srnn_status settle(distil_line *l, const run_options *all) {
    SR_TRY(run_options_keep(&l->common, all));
    SR_TRY(sr_stages_parse(l->request.stages, l->rank ? "align" : l->stages));
    l->request.common = &l->common;
    l->request.keep = l->keep;
    l->request.reversed = l->way == 1;
    l->request.decays_of_teacher = l->decays == 1;
    sr_distil_learn(&l->request, l->learn, l->adapter_rank);
    l->ends = (sr_run_ends){.threads = l->common.threads,
                            .device = *l->common.device ? l->common.device : NULL,
                            .ranks = &l->ranks};
    return sr_ranks_open(&l->ranks);
}

static int distil(distil_line *l, const run_options *all, const char *wrong) {
    if (!l->out == !l->resume)
        return command_refuse("distil needs either --out DIR or --resume DIR");
    if (l->rank && *l->keep)
        return command_refuse("--rank-layers says which layers to keep: leave --keep out");
    if (l->resume && wrong)
        return command_refuse("%s cannot be changed when stages are resumed", wrong);
    const srnn_status status = settle(l, all);
    if (status == SRNN_OK && l->rank && l->ranks.count > 1) {
        sr_ranks_close(&l->ranks);
        return command_refuse("--rank-layers is the work of one process");
    }
    const int exit_code = status == SRNN_OK ? run_stages(l) : command_report(status);
    sr_ranks_close(&l->ranks);
    return exit_code;
}

static void add_own(run_options *all, distil_line *l) {
    int64_t *steps = l->request.steps;
    double *rates = l->request.rates;
    const command_option own[] = {
        OPTION_TEXT("--out", &l->out, "DIR", "the folder of the stages, to be made"),
        OPTION_TEXT("--resume", &l->resume, "DIR", "continue the stages in this folder"),
        OPTION_TEXT("--keep", &l->keep, "LAYERS",
                    "layers that keep the teacher's attention: 0,5,8-, or 3-/4 for every fourth"),
        OPTION_TEXT("--stages", &l->stages, "LIST",
                    "of copy, align, distil and tune, which run in this order"),
        OPTION_INTEGER64("--align-steps", &steps[SR_STAGE_ALIGN], 1, INT64_MAX / 2, "N",
                         "steps of stage align"),
        OPTION_INTEGER64("--distil-steps", &steps[SR_STAGE_DISTIL], 1, INT64_MAX / 2, "N",
                         "steps of stage distil"),
        OPTION_INTEGER64("--tune-steps", &steps[SR_STAGE_TUNE], 1, INT64_MAX / 2, "N",
                         "steps of stage tune"),
        OPTION_NUMBER("--align-rate", &rates[SR_STAGE_ALIGN], 0, 1e3, "X",
                      "its learning rate; 0: three times --learning-rate"),
        OPTION_NUMBER("--distil-rate", &rates[SR_STAGE_DISTIL], 0, 1e3, "X",
                      "its learning rate; 0: --learning-rate"),
        OPTION_NUMBER("--tune-rate", &rates[SR_STAGE_TUNE], 0, 1e3, "X",
                      "its learning rate; 0: --learning-rate"),
        OPTION_CHOICE("--kl", &l->way, ways, "WORD",
                      "of stage distil: forward, KL(teacher, student), or reverse"),
        OPTION_CHOICE("--learn", &l->learn, sr_distil_learns, "WORD",
                      "what learns in distil and tune: all, the new attention alone, or lora: "
                      "low-rank adapters of the layers' matrices, saved apart and merged"),
        OPTION_INTEGER("--lora-rank", &l->adapter_rank, 1, 1 << 20, "N",
                       "with --learn lora: the rank of the adapters"),
        OPTION_CHOICE("--decays", &l->decays, decays, "WORD",
                      "where decays start: usual, as their authors have it, or teacher: from the "
                      "distances at which the teacher's heads look"),
        OPTION_FLAG("--rank-layers", &l->rank,
                    "instead of a student: what replacing each layer alone costs, before and after "
                    "it is aligned"),
        OPTION_NUMBER("--state-bytes", &l->ranking.budget, -1, 1e18, "N",
                      "with --rank-layers: which layers to keep so that caches and states of a "
                      "sequence fit N "
                      "bytes; -1: none"),
        OPTION_INTEGER("--window", &l->ranking.window, 1, 1 << 24, "N",
                       "with --rank-layers: the last tokens whose share of the attention is "
                       "measured"),
        OPTION_INTEGER("--most-order", &l->ranking.most_order, 2, 170, "N",
                       "with --rank-layers: the highest order of exp tried"),
        OPTION_FLAG("--json", &l->json, "with --rank-layers: the record instead of tables"),
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        all->options[all->count++] = own[i];
}

int command_distil(int argc, char **argv) {
    const char *wrong = not_for_resume(argc, argv);
    distil_line l = {.keep = "",
                     .stages = "copy,align,distil",
                     .adapter_rank = SR_ADAPTER_RANK,
                     .decays = 1,
                     .ranking = {.budget = -1, .window = 16, .most_order = 16},
                     .request = sr_distil_request_usual()};
    run_options all = {.count = 0};
    if (sr_run_settings_create(&l.common) != SRNN_OK)
        return command_report(SRNN_ERR_MEMORY);
    l.common.weight_decay = 0; /* it would pull what the teacher has learned towards 0 */
    add_own(&all, &l);
    run_options_add(&all, &l.common, without);
    const command_line line = {
        .usage =
            "softrnn distil --teacher MODEL --attention SPEC --data WHERE --out DIR [options]\n"
            "       softrnn distil --resume DIR [--threads N] [--device NAME]\n"
            "       mpirun -n N softrnn distil ...",
        .purpose = "From a trained model to an RNN, in stages: copy (the teacher's weights in a "
                   "student\nwith another attention), align (each new layer alone, towards what "
                   "the teacher's adds),\ndistil (the logits towards the teacher's), tune (the "
                   "text). The folder receives the plan,\nthe copy and a run for every other "
                   "stage, which a signal stops and --resume continues with\nthe same bits. A text "
                   "is read with the teacher's tokenizer.",
        .options = all.options,
        .option_count = all.count,
        .examples = "  softrnn distil --teacher stories260K.bin --attention gla --data stories.txt "
                    "--out runs/gla\n"
                    "  softrnn distil --teacher llama --attention gated_delta_net --keep 3-/4 "
                    "--data shards --out runs/hybrid --stages align,distil,tune\n"
                    "  softrnn distil --rank-layers --teacher llama --attention gla --data "
                    "shards --out runs/layers --state-bytes 4e6\n"
                    "  softrnn distil --resume runs/gla\n",
    };
    int exit_code;
    if (options_parse(&line, argc, argv, &exit_code)) {
        exit_code = check_pairs(&l, argc, argv);
        exit_code = exit_code == EXIT_OK ? distil(&l, &all, wrong) : exit_code;
    }
    sr_run_settings_free(&l.common);
    return exit_code;
}
