/* evaluate.c: losses and accuracy of a model. */
#include "train/evaluate.h"

#include "base/memory.h"
#include "model/session.h"
#include "train/parallel/context.h"
#include "train/parallel/evaluation_parts.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Arrays for one batch shape. */
typedef struct evaluator {
    sr_pass *pass;
    sr_context context;
    int32_t *ids, *targets; /* (B, T), then those of this rank's part of the rows */
    int64_t *offsets;       /* (B*T + 1) */
    float *losses;          /* (B, T) */
    int64_t positions;      /* B*T */
    int B, T;
    int front; /* prefix tokens of the model, empty ids before every sequence */
} evaluator;

static srnn_status numbers(void *out, size_t count, size_t size) {
    void *memory;
    SR_TRY(sr_alloc(&memory, count, size));
    memcpy(out, &memory, sizeof memory);
    return SRNN_OK;
}

/* `together`: whose ranks may share rows; NULL: none do. */
static srnn_status evaluator_open(evaluator *e, sr_model *model, int B, int T,
                                  const sr_evaluation *together) {
    sr_ranks *ranks = together && together->ranks ? together->ranks : sr_ranks_alone();
    const int shared = together && together->context_ranks ? together->context_ranks : 1;
    *e = (evaluator){.B = B, .T = T, .front = sr_model_config_prefix_tokens(&model->config)};
    SR_TRY(sr_context_open(&e->context, ranks, model->backend, shared, T));
    const sr_pass_setup setup = {.B = B,
                                 .T = e->context.tokens,
                                 .part = sr_context_part(&e->context)};
    SR_TRY(sr_pass_create(&e->pass, model, &setup));
    e->positions = (int64_t)B * T;
    const size_t positions = (size_t)e->positions;
    SR_TRY(numbers(&e->ids, positions, sizeof *e->ids));
    SR_TRY(numbers(&e->targets, positions, sizeof *e->targets));
    SR_TRY(numbers(&e->offsets, positions + 1, sizeof *e->offsets));
    return numbers(&e->losses, positions, sizeof *e->losses);
}

static void evaluator_close(evaluator *e) {
    sr_pass_free(e->pass);
    sr_context_close(&e->context);
    free(e->ids);
    free(e->targets);
    free(e->offsets);
    free(e->losses);
}

/* Where to add this rank's part of the next batch; NULL: the batch is another group's. */
static srnn_status next_batch(sr_evaluation_parts *parts, const evaluator *e,
                              sr_evaluation **mine) {
    *mine = NULL;
    for (int part = 0; part < e->context.count; part++) {
        sr_evaluation *own;
        SR_TRY(sr_evaluation_parts_next(parts, &own));
        *mine = own ? own : *mine;
    }
    return SRNN_OK;
}

/* Reduces the batch to this rank's part of its rows. */
static void take_part(evaluator *e, sr_batch *batch) {
    if (e->context.count > 1)
        sr_batch_cut(batch, e->T, e->context.part.first, e->context.tokens);
}

static srnn_status add_batch(sr_evaluation *result, evaluator *e) {
    SR_TRY(sr_pass_evaluate(e->pass, e->losses, &result->correct, e->ids, e->targets));
    for (int64_t i = 0; i < (int64_t)e->B * e->context.tokens; i++) {
        result->loss_sum += e->targets[i] >= 0 ? (double)e->losses[i] : 0.0;
        result->targets += e->targets[i] >= 0;
    }
    return SRNN_OK;
}

/* A last batch that is not full wraps around to the first rows of the split, which were counted
 * already: their targets are ignored. */
static void forget_repeats(sr_batch *batch, const sr_source *source, sr_split split,
                           int64_t number) {
    for (int64_t b = 0; b < batch->B; b++)
        if (number * batch->B + b >= source->rows[split])
            for (int64_t t = 0; t < source->T; t++)
                batch->targets[b * source->T + t] = -1;
}

/* Counts the bytes of decoded text; the text itself is discarded. */
typedef struct byte_count {
    const sr_tokenizer *tokenizer;
    sr_decoder *decoder;
    sr_bytes text;
} byte_count;

static srnn_status push_token(byte_count *c, int32_t id, int64_t *bytes) {
    SR_TRY(sr_decoder_push(c->decoder, &c->text, (uint32_t)id));
    *bytes += (int64_t)c->text.count;
    c->text.count = 0;
    return SRNN_OK;
}

