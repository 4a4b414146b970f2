/* heads.c: operands of heads travel to the part that computes the head, and outputs back. */
#include "model/layer/context/heads.h"

#include "base/memory.h"
#include "equation/operands.h"

#include <stdlib.h>
#include <string.h>

/* What a part computes: rows of the batch, heads of keys and what goes with them. */
typedef struct share {
    int row, rows, head, heads;
} share;

/* Numbers per token and head of keys, of one operand or of the output. */
typedef struct moved {
    sr_operand which;
    int64_t width; /* of one head */
    int64_t each;
} moved;

/* Operands that travel together. */
typedef struct moved_set {
    moved of[SR_OPERANDS];
    int count;
} moved_set;

struct sr_layer_heads {
    srnn_plan *plan; /* of the part's heads; NULL: it has none */
    srnn_device *device;
    share own;
    int row_tokens; /* of a whole row */
    moved_set operands, output;
    void *sent, *arrived;       /* blocks of all parts, see block_of */
    void *outputs, *d_operands; /* (rows of the share * tokens, columns), or gradients of them */
    sr_part_message *sends, *arrivals;
    int64_t *offsets; /* of the share's documents */
    size_t bytes, saved_bytes, plan_bytes;
};

/* ---- who computes what */

/* Whether an output depends on several heads of keys. */
static bool is_coupled(const srnn_problem *p) {
    const srnn_attention *a = &p->attention;
    return a->feature == SRNN_FEATURE_UNIT_HEADS ||
           (a->norm != SRNN_NORM_NONE && a->norm_width == SRNN_NORM_WIDTH_ROW) ||
           (a->share == SRNN_SHARE_QK_TILED && p->H != p->Hkv);
}

/* With heads in that many groups: part n computes group n mod groups of its share of the rows. */
static share share_in(const srnn_problem *p, int parts, int groups, int part) {
    const int group = part % groups, members = (parts - group + groups - 1) / groups;
    const int row = sr_row_part_start(p->B, part / groups, members);
    const int head = sr_row_part_start(p->Hkv, group, groups);
    return (share){row, sr_row_part_start(p->B, part / groups + 1, members) - row, head,
                   sr_row_part_start(p->Hkv, group + 1, groups) - head};
}

/* The number of groups by which no part has much to do; of several the largest. */
static int groups_of(const srnn_problem *p, int parts) {
    const int most = is_coupled(p) ? 1 : p->Hkv < parts ? p->Hkv : parts;
    int best = most;
    int64_t least = INT64_MAX;
    for (int groups = most; groups > 0; groups--) {
        int64_t largest = 0;
        for (int part = 0; part < parts; part++) {
            const share s = share_in(p, parts, groups, part);
            const int64_t work = (int64_t)s.rows * s.heads;
            largest = work > largest ? work : largest;
        }
        best = largest < least ? groups : best;
        least = largest < least ? largest : least;
    }
    return best;
}

static share share_of(const srnn_problem *p, int parts, int part) {
    return share_in(p, parts, groups_of(p, parts), part);
}

static srnn_problem problem_of(const srnn_problem *p, share s, int T) {
    srnn_problem own = *p;
    own.B = s.rows;
    own.H = p->H / p->Hkv * s.heads;
    own.Hkv = s.heads;
    own.T = T;
    return own;
}

/* ---- what travels: operands side by side in rows, each from a multiple of 16 bytes on */

static moved_set operands_of(const srnn_problem *p) {
    moved_set set = {.count = 0};
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        if (!sr_operand_is_tensor(which) || !sr_operand_used(which, &p->attention))
            continue;
        const sr_shape shape = sr_operand_shape(which, p);
        set.of[set.count++] =
            (moved){which, shape.sizes[3], shape.sizes[1] * shape.sizes[3] / p->Hkv};
    }
    return set;
}

static moved_set output_of(const srnn_problem *p) {
    return (moved_set){{{SR_OPERAND_Q, p->Dv, (int64_t)p->H / p->Hkv * p->Dv}}, 1};
}

