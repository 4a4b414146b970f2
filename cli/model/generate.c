/* generate.c: `softrnn generate`. */
#include "base/clock.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/line/model_open.h"
#include "cli/line/numbers.h"
#include "cli/line/options.h"
#include "cli/line/progress.h"
#include "cli/line/whole_file.h"
#include "cli/model/stream.h"
#include "files/memory_stream.h"
#include "model/sampler.h"
#include "model/session.h"
#include "train/parallel/relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct generation_request {
    sr_backend_settings numbers;
    const char *model, *attention, *tokenizer, *prompt, *prompts;
    const char *stops[STREAM_STOPS];
    int tokens, batch, form, prefill_chunk, context_ranks;
    int64_t seed, state_megabytes;
    double temperature, top_p, rank_patience;
    int top_k;
    bool greedy, stats, no_begin;
} generation_request;

/* The reason why a text ended. */
typedef enum ending {
    ENDING_TOKENS = 0, /* --tokens */
    ENDING_TOKEN,      /* the model's end-of-text token */
    ENDING_STOP,       /* --stop */
    ENDING_POSITIONS,  /* the model has no position for another token */
    ENDING_INTERRUPT,
    ENDINGS,
} ending;

/* What a run's seconds go to, in this order; those after the weights recur with every batch. */
typedef enum phase {
    PHASE_DEVICE = 0, /* opening it and the libraries it needs */
    PHASE_WEIGHTS,
    PHASE_TOKENIZER,
    PHASE_MEMORY, /* of the session */
    PHASE_PROMPTS,
    PHASE_TOKENS,
    PHASE_END,
    PHASES,
} phase;

/* Streams of a batch are always at the same position: while one still reads its prompt, another may
 * already generate. */
typedef struct generator {
    const generation_request *request;
    sr_backend *backend;
    sr_model *model;
    sr_tokenizer *tokenizer;
    sr_encoder *encoder;
    sr_session *session;
    sr_sampler *sampler;
    stream *streams; /* (batch) */
    int batch;
    int32_t *ids;  /* (batch, piece_of) */
    float *logits; /* (batch, V) */
    int32_t *next; /* (batch): the most probable tokens, for greedy decoding */
    sr_tokens encoded;
    int64_t produced;      /* tokens, over all prompts */
    double phases[PHASES]; /* seconds */
    double lap;            /* the clock when the last phase ended */
    int64_t endings[ENDINGS];
    sr_ranks *ranks; /* share the prompts, */
    sr_relay *relay; /* or, if not NULL, feed each in turn, after which the first continues it */
    FILE *out;       /* destination of texts */
} generator;

/* A phase ends here, and the next one begins. */
static void end_phase(generator *g, phase which) {
    const double now = sr_clock_seconds();
    g->phases[which] += now - g->lap;
    g->lap = now;
}

static int piece_of(const generator *g) {
    const int most = g->model->config.positions, chunk = g->request->prefill_chunk;
    return most < chunk ? most : chunk;
}

/* Extends the last error by the option that chooses the other form. */
static srnn_status fail_form(srnn_status status) {
    char why[512];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    return SR_FAIL(status, "--form state: %s (--form cache)", why);
}

/* Allocates the memory of one batch of streams. */
static srnn_status open_streams(generator *g) {
    static const srnn_form forms[] = {SRNN_FORM_AUTO, SRNN_FORM_PARALLEL, SRNN_FORM_RECURRENT};
    const generation_request *r = g->request;
    const size_t batch = (size_t)g->batch;
    void *memory;
    const sr_session_setup session = {.B = g->batch,
                                      .T = piece_of(g),
                                      .form = forms[r->form],
                                      .state_limit = (size_t)r->state_megabytes << 20};
    const srnn_status status = sr_session_create(&g->session, g->model, &session);
    if (session.form == SRNN_FORM_RECURRENT &&
        (status == SRNN_ERR_UNSUPPORTED || status == SRNN_ERR_LIMIT))
        return fail_form(status);
    SR_TRY(status);
    SR_TRY(sr_alloc(&memory, batch * (size_t)piece_of(g), sizeof *g->ids));
    g->ids = memory;
    SR_TRY(sr_alloc(&memory, batch * (size_t)g->model->config.V, sizeof *g->logits));
    g->logits = memory;
    SR_TRY(sr_alloc_zero(&memory, batch, sizeof *g->next));
    g->next = memory;
    SR_TRY(sr_alloc_zero(&memory, batch, sizeof *g->streams));
    g->streams = memory;
    for (int b = 0; b < g->batch; b++)
        SR_TRY(stream_open(&g->streams[b], g->tokenizer, r->stops));
    return SRNN_OK;
}