static srnn_status finish_text(byte_count *c, int64_t *bytes) {
    SR_TRY(sr_decoder_finish(c->decoder, &c->text));
    *bytes += (int64_t)c->text.count;
    c->text.count = 0;
    return SRNN_OK;
}

/* Adds the bytes of one row's targets. The decoder needs the token before the first target; special
 * tokens have no text. */
static srnn_status count_row(byte_count *c, int64_t *bytes, const int32_t *ids,
                             const int32_t *targets, int T) {
    int64_t before = 0;
    bool decoding = false;
    for (int t = 0; t < T; t++) {
        if (targets[t] < 0 || sr_tokenizer_is_special(c->tokenizer, (uint32_t)targets[t])) {
            SR_TRY(finish_text(c, bytes));
            decoding = false;
            continue;
        }
        if (!decoding)
            SR_TRY(push_token(c, ids[t], &before));
        SR_TRY(push_token(c, targets[t], bytes));
        decoding = true;
    }
    return finish_text(c, bytes);
}

/* Of whole rows, on the rank that has their beginning. */
static srnn_status count_bytes(byte_count *c, int64_t *bytes, const evaluator *e) {
    if (e->context.part.index > 0)
        return SRNN_OK;
    for (int64_t first = 0; c->decoder && first < e->positions; first += e->T)
        SR_TRY(count_row(c, bytes, e->ids + first, e->targets + first, e->T));
    return SRNN_OK;
}

static srnn_status add_source(sr_evaluation_parts *parts, evaluator *e, byte_count *c,
                              const sr_evaluation_rows *rows) {
    const sr_source *source = rows->source;
    for (int64_t i = 0; i < rows->batches; i++) {
        sr_evaluation *result;
        SR_TRY(next_batch(parts, e, &result));
        if (!result)
            continue;
        sr_batch batch = {.B = rows->B,
                          .ids = e->ids,
                          .targets = e->targets,
                          .offsets = e->offsets};
        SR_TRY(sr_source_batch(source, &batch, rows->split, i));
        forget_repeats(&batch, source, rows->split, i);
        if (!source->exact)
            sr_batch_front(&batch, source->T, e->front);
        SR_TRY(count_bytes(c, &result->bytes, e));
        take_part(e, &batch);
        SR_TRY(sr_pass_documents(e->pass, batch.offsets, batch.documents));
        SR_TRY(add_batch(result, e));
    }
    return SRNN_OK;
}

srnn_status sr_evaluate_source(sr_evaluation *result, sr_model *model,
                               const sr_evaluation_rows *rows) {
    evaluator e;
    byte_count c = {.tokenizer = rows->tokenizer};
    sr_evaluation_parts parts = {.ranks = result->ranks};
    srnn_status status = evaluator_open(&e, model, rows->B, rows->source->T, result);
    if (status == SRNN_OK && rows->tokenizer)
        status = sr_decoder_create(&c.decoder, rows->tokenizer);
    if (status == SRNN_OK)
        status = add_source(&parts, &e, &c, rows);
    if (status == SRNN_OK)
        status = sr_evaluation_parts_end(&parts, result);
    sr_evaluation_parts_free(&parts);
    sr_decoder_free(c.decoder);
    sr_bytes_free(&c.text);
    evaluator_close(&e);
    return status;
}

srnn_status sr_evaluate_batch(sr_evaluation *result, sr_model *model, const sr_batch *batch, int T,
                              float *logits) {
    evaluator e;
    srnn_status status = evaluator_open(&e, model, batch->B, T, NULL);
    if (status == SRNN_OK) {
        memcpy(e.ids, batch->ids, (size_t)e.positions * sizeof *e.ids);
        memcpy(e.targets, batch->targets, (size_t)e.positions * sizeof *e.targets);
        status = add_batch(result, &e);
    }
    if (status == SRNN_OK && logits)
        status = sr_pass_logits(e.pass, logits, batch->ids);
    evaluator_close(&e);
    return status;
}

static srnn_status encode(sr_tokens *tokens, const sr_tokenizer *tokenizer, const char *text,
                          size_t bytes) {
    sr_encoder *encoder;
    if (sr_tokenizer_bos(tokenizer) >= 0)
        SR_TRY(sr_tokens_push(tokens, (uint32_t)sr_tokenizer_bos(tokenizer)));
    SR_TRY(sr_encoder_create(&encoder, tokenizer));
    const srnn_status status = sr_encoder_encode(encoder, tokens, text, bytes);
    sr_encoder_free(encoder);
    return status;
}

