/* test_distil.c: a teacher to a student in stages: what is copied, what learns, stages that stop
 * and resume. */
#include "data/rows/source_open.h"
#include "distil/measurement.h"
#include "distil/ranking.h"
#include "distil/spearman.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "model/files/model_folder.h"
#include "small_model.h"
#include "train/adapters.h"
#include "train/model_open.h"

#include <stdio.h>
#include <unistd.h>

static char folder[64], text[80], teacher[80], made[80];
static sr_backend *cpu;

static sr_model *open_model(const char *where) {
    sr_model *model;
    if (sr_model_open(&model, cpu, where, NULL) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    return model;
}

static bool same_tensor(const sr_model *a, const sr_model *b, const char *name) {
    const sr_tensor_spec *x = sr_tensor_table_find(&a->table, name);
    const sr_tensor_spec *y = sr_tensor_table_find(&b->table, name);
    return x && y && x->count == y->count &&
           memcmp(a->weights + x->start, b->weights + y->start, x->count * sizeof(float)) == 0;
}

/* Settings of all stages; free with sr_run_settings_free. */
static sr_run_settings common_settings(const char *attention) {
    sr_run_settings s;
    assert_int_equal(sr_run_settings_create(&s), SRNN_OK);
    assert_int_equal(sr_run_settings_text(&s.teacher, teacher), SRNN_OK);
    assert_int_equal(sr_run_settings_text(&s.attention, attention), SRNN_OK);
    assert_int_equal(sr_run_settings_text(&s.data, text), SRNN_OK);
    s.B = 2;
    s.T = 12;
    s.weight_decay = 0;
    s.accumulate = 2;
    s.save_every = 2;
    s.validate_every = 3;
    s.validate_batches = 2;
    return s;
}

static sr_distil_request request_of(const sr_run_settings *s) {
    return (sr_distil_request){.common = s,
                               .keep = "",
                               .stages = {true, true, true, true},
                               .steps = {0, 5, 5, 5},
                               .rates = {0, 0.01, 0.005, 0}};
}

static void begin(const sr_distil_request *request, sr_student_parts *parts) {
    if (sr_distil_begin(made, request, parts) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
}

/* Runs a stage until `stop` (0: its end) and ends like a killed process. False: nothing to do. */
static bool run_stage(sr_stage stage, int64_t stop, int threads) {
    sr_run *run;
    if (sr_distil_open(&run, made, stage, &(sr_run_ends){.threads = threads}) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    if (!run)
        return false;
    while (!sr_run_done(run) && (stop == 0 || sr_run_progress(run)->step < stop)) {
        sr_run_report report;
        assert_int_equal(sr_run_step(run, &report), SRNN_OK);
        assert_true(report.step.applied);
    }
    if (sr_run_done(run))
        assert_int_equal(sr_run_save(run), SRNN_OK);
    sr_run_free(run);
    return true;
}

static void run_all(void) {
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++)
        (void)run_stage((sr_stage)stage, 0, 1);
}

static void stage_folder(char path[SR_PATH_BYTES], sr_stage stage) {
    assert_int_equal(sr_path_join(path, made, sr_stage_name(stage)), SRNN_OK);
}

static sr_model *model_of(sr_stage stage) {
    char path[SR_PATH_BYTES];
    stage_folder(path, stage);
    return open_model(path);
}

/* ---- the copy */

static void copies_have_what_is_the_teachers(void **state) {
    (void)state;
    sr_run_settings s = common_settings("gated_softmax");
    sr_distil_request request = request_of(&s);
    sr_student_parts parts;
    sr_model *own = open_model(teacher);
    request.keep = "0";
    begin(&request, &parts);
    sr_model *copy = model_of(SR_STAGE_COPY);
    assert_int_equal(parts.replaced, 1);
    assert_true(parts.tensors == copy->table.count && parts.copied == own->table.count);
    for (size_t i = 0; i < own->table.count; i++)
        assert_true(same_tensor(own, copy, own->table.specs[i].name));
    assert_true(sr_attention_same(&own->config.attention[0], &copy->config.attention[0]));
    assert_false(sr_attention_same(&own->config.attention[1], &copy->config.attention[1]));
    assert_int_equal(sr_distil_begin(made, &request, &parts), SRNN_ERR_ARGUMENT);
    sr_model_free(own), sr_model_free(copy);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

/* A student with the teacher's attention computes what the teacher does; one whose projections are
 * one tensor has them side by side, and convolutions that pass on the token. */
static void projections_are_joined(void **state) {
    (void)state;
    sr_run_settings s = common_settings("softmax,short_conv=3");
    sr_student_parts parts;
    sr_model *own = open_model(teacher), *student;
    const bool replaced[] = {true, true};
    assert_int_equal(sr_student_create(&student, &parts, own, &s, replaced), SRNN_OK);
    assert_int_equal(parts.joined, 2);
    const sr_tensor_spec *all =
        sr_tensor_table_find(&student->table, "model.layers.1.self_attn.qkv_proj.weight");
    const sr_tensor_spec *k =
        sr_tensor_table_find(&own->table, "model.layers.1.self_attn.k_proj.weight");
    const sr_tensor_spec *q =
        sr_tensor_table_find(&own->table, "model.layers.1.self_attn.q_proj.weight");
    const sr_tensor_spec *conv =
        sr_tensor_table_find(&student->table, "model.layers.1.self_attn.conv1d.weight");
    assert_true(all && k && q && conv);
    assert_memory_equal(student->weights + all->start + q->count, own->weights + k->start,
                        k->count * sizeof(float));
    for (size_t i = 0; i < conv->count; i++)
        assert_true(student->weights[conv->start + i] == (i % 3 == 2 ? 1.0f : 0.0f));
    sr_model_free(own), sr_model_free(student);
    sr_run_settings_free(&s);
}

static void refused(sr_distil_request request, const char *why) {
    sr_student_parts parts;
    assert_int_not_equal(sr_distil_begin(made, &request, &parts), SRNN_OK);
    assert_non_null(strstr(srnn_error_detail(), why));
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

static void wrong_requests(void **state) {
    (void)state;
    sr_run_settings s = common_settings("norm"), none = common_settings("");
    sr_distil_request r = request_of(&s);
    bool stages[SR_STAGES];
    r.keep = "0-";
    refused(r, "every layer is kept");
    r.keep = "7";
    refused(r, "layers 0-1");
    r = request_of(&none);
    refused(r, "no attention");
    r = request_of(&s);
    r.steps[SR_STAGE_DISTIL] = 0;
    refused(r, "stage distil needs");
    assert_int_equal(sr_stages_parse(stages, "align,tune"), SRNN_OK);
    assert_true(stages[SR_STAGE_COPY] && stages[SR_STAGE_ALIGN] && !stages[SR_STAGE_DISTIL] &&
                stages[SR_STAGE_TUNE]);
    assert_int_not_equal(sr_stages_parse(stages, "align,tunes"), SRNN_OK);
    assert_int_equal(sr_distil_continue(folder), SRNN_ERR_ARGUMENT);
    sr_run_settings_free(&s), sr_run_settings_free(&none);
}

/* ---- what learns */

/* In align, and where the request says so, everything but the new attention keeps its bits. */
static void only_attention_learns(void **state) {
    (void)state;
    sr_run_settings s = common_settings("gated_softmax");
    sr_distil_request request = request_of(&s);
    sr_student_parts parts;
    s.weight_decay = 0.1;
    request.keep = "1";
    request.attention_only = true;
    request.reversed = true;
    begin(&request, &parts);
    run_all();
    sr_model *before = model_of(SR_STAGE_COPY);
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++) {
        sr_model *after = model_of((sr_stage)stage);
        for (size_t i = 0; i < before->table.count; i++) {
            const sr_tensor_spec *spec = &before->table.specs[i];
            const bool learns = strstr(spec->name, "layers.0.self_attn") != NULL;
            if (same_tensor(before, after, spec->name) == learns)
                fail_msg("%s: %s %s", sr_stage_name((sr_stage)stage), spec->name,
                         learns ? "has not changed" : "has changed");
        }
        sr_model_free(after);
    }
    sr_model_free(before);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

/* A student with the teacher's attention has nothing to learn: losses are 0 and no bit changes. */
static void the_teacher_as_student(void **state) {
    (void)state;
    sr_run_settings s = common_settings("softmax");
    sr_distil_request request = request_of(&s);
    sr_student_parts parts;
    request.stages[SR_STAGE_TUNE] = false;
    begin(&request, &parts);
    assert_true(parts.copied == parts.tensors);
    sr_model *before = open_model(teacher);
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGE_TUNE; stage++) {
        sr_run *run;
        assert_int_equal(sr_distil_open(&run, made, (sr_stage)stage, &(sr_run_ends){0}), SRNN_OK);
        while (!sr_run_done(run)) {
            sr_run_report report;
            assert_int_equal(sr_run_step(run, &report), SRNN_OK);
            assert_true(report.step.loss == 0 && report.step.gradient_norm == 0);
        }
        assert_int_equal(sr_run_save(run), SRNN_OK);
        sr_run_free(run);
        sr_model *after = model_of((sr_stage)stage);
        for (size_t i = 0; i < before->table.count; i++)
            assert_true(same_tensor(before, after, before->table.specs[i].name));
        sr_model_free(after);
    }
    sr_model_free(before);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

/* ---- stopping */

static const char *const files[] = {"metrics.jsonl", "checkpoints/step-000000005/model.safetensors",
                                    "checkpoints/step-000000005/optimizer.safetensors",
                                    "checkpoints/step-000000005/config.json"};
enum { FILES = sizeof files / sizeof *files };

static void map_file(sr_mapping *file, sr_stage stage, const char *name) {
    char path[SR_PATH_BYTES];
    stage_folder(path, stage);
    char whole[SR_PATH_BYTES + 80];
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    assert_int_equal(sr_mapping_open(file, whole), SRNN_OK);
}

/* Every stage, killed after each of its steps and resumed with other threads, ends with the bits of
 * one that was never stopped; so does a copy that was cut off. */
static void stop_everywhere(int adapter_rank) {
    sr_run_settings s = common_settings("0:gla,1-:order:2");
    sr_distil_request request = request_of(&s);
    request.adapter_rank = adapter_rank;
    s.hidden_weight = adapter_rank ? 0 : 0.5;
    sr_student_parts parts;
    sr_mapping want[SR_STAGES][FILES];
    char copy[SR_PATH_BYTES];
    begin(&request, &parts);
    run_all();
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++)
        for (int i = 0; i < FILES; i++)
            map_file(&want[stage][i], (sr_stage)stage, files[i]);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
    begin(&request, &parts);
    stage_folder(copy, SR_STAGE_COPY);
    assert_int_equal(sr_folder_remove(copy), SRNN_OK);
    assert_int_equal(sr_distil_continue(made), SRNN_OK);
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++) {
        for (int64_t stop = 1; stop < 5; stop++)
            assert_true(run_stage((sr_stage)stage, stop, (int)(1 + stop % 2)));
        assert_true(run_stage((sr_stage)stage, 0, 1));
    }
    assert_false(run_stage(SR_STAGE_ALIGN, 0, 1)); /* a later one has begun */
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++)
        for (int i = 0; i < FILES; i++) {
            sr_mapping got;
            map_file(&got, (sr_stage)stage, files[i]);
            assert_int_equal(got.bytes, want[stage][i].bytes);
            assert_memory_equal(got.data, want[stage][i].data, got.bytes);
            sr_mapping_close(&got);
            sr_mapping_close(&want[stage][i]);
        }
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

static void stopping_changes_nothing(void **state) {
    (void)state;
    stop_everywhere(0);
    stop_everywhere(2);
}

/* Losses fall, validation says how far the student is, and the teacher's files stay as they are. */
static void students_learn(void **state) {
    (void)state;
    sr_run_settings s = common_settings("linear_elu");
    sr_distil_request request = request_of(&s);
    sr_student_parts parts;
    char path[SR_PATH_BYTES];
    sr_mapping before, after, metrics;
    snprintf(path, sizeof path, "%s/model.safetensors", teacher);
    assert_int_equal(sr_mapping_open(&before, path), SRNN_OK);
    request.steps[SR_STAGE_ALIGN] = 60;
    request.steps[SR_STAGE_DISTIL] = 60;
    request.stages[SR_STAGE_TUNE] = false;
    s.accumulate = 1;
    s.validate_every = 60;
    s.save_every = 0;
    begin(&request, &parts);
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGE_TUNE; stage++) {
        sr_run *run;
        double first = 0, last = 0;
        assert_int_equal(sr_distil_open(&run, made, (sr_stage)stage, &(sr_run_ends){0}), SRNN_OK);
        while (!sr_run_done(run)) {
            sr_run_report report;
            assert_int_equal(sr_run_step(run, &report), SRNN_OK);
            const int64_t step = sr_run_progress(run)->step;
            first += step <= 10 ? report.step.loss : 0;
            last += step > 50 ? report.step.loss : 0;
        }
        assert_true(last < 0.8 * first);
        assert_int_equal(sr_run_save(run), SRNN_OK);
        sr_run_free(run);
        map_file(&metrics, (sr_stage)stage, "metrics.jsonl");
        assert_non_null(memmem(metrics.data, metrics.bytes, "\"validation_kl\": ", 17));
        assert_true(!memmem(metrics.data, metrics.bytes, "\"layer_errors\": [", 17) ==
                    (stage != SR_STAGE_ALIGN));
        sr_mapping_close(&metrics);
    }
    assert_int_equal(sr_mapping_open(&after, path), SRNN_OK);
    assert_int_equal(before.bytes, after.bytes);
    assert_memory_equal(before.data, after.data, before.bytes);
    sr_mapping_close(&before), sr_mapping_close(&after);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

/* ---- ranking */

static void rank_correlations(void **state) {
    (void)state;
    static const double iq[] = {106, 100, 86, 101, 99, 103, 97, 113, 112, 110};
    static const double hours[] = {7, 27, 2, 50, 28, 29, 20, 12, 6, 17};
    static const double ties[] = {1, 1, 2, 2}, up[] = {1, 2, 3, 4}, down[] = {4, 3, 2, 1},
                        same[] = {5, 5, 5, 5};
    sr_spearman s;
    assert_int_equal(sr_spearman_of(&s, iq, hours, 10), SRNN_OK);
    assert_true(fabs(s.rho + 29.0 / 165) < 1e-12); /* the textbook's */
    assert_true(fabs(s.low - -0.727830028239) < 1e-9 && fabs(s.high - 0.514546661633) < 1e-9);
    assert_int_equal(sr_spearman_of(&s, ties, up, 4), SRNN_OK);
    assert_true(fabs(s.rho - 2 / sqrt(5)) < 1e-12);
    assert_int_equal(sr_spearman_of(&s, up, up, 4), SRNN_OK);
    const double width = 1.959963984540054 * sqrt(1.5); /* four equal ranks say next to nothing */
    assert_true(s.rho == 1 && s.high == 1 && fabs(s.low - tanh(atanh(0.9) - width)) < 1e-9);
    assert_int_equal(sr_spearman_of(&s, down, up, 4), SRNN_OK);
    assert_true(s.rho == -1 && s.low == -1 && fabs(s.high + tanh(atanh(0.9) - width)) < 1e-9);
    assert_int_equal(sr_spearman_of(&s, same, up, 4), SRNN_OK);
    assert_true(isnan(s.rho));
    assert_int_equal(sr_spearman_of(&s, up, ties, 3), SRNN_OK);
    assert_true(!isnan(s.rho) && isnan(s.low));
}

static sr_ranking_result ranked(double budget) {
    sr_ranking_result result;
    const sr_ranking_request request = {.folder = made,
                                        .threads = 2,
                                        .window = 4,
                                        .most_order = 8,
                                        .tolerance = 1e-2,
                                        .budget = budget};
    if (sr_ranking_measure(&result, &request) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    return result;
}

/* Loss and KL of a model on the rows of the ranking, computed from its logits in double. */
static sr_replacement_cost cost_by_hand(sr_model *model, sr_model *from) {
    enum { B = 2, T = 12, V = 257 };
    static float x[B * T * V], y[B * T * V];
    int32_t ids[B * T], targets[B * T];
    int64_t offsets[B * T + 1], count = 0;
    sr_replacement_cost cost = {0, 0};
    sr_source *source;
    sr_pass *student, *own;
    const sr_pass_setup setup = {.B = B, .T = T};
    const sr_source_settings rows = {.seed = 1, .T = T, .validation_share = 0.1};
    assert_int_equal(sr_source_open(&source, text, &rows), SRNN_OK);
    assert_int_equal(sr_pass_create(&student, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_create(&own, from, &setup), SRNN_OK);
    for (int64_t number = 0; number < 2; number++) {
        sr_batch batch = {.B = B, .ids = ids, .targets = targets, .offsets = offsets};
        assert_int_equal(sr_source_batch(source, &batch, SR_SPLIT_VALIDATION, number), SRNN_OK);
        assert_int_equal(sr_pass_documents(student, offsets, batch.documents), SRNN_OK);
        assert_int_equal(sr_pass_documents(own, offsets, batch.documents), SRNN_OK);
        assert_int_equal(sr_pass_logits(student, x, ids), SRNN_OK);
        assert_int_equal(sr_pass_logits(own, y, ids), SRNN_OK);
        for (int i = 0; i < B * T; i++) {
            double q = 0, p = 0;
            if (targets[i] < 0)
                continue;
            for (int v = 0; v < V; v++) {
                q += exp((double)x[i * V + v]);
                p += exp((double)y[i * V + v]);
            }
            for (int v = 0; v < V; v++)
                cost.kl += exp((double)y[i * V + v]) / p *
                           ((double)y[i * V + v] - log(p) - (double)x[i * V + v] + log(q));
            cost.loss += log(q) - (double)x[i * V + targets[i]];
            count++;
        }
    }
    sr_pass_free(student), sr_pass_free(own);
    sr_source_free(source);
    return (sr_replacement_cost){cost.loss / (double)count, cost.kl / (double)count};
}

static bool near_to(double x, double y) {
    return fabs(x - y) < 1e-5 * (1 + fabs(y));
}

/* Each layer alone: the costs are those of the models that one can also make by hand; the budget
 * keeps what fits. */
static void layers_are_ranked(void **state) {
    (void)state;
    static const bool second[] = {false, true};
    sr_run_settings s = common_settings("linear_elu");
    sr_distil_request request = request_of(&s);
    sr_student_parts parts;
    sr_model *own = open_model(teacher), *student;
    request.stages[SR_STAGE_DISTIL] = request.stages[SR_STAGE_TUNE] = false;
    request.steps[SR_STAGE_ALIGN] = 40;
    begin(&request, &parts);
    run_all();
    sr_ranking_result result = ranked(-1);
    assert_int_equal(result.L, 2);
    assert_int_equal(sr_student_create(&student, &parts, own, &s, second), SRNN_OK);
    sr_replacement_cost want = cost_by_hand(student, own);
    assert_true(near_to(result.layers[1].copied.kl, want.kl) && want.kl > 0);
    assert_true(near_to(result.layers[1].copied.loss, want.loss));
    sr_model *aligned = model_of(SR_STAGE_ALIGN);
    assert_int_equal(sr_student_layers(student, aligned, second), SRNN_OK);
    want = cost_by_hand(student, own);
    assert_true(near_to(result.layers[1].aligned.kl, want.kl));
    assert_true(near_to(result.loss, cost_by_hand(own, own).loss));
    assert_true(result.layers[1].aligned.kl < result.layers[1].copied.kl);
    assert_true(isnan(result.budget) && result.layers[0].focus.measured);
    const sr_ranked_layer first = result.layers[0], last = result.layers[1];
    const double cache = first.cache_bytes, small = first.state_bytes;
    assert_true(cache == 2 * 12 * 2 * 6 * sizeof(float)); /* keys and values of two heads */
    sr_ranking_free(&result);
    const bool pays = cache > small; /* else both are kept, whatever the budget */
    result = ranked(cache + small);
    const int kept = result.layers[0].keep + result.layers[1].keep;
    assert_int_equal(kept, pays ? 1 : 2);
    if (pays)
        assert_true(result.layers[first.aligned.kl > last.aligned.kl ? 0 : 1].keep);
    json_t *record;
    assert_int_equal(sr_ranking_record(&record, &result), SRNN_OK);
    assert_int_equal(json_array_size(json_object_get(record, "layers")), 2);
    assert_int_equal(json_object_size(json_object_get(record, "correlations")),
                     SR_RANKING_MEASURES);
    json_decref(record);
    sr_ranking_free(&result);
    sr_model_free(own), sr_model_free(student), sr_model_free(aligned);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

/* ---- decays */

/* The decay per token of the first head of layer 1 of a copy, without what depends on the token. */
static double decay_at_start(const char *attention, bool of_teacher) {
    sr_run_settings s = common_settings(attention);
    sr_distil_request request = request_of(&s);
    sr_student_parts parts;
    char even[120];
    snprintf(even, sizeof even, "%s/even", folder);
    assert_int_equal(sr_run_settings_text(&s.teacher, even), SRNN_OK);
    request.keep = "0";
    request.decays_of_teacher = of_teacher;
    begin(&request, &parts);
    sr_model *copy = model_of(SR_STAGE_COPY);
    const char *const names[] = {"gk_proj.1.bias", "g_proj.bias", "dt_bias", "A_log"};
    const sr_tensor_spec *found[4];
    for (int i = 0; i < 4; i++) {
        char name[SR_SPEC_NAME];
        snprintf(name, sizeof name, "model.layers.1.self_attn.%s", names[i]);
        found[i] = sr_tensor_table_find(&copy->table, name);
    }
    const double divisor = copy->config.attention[1].decay_divisor;
    double decay;
    if (found[2]) {
        const double x = (double)copy->weights[found[2]->start];
        const double rate = exp((double)copy->weights[found[3]->start]);
        decay = exp(-rate * log1p(exp(x)));
    } else {
        const sr_tensor_spec *spec = found[0] ? found[0] : found[1];
        assert_non_null(spec);
        const double x = (double)copy->weights[spec->start];
        decay = pow(1 / (1 + exp(-x)), 1 / (divisor > 0 ? divisor : 1));
    }
    sr_model_free(copy);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
    return decay;
}

/* A teacher whose queries are 0 looks at all earlier tokens alike: at (T - 1) / 4 on average. */
static void decays_start_from_distances(void **state) {
    (void)state;
    static const char *const attentions[] = {"gla", "power", "gated_delta_net", "mamba2"};
    const double distance = (12 - 1) / 4.0, want = distance / (1 + distance);
    char even[120];
    sr_model *model = open_model(teacher);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        if (strstr(spec->name, "q_proj"))
            memset(model->weights + spec->start, 0, spec->count * sizeof(float));
    }
    snprintf(even, sizeof even, "%s/even", folder);
    assert_int_equal(sr_folders_make(even), SRNN_OK);
    assert_int_equal(sr_model_save(model, even, SR_DTYPE_F32), SRNN_OK);
    sr_model_free(model);
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++) {
        const double got = decay_at_start(attentions[i], true);
        const double usual = decay_at_start(attentions[i], false);
        if (fabs(got - want) > 1e-5 || fabs(usual - want) < 1e-3)
            fail_msg("%s: %g, %g without, %g wanted", attentions[i], got, usual, want);
    }
}

/* ---- adapters */

/* The adapter of a matrix in the last checkpoint of a stage, as PEFT has it. */
static void read_factor(float *out, size_t count, sr_stage stage, const char *matrix,
                        const char *factor) {
    char path[SR_PATH_BYTES], name[200];
    sr_safetensors *file;
    const sr_tensor *tensor;
    stage_folder(path, stage);
    char whole[SR_PATH_BYTES + 80];
    snprintf(whole, sizeof whole, "%s/checkpoints/step-000000005/adapter_model.safetensors", path);
    snprintf(name, sizeof name, "base_model.model.%s.lora_%s.weight", matrix, factor);
    assert_int_equal(sr_safetensors_open(&file, whole), SRNN_OK);
    assert_int_equal(sr_safetensors_require(&tensor, file, name), SRNN_OK);
    assert_int_equal(tensor->count, count);
    sr_tensor_to_float(out, tensor);
    sr_safetensors_free(file);
}

/* The merged matrix is W0 + B A of the files; all but the layers' matrices keeps its bits. */
static void adapters_are_saved_apart_and_merged(void **state) {
    (void)state;
    enum { RANK = 3 };
    sr_run_settings s = common_settings("gated_softmax");
    sr_distil_request request = request_of(&s);
    sr_student_parts parts;
    bool known;
    assert_int_equal(sr_distil_request_set(&request, &known, "lora-rank", "3"), SRNN_OK);
    assert_int_equal(sr_distil_request_set(&request, &known, "learn", "lora"), SRNN_OK);
    assert_true(request.adapter_rank == RANK);
    begin(&request, &parts);
    run_all();
    sr_model *before = model_of(SR_STAGE_DISTIL), *after = model_of(SR_STAGE_TUNE);
    size_t adapted = 0;
    for (size_t i = 0; i < before->table.count; i++) {
        const sr_tensor_spec *spec = &before->table.specs[i];
        const bool is = spec->rank == 2 && strstr(spec->name, "layers.") != NULL;
        if (same_tensor(before, after, spec->name) == is)
            fail_msg("%s %s", spec->name, is ? "has not changed" : "has changed");
        if (!is)
            continue;
        adapted++;
        const int64_t rows = spec->shape[0], columns = spec->shape[1];
        float *a = malloc((size_t)(RANK * columns) * sizeof *a);
        float *b = malloc((size_t)(RANK * rows) * sizeof *b);
        char matrix[SR_SPEC_NAME];
        snprintf(matrix, sizeof matrix, "%.*s", (int)(strlen(spec->name) - strlen(".weight")),
                 spec->name);
        read_factor(a, (size_t)(RANK * columns), SR_STAGE_TUNE, matrix, "A");
        read_factor(b, (size_t)(RANK * rows), SR_STAGE_TUNE, matrix, "B");
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) {
                double want = (double)before->weights[spec->start + (size_t)(r * columns + c)];
                for (int k = 0; k < RANK; k++)
                    want += (double)b[r * RANK + k] * (double)a[k * columns + c];
                const double got = (double)after->weights[spec->start + (size_t)(r * columns + c)];
                assert_true(fabs(got - want) < 1e-6 * (1 + fabs(want)));
            }
        free(a), free(b);
    }
    assert_true(adapted >= 2 * 6);
    /* transformers would add the adapters to the merged model once more */
    char path[SR_PATH_BYTES], config[SR_PATH_BYTES + 80];
    stage_folder(path, SR_STAGE_TUNE);
    snprintf(config, sizeof config, "%s/checkpoints/step-000000005/adapter_config.json", path);
    assert_int_not_equal(access(config, F_OK), 0);
    sr_model_free(before), sr_model_free(after);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

/* The mean loss of a batch, in double. */
static double batch_loss(sr_pass *pass, const int32_t *ids, const int32_t *targets, int count) {
    float losses[64];
    double sum = 0;
    assert_int_equal(sr_pass_losses(pass, losses, ids, targets), SRNN_OK);
    for (int i = 0; i < count; i++)
        sum += (double)losses[i];
    return sum / count;
}

/* The gradient of A and B against slopes of the loss, and B = 0 changes nothing. */
static void adapter_gradients_are_slopes(void **state) {
    (void)state;
    enum { B = 2, T = 9, ROWS = B * T };
    int32_t ids[ROWS], targets[ROWS];
    float losses[ROWS];
    sr_model *model = small_byte_model(cpu, "gated_softmax", 0.3);
    sr_adapters *a;
    sr_pass *pass;
    for (int i = 0; i < ROWS; i++) {
        ids[i] = (i * 37 + 11) % 251;
        targets[i] = (i * 53 + 5) % 251;
    }
    assert_int_equal(sr_adapters_create(&a, model, &(sr_adapters_setup){.rank = 2}), SRNN_OK);
    assert_int_equal(sr_pass_create(&pass, model, &(sr_pass_setup){.B = B, .T = T, .train = true}),
                     SRNN_OK);
    const double plain = batch_loss(pass, ids, targets, ROWS);
    assert_int_equal(sr_adapters_keep(a), SRNN_OK);
    assert_int_equal(sr_adapters_initialise(a, 0.3, 5), SRNN_OK);
    assert_int_equal(sr_adapters_merge(a), SRNN_OK);
    assert_true(batch_loss(pass, ids, targets, ROWS) == plain);
    for (size_t i = 0; i < a->table.numbers; i++)
        a->weights[i] = 0.2f * sinf((float)i * 1.7f);
    assert_int_equal(sr_adapters_merge(a), SRNN_OK);
    assert_int_equal(sr_pass_gradients(pass, losses, ids, targets, 1.0 / ROWS), SRNN_OK);
    assert_int_equal(sr_adapters_gradient(a, sr_pass_gradient(pass)), SRNN_OK);
    for (size_t i = 0; i < a->table.count; i++) {
        const sr_tensor_spec *spec = &a->table.specs[i];
        const size_t at = spec->start + spec->count / 2;
        const float kept = a->weights[at], step = 4e-3f;
        double loss[2];
        for (int side = 0; side < 2; side++) {
            a->weights[at] = kept + (side ? step : -step);
            assert_int_equal(sr_adapters_merge(a), SRNN_OK);
            loss[side] = batch_loss(pass, ids, targets, ROWS);
        }
        a->weights[at] = kept;
        const double slope = (loss[1] - loss[0]) / (2 * (double)step);
        if (fabs(slope - (double)a->gradient[at]) > 2e-4 + 0.01 * fabs(slope))
            fail_msg("%s: gradient %g, slope %g", spec->name, (double)a->gradient[at], slope);
    }
    sr_adapters_free(a);
    sr_pass_free(pass);
    sr_model_free(model);
}

/* ---- what a student is worth */

static json_t *measured(void) {
    json_t *record;
    if (sr_measurement_make(&record, &(sr_measurement_request){.folder = made, .threads = 2}) !=
        SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    return record;
}

static double part(const json_t *record, const char *of, const char *what) {
    return sr_json_number_of(sr_json_object_of(record, of), what);
}

/* The student is the last stage's model, losses by position add up to its loss, a zeroed state is
 * what documents of one token give, and layers alone are those of the ranking. */
static void students_are_measured(void **state) {
    (void)state;
    sr_run_settings s = common_settings("linear_elu");
    sr_distil_request request = request_of(&s);
    sr_student_parts parts;
    sr_model *own = open_model(teacher);
    request.keep = "0";
    begin(&request, &parts);
    run_all();
    json_t *record = measured();
    sr_model *tuned = model_of(SR_STAGE_TUNE), *copy = model_of(SR_STAGE_COPY);
    sr_replacement_cost want = cost_by_hand(tuned, own);
    assert_true(near_to(part(record, "student", "loss"), want.loss));
    assert_true(near_to(part(record, "student", "kl"), want.kl));
    want = cost_by_hand(copy, own);
    assert_true(near_to(part(record, "copied", "kl"), want.kl) && want.kl > 0);
    assert_true(near_to(part(record, "teacher", "loss"), cost_by_hand(own, own).loss));
    assert_true(fabs(part(record, "teacher", "kl")) < 1e-6);
    const json_t *positions = sr_json_object_of(record, "student");
    double sum = 0, to = 0;
    for (size_t i = 0; i < sr_json_count_of(positions, "positions"); i++) {
        const json_t *one = sr_json_element_of(positions, "positions", i);
        assert_true(sr_json_number_of(one, "from") == to);
        to = sr_json_number_of(one, "to");
        sum += (to - sr_json_number_of(one, "from")) * sr_json_number_of(one, "loss");
    }
    assert_true(to == 12 && near_to(sum / 12, part(record, "student", "loss")));
    assert_true(fabs(part(record, "zeroed", "loss") - part(record, "student", "loss")) > 1e-4);
    assert_int_equal(sr_json_count_of(record, "layers"), 1);
    const json_t *layer = sr_json_element_of(record, "layers", 0);
    assert_int_equal(sr_json_integer_of(layer, "layer"), 1);
    assert_true(near_to(part(layer, "copied", "kl"), want.kl)); /* it is the only one */
    assert_true(part(layer, "aligned", "kl") > 0);
    assert_true(sr_json_number_of(record, "state_bytes") > 0);
    json_decref(record);
    sr_model_free(own), sr_model_free(tuned), sr_model_free(copy);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

/* Rows that were learned from say nothing of what a student is worth. */
static void training_rows_are_no_measure(void **state) {
    (void)state;
    sr_run_settings s = common_settings("linear_elu");
    sr_distil_request request = request_of(&s);
    sr_student_parts parts;
    json_t *record;
    s.validation_share = 0;
    s.validate_every = 0;
    request.stages[SR_STAGE_ALIGN] = request.stages[SR_STAGE_TUNE] = false;
    begin(&request, &parts);
    run_all();
    assert_int_equal(sr_measurement_make(&record,
                                         &(sr_measurement_request){.folder = made, .threads = 1}),
                     SRNN_ERR_ARGUMENT);
    assert_non_null(strstr(srnn_error_detail(), "no rows that validate"));
    assert_null(record);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

/* Isolated tokens of all layers are documents of one token. */
static void isolated_layers_forget(void **state) {
    (void)state;
    enum { T = 7 };
    static const bool all[] = {true, true}, first[] = {true, false};
    const int32_t ids[T] = {3, 1, 4, 1, 5, 9, 2};
    const int64_t offsets[T + 1] = {0, 1, 2, 3, 4, 5, 6, 7};
    static float want[T * 257], got[T * 257];
    static const char *const attentions[] = {"linear_elu", "gla", "gated_delta_net", "softmax"};
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++) {
        sr_model *model = small_byte_model(cpu, attentions[i], 0.3);
        sr_pass *pass;
        assert_int_equal(sr_pass_create(&pass, model, &(sr_pass_setup){.B = 1, .T = T}), SRNN_OK);
        assert_int_equal(sr_pass_isolate(pass, first), SRNN_ERR_UNSUPPORTED);
        assert_int_equal(sr_pass_isolate(pass, all), SRNN_OK);
        assert_int_equal(sr_pass_logits(pass, got, ids), SRNN_OK);
        assert_int_equal(sr_pass_documents(pass, offsets, T), SRNN_OK);
        assert_int_equal(sr_pass_logits(pass, want, ids), SRNN_OK);
        for (int j = 0; j < T * 257; j++)
            if (fabsf(got[j] - want[j]) > 1e-5f)
                fail_msg("%s: %g instead of %g", attentions[i], (double)got[j], (double)want[j]);
        assert_int_equal(sr_pass_documents(pass, NULL, 0), SRNN_OK);
        assert_int_equal(sr_pass_logits(pass, want, ids), SRNN_OK);
        assert_true(memcmp(got, want, sizeof got) != 0);
        sr_pass_free(pass);
        sr_model_free(model);
    }
}

/* The shape is the student's, no weight is the teacher's, and the request is remembered. */
static void a_student_from_scratch(void **state) {
    (void)state;
    sr_run_settings s = common_settings("gated_softmax");
    sr_distil_request request = request_of(&s);
    sr_student_parts parts;
    char path[SR_PATH_BYTES];
    bool known;
    request.stages[SR_STAGE_ALIGN] = request.stages[SR_STAGE_DISTIL] = false;
    request.from_scratch = true;
    assert_int_equal(sr_distil_check(made, &request), SRNN_OK);
    begin(&request, &parts);
    stage_folder(path, SR_STAGE_COPY);
    for (int again = 0; again < 2; again++) {
        sr_model *own = open_model(teacher), *copy = model_of(SR_STAGE_COPY);
        const sr_tensor_spec *spec =
            sr_tensor_table_find(&own->table, "model.layers.0.self_attn.q_proj.weight");
        assert_true(spec && !same_tensor(own, copy, spec->name));
        assert_false(same_tensor(own, copy, "model.embed_tokens.weight"));
        sr_model_free(own), sr_model_free(copy);
        assert_int_equal(sr_folder_remove(path), SRNN_OK);
        assert_int_equal(sr_distil_continue(made), SRNN_OK);
    }
    assert_int_equal(sr_distil_check(made, &request), SRNN_OK);
    assert_int_equal(sr_distil_request_set(&request, &known, "tune-steps", "6"), SRNN_OK);
    assert_true(known && request.steps[SR_STAGE_TUNE] == 6);
    assert_int_equal(sr_distil_check(made, &request), SRNN_ERR_ARGUMENT);
    request.steps[SR_STAGE_TUNE] = 5;
    s.B = 3;
    assert_int_equal(sr_distil_check(made, &request), SRNN_ERR_ARGUMENT);
    assert_non_null(strstr(srnn_error_detail(), "batch"));
    assert_int_equal(sr_distil_request_set(&request, &known, "tune-steps", "x"), SRNN_ERR_ARGUMENT);
    assert_int_equal(sr_distil_request_set(&request, &known, "kl", "sideways"), SRNN_ERR_ARGUMENT);
    assert_int_equal(sr_distil_request_set(&request, &known, "batch", "6"), SRNN_OK);
    assert_false(known);
    s.B = 2;
    run_all();
    json_t *record = measured();
    assert_true(part(record, "student", "loss") > 0 && !json_object_get(record, "copied"));
    json_decref(record);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(made), SRNN_OK);
}

static int enter(void **state) {
    (void)state;
    static char words[20000];
    snprintf(folder, sizeof folder, "/tmp/softrnn-distil-%d", (int)getpid());
    snprintf(text, sizeof text, "%s/text.txt", folder);
    snprintf(teacher, sizeof teacher, "%s/teacher", folder);
    snprintf(made, sizeof made, "%s/made", folder);
    for (size_t i = 0; i < sizeof words; i++)
        words[i] = "abc def, ghij klmno\n"[(i * i + i / 7) % 20];
    if (sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}) != SRNN_OK ||
        sr_folders_make(teacher) != SRNN_OK ||
        sr_file_replace(text, words, sizeof words) != SRNN_OK)
        return -1;
    sr_model *model = small_byte_model(cpu, "softmax", 0.3);
    const srnn_status status = sr_model_save(model, teacher, SR_DTYPE_F32);
    sr_model_free(model);
    return status == SRNN_OK ? 0 : -1;
}

static int leave(void **state) {
    (void)state;
    sr_backend_free(cpu);
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_have_what_is_the_teachers),
        cmocka_unit_test(projections_are_joined),
        cmocka_unit_test(wrong_requests),
        cmocka_unit_test(only_attention_learns),
        cmocka_unit_test(the_teacher_as_student),
        cmocka_unit_test(stopping_changes_nothing),
        cmocka_unit_test(students_learn),
        cmocka_unit_test(rank_correlations),
        cmocka_unit_test(layers_are_ranked),
        cmocka_unit_test(decays_start_from_distances),
        cmocka_unit_test(adapters_are_saved_apart_and_merged),
        cmocka_unit_test(adapter_gradients_are_slopes),
        cmocka_unit_test(students_are_measured),
        cmocka_unit_test(training_rows_are_no_measure),
        cmocka_unit_test(isolated_layers_forget),
        cmocka_unit_test(a_student_from_scratch),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