/* The first column of member `index` in rows of that many heads; of the set's count: their
 * number. */
static int64_t column_of(const moved_set *set, int heads, int index) {
    enum { UNIT = 8 };
    int64_t columns = 0;
    for (int i = 0; i < index; i++)
        columns += (set->of[i].each * heads + UNIT - 1) / UNIT * UNIT;
    return columns;
}

static int64_t columns_of(const moved_set *set, share s) {
    return column_of(set, s.heads, set->count);
}

double sr_heads_numbers_of(const srnn_problem *p, int T, int parts) {
    const moved_set operands = operands_of(p), output = output_of(p);
    double numbers = 0;
    for (int part = 0; part < parts; part++) {
        const share s = share_of(p, parts, part);
        const int own = sr_row_part_start(T, part + 1, parts) - sr_row_part_start(T, part, parts);
        numbers += (double)s.rows * (T - own) *
                   (double)(columns_of(&operands, s) + columns_of(&output, s));
    }
    return numbers;
}

/* ---- making */

static share share_at(const sr_attention_layer *layer, int part) {
    return share_of(&layer->problem, layer->part.count, part);
}

/* Numbers of the blocks of all parts before `part`, for this part's tokens. */
static int64_t block_start(const sr_attention_layer *layer, const moved_set *set, int part) {
    int64_t numbers = 0;
    for (int i = 0; i < part; i++) {
        const share s = share_at(layer, i);
        numbers += (int64_t)s.rows * layer->T * columns_of(set, s);
    }
    return numbers;
}

static srnn_status take(sr_layer_heads *heads, void **memory, int64_t numbers, srnn_dtype dtype) {
    const size_t bytes = (size_t)numbers * sr_element_bytes(dtype);
    if (!bytes)
        return SRNN_OK;
    SR_TRY(sr_device_allocate(heads->device, memory, bytes));
    heads->bytes += bytes;
    return sr_device_zero(heads->device, *memory, bytes); /* what lies between operands travels */
}

static srnn_status take_buffers(sr_layer_heads *heads, const sr_attention_layer *layer) {
    const int parts = layer->part.count;
    const srnn_dtype dtype = layer->problem.dtype;
    const int64_t rows = (int64_t)heads->own.rows * heads->row_tokens;
    const int64_t in = block_start(layer, &heads->operands, parts);
    const int64_t out = block_start(layer, &heads->output, parts);
    int messages = heads->own.rows * parts;
    for (int part = 0; part < parts; part++)
        messages += share_at(layer, part).rows;
    void *memory;
    SR_TRY(take(heads, &heads->sent, in > out ? in : out, dtype));
    SR_TRY(take(heads, &heads->arrived, in > out ? in : out, dtype));
    SR_TRY(take(heads, &heads->outputs, rows * columns_of(&heads->output, heads->own), dtype));
    SR_TRY(take(heads, &heads->d_operands, rows * columns_of(&heads->operands, heads->own), dtype));
    SR_TRY(sr_alloc_zero(&memory, (size_t)messages, sizeof *heads->sends));
    heads->sends = memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)messages, sizeof *heads->arrivals));
    heads->arrivals = memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)rows + 1, sizeof *heads->offsets));
    heads->offsets = memory;
    return SRNN_OK;
}

static srnn_status fill(sr_layer_heads *heads, const sr_attention_layer *layer) {
    enum { ALIGNMENT = 64 };
    const srnn_problem problem = problem_of(&layer->problem, heads->own, heads->row_tokens);
    const size_t number = sr_element_bytes(problem.dtype);
    if (heads->own.rows) {
        SR_TRY(srnn_plan_create(&heads->plan, &problem));
        heads->bytes += srnn_plan_scratch_bytes(heads->plan);
        heads->plan_bytes =
            (srnn_plan_saved_bytes(heads->plan) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    heads->saved_bytes = heads->plan_bytes + (size_t)heads->own.rows * (size_t)heads->row_tokens *
                                                 (size_t)columns_of(&heads->operands, heads->own) *
                                                 number;
    return take_buffers(heads, layer);
}

srnn_status sr_heads_create(sr_layer_heads **out, const sr_attention_layer *layer) {
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **out));
    sr_layer_heads *heads = memory;
    heads->device = layer->backend->device;
    heads->own = share_at(layer, layer->part.index);
    heads->row_tokens = layer->part.T;
    heads->operands = operands_of(&layer->problem);
    heads->output = output_of(&layer->problem);
    *out = heads;
    return fill(heads, layer);
}

