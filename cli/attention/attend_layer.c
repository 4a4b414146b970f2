/* attend_layer.c: a whole attention layer on x and its weights from a file. */
#include "base/memory.h"
#include "cli/attention/attend.h"
#include "cli/line/cautions.h"
#include "model/layer/attention.h"
#include "model/layer/rope.h"
#include "model/layer/sizes.h"
#include "ops/backend.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_MAX = 1 << 16, PREFIX_MAX = 64, NAME_MAX_BYTES = PREFIX_MAX + SR_SPEC_NAME };

/* A layer and its arrays. The arrays are in backend memory. */
typedef struct layer_run {
    const attend_request *request;
    const sr_safetensors *in;
    char prefix[PREFIX_MAX]; /* of the weights in the file: "model.layers.0.self_attn." */
    sr_layer_setup setup;
    double rope_theta;
    sr_tensor_table table;
    int64_t *offsets;
    sr_backend *backend;
    sr_attention_layer *layer;
    float *weights, *gradients; /* (table.numbers) */
    float *x, *y, *d_x, *d_y;   /* (B*T, C) */
    float *rope;                /* (T, D) */
    void *saved, *scratch, *positions;
} layer_run;

/* ---- What the file says */

static srnn_status read_metadata(double *number, const layer_run *run, const char *key,
                                 double fallback) {
    const char *text = sr_safetensors_metadata(run->in, key);
    char *end;
    *number = fallback;
    if (!text && fallback > 0)
        return SRNN_OK;
    if (!text)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the metadata has no '%s'", run->request->in_path, key);
    *number = strtod(text, &end);
    const bool plain = *text && !text[strspn(text, "0123456789.eE+-")];
    if (!plain || *end || !(*number > 0) || !isfinite(*number))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: metadata '%s' is '%s', not a positive number",
                       run->request->in_path, key, text);
    return SRNN_OK;
}

static srnn_status read_count(int *count, const layer_run *run, const char *key, int fallback) {
    double number;
    SR_TRY(read_metadata(&number, run, key, fallback));
    if (number != floor(number) || number > COUNT_MAX)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: metadata '%s' is %g, not a whole number up to %d",
                       run->request->in_path, key, number, COUNT_MAX);
    *count = (int)number;
    return SRNN_OK;
}

/* The prefix of the output projection's weight, "o_proj.weight" or its name in the layer's form. */
static srnn_status find_prefix(layer_run *run) {
    const sr_layer_form *form = sr_layer_form_of(&run->request->problem.attention);
    const char *found = NULL;
    char suffix[NAME_MAX_BYTES];
    snprintf(suffix, sizeof suffix, "%s%s.weight", form->prefix ? form->prefix : "",
             form->output.name);
    for (size_t i = 0; i < sr_safetensors_count(run->in); i++) {
        const char *name = sr_safetensors_at(run->in, i)->name;
        size_t length = strlen(name), tail = strlen(suffix);
        if (length < tail || strcmp(name + length - tail, suffix) != 0)
            continue;
        if (found)
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "%s: has the weights of several layers (%s, %s); give one",
                           run->request->in_path, found, name);
        if (length - tail >= sizeof run->prefix)
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: the name '%s' is too long", run->request->in_path,
                           name);
        found = name;
        memcpy(run->prefix, name, length - tail);
        run->prefix[length - tail] = '\0';
    }
    if (!found)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: has no tensor '%s'", run->request->in_path, suffix);
    return SRNN_OK;
}

static const sr_tensor *find_tensor(const void *file, const char *name) {
    return sr_safetensors_find(file, name);
}

/* Whether a tensor's shape determines the head width. */
static bool shapes_imply_width(const srnn_attention *attention) {
    const sr_form_rule *rules = sr_layer_form_of(attention)->rules;
    for (int i = 0; i < SR_FORM_RULES && rules[i].size; i++)
        if (rules[i].size == SR_SIZE_VALUE)
            return true;
    return false;
}

/* Groups of heads that share keys and values, or queries and keys, with the names of
 * config.json. */
