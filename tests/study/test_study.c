/* test_study.c: reading a study, its plan, and the summary of its records. */
#include "base/clock.h"
#include "files/folder.h"
#include "model/model.h"
#include "study/execute/worker.h"
#include "study/results/summary.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char grid[] =
    "name: grid\n"
    "seeds: [1, 7]\n"
    "baseline: softmax\n"
    "variants: {norm: norm, softmax: softmax, 'a/b <i>': 'order:2'}\n"
    "settings: {layers: 1, hidden: 16, heads: 2, mlp-hidden: 16, steps: 10, batch: 4}\n"
    "tasks:\n"
    "  recall: {measure: accuracy, settings: {data: 'recall:pairs=2,vocab=8,length=12'}}\n"
    "  copy:\n"
    "    variants: [softmax, norm]\n"
    "    settings: {data: 'copy:tokens=2,vocab=6,length=8', steps: 20}\n"
    "sizes:\n"
    "  small: {layers: 1}\n"
    "  deep: {layers: 3, steps: 30}\n"
    "learning-rates: [0.001, 0.01]\n";

static srnn_status read_text(sr_study *study, const char *text) {
    return sr_study_read(study, "test", text, strlen(text));
}

static const sr_study_run *find(const sr_study *study, const char *id) {
    for (size_t i = 0; i < study->run_count; i++)
        if (strcmp(study->runs[i].id, id) == 0)
            return &study->runs[i];
    fail_msg("no run %s", id);
    return NULL;
}

static void grids_expand(void **state) {
    (void)state;
    sr_study study;
    assert_int_equal(read_text(&study, grid), SRNN_OK);
    assert_int_equal(sr_study_expand(&study, "text"), SRNN_OK);
    /* (3 + 2 variants) x 2 sizes x 2 rates x 2 seeds */
    assert_int_equal(study.run_count, 40);
    assert_string_equal(study.variants[study.baseline].name, "softmax");
    const sr_study_run *run = find(&study, "recall.a_b__i_.deep.lr0.01.7");
    assert_string_equal(run->settings.attention, "order:2");
    assert_int_equal(run->settings.L, 3);
    assert_int_equal(run->settings.seed, 7);
    assert_true(run->settings.learning_rate == 0.01);
    assert_int_equal(run->settings.steps, 30); /* the size's, after the task's, after the study's */
    assert_int_equal(find(&study, "copy.norm.small.lr0.001.1")->settings.steps, 20);
    assert_int_equal(find(&study, "recall.norm.small.lr0.001.1")->settings.steps, 10);
    sr_study_free(&study);
}

/* Of a token, forward and backward: what the weights, but those of the embedding, do not need. */
static double attention_flops(const sr_study_run *run) {
    return run->flops / run->tokens - 6.0 * (double)(run->parameters - 8 * 16);
}

/* Of sizes of layers, of pooled keys, and of models without attention. */
static const char students[] =
    "seeds: [3, 4]\n"
    "teacher: {settings: {steps: 50, learning-rate: 0.01}}\n"
    "variants: {a: gla, w: 'softmax,window=4'}\n"
    "budgets: {none: '', one: '1'}\n"
    "students: {stages: 'align,tune', align-steps: 5, tune-steps: 7, tune-rate: 0.02, batch: 3, "
    "learn: lora, lora-rank: 4}\n"
    "controls: {teacher: {learning-rate: 0.003}, scratch: {learning-rate: 0.004}}\n"
    "settings: {layers: 2, heads: 2, hidden: 16, batch: 2, weight-decay: 0.1}\n"
    "tasks: {recall: {settings: {data: 'recall:pairs=2,vocab=8,length=12'}}}\n";

/* Two variants with two budgets: four students, four from scratch and the teacher again, with as
 * many tokens; and the teacher that comes before them. */
static void students_expand(void **state) {
    (void)state;
    sr_study study, teachers;
    assert_int_equal(read_text(&study, students), SRNN_OK);
    assert_int_equal(sr_study_expand(&study, "text"), SRNN_OK);
    assert_int_equal(study.run_count, 2 * 9);
    assert_int_equal(study.variants[study.baseline].role, SR_ROLE_TEACHER);
    const sr_study_run *student = find(&study, "recall.a__one.4");
    const sr_distil_request *r = &student->request;
    assert_true(r->stages[SR_STAGE_ALIGN] && !r->stages[SR_STAGE_DISTIL] &&
                r->stages[SR_STAGE_TUNE]);
    assert_true(r->steps[SR_STAGE_ALIGN] == 5 && r->rates[SR_STAGE_TUNE] == 0.02);
    assert_true(r->adapter_rank == 4 && strcmp(r->keep, "1") == 0 && !r->from_scratch);
    assert_true(student->steps == 12 && student->tokens == 12 * 3 * 12);
    assert_string_equal(student->settings.teacher, "teachers/runs/recall.teacher.3");
    assert_true(student->settings.weight_decay == 0.1); /* the study's, over the default of 0 */
    const sr_study_run *scratch = find(&study, "recall.a__one_from_scratch.4");
    assert_true(scratch->request.from_scratch && scratch->request.adapter_rank == 0);
    assert_true(scratch->request.steps[SR_STAGE_TUNE] == 12 && scratch->tokens == student->tokens);
    assert_true(scratch->settings.learning_rate == 0.004);
    assert_true(scratch->parameters == student->parameters &&
                !scratch->request.stages[SR_STAGE_ALIGN]);
    const sr_study_run *again = find(&study, "recall.teacher.4");
    assert_true(again->tokens == student->tokens && again->settings.learning_rate == 0.003);
    assert_string_equal(again->settings.model, student->settings.teacher);
    assert_true(find(&study, "recall.a__none.4")->state_bytes > 0);
    assert_true(isnan(student->state_bytes) && student->cache_bytes < again->cache_bytes);
    assert_int_equal(sr_study_teachers(&teachers, &study, "text"), SRNN_OK);
    assert_int_equal(teachers.run_count, 1);
    assert_string_equal(teachers.runs[0].id, "recall.teacher.3");
    assert_true(teachers.runs[0].steps == 50 && teachers.runs[0].settings.learning_rate == 0.01);
    assert_true(teachers.runs[0].settings.B == 2);
    sr_study_free(&teachers);
    sr_study_free(&study);
}