void sr_heads_free(sr_layer_heads *heads) {
    if (!heads)
        return;
    void *const buffers[] = {heads->sent, heads->arrived, heads->outputs, heads->d_operands};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        sr_device_release(heads->device, buffers[i]);
    srnn_plan_free(heads->plan);
    free(heads->sends);
    free(heads->arrivals);
    free(heads->offsets);
    free(heads);
}

size_t sr_heads_saved_bytes(const sr_layer_heads *heads) {
    return heads->saved_bytes;
}

size_t sr_heads_bytes(const sr_layer_heads *heads) {
    return heads->bytes;
}

srnn_status sr_heads_documents(sr_layer_heads *heads, const sr_documents *documents) {
    const int64_t first = (int64_t)heads->own.row * heads->row_tokens;
    const int64_t past = first + (int64_t)heads->own.rows * heads->row_tokens;
    int64_t count = 0;
    if (!heads->plan)
        return SRNN_OK;
    if (!documents->whole)
        return srnn_plan_documents(heads->plan, NULL, 0);
    for (int64_t n = 0; n < documents->whole_count; n++)
        if (documents->whole[n] >= first && documents->whole[n] < past)
            heads->offsets[count++] = documents->whole[n] - first;
    heads->offsets[count] = past - first;
    return srnn_plan_documents(heads->plan, heads->offsets, count);
}

/* ---- travelling */

/* What moves between tokens and heads: a set, whose members stand in arrays of this part's tokens,
 * and (rows of the share * tokens of a row, columns) where the heads are computed. */
typedef struct move {
    const sr_attention_layer *layer;
    const moved_set *set;
    srnn_tensor tokens[SR_OPERANDS];
    void *heads;
} move;

/* Rows of member `index`'s array with this part's tokens, and the columns of the heads of s. */
static sr_matrix tokens_of(const move *m, share s, int index) {
    const sr_attention_layer *layer = m->layer;
    const srnn_tensor t = m->tokens[index];
    const int64_t each = m->set->of[index].each;
    const sr_matrix all = {.data = t.data,
                           .rows = (int64_t)layer->B * layer->T,
                           .columns = each * layer->problem.Hkv,
                           .stride = t.time,
                           .dtype = layer->problem.dtype};
    const sr_matrix rows =
        sr_matrix_rows(all, (int64_t)s.row * layer->T, (int64_t)s.rows * layer->T);
    return sr_matrix_columns(rows, each * s.head, each * s.heads);
}

static sr_matrix member_of(const move *m, sr_matrix rows, share s, int index) {
    return sr_matrix_columns(rows, column_of(m->set, s.heads, index),
                             m->set->of[index].each * s.heads);
}

/* The block of another part in a buffer: (rows of its share * this part's tokens, columns). */
static sr_matrix block_of(const move *m, void *buffer, int part) {
    const share s = share_at(m->layer, part);
    const srnn_dtype dtype = m->layer->problem.dtype;
    return sr_matrix_of(sr_number_at(buffer, block_start(m->layer, m->set, part), dtype),
                        (int64_t)s.rows * m->layer->T, columns_of(m->set, s), dtype);
}

/* Tokens of part `part` of row `row` of this part's heads. */
static sr_matrix row_of(const move *m, int part, int row) {
    const sr_attention_layer *layer = m->layer;
    const share own = layer->heads->own;
    const int T = layer->part.T, parts = layer->part.count;
    const int first = sr_row_part_start(T, part, parts);
    const sr_matrix all = sr_matrix_of(m->heads, (int64_t)own.rows * T, columns_of(m->set, own),
                                       layer->problem.dtype);
    return sr_matrix_rows(all, (int64_t)row * T + first,
                          sr_row_part_start(T, part + 1, parts) - first);
}