static srnn_status check_tokens(const sr_tokens *tokens) {
    return tokens->count >= 2
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_ARGUMENT,
                         "the text has %zu token%s: nothing to predict; two or more are needed",
                         tokens->count, tokens->count == 1 ? "" : "s");
}

/* Fills rows of T tokens: the model's prefix tokens, then the text from token `first` on. Positions
 * past the end of the text have no target. Returns the first token of the next batch. */
static size_t fill_rows(evaluator *e, const sr_tokens *tokens, size_t first) {
    size_t at = first;
    for (int64_t i = 0; i < e->positions; i++) {
        const bool empty = i % e->T < e->front;
        e->ids[i] = !empty && at < tokens->count ? (int32_t)tokens->ids[at] : 0;
        e->targets[i] = !empty && at + 1 < tokens->count ? (int32_t)tokens->ids[at + 1] : -1;
        at += !empty;
    }
    return at;
}

srnn_status sr_evaluate_text(sr_evaluation *result, sr_model *model, const sr_tokenizer *tokenizer,
                             const sr_bytes *text, int B, int T) {
    sr_tokens tokens = {0};
    evaluator e = {0};
    sr_evaluation_parts parts = {.ranks = result->ranks};
    srnn_status status = encode(&tokens, tokenizer, text->data, text->count);
    if (status == SRNN_OK)
        status = check_tokens(&tokens);
    if (status == SRNN_OK)
        status = evaluator_open(&e, model, B, T, result);
    if (status == SRNN_OK && e.front >= T)
        status =
            SR_FAIL(SRNN_ERR_ARGUMENT, "rows of %d tokens: the model puts %d in front", T, e.front);
    for (size_t next = 0; status == SRNN_OK && next + 1 < tokens.count;) {
        sr_evaluation *mine;
        next = fill_rows(&e, &tokens, next);
        status = next_batch(&parts, &e, &mine);
        if (status != SRNN_OK || !mine)
            continue;
        sr_batch batch = {.B = B, .ids = e.ids, .targets = e.targets, .offsets = e.offsets};
        take_part(&e, &batch);
        status = add_batch(mine, &e);
    }
    if (status == SRNN_OK)
        status = sr_evaluation_parts_end(&parts, result);
    sr_evaluation_parts_free(&parts);
    result->bytes += (int64_t)text->count;
    evaluator_close(&e);
    sr_tokens_free(&tokens);
    return status;
}

/* ---- a text as one sequence */

/* A piece of it. */
typedef struct text_piece {
    int32_t *ids, *targets, *hits; /* (T) */
    float *losses;                 /* (T) */
    int T;
} text_piece;

static srnn_status text_piece_open(text_piece *p, int T) {
    *p = (text_piece){.T = T};
    SR_TRY(numbers(&p->ids, (size_t)T, sizeof *p->ids));
    SR_TRY(numbers(&p->targets, (size_t)T, sizeof *p->targets));
    SR_TRY(numbers(&p->hits, (size_t)T, sizeof *p->hits));
    return numbers(&p->losses, (size_t)T, sizeof *p->losses);
}

static void text_piece_close(text_piece *p) {
    free(p->ids);
    free(p->targets);
    free(p->hits);
    free(p->losses);
}

/* A text between its bytes and the pieces that are evaluated. */
typedef struct text_stream {
    const sr_text_source *text;
    sr_encoder *encoder;
    sr_tokens tokens; /* encoded, not evaluated: from the one that the next piece begins with on */
    int front;        /* prefix tokens that no piece had yet */
    int64_t position; /* in the sequence */
    int64_t bytes;    /* read */
    bool ended;
} text_stream;

static srnn_status text_stream_open(text_stream *s, const sr_model *model,
                                    const sr_tokenizer *tokenizer, const sr_text_source *text) {
    *s = (text_stream){.text = text, .front = sr_model_config_prefix_tokens(&model->config)};
    SR_TRY(sr_encoder_create(&s->encoder, tokenizer));
    return sr_tokenizer_bos(tokenizer) < 0
               ? SRNN_OK
               : sr_tokens_push(&s->tokens, (uint32_t)sr_tokenizer_bos(tokenizer));
}

static void text_stream_close(text_stream *s) {
    sr_encoder_free(s->encoder);
    sr_tokens_free(&s->tokens);
}