static void replace_once(char *out, size_t size, const char *text, const char *from,
                         const char *to) {
    const char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(out, size, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

/* As on the command line, a rank counts with adapters alone, wherever it stands. */
static void ranks_count_with_adapters(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int rank;
    } cases[] = {{"learn: all, lora-rank: 4", 0},
                 {"learn: attention, lora-rank: 4", 0},
                 {"lora-rank: 4", 0},
                 {"lora-rank: 4, learn: lora", 4},
                 {"learn: lora", SR_ADAPTER_RANK}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2000];
        sr_study study;
        replace_once(text, sizeof text, students, "learn: lora, lora-rank: 4", cases[i].text);
        assert_int_equal(read_text(&study, text), SRNN_OK);
        assert_int_equal(sr_study_expand(&study, "text"), SRNN_OK);
        assert_int_equal(find(&study, "recall.a__one.4")->request.adapter_rank, cases[i].rank);
        sr_study_free(&study);
    }
}

static void wrong_students(void **state) {
    (void)state;
    static const char *const wrong[][3] = {
        {"teacher: {settings", "baseline: a\nteacher: {settings", "baseline"},
        {"teacher: {settings", "teacher: {model: x, settings", "is not trained"},
        {"teacher: {settings: {steps: 50, learning-rate: 0.01}}\n", "", "belong to a study with"},
        {"seeds: [3, 4]", "seeds: [3, 4]\ntune: {learning-rate: [1, 2]}", "tune is not a key"},
        {"a: gla", "teacher: gla", "another name"},
        {"a: gla", "a: '1*gla,1*softmax'", "one attention"},
        {"tune-rate: 0.02", "tune-rate: -1", "line 5: tune-rate"},
        {"learn: lora", "learn: much", "all, attention or lora"},
        {"one: '1'", "one: '0-'", "keeps every layer"},
        {"one: '1'", "one: '7'", "layers 0-1"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[2000];
        sr_study study;
        replace_once(text, sizeof text, students, wrong[i][0], wrong[i][1]);
        srnn_status status = read_text(&study, text);
        if (status == SRNN_OK)
            status = sr_study_expand(&study, "text");
        assert_int_not_equal(status, SRNN_OK);
        if (!strstr(srnn_error_detail(), wrong[i][2]))
            fail_msg("%s: %s", wrong[i][1], srnn_error_detail());
        sr_study_free(&study);
    }
}

static void systems_have_settings_of_their_own(void **state) {
    static const char text[] =
        "variants: {mamba: {attention: mamba2, settings: {mlp-hidden: 20, key-size: 5}},"
        " rat: \"rat,pool=4\", avey: \"avey_causal,chunk=4,chunks=2\"}\n"
        "settings: {layers: 1, heads: 2, hidden: 16, mlp-hidden: 16, batch: 2, steps: 3}\n"
        "tasks: {recall: {settings: {data: \"recall:pairs=2,vocab=8,length=12\"}},"
        " far: {settings: {data: \"recall:pairs=2,vocab=8,length=4096\"}}}\n"
        "seeds: [1]\n";
    (void)state;
    sr_study study;
    assert_int_equal(read_text(&study, text), SRNN_OK);
    assert_int_equal(sr_study_expand(&study, NULL), SRNN_OK);
    const sr_study_run *mamba = find(&study, "recall.mamba.1"), *rat = find(&study, "recall.rat.1");
    assert_int_equal(mamba->settings.F, 20);
    assert_int_equal(rat->settings.F, 16);
    assert_true(mamba->state_bytes == 4.0 * 5 * 8 * 4); /* twice as many heads of 5 x 8 */
    assert_true(isnan(rat->state_bytes));
    assert_true(rat->cache_bytes == 2.0 * 2 * 8 * 3 * 4); /* one key for each chunk of 4 */
    assert_true(find(&study, "recall.avey.1")->cache_bytes == 16.0 * 12 * 4);
    /* Of 12 tokens one sees 6 on average, or 1.5 chunks; 4 heads of 5 and 8 numbers, 2 of 8 and
     * 8. */
    assert_true(attention_flops(mamba) == 3 * 2.0 * 4 * (5 + 8) * 6);
    assert_true(attention_flops(rat) == 3 * 2.0 * 2 * (8 + 8) * 1.5);
    /* Of 4096 a state is read and written instead. */
    const sr_study_run *far = find(&study, "far.mamba.1");
    assert_true(attention_flops(far) == 3 * 2.0 * (5 * 8) * (4 + 4));
    sr_study_free(&study);
    assert_int_equal(read_text(&study, "variants: {a: {settings: {steps: 1}}}\n"), SRNN_ERR_FORMAT);
    sr_study_free(&study);
}

/* Hybrids: the layers of a run, what its plan says of it, and wrong ones with their line. */
static void layers_may_differ(void **state) {
    static const char text[] =
        "variants:\n"
        "  softmax: softmax\n"
        "  three: {attention: '3*gated_delta_net,1*softmax', settings: {mlp-hidden: 20}}\n"
        "  ranges: '0-1:gla,short_conv=3,2-:delta_net'\n"
        "settings: {layers: 8, heads: 2, hidden: 16, mlp-hidden: 16, batch: 2, steps: 3}\n"
        "tasks: {recall: {settings: {data: \"recall:pairs=2,vocab=8,length=12\"}}}\n"
        "seeds: [1]\n";
    static const char *const wrong[] = {"3*gated_delta_net,1*nonsense",
                                        "3*gla,2-:softmax",
                                        "0-2:gla,4-:softmax",
                                        "99999*softmax",
                                        "3*gla,9223372036854775807*gla",
                                        "0-9223372036854775807:gla"};
    (void)state;
    sr_study study;
    assert_int_equal(read_text(&study, text), SRNN_OK);
    assert_int_equal(sr_study_expand(&study, NULL), SRNN_OK);
    const sr_study_run *three = find(&study, "recall.three.1"),
                       *all = find(&study, "recall.softmax.1");
    assert_string_equal(three->settings.attention, "3*gated_delta_net,1*softmax");
    /* six states of 2 x 8 x 8 numbers and two caches, against eight caches */
    assert_true(three->cache_bytes == all->cache_bytes / 4 + 6 * 128 * 4);
    assert_true(study.variants[1].by_layers && !study.variants[1].fixed_state);
    assert_true(study.variants[2].by_layers && study.variants[2].fixed_state);
    sr_study_free(&study);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char file[128];
        snprintf(file, sizeof file, "name: x\nvariants:\n  h: '%s'\n", wrong[i]);
        assert_int_not_equal(read_text(&study, file), SRNN_OK);
        assert_non_null(strstr(srnn_error_detail(), "line 3"));
        sr_study_free(&study);
    }
}