static srnn_status generator_open(generator *g, const generation_request *r, int batch) {
    g->request = r;
    g->batch = batch;
    sr_backend_settings numbers = r->numbers;
    numbers.threads = sr_ranks_threads(g->ranks, numbers.threads);
    SR_TRY(sr_backend_create(&g->backend, &numbers));
    end_phase(g, PHASE_DEVICE);
    SR_TRY(model_open_read_only(&g->model, g->backend, r->model, r->attention));
    end_phase(g, PHASE_WEIGHTS);
    SR_TRY(sr_model_open_tokenizer(&g->tokenizer, r->tokenizer, r->model, g->model->config.V));
    SR_TRY(sr_encoder_create(&g->encoder, g->tokenizer));
    const sr_sampler_settings sampler = {.temperature = r->greedy ? 0 : r->temperature,
                                         .top_k = r->top_k,
                                         .top_p = r->top_p,
                                         .seed = (uint64_t)r->seed};
    SR_TRY(sr_sampler_create(&g->sampler, &sampler, g->model->config.V));
    end_phase(g, PHASE_TOKENIZER);
    SR_TRY(open_streams(g));
    end_phase(g, PHASE_MEMORY);
    return SRNN_OK;
}

static void generator_close(generator *g) {
    for (int b = 0; g->streams && b < g->batch; b++)
        stream_close(&g->streams[b]);
    free(g->streams);
    free(g->ids);
    free(g->logits);
    free(g->next);
    sr_tokens_free(&g->encoded);
    sr_relay_close(g->relay);
    sr_sampler_free(g->sampler);
    sr_session_free(g->session);
    sr_encoder_free(g->encoder);
    sr_tokenizer_free(g->tokenizer);
    sr_model_free(g->model);
    sr_backend_free(g->backend);
}

static int32_t begin_token(const generator *g) {
    const int64_t bos = sr_tokenizer_bos(g->tokenizer);
    return bos >= 0 ? (int32_t)bos : g->model->config.bos;
}

static bool is_end(const generator *g, int32_t token) {
    return token == begin_token(g) || sr_model_config_ends(&g->model->config, token) ||
           token == sr_tokenizer_eos(g->tokenizer);
}

static int64_t most_positions(const generator *g) {
    return sr_model_config_most_positions(&g->model->config);
}

static srnn_status end_stream(generator *g, stream *s, ending why) {
    g->endings[why]++;
    return s->done ? SRNN_OK : stream_end(s);
}

/* The model's prefix tokens, BOS, the prompt. */
static srnn_status read_prompt(generator *g, stream *s, const char *prompt, size_t bytes) {
    const int front = sr_model_config_prefix_tokens(&g->model->config);
    const int32_t bos = g->request->no_begin ? -1 : begin_token(g);
    for (int i = 0; i < front; i++)
        SR_TRY(stream_prompt(s, 0, true));
    if (bos >= 0)
        SR_TRY(stream_prompt(s, (uint32_t)bos, true));
    g->encoded.count = 0;
    SR_TRY(sr_encoder_encode(g->encoder, &g->encoded, prompt, bytes));
    for (size_t i = 0; i < g->encoded.count; i++)
        SR_TRY(stream_prompt(s, g->encoded.ids[i], false));
    if (s->prompt.count == (size_t)front)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: give a prompt",
                       g->request->no_begin ? "without a beginning-of-text token there is nothing"
                                            : "the model has no beginning-of-text token");
    if ((int64_t)s->prompt.count >= most_positions(g))
        return SR_FAIL(SRNN_ERR_LIMIT, "the prompt has %zu tokens, the model %d positions",
                       s->prompt.count, g->model->config.positions);
    return SRNN_OK;
}

static bool is_greedy(const generator *g) {
    return g->request->greedy || g->request->temperature == 0;
}

/* Feeds `count` tokens of every stream, ids (batch, count). */
static srnn_status feed(generator *g, int count) {
    return is_greedy(g) ? sr_session_feed_greedy(g->session, g->next, g->ids, count)
                        : sr_session_feed(g->session, g->logits, g->ids, count);
}