static srnn_status read_groups(int *groups, const layer_run *run, int H) {
    static const char n_groups[] = "n_groups";
    const bool queries =
        sr_shares_queries(&run->setup.attention) && sr_safetensors_metadata(run->in, n_groups);
    return read_count(groups, run, queries ? n_groups : "num_key_value_heads", H);
}

static void caution_layer(const layer_run *run) {
    const sr_layer_dims *dims = &run->setup.dims;
    srnn_problem problem = run->request->problem;
    problem.B = run->setup.B;
    problem.T = run->setup.T;
    problem.H = dims->H;
    problem.Hkv = dims->Hkv;
    problem.D = dims->D;
    problem.Dv = dims->Dv;
    caution_problem(&problem);
}

/* From the metadata, and from the shapes of the weights. */
static srnn_status read_sizes(layer_run *run, int C) {
    sr_layer_setup *s = &run->setup;
    int H, Hkv, D;
    SR_TRY(read_count(&H, run, "num_attention_heads", 0));
    SR_TRY(read_groups(&Hkv, run, H));
    if (C % H != 0 && !sr_safetensors_metadata(run->in, "head_dim") &&
        !shapes_imply_width(&s->attention))
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: 'x' has %d channels, which %d heads do not divide; set the "
                       "metadata 'head_dim'",
                       run->request->in_path, C, H);
    SR_TRY(read_count(&D, run, "head_dim", C / H > 0 ? C / H : 1));
    const sr_layer_sizes sizes =
        sr_layer_sizes_usual(&s->attention, H, Hkv, D, &(sr_layer_sizes){0});
    s->dims = sr_layer_sizes_dims(&sizes, C);
    return sr_layer_sizes_find(&s->dims, &s->attention, run->prefix,
                               (sr_tensor_finder){find_tensor, run->in});
}

static srnn_status read_setup(layer_run *run) {
    const sr_tensor *x;
    sr_layer_setup *s = &run->setup;
    SR_TRY(attend_require_rank(&x, run->request, run->in, "x", 3));
    if (x->count < 1 || x->shape[0] > INT_MAX || x->shape[1] > INT_MAX || x->shape[2] > INT_MAX)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: tensor 'x' is empty or too large",
                       run->request->in_path);
    s->attention = run->request->problem.attention;
    s->form = run->request->problem.form;
    s->chunk = run->request->problem.chunk;
    s->kernel = run->request->problem.kernel;
    s->B = (int)x->shape[0];
    s->T = (int)x->shape[1];
    SR_TRY(read_sizes(run, (int)x->shape[2]));
    caution_layer(run);
    SR_TRY(read_metadata(&run->rope_theta, run, "rope_theta", 10000));
    s->rope_theta = run->rope_theta;
    return attend_offsets(&run->offsets, &s->documents, run->request, run->in);
}

/* ---- Memory */

static srnn_status allocate(const layer_run *run, float **out, size_t numbers) {
    void *memory;
    SR_TRY(sr_device_allocate(run->backend->device, &memory, numbers * sizeof **out));
    *out = memory;
    return sr_device_zero(run->backend->device, memory, numbers * sizeof **out);
}

/* Copies a tensor of the file to backend memory. */
static srnn_status load(const layer_run *run, float *to, const sr_tensor *tensor) {
    void *host;
    SR_TRY(sr_alloc(&host, tensor->count, sizeof(float)));
    sr_tensor_to_float(host, tensor);
    srnn_status status =
        sr_device_copy_in(run->backend->device, to, host, tensor->count * sizeof(float));
    free(host);
    return status;
}

static srnn_status load_weights(layer_run *run) {
    SR_TRY(sr_layer_tensors(&run->table, run->prefix, &run->setup.attention, &run->setup.dims));
    const sr_tensor *tensors[SR_LAYER_SLOTS];
    for (size_t i = 0; i < run->table.count; i++) {
        const sr_tensor_spec *spec = &run->table.specs[i];
        SR_TRY(attend_require(&tensors[i], run->request, run->in, spec->name, spec->rank,
                              spec->shape));
    }
    SR_TRY(allocate(run, &run->weights, run->table.numbers));
    SR_TRY(allocate(run, &run->gradients, run->table.numbers));
    for (size_t i = 0; i < run->table.count; i++)
        SR_TRY(load(run, run->weights + run->table.specs[i].start, tensors[i]));
    return SRNN_OK;
}