static void costs_are_worked_out(void **state) {
    (void)state;
    sr_study study;
    assert_int_equal(read_text(&study, grid), SRNN_OK);
    assert_int_equal(sr_study_expand(&study, "text"), SRNN_OK);
    const sr_study_run *run = find(&study, "recall.a_b__i_.small.lr0.001.1");
    assert_int_equal(run->settings.T, 12);
    assert_int_equal(run->settings.V, 8);
    assert_true(run->tokens == 4.0 * 12 * 10);
    /* Embedding and head 2*8*16, q k v o 4*16*16, MLP 3*16*16, norms 3*16. */
    assert_int_equal(run->parameters, 256 + 1024 + 768 + 48);
    assert_true(run->flops == run->tokens * (6.0 * (2096 - 128) + 6.0 * 16 * 12));
    assert_int_equal(run->steps, 10);
    /* Orders 0, 1, 2 of 8 numbers: 1 + 8 + 36 rows of 8 values and a row sum, 2 heads. */
    assert_true(run->state_bytes == 45.0 * 9 * 2 * 4);
    assert_true(run->cache_bytes == 2.0 * 2 * 8 * 12 * 4);
    assert_true(isnan(find(&study, "recall.softmax.small.lr0.001.1")->state_bytes));
    sr_study_free(&study);
}