static int32_t choose(const generator *g, int b, const stream *s) {
    const float *logits = g->logits + (size_t)b * (size_t)g->model->config.V;
    return is_greedy(g) ? g->next[b]
                        : sr_sampler_choose(g->sampler, logits, s->number, (uint64_t)s->produced);
}

/* The piece of the prompts from token `at` on; the last one falls to the first rank. */
static srnn_status feed_in_turn(generator *g, size_t at, size_t count, size_t shortest) {
    const sr_row_part *part = sr_relay_part(g->relay);
    const size_t piece = (size_t)piece_of(g), left = (shortest - at - 1) / piece;
    const sr_session_relay relay = {part, (int64_t)at, left == 0};
    if ((left + (size_t)part->index) % (size_t)part->count)
        return SRNN_OK;
    SR_TRY(sr_session_feed_relayed(g->session, is_greedy(g) ? NULL : g->logits, g->ids, (int)count,
                                   &relay));
    return left == 0 && is_greedy(g) ? sr_session_chosen(g->session, g->next) : SRNN_OK;
}

/* Feeds, in pieces, the first tokens of all prompts, up to the length of the shortest. Ranks that
 * feed in turn wait for each other here with patience; elsewhere for the first one to finish the
 * texts, which may take any time. */
static srnn_status feed_prompts(generator *g, size_t shortest) {
    const size_t piece = (size_t)piece_of(g);
    if (g->relay)
        g->ranks->patience = g->request->rank_patience;
    for (size_t at = 0; at < shortest;) {
        const size_t count = shortest - at < piece ? shortest - at : piece;
        for (int b = 0; b < g->batch; b++)
            for (size_t t = 0; t < count; t++) {
                const sr_tokens *prompt = &g->streams[b].prompt;
                g->ids[(size_t)b * count + t] =
                    at + t < prompt->count ? (int32_t)prompt->ids[at + t] : 0;
            }
        SR_TRY(g->relay ? feed_in_turn(g, at, count, shortest) : feed(g, (int)count));
        at += count;
    }
    if (!g->relay)
        return SRNN_OK;
    const sr_row_part *part = sr_relay_part(g->relay);
    SR_TRY(part->settle(part->context, NULL));
    g->ranks->patience = 0;
    return SRNN_OK;
}

/* The token of a stream at a position: of its prompt, or the next generated one. */
static srnn_status next_token(generator *g, int b, size_t position) {
    stream *s = &g->streams[b];
    const int64_t limit = most_positions(g) - (int64_t)s->prompt.count;
    g->ids[b] = 0;
    if (s->done)
        return SRNN_OK;
    if (position < s->prompt.count) {
        g->ids[b] = (int32_t)s->prompt.ids[position];
        return SRNN_OK;
    }
    g->ids[b] = choose(g, b, s);
    if (is_end(g, g->ids[b]))
        return end_stream(g, s, ENDING_TOKEN);
    SR_TRY(stream_add(s, (uint32_t)g->ids[b]));
    g->produced++;
    if (s->done)
        return end_stream(g, s, ENDING_STOP);
    if (s->produced == g->request->tokens)
        return end_stream(g, s, ENDING_TOKENS);
    return s->produced > limit ? end_stream(g, s, ENDING_POSITIONS) : SRNN_OK;
}

/* Whether at this position all unfinished streams generate and one of them will continue after it:
 * then the next step can start before the host has seen the chosen tokens. */
static bool runs_ahead(const generator *g, int count, size_t position) {
    bool more = false;
    if (!is_greedy(g) || !sr_session_runs_ahead(g->session) ||
        (int64_t)position >= most_positions(g))
        return false;
    for (int b = 0; b < count; b++) {
        const stream *s = &g->streams[b];
        if (!s->done && position < s->prompt.count)
            return false;
        more = more || (!s->done && s->produced + 1 < g->request->tokens);
    }
    return more;
}

/* Prints streams in order; of the first unfinished one, what there is so far. */
static void print_streams(generator *g, int *printing, int count) {
    for (; *printing < count; ++*printing) {
        stream_show(&g->streams[*printing], g->out);
        if (!g->streams[*printing].done)
            return;
        putc('\n', g->out);
    }
}

/* The number of tokens to reserve in the session at once, within reason: growing moves the cache,
 * and a captured step must be captured again. */