static srnn_status load_activations(layer_run *run) {
    const sr_tensor *x, *d_y;
    SR_TRY(attend_require_rank(&x, run->request, run->in, "x", 3));
    SR_TRY(allocate(run, &run->x, x->count));
    SR_TRY(allocate(run, &run->y, x->count));
    SR_TRY(load(run, run->x, x));
    if (!run->request->backward)
        return SRNN_OK;
    SR_TRY(attend_require(&d_y, run->request, run->in, "dy", 3, x->shape));
    SR_TRY(allocate(run, &run->d_x, x->count));
    SR_TRY(allocate(run, &run->d_y, x->count));
    return load(run, run->d_y, d_y);
}

static srnn_status create_rope(layer_run *run) {
    sr_layer_setup *s = &run->setup;
    const int width = sr_layer_rope_width(&s->attention, s->dims.D);
    const double theta = s->attention.wiring.rope_theta;
    size_t numbers = (size_t)s->T * (size_t)width;
    void *host;
    SR_TRY(allocate(run, &run->rope, numbers));
    SR_TRY(sr_alloc(&host, numbers, sizeof(float)));
    sr_rope_table(host, s->T, width, theta > 0 ? theta : run->rope_theta, &(sr_rope_scaling){0});
    srnn_status status =
        sr_device_copy_in(run->backend->device, run->rope, host, numbers * sizeof(float));
    free(host);
    s->rope_table = run->rope;
    s->rope_positions = s->T;
    return status;
}

static srnn_status place_tokens(layer_run *run) {
    sr_layer_setup *s = &run->setup;
    const int64_t rows = (int64_t)s->B * s->T;
    const size_t bytes = (size_t)rows * sizeof(int32_t);
    void *host;
    SR_TRY(sr_device_allocate(run->backend->device, &run->positions, bytes));
    SR_TRY(sr_alloc(&host, (size_t)rows, sizeof(int32_t)));
    sr_layer_positions(host, rows, s->T, s->offsets, s->documents);
    const srnn_status status = sr_device_copy_in(run->backend->device, run->positions, host, bytes);
    free(host);
    s->positions = run->positions;
    return status;
}

static srnn_status create_layer(layer_run *run) {
    run->setup.offsets = run->offsets;
    SR_TRY(place_tokens(run));
    if (run->setup.attention.position == SRNN_POSITION_ROPE)
        SR_TRY(create_rope(run));
    SR_TRY(sr_attention_layer_create(&run->layer, run->backend, &run->setup));
    SR_TRY(sr_device_allocate(run->backend->device, &run->saved,
                              sr_attention_layer_saved_bytes(run->layer)));
    return sr_device_allocate(run->backend->device, &run->scratch,
                              sr_attention_layer_scratch_bytes(run->layer));
}

static void release(layer_run *run) {
    sr_backend *backend = run->backend;
    void *const owned[] = {run->weights, run->gradients, run->x,     run->y,       run->d_x,
                           run->d_y,     run->rope,      run->saved, run->scratch, run->positions};
    sr_attention_layer_free(run->layer);
    for (size_t i = 0; backend && i < sizeof owned / sizeof *owned; i++)
        sr_device_release(backend->device, owned[i]);
    sr_backend_free(backend);
    sr_tensor_table_free(&run->table);
    free(run->offsets);
}

/* ---- Computing and writing */

static sr_layer_pointers pointers(const layer_run *run, float *arena) {
    sr_layer_pointers all = {0};
    for (size_t i = 0; i < run->table.count; i++)
        all.slot[run->table.specs[i].slot] = arena + run->table.specs[i].start;
    return all;
}

