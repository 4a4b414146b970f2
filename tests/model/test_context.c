/* test_context.c: rows divided among passes that run at the same time, as context ranks have them:
 * losses and gradients are those of whole rows. */
#include "attention/earlier.h"
#include "data/rows/source.h"
#include "model/context_cost.h"
#include "small_model.h"

#include <pthread.h>
#include <stdio.h>

enum { B = 2, T = 28, ROWS = B * T, PARTS = 8, MESSAGES = 512 };

/* ---- parts in one process */

typedef struct message {
    const void *data; /* the sender's */
    void *copy;       /* as it was sent */
    size_t bytes;
} message;

/* From one part to another. */
typedef struct line {
    message messages[MESSAGES];
    int sent, received;
} line;

/* Between all parts of a row. */
typedef struct row_lines {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    line lines[PARTS][PARTS]; /* from .. to .. */
    size_t bytes;             /* in all */
    bool broken;
} row_lines;

typedef struct part_lines {
    row_lines *row;
    int index;
} part_lines;

static srnn_status line_send(void *context, int to, const void *data, size_t bytes) {
    const part_lines *p = context;
    line *l = &p->row->lines[p->index][to];
    void *copy = malloc(bytes);
    memcpy(copy, data, bytes);
    pthread_mutex_lock(&p->row->lock);
    const bool fits = l->sent < MESSAGES;
    if (fits)
        l->messages[l->sent++] = (message){data, copy, bytes};
    p->row->bytes += bytes;
    pthread_cond_broadcast(&p->row->changed);
    pthread_mutex_unlock(&p->row->lock);
    return fits ? SRNN_OK : SR_FAIL(SRNN_ERR_LIMIT, "too many messages");
}

static srnn_status line_receive(void *context, int from, void *data, size_t bytes) {
    const part_lines *p = context;
    line *l = &p->row->lines[from][p->index];
    pthread_mutex_lock(&p->row->lock);
    while (!p->row->broken && l->sent == l->received)
        pthread_cond_wait(&p->row->changed, &p->row->lock);
    bool right = !p->row->broken;
    if (right) {
        const message *m = &l->messages[l->received++];
        right = m->bytes == bytes && memcmp(m->data, m->copy, bytes) == 0;
        if (right)
            memcpy(data, m->copy, bytes);
        free(m->copy);
    }
    pthread_cond_broadcast(&p->row->changed);
    pthread_mutex_unlock(&p->row->lock);
    return right ? SRNN_OK
                 : SR_FAIL(SRNN_ERR_IO, "another message, one changed after it was sent, or none");
}

/* Whether another part has yet to receive `data`; NULL: anything. */
static bool is_pending(const part_lines *p, const void *data) {
    for (int to = 0; to < PARTS; to++) {
        const line *l = &p->row->lines[p->index][to];
        for (int i = l->received; i < l->sent; i++)
            if (!data || l->messages[i].data == data)
                return true;
    }
    return false;
}

static srnn_status line_settle(void *context, const void *data) {
    const part_lines *p = context;
    pthread_mutex_lock(&p->row->lock);
    while (!p->row->broken && is_pending(p, data))
        pthread_cond_wait(&p->row->changed, &p->row->lock);
    const bool right = !p->row->broken;
    pthread_mutex_unlock(&p->row->lock);
    return right ? SRNN_OK : SR_FAIL(SRNN_ERR_IO, "another part failed");
}

/* ---- one pass */

typedef struct whole_batch {
    int32_t ids[ROWS], targets[ROWS];
    int64_t offsets[ROWS + 1];
    int64_t documents;
} whole_batch;

typedef struct task {
    const char *attention;
    const whole_batch *batch;
    sr_recompute recompute;
    bool rounded; /* every weight is off by about a rounding error */
    part_lines lines;
    sr_row_part part; /* count 1: whole rows */
    int tokens;       /* of the part */
    float losses[ROWS], again[ROWS];
    float *gradients;
    size_t numbers;
    srnn_status status;
    char why[512];
} task;

static sr_model_config config_of(void) {
    sr_model_config config = small_config(SR_MLP_SWIGLU, false, false);
    config.L = 3;
    return config;
}