static int64_t tokens_to_reserve(const generator *g, int count) {
    enum { MOST_AHEAD = 2048 };
    size_t longest = 0;
    for (int b = 0; b < count; b++)
        if (g->streams[b].prompt.count > longest)
            longest = g->streams[b].prompt.count;
    const int64_t ahead = g->request->tokens < MOST_AHEAD ? g->request->tokens : MOST_AHEAD;
    const int64_t capacity = (int64_t)longest + ahead, most = most_positions(g);
    return capacity < most ? capacity : most;
}

/* An empty session for the texts in streams 0 .. count-1. */
static srnn_status begin_texts(generator *g, int count) {
    enum { WORTH_PREPARING = 16 }; /* tokens: preparing takes as long as a few of them */
    const int64_t capacity = tokens_to_reserve(g, count);
    SR_TRY(sr_session_reset(g->session));
    const srnn_status status = sr_session_grow(g->session, capacity);
    if (status != SRNN_OK && status != SRNN_ERR_MEMORY) /* texts may end before they need that
                                                         * much */
        return status;
    return g->request->tokens >= WORTH_PREPARING && capacity >= WORTH_PREPARING
               ? sr_session_prepare(g->session)
               : SRNN_OK;
}

/* Continues the prompts in streams 0 .. count-1 until all have ended. */
static srnn_status generate_batch(generator *g, int count) {
    size_t shortest = SIZE_MAX;
    int printing = 0;
    for (int b = 0; b < count; b++)
        if (g->streams[b].prompt.count < shortest)
            shortest = g->streams[b].prompt.count;
    SR_TRY(begin_texts(g, count));
    SR_TRY(feed_prompts(g, shortest));
    if (g->relay && g->ranks->rank > 0)
        return SRNN_OK;
    end_phase(g, PHASE_PROMPTS);
    print_streams(g, &printing, count);
    bool ahead = false;
    for (size_t position = shortest;; position++) {
        const bool was_ahead = ahead;
        ahead = runs_ahead(g, count, position);
        if (ahead)
            SR_TRY(sr_session_feed_chosen(g->session, g->next));
        else if (was_ahead)
            SR_TRY(sr_session_chosen(g->session, g->next));
        for (int b = 0; b < count; b++) {
            SR_TRY(next_token(g, b, position));
            if (progress_interrupted() && !g->streams[b].done)
                SR_TRY(end_stream(g, &g->streams[b], ENDING_INTERRUPT));
        }
        print_streams(g, &printing, count);
        if (printing == count)
            break;
        if (!ahead)
            SR_TRY(feed(g, 1));
    }
    end_phase(g, PHASE_TOKENS);
    return SRNN_OK;
}

static srnn_status generate_one(generator *g, const char *prompt) {
    stream_begin(&g->streams[0], 0);
    SR_TRY(read_prompt(g, &g->streams[0], prompt, strlen(prompt)));
    return generate_batch(g, 1);
}

/* Reads the next lines as prompts of streams; *count = their number. */
static srnn_status take_lines(generator *g, const sr_bytes *lines, size_t *at, uint64_t *number,
                              int *count) {
    for (*count = 0; *count < g->batch && *at < lines->count; ++*count) {
        const char *end = memchr(lines->data + *at, '\n', lines->count - *at);
        const size_t length = end ? (size_t)(end - lines->data) - *at : lines->count - *at;
        stream_begin(&g->streams[*count], (*number)++);
        SR_TRY(read_prompt(g, &g->streams[*count], lines->data + *at, length));
        *at += length + 1;
    }
    return SRNN_OK;
}

/* One prompt per line, a batch at a time. */
static srnn_status generate_lines(generator *g, const sr_bytes *lines) {
    uint64_t number = 0;
    for (size_t at = 0; at < lines->count;) {
        char interrupted = progress_interrupted() != 0;
        int count;
        if (g->relay) /* all stop after the same batch */
            SR_TRY(sr_ranks_share(g->ranks, &interrupted, sizeof interrupted));
        if (interrupted)
            break;
        SR_TRY(take_lines(g, lines, &at, &number, &count));
        SR_TRY(generate_batch(g, count));
    }
    return SRNN_OK;
}

/* ---- ranks: each generates one batch of a round, and the first prints all in order */