static srnn_status compute(layer_run *run) {
    const sr_layer_setup *s = &run->setup;
    int64_t rows = (int64_t)s->B * s->T;
    const sr_matrix x = sr_matrix_of(run->x, rows, s->dims.C, SRNN_F32);
    const sr_matrix y = sr_matrix_of(run->y, rows, s->dims.C, SRNN_F32);
    const sr_layer_pointers masters = pointers(run, run->weights);
    const sr_layer_pointers gradients = pointers(run, run->gradients);
    const sr_layer_weights weights = {.master = &masters, .working = &masters};
    SR_TRY(sr_attention_layer_attend(run->layer, x, &weights, run->saved, NULL));
    SR_TRY(sr_attention_layer_finish(run->layer, y, (sr_matrix){0}, x, &weights, run->saved));
    if (!run->request->backward)
        return SRNN_OK;
    return sr_attention_layer_backward(run->layer,
                                       sr_matrix_of(run->d_x, rows, s->dims.C, SRNN_F32),
                                       &gradients,
                                       sr_matrix_of(run->d_y, rows, s->dims.C, SRNN_F32), x,
                                       &weights, run->saved, run->scratch, NULL);
}

/* Copies an array to the host, where the writer reads it; the copies live in `host`. */
static srnn_status add_array(sr_safetensors_writer *writer, const layer_run *run, float *host,
                             sr_tensor tensor) {
    tensor.dtype = SR_DTYPE_F32;
    if (!sr_tensor_measure(&tensor))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: too large", tensor.name);
    SR_TRY(sr_device_copy_out(run->backend->device, host, tensor.data, tensor.bytes));
    tensor.data = host;
    return sr_safetensors_writer_add(writer, &tensor);
}

static srnn_status add_results(sr_safetensors_writer *writer, const layer_run *run, float *host) {
    const sr_layer_setup *s = &run->setup;
    size_t count = (size_t)s->B * (size_t)s->T * (size_t)s->dims.C;
    sr_tensor y = {.name = "y", .rank = 3, .shape = {s->B, s->T, s->dims.C}, .data = run->y};
    SR_TRY(add_array(writer, run, host, y));
    if (!run->request->backward)
        return SRNN_OK;
    y.name = "dx";
    y.data = run->d_x;
    SR_TRY(add_array(writer, run, host + count, y));
    for (size_t i = 0; i < run->table.count; i++) {
        const sr_tensor_spec *spec = &run->table.specs[i];
        char name[NAME_MAX_BYTES];
        snprintf(name, sizeof name, "d.%s", spec->name);
        sr_tensor gradient = {.name = name,
                              .rank = spec->rank,
                              .data = run->gradients + spec->start};
        memcpy(gradient.shape, spec->shape, sizeof spec->shape);
        SR_TRY(add_array(writer, run, host + 2 * count + spec->start, gradient));
    }
    return SRNN_OK;
}

static srnn_status write_results(const layer_run *run) {
    const sr_layer_setup *s = &run->setup;
    size_t count = (size_t)s->B * (size_t)s->T * (size_t)s->dims.C;
    sr_safetensors_writer *writer;
    void *host;
    SR_TRY(sr_alloc(&host, 2 * count + run->table.numbers, sizeof(float)));
    srnn_status status = sr_safetensors_writer_create(&writer);
    if (status == SRNN_OK) {
        status = attend_describe(writer, &s->attention);
        if (status == SRNN_OK)
            status = add_results(writer, run, host);
        if (status == SRNN_OK)
            status = sr_safetensors_writer_write(writer, run->request->out_path);
        sr_safetensors_writer_free(writer);
    }
    free(host);
    return status;
}

static srnn_status run_layer(layer_run *run) {
    const srnn_problem *p = &run->request->problem;
    if (p->dtype != SRNN_F32)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: holds a whole layer, which is computed in float; give q, k, v "
                       "instead of x for --dtype double",
                       run->request->in_path);
    SR_TRY(find_prefix(run));
    SR_TRY(read_setup(run));
    SR_TRY(sr_backend_create(&run->backend,
                             &(sr_backend_settings){.device = srnn_device_name(p->device),
                                                    .threads = p->threads,
                                                    .bf16 = false}));
    SR_TRY(load_weights(run));
    SR_TRY(load_activations(run));
    SR_TRY(create_layer(run));
    SR_TRY(compute(run));
    return write_results(run);
}

srnn_status attend_layer(const attend_request *request, const sr_safetensors *in) {
    layer_run run = {.request = request, .in = in};
    srnn_status status = run_layer(&run);
    release(&run);
    return status;
}