static srnn_status run_pass(task *t, sr_pass *pass) {
    whole_batch own = *t->batch;
    sr_batch batch = {.B = B,
                      .ids = own.ids,
                      .targets = own.targets,
                      .offsets = own.offsets,
                      .documents = own.documents};
    sr_batch_cut(&batch, T, t->part.first, t->tokens);
    SR_TRY(sr_pass_documents(pass, batch.offsets, batch.documents));
    SR_TRY(sr_pass_losses(pass, t->again, own.ids, own.targets));
    SR_TRY(sr_pass_gradients(pass, t->losses, own.ids, own.targets, 1.0));
    memcpy(t->gradients, sr_pass_gradient(pass), t->numbers * sizeof *t->gradients);
    return SRNN_OK;
}

static void round_weights(sr_model *model) {
    for (size_t n = 0; n < model->table.numbers; n++)
        model->weights[n] *= 1 + 1e-7f * (float)(sr_random_below(3, 1, n, 3)) - 1e-7f;
}

static srnn_status run_task(task *t) {
    sr_backend *backend;
    sr_pass *pass = NULL;
    SR_TRY(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}));
    sr_model_config config = config_of();
    sr_model *model = small_model_of(backend, t->attention, &config);
    t->numbers = model->table.numbers;
    if (t->rounded)
        round_weights(model);
    t->gradients = malloc(t->numbers * sizeof *t->gradients);
    const sr_pass_setup setup = {.B = B,
                                 .T = t->tokens,
                                 .train = true,
                                 .recompute = t->recompute,
                                 .part = t->part.count > 1 ? &t->part : NULL};
    srnn_status status = sr_pass_create(&pass, model, &setup);
    if (status == SRNN_OK)
        status = run_pass(t, pass);
    sr_pass_free(pass);
    sr_model_free(model);
    sr_backend_free(backend);
    return status;
}

static void *run_thread(void *context) {
    task *t = context;
    t->status = run_task(t);
    if (t->status == SRNN_OK)
        return NULL;
    snprintf(t->why, sizeof t->why, "%s", srnn_error_detail());
    pthread_mutex_lock(&t->lines.row->lock);
    t->lines.row->broken = true;
    pthread_cond_broadcast(&t->lines.row->changed);
    pthread_mutex_unlock(&t->lines.row->lock);
    return NULL;
}

/* All parts at the same time; cuts has the first tokens of the parts and T. */
static void run_parts(task *tasks, row_lines *row, const task *whole, const int *cuts, int count) {
    pthread_t threads[PARTS];
    pthread_mutex_init(&row->lock, NULL);
    pthread_cond_init(&row->changed, NULL);
    for (int i = 0; i < count; i++) {
        tasks[i] = (task){.attention = whole->attention,
                          .batch = whole->batch,
                          .recompute = whole->recompute,
                          .lines = {row, i},
                          .tokens = cuts[i + 1] - cuts[i]};
        tasks[i].part = (sr_row_part){.index = i,
                                      .count = count,
                                      .first = cuts[i],
                                      .T = T,
                                      .send = line_send,
                                      .receive = line_receive,
                                      .settle = line_settle,
                                      .context = &tasks[i].lines};
        assert_int_equal(pthread_create(&threads[i], NULL, run_thread, &tasks[i]), 0);
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    pthread_cond_destroy(&row->changed);
    pthread_mutex_destroy(&row->lock);
}

/* ---- comparisons */

/* Each tensor by itself, so that a small gradient counts as much as a large one. Some of these
 * models enlarge rounding errors a lot: where, the rounded weights show. */
static void compare_gradients(const task *whole, const task *rounded, const float *sum,
                              const int *cuts) {
    sr_backend *backend;
    assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    sr_model_config config = config_of();
    sr_model *model = small_model_of(backend, whole->attention, &config);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        const float *want = whole->gradients + spec->start;
        const double error = small_error(sum + spec->start, want, spec->count);
        const double expected = small_error(rounded->gradients + spec->start, want, spec->count);
        if (!(error < 1e-6 + 8 * expected))
            fail_msg("%s, cut at %d: the gradient of %s is off by %.3g, by rounding %.3g",
                     whole->attention, cuts[1], spec->name, error, expected);
    }
    sr_model_free(model);
    sr_backend_free(backend);
}