/* Prints the output of every rank in this round. */
static srnn_status print_round(sr_ranks *ranks, const char *text, size_t bytes) {
    void *memory, *all;
    SR_TRY(sr_alloc_zero(&memory, (size_t)ranks->count, sizeof(size_t)));
    size_t *sizes = memory, most = 0;
    sizes[ranks->rank] = bytes;
    srnn_status status = sr_ranks_gather(ranks, sizes, sizeof *sizes);
    for (int r = 0; r < ranks->count; r++)
        most = sizes[r] > most ? sizes[r] : most;
    if (status == SRNN_OK)
        status = sr_alloc_zero(&all, (size_t)ranks->count, most + 1);
    if (status == SRNN_OK) {
        memcpy((char *)all + (size_t)ranks->rank * most, text, bytes);
        status = sr_ranks_gather(ranks, all, most);
        for (int r = 0; r < ranks->count && ranks->rank == 0 && status == SRNN_OK; r++)
            fwrite((char *)all + (size_t)r * most, 1, sizes[r], stdout);
        free(all);
    }
    free(memory);
    return status;
}

/* One round: generates this rank's batch into memory and skips the others. */
static srnn_status generate_round(generator *g, const sr_bytes *lines, size_t *at,
                                  uint64_t *number) {
    char *text = NULL;
    size_t bytes = 0;
    g->out = sr_memory_stream(&text, &bytes);
    if (!g->out)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the texts");
    srnn_status status = SRNN_OK;
    for (int r = 0; r < g->ranks->count && status == SRNN_OK; r++) {
        int count;
        status = take_lines(g, lines, at, number, &count);
        if (status == SRNN_OK && r == g->ranks->rank && count > 0)
            status = generate_batch(g, count);
    }
    if (fclose(g->out) != 0 && status == SRNN_OK)
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory for the texts");
    g->out = stdout;
    if (status == SRNN_OK)
        status = print_round(g->ranks, text, bytes);
    free(text);
    return status;
}

static srnn_status generate_shared(generator *g, const sr_bytes *lines) {
    uint64_t number = 0;
    for (size_t at = 0; at < lines->count;)
        SR_TRY(generate_round(g, lines, &at, &number));
    return SRNN_OK;
}

/* Total tokens of all ranks, in the time of the slowest. */
static srnn_status add_ranks(generator *g) {
    typedef struct work {
        int64_t produced, endings[ENDINGS];
        double seconds;
    } work;
    void *memory;
    if (g->ranks->count == 1)
        return SRNN_OK;
    SR_TRY(sr_alloc_zero(&memory, (size_t)g->ranks->count, sizeof(work)));
    work *all = memory, *own = &all[g->ranks->rank];
    *own = (work){.produced = g->produced, .seconds = g->phases[PHASE_TOKENS]};
    memcpy(own->endings, g->endings, sizeof own->endings);
    const srnn_status status = sr_ranks_gather(g->ranks, all, sizeof *all);
    for (int r = 0; r < g->ranks->count && status == SRNN_OK; r++) {
        if (r == g->ranks->rank)
            continue;
        g->produced += all[r].produced;
        if (all[r].seconds > g->phases[PHASE_TOKENS])
            g->phases[PHASE_TOKENS] = all[r].seconds;
        for (int i = 0; i < ENDINGS; i++)
            g->endings[i] += all[r].endings[i];
    }
    free(memory);
    return status;
}

/* As many streams as prompts, up to the limit. */
static int batch_for(const generation_request *r, const sr_bytes *lines) {
    int count = 0;
    for (size_t at = 0; at < lines->count && count < r->batch; count++) {
        const char *end = memchr(lines->data + at, '\n', lines->count - at);
        at = end ? (size_t)(end - lines->data) + 1 : lines->count;
    }
    return count > 0 ? count : 1;
}

static void print_stats(const generator *g) {
    const double seconds = g->phases[PHASE_TOKENS];
    fprintf(stderr, "softrnn: %lld tokens, %.1f tokens/s, state %.1f KB, %s\n",
            (long long)g->produced, seconds > 0 ? (double)g->produced / seconds : 0.0,
            (double)sr_session_state_bytes(g->session) / 1024,
            sr_session_is_recurrent(g->session) ? "of fixed size" : "growing with the text");
    fprintf(stderr, "softrnn: texts ended: %lld by --tokens, %lld by the model, %lld by --stop\n",
            (long long)g->endings[ENDING_TOKENS], (long long)g->endings[ENDING_TOKEN],
            (long long)g->endings[ENDING_STOP]);
}

