/* test_families.c: small models of published families against the logits of transformers. They are
 * searched in the folder named by SOFTRNN_FAMILIES, else next to SOFTRNN_REAL_DATA; without them
 * these tests are skipped. SOFTRNN_FAMILIES_DEVICE: where they compute, the CPU without it. */
#include "files/folder.h"
#include "files/json.h"
#include "files/path.h"
#include "files/safetensors.h"
#include "model/files/model_folder.h"
#include "model/pass.h"
#include "model/session.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static sr_backend *backend;

static int open_backend(void **state) {
    const sr_backend_settings settings = {.device = getenv("SOFTRNN_FAMILIES_DEVICE"),
                                          .threads = 2};
    (void)state;
    return sr_backend_create(&backend, &settings) == SRNN_OK ? 0 : -1;
}

static int close_backend(void **state) {
    (void)state;
    sr_backend_free(backend);
    return 0;
}

static bool families_folder(char path[SR_PATH_BYTES]) {
    const char *own = getenv("SOFTRNN_FAMILIES"), *data = getenv("SOFTRNN_REAL_DATA");
    struct stat about;
    if (own)
        snprintf(path, SR_PATH_BYTES, "%s", own);
    else if (data)
        snprintf(path, SR_PATH_BYTES, "%s/../golden/families", data);
    return (own || data) && stat(path, &about) == 0;
}

/* Computed by transformers: the logits of the last `rows` tokens of each sequence. */
typedef struct expected {
    int B, T, rows, V;
    int32_t *ids;  /* (B, T) */
    float *logits; /* (B, rows, V) */
} expected;

static expected read_expected(const char *folder) {
    char path[SR_PATH_BYTES];
    json_t *root;
    assert_int_equal(sr_path_join(path, folder, "expected.json"), SRNN_OK);
    assert_int_equal(sr_json_load(&root, path, 0), SRNN_OK);
    const json_t *ids = json_object_get(root, "ids"), *logits = json_object_get(root, "logits");
    const json_t *row = json_array_get(logits, 0);
    expected e = {(int)json_array_size(ids),
                  (int)json_array_size(json_array_get(ids, 0)),
                  (int)json_array_size(row),
                  (int)json_array_size(json_array_get(row, 0)),
                  NULL,
                  NULL};
    e.ids = calloc((size_t)(e.B * e.T), sizeof *e.ids);
    e.logits = calloc((size_t)(e.B * e.rows * e.V), sizeof *e.logits);
    for (int b = 0; b < e.B; b++) {
        for (int t = 0; t < e.T; t++)
            e.ids[b * e.T + t] = (int32_t)json_integer_value(
                json_array_get(json_array_get(ids, (size_t)b), (size_t)t));
        for (int i = 0; i < e.rows * e.V; i++)
            e.logits[b * e.rows * e.V + i] = (float)json_number_value(
                json_array_get(json_array_get(json_array_get(logits, (size_t)b), (size_t)(i / e.V)),
                               (size_t)(i % e.V)));
    }
    json_decref(root);
    return e;
}

/* The largest difference of the last rows of logits (B, T, V), relative to the largest logit. */
static double difference(const expected *e, const float *logits) {
    double worst = 0, largest = 0;
    for (int b = 0; b < e->B; b++)
        for (int i = 0; i < e->rows * e->V; i++) {
            const double want = (double)e->logits[b * e->rows * e->V + i];
            const double have = (double)logits[(b * e->T + e->T - e->rows) * e->V + i];
            worst = fmax(worst, isnan(have) ? INFINITY : fabs(have - want));
            largest = fmax(largest, fabs(want));
        }
    return worst / largest;
}

static double pass_difference(sr_model *model, const expected *e) {
    const sr_pass_setup setup = {.B = e->B, .T = e->T};
    float *logits = calloc((size_t)(e->B * e->T * e->V), sizeof *logits);
    sr_pass *pass;
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_logits(pass, logits, e->ids), SRNN_OK);
    const double found = difference(e, logits);
    sr_pass_free(pass);
    free(logits);
    return found;
}

/* The same fed as a prompt and then token by token. */
static double session_difference(sr_model *model, const expected *e) {
    const int prompt = e->T - e->rows;
    const sr_session_setup setup = {.B = e->B, .T = prompt};
    float *logits = calloc((size_t)(e->B * e->T * e->V), sizeof *logits);
    float *last = calloc((size_t)(e->B * e->V), sizeof *last);
    int32_t *ids = calloc((size_t)(e->B * e->T), sizeof *ids);
    sr_session *session;
    assert_int_equal(sr_session_create(&session, model, &setup), SRNN_OK);
    for (int from = 0; from < e->T; from += from ? 1 : prompt) {
        const int count = from ? 1 : prompt;
        for (int i = 0; i < e->B * count; i++)
            ids[i] = e->ids[i / count * e->T + from + i % count];
        assert_int_equal(sr_session_feed(session, last, ids, count), SRNN_OK);
        for (int b = 0; b < e->B; b++)
            memcpy(logits + (b * e->T + from + count - 1) * e->V, last + b * e->V,
                   (size_t)e->V * sizeof *last);
    }
    const double found = difference(e, logits);
    sr_session_free(session);
    free(logits);
    free(last);
    free(ids);
    return found;
}