/* A run that stops before the end of its schedule costs only the steps until then. */
static void stops_are_counted(void **state) {
    (void)state;
    static const struct {
        const char *stop;
        int64_t steps;
    } cases[] = {{"stop-step: 4", 4},
                 {"stop-step: 40", 10},
                 {"stop-tokens: 50", 2},
                 {"stop-tokens: 100, stop-step: 2", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        sr_study study;
        snprintf(text, sizeof text,
                 "seeds: [1]\n"
                 "variants: {softmax: softmax}\n"
                 "settings: {layers: 1, hidden: 16, heads: 2, mlp-hidden: 16, steps: 10, batch: "
                 "4, %s}\n"
                 "tasks: {recall: {settings: {data: 'recall:pairs=2,vocab=8,length=12'}}}\n",
                 cases[i].stop);
        assert_int_equal(read_text(&study, text), SRNN_OK);
        assert_int_equal(sr_study_expand(&study, "text"), SRNN_OK);
        assert_int_equal(study.runs[0].steps, cases[i].steps);
        assert_true(study.runs[0].tokens == 4.0 * 12 * (double)cases[i].steps);
        sr_study_free(&study);
    }
}

/* A late report does not turn a finished run into a failed one. */
static void what_is_finished_stays(void **state) {
    (void)state;
    char folder[] = "/tmp/softrnn-told-XXXXXX";
    assert_non_null(mkdtemp(folder));
    sr_result read;
    assert_int_equal(sr_worker_write_result(&(sr_result){.ending = SR_ENDING_FAILED}, folder),
                     SRNN_OK);
    assert_int_equal(sr_worker_write_result(&(sr_result){.ending = SR_ENDING_FINISHED, .step = 7},
                                            folder),
                     SRNN_OK);
    assert_int_equal(sr_worker_write_result(&(sr_result){.ending = SR_ENDING_FAILED}, folder),
                     SRNN_OK);
    assert_int_equal(sr_result_read(&read, folder), SRNN_OK);
    assert_int_equal(read.ending, SR_ENDING_FINISHED);
    assert_int_equal(read.step, 7);
    assert_int_equal(sr_folder_remove(folder), SRNN_OK);
}

static size_t count_runs(const char *more) {
    char text[2048];
    sr_study study;
    snprintf(text, sizeof text, "%s%s\n", grid, more);
    assert_int_equal(read_text(&study, text), SRNN_OK);
    const srnn_status status = sr_study_expand(&study, "text");
    const size_t count = status == SRNN_OK ? study.run_count : 0;
    sr_study_free(&study);
    return count;
}

static void selections(void **state) {
    (void)state;
    assert_int_equal(count_runs("only: [copy]"), 16);
    assert_int_equal(count_runs("skip: [copy]"), 24);
    assert_int_equal(count_runs("only: [norm]"), 16);
    assert_int_equal(count_runs("only: [recall]\nskip: ['*.7', deep]"), 6);
    assert_int_equal(count_runs("only: ['a/b <i>']"), 8);
    /* Words of one kind are alternatives, different kinds are combined. */
    assert_int_equal(count_runs("only: [copy, recall]"),
                     count_runs("only: [copy]") + count_runs("only: [recall]"));
    assert_int_equal(count_runs("only: [copy, norm]"), 8);
    assert_int_equal(count_runs("only: [copy, norm, softmax, deep]"), 8);
    assert_int_equal(count_runs("only: [copy, norm, '*.7']"), 4);
    assert_int_equal(count_runs("skip: [copy, norm]"), 16); /* each for itself */
    assert_int_equal(count_runs("only: [nothing]"), 0);
    assert_non_null(strstr(srnn_error_detail(), "only: "));
    assert_int_equal(count_runs("only: [recall, coppy]"), 0);
    assert_non_null(strstr(srnn_error_detail(), "\"copy\""));
}

/* In every place where a study can name its data. */
static void texts_are_requested(void **state) {
    (void)state;
    static const char *const places[] = {
        "settings: {data: '@text'}\ntasks: {t: {}}\n",
        "tasks: {t: {settings: {data: '@text'}}}\n",
        "tasks: {t: {}}\nsizes: {s: {data: '@text'}}\n",
        "tasks: {t: {settings: {data: copy}}}\n",
    };
    for (size_t i = 0; i < 4; i++) {
        char text[200];
        sr_study study;
        snprintf(text, sizeof text, "variants: {a: softmax}\nseeds: [1]\n%s", places[i]);
        assert_int_equal(read_text(&study, text), SRNN_OK);
        assert_int_equal(sr_study_needs_text(&study), i < 3);
        assert_int_equal(sr_study_expand(&study, "/nowhere/" SR_STUDY_TEXT), SRNN_OK);
        assert_int_equal(study.runs[0].text, i < 3);
        sr_study_free(&study);
    }
}

/* Each text fails, and the message has this in it. */
static void wrong_files(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "empty"},
        {"seeds: [1]", "needs variants"},
        {"variants: {a: softmax}\ntasks: {t: {}}\nsedes: [1]", "did you mean \"seeds\""},
        {"variants: {a: sofmax}", "softmax"},
        {"variants: {a: softmax}\ntasks: {t: {variants: [b]}}\nseeds: [1]", "\"b\""},
        {"variants: {a: softmax}\ntasks: {t: {}}\nseeds: [1]\nbaseline: c", "\"c\""},
        {"seeds: [1.5]", "integer"},
        {"seeds: 1", "list"},
        {"tasks: {t: {measure: speed}}", "loss or accuracy"},
        {"variants: {a: softmax, a: norm}", "twice"},
        {"variants: {}\nvariants: {}", "line 2: given twice"},
        {"tasks: {t: {title: a, title: b}}", "given twice"},
        {"variants: {\"a\\e[2J\": softmax}", "control"},
        {"variants: {\"a\\x9b2J\": softmax}", "control"},
        {"tasks: {\"a\\N\": {}}", "control"}, /* U+0085 */
        {"variants: [softmax]", "name: value"},
        {"name: [a", "line"},
        {"- a", "name: value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_study study;
        assert_int_not_equal(read_text(&study, cases[i][0]), SRNN_OK);
        if (!strstr(srnn_error_detail(), cases[i][1]))
            fail_msg("%s: \"%s\" does not say %s", cases[i][0], srnn_error_detail(), cases[i][1]);
        sr_study_free(&study);
    }
}