/* Until there are this many tokens or the text ends. */
static srnn_status read_tokens(text_stream *s, size_t count) {
    char block[1 << 14];
    size_t got;
    while (s->tokens.count < count && !s->ended) {
        SR_TRY(s->text->read(s->text->context, block, sizeof block, &got));
        s->bytes += (int64_t)got;
        s->ended = got == 0;
        SR_TRY(s->ended ? sr_encoder_finish(s->encoder, &s->tokens)
                        : sr_encoder_feed(s->encoder, &s->tokens, block, got));
    }
    return SRNN_OK;
}

/* *count = tokens of the next piece, T at most; 0: the text is over. */
static srnn_status next_piece(int *count, text_piece *p, text_stream *s, int T) {
    const int front = s->front < T ? s->front : T;
    SR_TRY(read_tokens(s, (size_t)(T - front) + 1));
    const size_t known = s->tokens.count > 0 ? s->tokens.count - 1 : 0;
    const int own = known < (size_t)(T - front) ? (int)known : T - front;
    for (int t = 0; t < front + own; t++) {
        p->ids[t] = t < front ? 0 : (int32_t)s->tokens.ids[t - front];
        p->targets[t] = t < front ? -1 : (int32_t)s->tokens.ids[t - front + 1];
    }
    s->front -= front;
    s->position += front + own;
    s->tokens.count -= (size_t)own;
    memmove(s->tokens.ids, s->tokens.ids + own, s->tokens.count * sizeof *s->tokens.ids);
    *count = front + own;
    return SRNN_OK;
}

static srnn_status check_positions(const sr_model *model, int64_t positions) {
    const int64_t most = sr_model_config_most_positions(&model->config);
    return positions <= most
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_LIMIT,
                         "the text has more tokens than the model %lld RoPE positions: evaluate it "
                         "in rows, without --stream",
                         (long long)most);
}

static srnn_status stream_pieces(sr_evaluation *result, sr_model *model, sr_session *session,
                                 text_piece *p, text_stream *s) {
    int count;
    for (;;) {
        SR_TRY(next_piece(&count, p, s, p->T));
        if (count == 0)
            break;
        SR_TRY(check_positions(model, s->position));
        SR_TRY(sr_session_losses(session, p->losses, p->hits, p->ids, p->targets, count));
        for (int t = 0; t < count; t++) {
            result->loss_sum += (double)p->losses[t];
            result->targets += p->targets[t] >= 0;
            result->correct += p->hits[t];
        }
    }
    result->bytes += s->bytes;
    result->state_bytes = sr_session_state_bytes(session);
    result->state_grows = !sr_session_is_recurrent(session);
    return SRNN_OK;
}

static srnn_status stream_text(sr_evaluation *result, sr_model *model, text_stream *stream, int T) {
    SR_TRY(read_tokens(stream, (size_t)T + 1));
    SR_TRY(check_tokens(&stream->tokens));
    const int64_t positions = (int64_t)stream->tokens.count - 1 + stream->front;
    const sr_session_setup setup = {.B = 1,
                                    .T = positions < T ? (int)positions : T,
                                    .losses = true};
    text_piece piece = {0};
    sr_session *session = NULL;
    SR_TRY(check_positions(model, setup.T));
    srnn_status status = text_piece_open(&piece, setup.T);
    if (status == SRNN_OK)
        status = sr_session_create(&session, model, &setup);
    if (status == SRNN_OK)
        status = stream_pieces(result, model, session, &piece, stream);
    sr_session_free(session);
    text_piece_close(&piece);
    return status;
}

srnn_status sr_evaluate_stream(sr_evaluation *result, sr_model *model,
                               const sr_tokenizer *tokenizer, const sr_text_source *text, int T) {
    text_stream stream;
    srnn_status status = text_stream_open(&stream, model, tokenizer, text);
    if (status == SRNN_OK)
        status = stream_text(result, model, &stream, T);
    text_stream_close(&stream);
    return status;
}

/* The bytes of a text without the white space at its end, which is not predicted. */
static size_t trimmed(const char *text, size_t bytes) {
    while (bytes > 0 && isspace((unsigned char)text[bytes - 1]))
        bytes--;
    return bytes;
}

/* Start of the last word of a trimmed text, including the space before it. */
static size_t last_word(const char *text, size_t bytes) {
    while (bytes > 0 && !isspace((unsigned char)text[bytes - 1]))
        bytes--;
    return bytes > 0 ? bytes - 1 : 0;
}