/* Between this part's own tokens and its own heads. */
static srnn_status copy_own(const move *m, bool to_heads) {
    const sr_attention_layer *layer = m->layer;
    sr_backend *backend = layer->backend;
    const share own = layer->heads->own;
    for (int row = 0; row < own.rows; row++)
        for (int i = 0; i < m->set->count; i++) {
            const sr_matrix here =
                sr_matrix_rows(tokens_of(m, own, i), (int64_t)row * layer->T, layer->T);
            const sr_matrix there = member_of(m, row_of(m, layer->part.index, row), own, i);
            SR_TRY(to_heads ? backend->copy_rows(backend, there, here)
                            : backend->copy_rows(backend, here, there));
        }
    return SRNN_OK;
}

/* Between the tokens and the blocks of other parts in a buffer. */
static srnn_status copy_blocks(const move *m, void *buffer, bool to_blocks) {
    sr_backend *backend = m->layer->backend;
    for (int part = 0; part < m->layer->part.count; part++) {
        const share s = share_at(m->layer, part);
        for (int i = 0; i < m->set->count && part != m->layer->part.index; i++) {
            const sr_matrix here = tokens_of(m, s, i);
            const sr_matrix block = member_of(m, block_of(m, buffer, part), s, i);
            SR_TRY(to_blocks ? backend->copy_rows(backend, block, here)
                             : backend->copy_rows(backend, here, block));
        }
    }
    return SRNN_OK;
}

static void add_message(sr_part_message *messages, int *count, int part, sr_matrix rows) {
    messages[(*count)++] =
        (sr_part_message){part, rows.data,
                          (size_t)(rows.rows * rows.columns) * sr_element_bytes(rows.dtype)};
}

/* One message for each row: those of the blocks, and those of this part's heads. */
static int block_messages(sr_part_message *messages, const move *m, void *buffer) {
    const int64_t T = m->layer->T;
    int count = 0;
    for (int part = 0; part < m->layer->part.count; part++)
        for (int row = 0; part != m->layer->part.index && row < share_at(m->layer, part).rows;
             row++)
            add_message(messages, &count, part,
                        sr_matrix_rows(block_of(m, buffer, part), row * T, T));
    return count;
}

static int head_messages(sr_part_message *messages, const move *m) {
    int count = 0;
    for (int part = 0; part < m->layer->part.count; part++)
        for (int row = 0; part != m->layer->part.index && row < m->layer->heads->own.rows; row++)
            add_message(messages, &count, part, row_of(m, part, row));
    return count;
}

static srnn_status to_heads(const move *m) {
    const sr_layer_heads *heads = m->layer->heads;
    SR_TRY(copy_blocks(m, heads->sent, true));
    SR_TRY(copy_own(m, true));
    return sr_row_part_exchange(&m->layer->part, heads->sends,
                                block_messages(heads->sends, m, heads->sent), heads->arrivals,
                                head_messages(heads->arrivals, m));
}

static srnn_status to_tokens(const move *m) {
    const sr_layer_heads *heads = m->layer->heads;
    SR_TRY(copy_own(m, false));
    SR_TRY(sr_row_part_exchange(&m->layer->part, heads->sends, head_messages(heads->sends, m),
                                heads->arrivals,
                                block_messages(heads->arrivals, m, heads->arrived)));
    return copy_blocks(m, heads->arrived, false);
}

/* ---- forward and backward */

static move move_of_operands(const sr_attention_layer *layer, const srnn_operands *in, void *rows) {
    move m = {.layer = layer, .set = &layer->heads->operands, .heads = rows};
    for (int i = 0; i < m.set->count; i++)
        m.tokens[i] = sr_operand_tensor(m.set->of[i].which, in);
    return m;
}