static void wrong_settings(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"settings: {hiden: 3}", "did you mean hidden"},
        {"settings: {hidden: many}", "hidden cannot be"},
        {"settings: {heads: 3, head-size: 5, data: copy}", "even"},
        {"settings:\n  data: 'copy:tokens=2,vocab=6,length=8'\n  length: 20",
         "line 6: length 20 does nothing: rows of copy:tokens=2,vocab=6,length=8 have 8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        sr_study study;
        snprintf(text, sizeof text, "variants: {a: softmax}\ntasks: {t: {}}\nseeds: [1]\n%s\n",
                 cases[i][0]);
        assert_int_equal(read_text(&study, text), SRNN_OK);
        assert_int_not_equal(sr_study_expand(&study, "text"), SRNN_OK);
        if (!strstr(srnn_error_detail(), cases[i][1]))
            fail_msg("\"%s\" does not say %s", srnn_error_detail(), cases[i][1]);
        sr_study_free(&study);
    }
}

/* Names that map to the same folder. */
static void clashes_are_refused(void **state) {
    (void)state;
    sr_study study;
    assert_int_equal(read_text(&study, "variants: {'a b': softmax, 'a/b': norm}\nseeds: [1]\n"
                                       "tasks: {t: {settings: {data: copy}}}\n"),
                     SRNN_OK);
    assert_int_equal(sr_study_expand(&study, "text"), SRNN_ERR_FORMAT);
    sr_study_free(&study);
}

static void nothing_is_run_twice_or_without_steps(void **state) {
    (void)state;
    static const char *const twice[] = {"seeds: [1, 2, 1]",
                                        "seeds: [1]\nlearning-rates: [0.1, 0.1]"};
    char text[256];
    sr_study study;
    for (size_t i = 0; i < sizeof twice / sizeof *twice; i++) {
        snprintf(text, sizeof text,
                 "variants: {norm: norm}\n%s\ntasks: {t: {settings: {data: copy}}}\n", twice[i]);
        assert_int_equal(read_text(&study, text), SRNN_ERR_FORMAT);
        assert_non_null(strstr(srnn_error_detail(), "given twice"));
        sr_study_free(&study);
    }
    assert_int_equal(read_text(&study, "variants: {norm: norm}\nseeds: [1]\n"
                                       "tasks: {t: {settings: {data: copy, steps: 0}}}\n"),
                     SRNN_OK);
    assert_int_not_equal(sr_study_expand(&study, "text"), SRNN_OK);
    assert_non_null(strstr(srnn_error_detail(), "steps is 1 or more"));
    sr_study_free(&study);
}

static void the_default_study_is_sound(void **state) {
    (void)state;
    sr_study study;
    size_t bytes;
    const char *text = sr_study_default(&bytes);
    assert_int_equal(sr_study_read(&study, "default", text, bytes), SRNN_OK);
    assert_int_equal(sr_study_expand(&study, "nowhere.txt"), SRNN_OK);
    assert_true(sr_study_needs_text(&study));
    assert_true(study.seed_count >= 2 && study.run_count > 50);
    sr_study_free(&study);
}

/* ---- initial weights */

static float *weights_of(sr_model *model, const char *name, size_t *count) {
    const sr_tensor_spec *spec = sr_tensor_table_find(&model->table, name);
    assert_non_null(spec);
    *count = spec->count;
    return model->weights + spec->start;
}

static sr_model *make_model(sr_backend *backend, const char *attention, uint64_t seed) {
    sr_model *model;
    sr_model_config config = {.V = 8,
                              .C = 16,
                              .F = 16,
                              .L = 2,
                              .H = 2,
                              .Hkv = 2,
                              .D = 8,
                              .positions = 8,
                              .norm_epsilon = 1e-5,
                              .rope_theta = 10000};
    assert_int_equal(sr_model_config_attention(&config, attention), SRNN_OK);
    assert_int_equal(sr_model_create(&model, backend, &config), SRNN_OK);
    assert_int_equal(sr_model_initialise(model, 0.1, seed), SRNN_OK);
    sr_model_config_free(&config);
    return model;
}