/* A text whose tokens from `context` on are the word to predict. */
typedef struct guess {
    const sr_tokenizer *tokenizer;
    sr_tokens tokens;
    size_t context;
} guess;

static srnn_status judge(sr_evaluation *result, sr_model *model, const guess *g) {
    sr_evaluation word = {0};
    evaluator e;
    const int front = sr_model_config_prefix_tokens(&model->config);
    srnn_status status = evaluator_open(&e, model, 1, front + (int)g->tokens.count - 1, NULL);
    if (status == SRNN_OK) {
        (void)fill_rows(&e, &g->tokens, 0);
        for (size_t i = 0; i + 1 < (size_t)front + g->context; i++)
            e.targets[i] = -1;
        status = add_batch(&word, &e);
    }
    evaluator_close(&e);
    result->loss_sum += word.loss_sum;
    result->targets++;
    result->correct += word.targets > 0 && word.correct == word.targets;
    return status;
}

static size_t shared_tokens(const sr_tokens *a, const sr_tokens *b) {
    size_t shared = 0;
    while (shared < a->count && shared < b->count && a->ids[shared] == b->ids[shared])
        shared++;
    return shared;
}

/* The context of a trimmed text is the tokens of everything before its last word. If the whole text
 * is tokenized differently there, as with words that end in a space, it is the tokens including the
 * space. */
static srnn_status find_word(guess *g, const char *text, size_t bytes) {
    sr_tokens before = {0}, spaced = {0};
    const size_t end = last_word(text, bytes);
    srnn_status status = encode(&before, g->tokenizer, text, end);
    if (status == SRNN_OK)
        status = encode(&spaced, g->tokenizer, text, end + (end > 0));
    g->context = shared_tokens(&g->tokens, &before);
    const size_t with_space = shared_tokens(&g->tokens, &spaced);
    if (g->context < before.count && with_space > g->context)
        g->context = with_space;
    sr_tokens_free(&before);
    sr_tokens_free(&spaced);
    if (status == SRNN_OK && (g->context == 0 || g->context == g->tokens.count))
        status = SR_FAIL(SRNN_ERR_ARGUMENT, "\"%.40s\": there is no last word to predict", text);
    return status;
}

/* Drops tokens of the context until `count` tokens are left; a BOS token stays. */
static void cut_context(guess *g, size_t count) {
    const size_t retained = sr_tokenizer_bos(g->tokenizer) >= 0, dropped = g->tokens.count - count;
    uint32_t *ids = g->tokens.ids;
    memmove(ids + retained, ids + retained + dropped, (count - retained) * sizeof *ids);
    g->tokens.count = count;
    g->context -= dropped;
}

/* Truncates the tokens to the model's context, which excludes the last token. *skip: the text is
 * skipped instead. */
static srnn_status fit(sr_evaluation *result, guess *g, bool *skip, sr_long_text longer,
                       const sr_model_config *config) {
    const size_t most = (size_t)(config->positions - sr_model_config_prefix_tokens(config)) + 1;
    const size_t least = g->tokens.count - g->context + 1 + (sr_tokenizer_bos(g->tokenizer) >= 0);
    *skip = false;
    if (g->tokens.count <= most)
        return SRNN_OK;
    if (longer == SR_LONG_REFUSE || (longer == SR_LONG_CUT && most < least))
        return SR_FAIL(SRNN_ERR_LIMIT, "a text of %zu tokens; the model has %d positions",
                       g->tokens.count, config->positions);
    *skip = longer == SR_LONG_SKIP;
    result->skipped += *skip;
    result->cut += !*skip;
    if (!*skip)
        cut_context(g, most);
    return SRNN_OK;
}

srnn_status sr_evaluate_last_word(sr_evaluation *result, sr_model *model,
                                  const sr_tokenizer *tokenizer, const char *text, size_t bytes,
                                  sr_long_text longer) {
    guess g = {.tokenizer = tokenizer};
    bool skip = false;
    bytes = trimmed(text, bytes);
    srnn_status status = encode(&g.tokens, tokenizer, text, bytes);
    if (status == SRNN_OK)
        status = find_word(&g, text, bytes);
    if (status == SRNN_OK)
        status = fit(result, &g, &skip, longer, &model->config);
    if (status == SRNN_OK && !skip)
        status = judge(result, model, &g);
    sr_tokens_free(&g.tokens);
    return status;
}