static void print_phases(const generator *g) {
    static const char *const names[PHASES] = {"device",  "weights", "tokenizer", "memory",
                                              "prompts", "tokens",  "end"};
    fputs("softrnn: seconds:", stderr);
    for (int p = 0; p < PHASES; p++)
        fprintf(stderr, " %s %.3f%s", names[p], g->phases[p], p + 1 < PHASES ? "," : "\n");
}

/* Warns of texts that were cut short by the model's positions. */
static void print_positions(const generator *g) {
    if (g->endings[ENDING_POSITIONS])
        fprintf(stderr,
                "softrnn: %lld %s ended before --tokens %d: the model has only %d positions\n",
                (long long)g->endings[ENDING_POSITIONS],
                g->endings[ENDING_POSITIONS] == 1 ? "text" : "texts", g->request->tokens,
                g->model->config.positions);
}

static srnn_status generate_all(generator *g, const generation_request *r, const sr_bytes *lines) {
    SR_TRY(generator_open(g, r, batch_for(r, lines)));
    if (r->context_ranks > 1)
        SR_TRY(sr_relay_open(&g->relay, g->ranks));
    if (!r->prompts)
        SR_TRY(generate_one(g, r->prompt ? r->prompt : ""));
    else
        SR_TRY(g->ranks->count > 1 && !g->relay ? generate_shared(g, lines)
                                                : generate_lines(g, lines));
    fflush(stdout);
    SR_TRY(add_ranks(g));
    if (g->ranks->rank == 0)
        print_positions(g);
    if (r->stats && g->ranks->rank == 0)
        print_stats(g);
    return SRNN_OK;
}

static srnn_status generate(const generation_request *r, sr_ranks *ranks) {
    generator g = {.ranks = ranks, .out = stdout, .lap = sr_clock_seconds()};
    sr_bytes lines = {0};
    srnn_status status = r->prompts ? whole_file_read(&lines, r->prompts) : SRNN_OK;
    if (status == SRNN_OK)
        status = generate_all(&g, r, &lines);
    generator_close(&g);
    end_phase(&g, PHASE_END);
    if (status == SRNN_OK && r->stats && ranks->rank == 0)
        print_phases(&g);
    sr_bytes_free(&lines);
    return status;
}

static srnn_status check_ranks(const generation_request *r, const sr_ranks *ranks) {
    return r->context_ranks == 1 || r->context_ranks == ranks->count
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_ARGUMENT,
                         "--context-ranks %d, but there are %d ranks: generate feeds a prompt on "
                         "all of them (mpirun -n %d)",
                         r->context_ranks, ranks->count, r->context_ranks);
}

/* Ranks share the prompts of a file, or feed each prompt in turn; without either, a single prompt
 * is generated by the first rank alone. */
static int generate_together(const generation_request *r) {
    sr_ranks ranks;
    int exit_code = command_report(sr_ranks_open(&ranks));
    if (exit_code != EXIT_OK)
        return exit_code;
    const bool together = r->prompts || r->context_ranks > 1;
    sr_ranks *those = together ? &ranks : sr_ranks_alone();
    const srnn_status status = check_ranks(r, &ranks);
    if (status != SRNN_OK)
        exit_code = command_report_rank(status, &ranks);
    else if (together || ranks.rank == 0)
        exit_code = command_report_rank(generate(r, those), &ranks);
    sr_ranks_close(&ranks);
    return exit_code;
}

/* Splits `text` at every | that has no backslash before it, in place. False if there are more stops
 * than a stream takes. */
static bool split_stops(const char *stops[STREAM_STOPS], char *text) {
    int count = 0;
    for (char *from = text, *to = text; text; from++) {
        if (from[0] == '\\' && from[1] == '|') {
            *to++ = *++from;
            continue;
        }
        const char c = *from;
        *to++ = c == '|' ? '\0' : c;
        if (c && c != '|')
            continue;
        if (count == STREAM_STOPS)
            return false;
        stops[count++] = text;
        text = c ? to : NULL;
    }
    return true;
}