/* A gated variant has additional tensors in between. */
static void shared_tensors_start_equal(void **state) {
    (void)state;
    sr_backend *backend;
    size_t shared = 0, count;
    assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    sr_model *plain = make_model(backend, "softmax", 3);
    sr_model *gated = make_model(backend, "gated_softmax", 3);
    sr_model *other = make_model(backend, "softmax", 4);
    assert_true(gated->table.count > plain->table.count);
    for (size_t i = 0; i < plain->table.count; i++) {
        const char *name = plain->table.specs[i].name;
        const float *own = weights_of(plain, name, &count);
        assert_memory_equal(own, weights_of(gated, name, &count), count * sizeof *own);
        const bool random = plain->table.specs[i].initialiser != SR_INIT_CONSTANT;
        assert_int_equal(memcmp(own, weights_of(other, name, &count), count * sizeof *own) != 0,
                         random);
        shared++;
    }
    assert_true(shared > 10);
    const float *first = weights_of(plain, "model.layers.0.self_attn.q_proj.weight", &count);
    const float *second = weights_of(plain, "model.layers.1.self_attn.q_proj.weight", &count);
    assert_memory_not_equal(first, second, count * sizeof *first);
    sr_model_free(plain);
    sr_model_free(gated);
    sr_model_free(other);
    sr_backend_free(backend);
}

/* ---- the summary of records made up here */

static const char pair_text[] = "variants: {softmax: softmax, norm: norm, elu: linear_elu}\n"
                                "seeds: [1, 2]\n"
                                "tasks: {t: {settings: {data: copy}}}\n";

/* Losses by variant and seed; NaN: the run diverged. */
static sr_record *make_records(const sr_study *study, const double losses[3][2]) {
    sr_record *records = calloc(study->run_count, sizeof *records);
    assert_non_null(records);
    for (size_t i = 0; i < study->run_count; i++) {
        const sr_study_run *run = &study->runs[i];
        const double loss = losses[run->variant][run->settings.seed - 1];
        records[i] =
            (sr_record){.result.ending = isnan(loss) ? SR_ENDING_DIVERGED : SR_ENDING_FINISHED,
                        .last_loss = loss,
                        .best_loss = loss - 0.5,
                        .last_accuracy = 0.25,
                        .tokens_per_second = 100,
                        .skipped = isnan(loss) ? 10 : 0};
        records[i].result.memory_bytes = 64;
        records[i].batches = 2;
        records[i].batch_losses = calloc(2, sizeof(double));
        assert_non_null(records[i].batch_losses);
        records[i].batch_losses[0] = loss - 0.1;
        records[i].batch_losses[1] = loss + 0.1 + 0.01 * (double)run->variant;
    }
    return records;
}

static void free_records(sr_record *records, size_t count) {
    for (size_t i = 0; i < count; i++)
        sr_record_free(&records[i]);
    free(records);
}

/* A summary of made-up losses; free with unmake. */
typedef struct made {
    sr_study study;
    sr_record *records;
    sr_summary summary;
} made;

static const sr_summary_cell *make(made *m, const char *text, const double losses[3][2]) {
    assert_int_equal(read_text(&m->study, text), SRNN_OK);
    assert_int_equal(sr_study_expand(&m->study, "text"), SRNN_OK);
    m->records = make_records(&m->study, losses);
    assert_int_equal(sr_summary_make(&m->summary, &m->study, m->records, NULL), SRNN_OK);
    assert_int_equal(m->summary.count, 1);
    return &m->summary.cells[0];
}

static void unmake(made *m) {
    sr_summary_free(&m->summary);
    free_records(m->records, m->study.run_count);
    sr_study_free(&m->study);
}

static void summaries(void **state) {
    (void)state;
    const double losses[3][2] = {{1, 2}, {2, 5}, {1.5, 3.5}};
    made m;
    const sr_summary_cell *cell = make(&m, pair_text, losses);
    assert_int_equal(m.summary.finished, 6);
    assert_true(fabs(cell->noise - sqrt(0.5)) < 1e-15);
    const sr_summary_variant *norm = &cell->variants[1];
    assert_true(norm->loss.mean == 3.5 && norm->best_loss.mean == 3.0);
    assert_true(norm->accuracy.mean == 0.25 && norm->memory_bytes == 64);
    const sr_difference *d = &norm->difference;
    assert_int_equal(d->pairs, 2);
    assert_true(d->seeds[1] == 2 && d->differences[0] == 1 && d->differences[1] == 3);
    assert_int_equal(d->of, SR_MEASURE_LOSS);
    assert_string_equal(d->method, "moderated");
    assert_true(fabs(d->interval.mean - 2) < 1e-15 && d->own.degrees == 1);
    assert_true(fabs(d->own.high - 2 - 12.70620474) < 1e-7);
    assert_true(d->interval.high < d->own.high);
    assert_int_equal(d->verdict, SR_VERDICT_UNCLEAR);
    unmake(&m);
}

static sr_verdict verdict_of(const double losses[3][2], size_t variant) {
    made m;
    const sr_verdict verdict = make(&m, pair_text, losses)->variants[variant].difference.verdict;
    unmake(&m);
    return verdict;
}

static void verdicts(void **state) {
    (void)state;
    const double worse[3][2] = {{1, 1.1}, {1.51, 1.6}, {1.0, 1.11}};
    assert_int_equal(verdict_of(worse, 1), SR_VERDICT_WORSE);
    assert_int_equal(verdict_of(worse, 2), SR_VERDICT_UNCLEAR);
    const double better[3][2] = {{1, 1.1}, {0.51, 0.6}, {1.0, 1.11}};
    assert_int_equal(verdict_of(better, 1), SR_VERDICT_BETTER);
}