static void compare(const task *whole, const task *rounded, const task *parts, const int *cuts,
                    int count) {
    float losses[ROWS], again[ROWS];
    float *sum = calloc(whole->numbers, sizeof *sum);
    for (int i = 0; i < count; i++) {
        if (parts[i].status != SRNN_OK)
            fail_msg("%s, part %d: %s", whole->attention, i, parts[i].why);
        for (size_t n = 0; n < whole->numbers; n++)
            sum[n] += parts[i].gradients[n];
        for (int b = 0; b < B; b++) {
            const size_t bytes = (size_t)parts[i].tokens * sizeof *losses;
            memcpy(losses + b * T + cuts[i], parts[i].losses + b * parts[i].tokens, bytes);
            memcpy(again + b * T + cuts[i], parts[i].again + b * parts[i].tokens, bytes);
        }
    }
    assert_memory_equal(losses, again, sizeof losses);
    const double error = small_error(losses, whole->losses, ROWS);
    if (!(error < 1e-6 + 8 * small_error(rounded->losses, whole->losses, ROWS)))
        fail_msg("%s, cut at %d: the losses are off by %.3g", whole->attention, cuts[1], error);
    compare_gradients(whole, rounded, sum, cuts);
    free(sum);
}

/* Bytes that cross the cuts for losses and then for gradients. What layers without a state exchange
 * travels once more where forward is recomputed. */
static double counted_bytes(const task *t, int ranks) {
    const sr_context_batch batch = {.B = B, .T = T, .ranks = ranks, .number = SRNN_F32};
    sr_model_config config = config_of();
    double bytes = 0;
    assert_int_equal(sr_model_config_attention(&config, t->attention), SRNN_OK);
    for (int layer = 0; layer < config.L; layer++) {
        sr_context_cost cost;
        assert_int_equal(sr_context_cost_of(&cost, &config, layer, &batch), SRNN_OK);
        const bool again = t->recompute != SR_RECOMPUTE_NONE && layer + 1 < config.L;
        const bool rings = cost.way == SR_CONTEXT_RING, heads = cost.way == SR_CONTEXT_HEADS;
        const double all = rings ? cost.ring_bytes : heads ? cost.heads_bytes : 0;
        const double forward = rings ? cost.ring_forward_bytes : all / 2;
        bytes += 1.5 * (cost.passed_bytes - all) + all + (again ? 2 : 1) * forward;
    }
    sr_model_config_free(&config);
    return bytes;
}

static void check(const char *attention, const whole_batch *batch, sr_recompute recompute,
                  const int *cuts, int count) {
    task whole = {.attention = attention,
                  .batch = batch,
                  .recompute = recompute,
                  .part = {.count = 1},
                  .tokens = T};
    task rounded = whole;
    task *parts = calloc(PARTS, sizeof *parts);
    row_lines *row = calloc(1, sizeof *row);
    rounded.rounded = true;
    if (run_task(&whole) != SRNN_OK || run_task(&rounded) != SRNN_OK)
        fail_msg("%s: %s", attention, srnn_error_detail());
    run_parts(parts, row, &whole, cuts, count);
    compare(&whole, &rounded, parts, cuts, count);
    const double bytes = counted_bytes(&whole, count);
    if (bytes != (double)row->bytes)
        fail_msg("%s: %zu bytes are sent, %.0f are counted", attention, row->bytes, bytes);
    for (int i = 0; i < count; i++)
        free(parts[i].gradients);
    free(whole.gradients);
    free(rounded.gradients);
    free(parts);
    free(row);
}

static whole_batch batch_of(const int64_t *offsets, int64_t documents) {
    whole_batch batch = {.documents = documents};
    small_ids(batch.ids, ROWS, 23, 5);
    small_ids(batch.targets, ROWS, 23, 6);
    batch.targets[3] = batch.targets[40] = -1;
    memcpy(batch.offsets, offsets, (size_t)(documents + 1) * sizeof *offsets);
    return batch;
}

/* Whether a layer exchanges keys or heads: then parts have the lengths that ranks give them. */
static bool any_exchange(const char *attention, int ranks) {
    const sr_context_batch batch = {.B = B, .T = T, .ranks = ranks, .number = SRNN_F32};
    sr_model_config config = config_of();
    bool any = false;
    assert_int_equal(sr_model_config_attention(&config, attention), SRNN_OK);
    for (int layer = 0; layer < config.L; layer++) {
        sr_context_cost cost;
        assert_int_equal(sr_context_cost_of(&cost, &config, layer, &batch), SRNN_OK);
        any = any || cost.way != SR_CONTEXT_STATE;
    }
    sr_model_config_free(&config);
    return any;
}