int command_generate(int argc, char **argv) {
    bool chat = false;
    static const char *const forms[] = {"auto", "cache", "state", NULL};
    const char *stop = NULL;
    const bool only_k =
        options_given(argc, argv, "--top-k") && !options_given(argc, argv, "--top-p");
    generation_request r = {.tokens = 200,
                            .batch = 8,
                            .temperature = 1,
                            .top_p = 0.9,
                            .seed = 1,
                            .state_megabytes = 1024,
                            .prefill_chunk = 128,
                            .context_ranks = 1,
                            .rank_patience = 600};
    const command_option options[] = {
        OPTION_TEXT("--model", &r.model, "DIR", "a model's folder, a run, or a llama2.c .bin"),
        OPTION_TEXT("--attention", &r.attention, "TEXT",
                    "another attention, as train takes it, that needs no other tensors: order:4"),
        OPTION_TEXT("--tokenizer", &r.tokenizer, "NAME", "if it is not in the model's folder"),
        OPTION_TEXT("--prompt", &r.prompt, "TEXT", "what to continue"),
        OPTION_TEXT("--prompts", &r.prompts, "FILE", "one prompt per line, each continued"),
        OPTION_FLAG("--no-begin", &r.no_begin,
                    "omit the beginning-of-text token before each prompt"),
        OPTION_INTEGER("--batch", &r.batch, 1, 1 << 16, "N",
                       "largest number of prompts decoded together"),
        OPTION_INTEGER("--tokens", &r.tokens, 1, 1 << 24, "N", "largest number of new tokens"),
        OPTION_FLAG("--chat", &chat,
                    "the prompt is a message of a chat: only in the Python package, which applies "
                    "the model's template"),
        OPTION_FLAG("--greedy", &r.greedy, "always the most probable token"),
        OPTION_NUMBER("--temperature", &r.temperature, 0, 100, "X", "0: as --greedy"),
        OPTION_INTEGER("--top-k", &r.top_k, 0, 1 << 24, "K", "only the K most probable; 0: all"),
        OPTION_NUMBER("--top-p", &r.top_p, 0, 1, "P",
                      "only the most probable that make up P together; 1: all, also if only "
                      "--top-k is given"),
        OPTION_INTEGER64("--seed", &r.seed, 0, INT64_MAX, "N", "of the choice"),
        OPTION_TEXT("--stop", &stop, "TEXT",
                    "end before this text; several separated by |, which is \\| inside one"),
        OPTION_CHOICE("--form", &r.form, forms, "FORM",
                      "auto; cache: keys and values; state: the fixed-size state"),
        OPTION_INTEGER("--prefill-chunk", &r.prefill_chunk, 1, 1 << 20, "N",
                       "tokens of a prompt that are fed at once; memory grows with it"),
        OPTION_INTEGER("--context-ranks", &r.context_ranks, 1, 1 << 20, "N",
                       "all N ranks feed each prompt, piece by piece in turn; the first continues "
                       "it"),
        OPTION_NUMBER("--rank-patience", &r.rank_patience, 0, 1e9, "SECONDS",
                      "that they wait for each other's pieces before they give up; 0: for ever"),
        OPTION_INTEGER64("--state-limit", &r.state_megabytes, 1, 1 << 24, "MB",
                         "most memory for a fixed-size state"),
        OPTIONS_NUMBERS(&r.numbers),
        OPTION_FLAG("--stats", &r.stats,
                    "speed, size of the state and what the time went to, on stderr"),
    };
    const command_line line = {
        .usage = "softrnn generate --model DIR [options]",
        .purpose =
            "Continues a text, token by token, with the variant's own state. The tokenizer's "
            "beginning-of-text\ntoken, or the model's, is put before every prompt, if there is "
            "one.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .examples = "  softrnn generate --model stories --greedy --tokens 200\n"
                    "  softrnn generate --model runs/norm --prompt \"Once upon\" --top-k 40 "
                    "--stop \"The end|THE END\"\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (!r.model)
        return command_refuse("generate needs --model DIR");
    if (chat)
        return command_refuse("--chat: a chat template is a program in Jinja, which softrnn does "
                              "not run; in Python, softrnn.lab.Model(\"%s\").chat(\"..\") applies "
                              "it",
                              r.model);
    if (r.prompt && r.prompts)
        return command_refuse("give either --prompt or --prompts");
    if (only_k)
        r.top_p = 1;
    char *stops = stop ? strdup(stop) : NULL;
    if (!split_stops(r.stops, stops)) {
        free(stops);
        return command_refuse("--stop takes at most %d texts", STREAM_STOPS);
    }
    progress_catch_interrupt();
    exit_code = generate_together(&r);
    if (exit_code == EXIT_OK && progress_interrupted())
        exit_code = EXIT_SIGNAL + progress_interrupted();
    free(stops);
    return exit_code;
}