/* However good the other seed is: the remaining runs are a biased sample. */
static void divergence_is_unstable(void **state) {
    (void)state;
    made m;
    const double one[3][2] = {{1, 1.1}, {0.5, NAN}, {1.0, 1.11}};
    const sr_summary_variant *norm = &make(&m, pair_text, one)->variants[1];
    assert_int_equal(norm->diverged, 1);
    assert_int_equal(norm->difference.verdict, SR_VERDICT_UNSTABLE);
    assert_string_equal(norm->difference.method, "none"); /* two seeds are planned: no batches */
    assert_int_equal(norm->difference.pairs, 1);
    unmake(&m);
    const double both[3][2] = {{1, 1.1}, {NAN, NAN}, {1.0, 1.11}};
    assert_int_equal(verdict_of(both, 1), SR_VERDICT_UNSTABLE);
    const double baseline[3][2] = {{1, NAN}, {0.5, 0.6}, {1.0, 1.11}};
    assert_int_equal(verdict_of(baseline, 1), SR_VERDICT_TOO_FEW);
}

/* A run that finished without a finite result: the mean is that of the others, and it is
 * counted. */
static void numbers_that_are_not_finite(void **state) {
    (void)state;
    made m;
    const double losses[3][2] = {{1, 1.1}, {0.5, INFINITY}, {1.0, 1.11}};
    const sr_summary_variant *norm = &make(&m, pair_text, losses)->variants[1];
    assert_true(norm->finished == 2 && norm->not_finite == 1 && norm->diverged == 0);
    assert_true(norm->loss.mean == 0.5 && norm->loss.count == 1);
    assert_int_equal(norm->difference.verdict, SR_VERDICT_UNSTABLE);
    unmake(&m);
}

/* Two learning rates; the first is better for softmax, the second for norm. */
static void each_at_its_best_rate(void **state) {
    (void)state;
    made m;
    const double losses[3][2] = {{1, 1.2}, {0.9, 1.1}, {2, 2.2}};
    assert_int_equal(read_text(&m.study,
                               "variants: {softmax: softmax, norm: norm, elu: linear_elu}\n"
                               "seeds: [1, 2]\n"
                               "learning-rates: [0.001, 0.01]\n"
                               "tasks: {t: {settings: {data: copy}}}\n"),
                     SRNN_OK);
    assert_int_equal(sr_study_expand(&m.study, "text"), SRNN_OK);
    m.records = make_records(&m.study, losses);
    for (size_t i = 0; i < m.study.run_count; i++)
        if (m.study.runs[i].settings.learning_rate > 0.005)
            m.records[i].last_loss += m.study.runs[i].variant == 1 ? -0.5 : 0.5;
    assert_int_equal(sr_summary_make(&m.summary, &m.study, m.records, NULL), SRNN_OK);
    assert_int_equal(m.summary.count, 2);
    assert_int_equal(m.summary.best_count, 1);
    const sr_summary_cell *best = &m.summary.best[0];
    assert_true(isnan(best->learning_rate) && best->count == 3);
    assert_true(best->variants[0].learning_rate == 0.001);
    assert_true(best->variants[1].learning_rate == 0.01);
    assert_true(fabs(best->variants[1].difference.interval.mean + 0.6) < 1e-12);
    assert_int_equal(best->variants[1].difference.verdict, SR_VERDICT_BETTER);
    assert_int_equal(best->variants[1].runs, 2);
    unmake(&m);
}

/* Runs that were not requested count only once they have ended; a variant with one run in a cell of
 * two seeds is compared by the same measure as the others, without a verdict. */
static void what_was_not_requested(void **state) {
    (void)state;
    made m;
    const double losses[3][2] = {{1, 1.2}, {0.9, 1.1}, {2, 2.2}};
    (void)make(&m, pair_text, losses);
    bool requested[6];
    for (size_t i = 0; i < 6; i++) {
        const sr_study_run *run = &m.study.runs[i];
        requested[i] = run->variant == 0 || (run->variant == 1 && run->settings.seed == 1);
        if (run->variant == 2 || !requested[i])
            m.records[i].result.ending = SR_ENDING_NONE;
    }
    m.study.tasks[0].measure = SR_MEASURE_ACCURACY;
    sr_summary_free(&m.summary);
    assert_int_equal(sr_summary_make(&m.summary, &m.study, m.records, requested), SRNN_OK);
    assert_int_equal(m.summary.left_out, 3);
    assert_int_equal(m.summary.missing, 0);
    const sr_summary_cell *cell = &m.summary.cells[0];
    assert_int_equal(cell->count, 2);
    assert_int_equal(cell->variants[1].runs, 1);
    assert_int_equal(cell->variants[1].difference.of, SR_MEASURE_ACCURACY);
    assert_int_equal(cell->variants[1].difference.verdict, SR_VERDICT_TOO_FEW);
    unmake(&m);
}