static move move_of_output(const sr_attention_layer *layer, srnn_tensor o) {
    return (move){.layer = layer,
                  .set = &layer->heads->output,
                  .tokens = {o},
                  .heads = layer->heads->outputs};
}

/* Member `index` of the rows of this part's heads. */
static srnn_tensor head_tensor(const move *m, int index) {
    const sr_attention_layer *layer = m->layer;
    const share own = layer->heads->own;
    const int64_t columns = columns_of(m->set, own);
    return (srnn_tensor){.data = sr_number_at(m->heads, column_of(m->set, own.heads, index),
                                              layer->problem.dtype),
                         .batch = layer->part.T * columns,
                         .head = m->set->of[index].width,
                         .time = columns};
}

/* What is learned of this part's heads, of `all`; operands of heads are set by the caller. */
static void place_learned(srnn_operands *own, const srnn_operands *all,
                          const sr_attention_layer *layer) {
    const share s = layer->heads->own;
    const srnn_problem part = problem_of(&layer->problem, s, layer->part.T);
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        float *const data = layer->wiring.learned[n] ? sr_operand_data(which, all) : NULL;
        if (!data)
            continue;
        const sr_shape whole = sr_operand_shape(which, &layer->problem);
        const sr_shape some = sr_operand_shape(which, &part);
        const int64_t numbers = sr_shape_numbers(&whole);
        const bool apart = sr_shape_numbers(&some) < numbers; /* each head has its own */
        sr_operand_place(which, own, data + (apart ? numbers / layer->problem.Hkv * s.head : 0));
    }
}

static srnn_operands head_operands(const move *m, const srnn_operands *all) {
    srnn_operands own = {0};
    for (int i = 0; i < m->set->count; i++)
        sr_operand_set_tensor(m->set->of[i].which, &own, head_tensor(m, i));
    place_learned(&own, all, m->layer);
    return own;
}

/* The operands of this part's heads, which forward keeps behind what the plan saves. */
static void *kept(const sr_layer_heads *heads, void *saved) {
    return (char *)saved + heads->plan_bytes;
}

/* What was sent before is not read any longer. */
static srnn_status settle(const sr_attention_layer *layer) {
    return layer->part.settle(layer->part.context, NULL);
}

srnn_status sr_heads_attend(const sr_attention_layer *layer, srnn_tensor o, const srnn_operands *in,
                            void *saved) {
    const sr_layer_heads *heads = layer->heads;
    const move operands = move_of_operands(layer, in, kept(heads, saved));
    const move output = move_of_output(layer, o);
    SR_TRY(settle(layer));
    SR_TRY(to_heads(&operands));
    const srnn_operands own = head_operands(&operands, in);
    if (heads->plan)
        SR_TRY(srnn_attention_forward(heads->plan, head_tensor(&output, 0), &own, saved));
    return to_tokens(&output);
}

static srnn_status clear_learned(const sr_attention_layer *layer, const srnn_operands *gradients) {
    for (int n = 0; n < SR_OPERANDS; n++)
        if (layer->wiring.learned[n])
            SR_TRY(sr_device_zero(layer->heads->device, sr_operand_data((sr_operand)n, gradients),
                                  (size_t)layer->wiring.learned[n] * sizeof(float)));
    return SRNN_OK;
}

srnn_status sr_heads_attend_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                                 srnn_tensor d_o, const srnn_operands *in, void *saved) {
    const sr_layer_heads *heads = layer->heads;
    const move operands = move_of_operands(layer, in, kept(heads, saved));
    const move d_operands = move_of_operands(layer, gradients, heads->d_operands);
    const move d_output = move_of_output(layer, d_o);
    SR_TRY(settle(layer));
    SR_TRY(to_heads(&d_output));
    SR_TRY(clear_learned(layer, gradients));
    const srnn_operands own = head_operands(&operands, in);
    const srnn_operands d_own = head_operands(&d_operands, gradients);
    if (heads->plan)
        SR_TRY(
            srnn_attention_backward(heads->plan, &d_own, head_tensor(&d_output, 0), &own, saved));
    return to_tokens(&d_operands);
}