/* ---- written again */

static bool same_tensor(const sr_tensor *a, const sr_tensor *b) {
    return b && a->dtype == b->dtype && sr_tensor_has_shape(a, b->rank, b->shape) &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

/* Every tensor of the first file is in the second, bit by bit. transformers splits some
 * convolutions differently than between q, k and v. */
static bool same_file(const char *path, const sr_safetensors *other) {
    sr_safetensors *a;
    bool same = true;
    assert_int_equal(sr_safetensors_open(&a, path), SRNN_OK);
    for (size_t i = 0; i < sr_safetensors_count(a); i++) {
        const sr_tensor *tensor = sr_safetensors_at(a, i);
        const sr_tensor *found = sr_safetensors_find(other, tensor->name);
        const bool cut = strstr(tensor->name, "_conv1d") && found && found->count != tensor->count;
        if (!same_tensor(tensor, found) && !cut) {
            printf("%s: differs in %s\n", path, tensor->name);
            same = false;
        }
    }
    sr_safetensors_free(a);
    return same;
}

/* The same of all weight files of a folder. */
static bool same_files(const char *folder, const char *path) {
    sr_safetensors *other;
    sr_names names;
    bool same = true;
    assert_int_equal(sr_safetensors_open(&other, path), SRNN_OK);
    assert_int_equal(sr_folder_list(&names, folder), SRNN_OK);
    for (size_t i = 0; i < names.count; i++) {
        char file[SR_PATH_BYTES];
        const char *ending = strrchr(names.names[i], '.');
        assert_int_equal(sr_path_join(file, folder, names.names[i]), SRNN_OK);
        if (ending && strcmp(ending, ".safetensors") == 0)
            same = same_file(file, other) && same;
    }
    sr_names_free(&names);
    sr_safetensors_free(other);
    return same;
}

static bool same_config(const char *path, const char *other) {
    json_t *a, *b;
    assert_int_equal(sr_json_load(&a, path, 0), SRNN_OK);
    assert_int_equal(sr_json_load(&b, other, 0), SRNN_OK);
    const bool same = json_equal(a, b);
    json_decref(a);
    json_decref(b);
    return same;
}

/* That of the first tensor of the first weight file. */
static sr_dtype stored_dtype(const char *folder) {
    sr_names names;
    sr_dtype dtype = SR_DTYPE_F32;
    bool found = false;
    assert_int_equal(sr_folder_list(&names, folder), SRNN_OK);
    for (size_t i = 0; i < names.count && !found; i++) {
        char file[SR_PATH_BYTES];
        const char *ending = strrchr(names.names[i], '.');
        sr_safetensors *weights;
        found = ending && strcmp(ending, ".safetensors") == 0;
        if (!found)
            continue;
        assert_int_equal(sr_path_join(file, folder, names.names[i]), SRNN_OK);
        assert_int_equal(sr_safetensors_open(&weights, file), SRNN_OK);
        dtype = sr_safetensors_at(weights, 0)->dtype;
        sr_safetensors_free(weights);
    }
    sr_names_free(&names);
    return dtype;
}

static bool writes_the_same(const sr_model *model, const char *folder) {
    char out[] = "/tmp/softrnn_family_XXXXXX", path[SR_PATH_BYTES], other[SR_PATH_BYTES];
    bool same = true;
    assert_non_null(mkdtemp(out));
    assert_int_equal(sr_model_save_public(model, out, stored_dtype(folder)), SRNN_OK);
    assert_int_equal(sr_path_join(other, out, "model.safetensors"), SRNN_OK);
    same = same_files(folder, other);
    assert_int_equal(sr_path_join(path, folder, "config.json"), SRNN_OK);
    assert_int_equal(sr_path_join(other, out, "config.json"), SRNN_OK);
    if (model->config.source)
        same = same_config(path, other) && same;
    assert_int_equal(sr_folder_remove(out), SRNN_OK);
    return same;
}

static bool check_family(const char *folder, const char *name) {
    static const double LIMIT = 1e-4;
    sr_model *model;
    const srnn_status status = sr_model_load(&model, backend, folder);
    if (status != SRNN_OK) {
        printf("%-16s FAILED: %s\n", name, srnn_error_detail());
        return false;
    }
    expected e = read_expected(folder);
    const double whole = pass_difference(model, &e), pieces = session_difference(model, &e);
    const bool good = whole < LIMIT && pieces < LIMIT && writes_the_same(model, folder);
    printf("%-16s %s %.2g (whole), %.2g (by pieces)\n", name, good ? "ok" : "FAILED", whole,
           pieces);
    free(e.ids);
    free(e.logits);
    sr_model_free(model);
    return good;
}

static void logits_are_those_of_transformers(void **state) {
    (void)state;
    char root[SR_PATH_BYTES], folder[SR_PATH_BYTES];
    sr_names names;
    int failures = 0;
    if (!families_folder(root))
        skip();
    assert_int_equal(sr_folder_list(&names, root), SRNN_OK);
    for (size_t i = 0; i < names.count; i++) {
        assert_int_equal(sr_path_join(folder, root, names.names[i]), SRNN_OK);
        failures += !check_family(folder, names.names[i]);
    }
    sr_names_free(&names);
    assert_int_equal(failures, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_transformers),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