/* Why parts of its rows cannot be computed; "": they can. */
static const char *refusal(char why[512], const char *attention) {
    const int cuts[] = {0, T / 2, T};
    const int64_t offsets[] = {0, T, ROWS};
    const whole_batch batch = batch_of(offsets, 2);
    const task whole = {.attention = attention, .batch = &batch};
    task *parts = calloc(PARTS, sizeof *parts);
    row_lines *row = calloc(1, sizeof *row);
    run_parts(parts, row, &whole, cuts, 2);
    snprintf(why, 512, "%s", parts[0].status == SRNN_OK ? "" : parts[0].why);
    for (int i = 0; i < 2; i++)
        free(parts[i].gradients);
    free(parts);
    free(row);
    return why;
}

static srnn_attention parsed(const char *attention) {
    srnn_attention a;
    assert_int_equal(srnn_attention_parse(&a, attention), SRNN_OK);
    return a;
}

/* Whether a state is handed on, and else whether keys and values are. */
static bool rings(const char *attention) {
    const srnn_attention a = parsed(attention);
    return sr_attention_earlier_refusal(&a) == NULL;
}

static bool carries(const char *attention) {
    const srnn_problem problem = {
        .attention = parsed(attention), .B = 1, .H = 4, .Hkv = 2, .T = T, .D = 6};
    int64_t sizes[4];
    return sr_states_sizes(sizes, &problem) == SRNN_OK;
}

/* ---- tests */

/* Two rows with documents that end within a part, at a cut and with the row; one is over all
 * parts. */
static const int64_t documents[] = {0, 3, 9, 14, 26, T, T + 1, ROWS};
static const int64_t rows[] = {0, T, ROWS};

/* Parts as ranks have them, of rows without a state: an odd number, of different lengths, one that
 * is helped by a longer or shorter one, and the last step of an even number. */
static void check_parts(const char *attention, const whole_batch *batch, sr_recompute recompute,
                        int count) {
    int cuts[PARTS + 1];
    for (int i = 0; i <= count; i++)
        cuts[i] = sr_row_part_start(T, i, count);
    check(attention, batch, recompute, cuts, count);
}

static void check_variant(const char *attention) {
    static const int two[] = {0, 17, T}, four[] = {0, 5, 14, 20, T};
    const whole_batch packed = batch_of(documents, 7), plain = batch_of(rows, 2);
    if (any_exchange(attention, 2))
        check_parts(attention, &plain, SR_RECOMPUTE_NONE, 2);
    else
        check(attention, &plain, SR_RECOMPUTE_NONE, two, 2);
    if (any_exchange(attention, 4))
        check_parts(attention, &packed, SR_RECOMPUTE_BLOCK, 4);
    else
        check(attention, &packed, SR_RECOMPUTE_BLOCK, four, 4);
}

static void check_exchange(const char *attention) {
    const whole_batch packed = batch_of(documents, 7), plain = batch_of(rows, 2);
    check_parts(attention, &plain, SR_RECOMPUTE_NONE, 2);
    check_parts(attention, &plain, SR_RECOMPUTE_ATTENTION, 4);
    check_parts(attention, &packed, SR_RECOMPUTE_BLOCK, 6);
    check_parts(attention, &packed, SR_RECOMPUTE_NONE, 8);
}

static void every_variant(void **state) {
    (void)state;
    int checked = 0, ringed = 0, heads = 0;
    for (size_t i = 0; srnn_variant_at(i); i++) {
        const char *name = srnn_variant_at(i)->name;
        if (carries(name)) {
            check_variant(name);
            checked++;
        } else if (rings(name)) {
            check_exchange(name);
            ringed++;
        } else {
            check_exchange(name);
            heads++;
        }
    }
    assert_true(checked > 18 && ringed > 39 && heads > 5);
}