/* softmax and norm ran concurrently, elu alone; then norm on another machine. */
static void speeds_that_do_not_compare(void **state) {
    (void)state;
    made m;
    const double losses[3][2] = {{1, 1.2}, {0.9, 1.1}, {2, 2.2}};
    (void)make(&m, pair_text, losses);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < m.study.run_count; i++) {
            const sr_study_run *run = &m.study.runs[i];
            sr_result *r = &m.records[i].result;
            snprintf(r->host, sizeof r->host, "%s", pass && run->variant == 1 ? "there" : "here");
            r->threads = 1;
            r->started = 100 * (double)run->settings.seed + (run->variant == 2 ? 50 : 0);
            r->ended = r->started + 40;
        }
        sr_summary_free(&m.summary);
        assert_int_equal(sr_summary_make(&m.summary, &m.study, m.records, NULL), SRNN_OK);
        const sr_summary_variant *variants = m.summary.cells[0].variants;
        assert_false(variants[0].apart);
        assert_true(variants[1].apart == (pass == 1));
        assert_true(variants[2].apart ==
                    (pass == 0)); /* in the second pass softmax is alone, too */
    }
    unmake(&m);
}

/* With one seed the interval is of the loss, even if accuracy is the measure, and so is the
 * verdict. */
static void one_seed_compares_losses(void **state) {
    (void)state;
    made m;
    const double losses[3][2] = {{1, 0}, {1.5, 0}, {0.5, 0}};
    const sr_summary_cell *cell = make(&m,
                                       "variants: {softmax: softmax, norm: norm, elu: linear_elu}\n"
                                       "seeds: [1]\n"
                                       "tasks: {t: {measure: accuracy, settings: {data: copy}}}\n",
                                       losses);
    const sr_difference *norm = &cell->variants[1].difference, *elu = &cell->variants[2].difference;
    assert_int_equal(cell->measure, SR_MEASURE_ACCURACY);
    assert_int_equal(norm->of, SR_MEASURE_LOSS);
    assert_string_equal(norm->method, "batches");
    assert_true(norm->pairs == 1 && norm->differences[0] == 0.5 && norm->interval.low > 0);
    assert_int_equal(norm->verdict, SR_VERDICT_WORSE);
    assert_int_equal(elu->verdict, SR_VERDICT_BETTER);
    unmake(&m);
}

/* A study's variant named "order N" or like a known variant must be that variant. */
static void names_say_what_is_computed(void **state) {
    (void)state;
    sr_study study = {0};
    size_t bytes;
    const char *yaml = sr_study_default(&bytes);
    assert_int_equal(sr_study_read(&study, "default", yaml, bytes), SRNN_OK);
    for (size_t i = 0; i < study.variant_count; i++) {
        srnn_attention named;
        char text[64];
        int order, length = 0;
        const char *name = study.variants[i].name;
        if (sscanf(name, "order %d%n", &order, &length) == 1 && !name[length])
            snprintf(text, sizeof text, "order:%d", order);
        else
            snprintf(text, sizeof text, "%s", name);
        if (srnn_attention_parse(&named, text) == SRNN_OK)
            assert_true(sr_attention_same(&named, &study.variants[i].descriptor));
        snprintf(text, sizeof text, "linear_%s", name);
        if (srnn_attention_parse(&named, text) == SRNN_OK)
            assert_true(sr_attention_same(&named, &study.variants[i].descriptor));
    }
    sr_study_free(&study);
}

/* A deeply nested file is refused at once. */
static void deep_files_are_refused(void **state) {
    (void)state;
    enum { BYTES = 200000 };
    static const char *const units[] = {"[", "{a: ", "- ", "? "};
    char *text = malloc(BYTES);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        const size_t length = strlen(units[i]);
        for (size_t at = 0; at < BYTES; at++)
            text[at] = units[i][at % length];
        sr_study study;
        const double begin = sr_clock_seconds();
        assert_int_equal(sr_study_read(&study, "deep", text, BYTES), SRNN_ERR_FORMAT);
        assert_true(sr_clock_seconds() - begin < 2);
        sr_study_free(&study);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_say_what_is_computed),
        cmocka_unit_test(deep_files_are_refused),
        cmocka_unit_test(grids_expand),
        cmocka_unit_test(layers_may_differ),
        cmocka_unit_test(costs_are_worked_out),
        cmocka_unit_test(stops_are_counted),
        cmocka_unit_test(what_is_finished_stays),
        cmocka_unit_test(students_expand),
        cmocka_unit_test(ranks_count_with_adapters),
        cmocka_unit_test(wrong_students),
        cmocka_unit_test(systems_have_settings_of_their_own),
        cmocka_unit_test(selections),
        cmocka_unit_test(texts_are_requested),
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(wrong_settings),
        cmocka_unit_test(clashes_are_refused),
        cmocka_unit_test(nothing_is_run_twice_or_without_steps),
        cmocka_unit_test(the_default_study_is_sound),
        cmocka_unit_test(shared_tensors_start_equal),
        cmocka_unit_test(summaries),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(each_at_its_best_rate),
        cmocka_unit_test(what_was_not_requested),
        cmocka_unit_test(speeds_that_do_not_compare),
        cmocka_unit_test(divergence_is_unstable),
        cmocka_unit_test(numbers_that_are_not_finite),
        cmocka_unit_test(one_seed_compares_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