static void layers_around_it(void **state) {
    (void)state;
    static const char *const others[] = {
        "order:1",
        "order:2,short_conv=5",
        "power:3,normaliser=row_sum",
        "linear_elu,decay,value_gate,output_gate,norm=rms,short_conv=2",
        "gated_delta_net,conv_activation=none,position=rope",
        "linear_elu,qk_norm=head,rope_part=0.34,block_norm=after",
        "0:mamba2,block_norm=both,1:gla,2:rwkv7",
        "0:kda,1:order:2,block_norm=parallel,2:delta_net",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        check_variant(others[i]);
}

static void rings_of_keys(void **state) {
    (void)state;
    static const char *const others[] = {
        "softmax,window=3",
        "softmax,window=8,short_conv=3",
        "softmax,window=9,sink=learned",
        "softmax,window=15,cap=2",
        "softmax,window=25",
        "softmax,sink=zero,qk_norm=head,rope_part=0.34",
        "sigmoid",
        "norm,clamp=3,position=none",
        "forget,window=9,sink=learned",
        "softmax,decay=softplus,decay_place=logit",
        "softmax,decay=bounded,decay_bound=2,value_gate,cap=3",
        "norm,decay,short_conv=2",
        "softmax,output_gate,norm=rms",
        "0:gated_delta_net,1:softmax,short_conv=2,2:rwkv7",
        "0:softmax,window=5,1:gla,2:softmax",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        check_exchange(others[i]);
}

/* Heads of several groups and heads that depend on each other, next to states and keys. */
static void heads_change_places(void **state) {
    (void)state;
    static const char *const others[] = {
        "rat,pool=3",
        "log_linear_gated_delta_net,short_conv=3",
        "log_linear_mamba2",
        "gated_softmax_plusplus_mamba,norm=rms,norm_width=row",
        "softmax,skip=head,feature=unit_heads",
        "0:log_linear,1:softmax,2:gated_delta_net",
        "0:mamba2,1:rat,pool=4,sink=learned,2:log_linear,short_conv=2",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        check_exchange(others[i]);
}

static void everywhere(void **state) {
    (void)state;
    const whole_batch packed = batch_of(documents, 7);
    for (int cut = 3; cut < T - 2; cut++) {
        const int cuts[] = {0, cut, T};
        check("gated_delta_net", &packed, SR_RECOMPUTE_ATTENTION, cuts, 2);
    }
}

/* Where both are possible, the count decides; a state that is larger than the keys does not pay. */
static void states_or_keys(void **state) {
    (void)state;
    assert_true(any_exchange("order:2,short_conv=5", 2));
    assert_false(any_exchange("order:1", 2));
    assert_false(any_exchange("order:2,decay", 2));
}

/* The formula of docs/SCALING.md: of 4 parts 3 + 2 visit with their keys, 1 with its queries and 2
 * with half of them. */
static void as_documented(void **state) {
    (void)state;
    const sr_context_batch batch = {.B = B, .T = 32, .ranks = 4, .number = SRNN_F32};
    sr_model_config config = config_of();
    sr_context_cost cost;
    assert_int_equal(sr_model_config_attention(&config, "0:gated_softmax,1-:forget"), SRNN_OK);
    const sr_layer_sizes *s = &config.sizes[0];
    for (int layer = 0; layer < 2; layer++) {
        const double c = layer ? 2 * s->Hkv : 0, gates = layer ? 0 : 1;
        const double keys = s->Hkv * (s->D + s->Dv + gates) + c;
        const double queries = s->H * (3 * s->D + 2 * s->Dv + 4) + 2 + 3 * c;
        assert_int_equal(sr_context_cost_of(&cost, &config, layer, &batch), SRNN_OK);
        assert_true(cost.ring_bytes ==
                    4.0 * B * (32 / 4 * (3 * 5 * keys + 2 * queries) + 3 * 3 * c));
    }
    /* Heads: each of the 4 parts has one row of one of 2 heads of keys. */
    assert_int_equal(s->H, 4);
    assert_int_equal(s->Hkv, 2);
    assert_int_equal(s->D, 6);
    assert_int_equal(s->Dv, 6);
    assert_true(cost.heads_bytes == 4.0 * 2 * 4 * (32 - 8) * (16 + 8 + 8 + 8 + 16)); /* q k v c o */
    sr_model_config_free(&config);
}

static void what_is_missing(void **state) {
    (void)state;
    char why[512];
    assert_non_null(strstr(refusal(why, "avey_causal,chunk=4,chunks=3"), "avey"));
    assert_non_null(strstr(refusal(why, "gla,short_conv=16"), "15 tokens before"));
    static const char *const whole[] = {"layer=conv,position=none,short_conv=3", "softmax+gla"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        const sr_context_batch batch = {.B = B, .T = 32, .ranks = 4, .number = SRNN_F32};
        sr_model_config config = config_of();
        sr_context_cost cost;
        assert_non_null(strstr(refusal(why, whole[i]), "on whole rows"));
        assert_int_equal(sr_model_config_attention(&config, whole[i]), SRNN_OK);
        assert_int_equal(sr_context_cost_of(&cost, &config, 0, &batch), SRNN_OK);
        assert_true(cost.refused);
        sr_model_config_free(&config);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant), cmocka_unit_test(layers_around_it),
        cmocka_unit_test(rings_of_keys), cmocka_unit_test(heads_change_places),
        cmocka_unit_test(everywhere),    cmocka_unit_test(states_or_keys),
        cmocka_unit_test(as_documented), cmocka_unit_test(what_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
