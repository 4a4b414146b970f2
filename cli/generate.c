/* generate.c: `softrnn generate`. */
#include "base/memory.h"
#include "commands.h"
#include "data/input.h"
#include "model/sampler.h"
#include "model/session.h"
#include "model_open.h"
#include "options.h"
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECE = 128, STOPS_MAX = 16 };

typedef struct generation_request {
    const char *model, *tokenizer, *prompt, *prompts;
    const char *stops[STOPS_MAX];
    int tokens, threads, form;
    int64_t seed, state_megabytes;
    double temperature, top_p;
    int top_k;
    bool greedy, stats;
} generation_request;

typedef struct generator {
    const generation_request *request;
    sr_backend *backend;
    sr_model *model;
    sr_tokenizer *tokenizer;
    sr_encoder *encoder;
    sr_decoder *decoder;
    sr_session *session;
    sr_sampler *sampler;
    float *logits; /* (V) */
    sr_tokens prompt;
    sr_bytes text;    /* all of it so far */
    size_t shown;     /* bytes of it that were printed */
    int64_t produced; /* tokens, over all prompts */
    double seconds;   /* that producing them took */
} generator;

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static srnn_status generator_open(generator *g, const generation_request *r) {
    static const srnn_form forms[] = {SRNN_FORM_AUTO, SRNN_FORM_PARALLEL, SRNN_FORM_RECURRENT};
    void *memory;
    g->request = r;
    SR_TRY(sr_backend_cpu_create(&g->backend, r->threads));
    SR_TRY(model_open(&g->model, g->backend, r->model));
    SR_TRY(model_open_tokenizer(&g->tokenizer, r->tokenizer, r->model, g->model->config.V));
    SR_TRY(sr_encoder_create(&g->encoder, g->tokenizer));
    SR_TRY(sr_decoder_create(&g->decoder, g->tokenizer));
    const int positions = g->model->config.positions;
    const sr_session_setup session = {.B = 1,
                                      .T = positions < PIECE ? positions : PIECE,
                                      .form = forms[r->form],
                                      .state_limit = (size_t)r->state_megabytes << 20};
    SR_TRY(sr_session_create(&g->session, g->model, &session));
    const sr_sampler_settings sampler = {.temperature = r->greedy ? 0 : r->temperature,
                                         .top_k = r->top_k,
                                         .top_p = r->top_p,
                                         .seed = (uint64_t)r->seed};
    SR_TRY(sr_sampler_create(&g->sampler, &sampler, g->model->config.V));
    SR_TRY(sr_alloc(&memory, (size_t)g->model->config.V, sizeof *g->logits));
    g->logits = memory;
    return SRNN_OK;
}

static void generator_close(generator *g) {
    free(g->logits);
    sr_tokens_free(&g->prompt);
    sr_bytes_free(&g->text);
    sr_sampler_free(g->sampler);
    sr_session_free(g->session);
    sr_decoder_free(g->decoder);
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
    return token == begin_token(g) || token == g->model->config.eos ||
           token == sr_tokenizer_eos(g->tokenizer);
}

/* Prints what is new of the text; up to `end` only, if a stop was found there. */
static void show(generator *g, size_t end) {
    if (end > g->shown)
        fwrite(g->text.data + g->shown, 1, end - g->shown, stdout);
    g->shown = end > g->shown ? end : g->shown;
    fflush(stdout);
}

/* Where the first stop text begins at or after `from`, or SIZE_MAX. */
static size_t find_stop(const generator *g, size_t from) {
    size_t first = SIZE_MAX;
    for (int i = 0; i < STOPS_MAX && g->request->stops[i]; i++) {
        const char *stop = g->request->stops[i];
        const char *at = g->text.count > from
                             ? memmem(g->text.data + from, g->text.count - from, stop, strlen(stop))
                             : NULL;
        if (*stop && at && (size_t)(at - g->text.data) < first)
            first = (size_t)(at - g->text.data);
    }
    return first;
}

/* How much of the text may be printed: an ending that could grow into a stop is held back. */
static size_t safe_end(const generator *g) {
    size_t held = 0;
    for (int i = 0; i < STOPS_MAX && g->request->stops[i]; i++) {
        const size_t length = strlen(g->request->stops[i]);
        for (size_t n = length > 0 ? length - 1 : 0; n > held; n--)
            if (n <= g->text.count &&
                memcmp(g->text.data + g->text.count - n, g->request->stops[i], n) == 0)
                held = n;
    }
    return g->text.count - held;
}

/* Feeds the prompt by pieces; the logits are those after its last token. */
static srnn_status feed_prompt(generator *g) {
    const int piece = g->model->config.positions < PIECE ? g->model->config.positions : PIECE;
    for (size_t at = 0; at < g->prompt.count;) {
        int32_t ids[PIECE];
        int count = 0;
        for (; count < piece && at < g->prompt.count; at++)
            ids[count++] = (int32_t)g->prompt.ids[at];
        SR_TRY(sr_session_feed(g->session, g->logits, ids, count));
    }
    return SRNN_OK;
}

static srnn_status read_prompt(generator *g, const char *prompt, size_t bytes) {
    const int32_t bos = begin_token(g);
    g->prompt.count = g->text.count = g->shown = 0;
    const int front = sr_model_config_front_tokens(&g->model->config);
    for (int i = 0; i < front; i++)
        SR_TRY(sr_tokens_push(&g->prompt, 0));
    if (bos >= 0)
        SR_TRY(sr_tokens_push(&g->prompt, (uint32_t)bos));
    const size_t first = g->prompt.count;
    SR_TRY(sr_encoder_encode(g->encoder, &g->prompt, prompt, bytes));
    for (size_t i = first; i < g->prompt.count; i++)
        SR_TRY(sr_decoder_push(g->decoder, &g->text, g->prompt.ids[i]));
    if (g->prompt.count == (size_t)front)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "the model has no beginning-of-text token: give a prompt");
    if (g->prompt.count >= (size_t)g->model->config.positions)
        return SR_FAIL(SRNN_ERR_LIMIT, "the prompt has %zu tokens, the model %d positions",
                       g->prompt.count, g->model->config.positions);
    return SRNN_OK;
}

static srnn_status continue_prompt(generator *g, uint64_t number) {
    const size_t prompt_text = g->text.count;
    const int64_t room = g->model->config.positions - (int64_t)g->prompt.count;
    show(g, safe_end(g));
    for (int i = 0; i < g->request->tokens && !progress_interrupted(); i++) {
        const int32_t token = sr_sampler_choose(g->sampler, g->logits, number, (uint64_t)i);
        if (is_end(g, token))
            break;
        SR_TRY(sr_decoder_push(g->decoder, &g->text, (uint32_t)token));
        g->produced++;
        const size_t stop = find_stop(g, prompt_text);
        if (stop != SIZE_MAX) {
            show(g, stop);
            g->text.count = stop;
            break;
        }
        show(g, safe_end(g));
        if (i + 1 == g->request->tokens || i >= room)
            break;
        SR_TRY(sr_session_feed(g->session, g->logits, &token, 1));
    }
    SR_TRY(sr_decoder_finish(g->decoder, &g->text));
    show(g, g->text.count);
    return SRNN_OK;
}

static srnn_status generate_one(generator *g, const char *prompt, size_t bytes, uint64_t number) {
    sr_session_reset(g->session);
    SR_TRY(read_prompt(g, prompt, bytes));
    SR_TRY(feed_prompt(g));
    const double begin = seconds_now();
    SR_TRY(continue_prompt(g, number));
    g->seconds += seconds_now() - begin;
    printf("\n");
    return SRNN_OK;
}

static srnn_status read_whole(sr_bytes *text, const char *path) {
    sr_input *input;
    size_t got = 0;
    SR_TRY(sr_input_open(&input, path));
    srnn_status status;
    do {
        status = sr_bytes_reserve(text, 65536);
        if (status == SRNN_OK)
            status = sr_input_read(input, text->data + text->count, 65536, &got);
        if (status == SRNN_OK)
            text->count += got;
    } while (status == SRNN_OK && got > 0);
    sr_input_free(input);
    return status;
}

/* One prompt a line. */
static srnn_status generate_lines(generator *g, const char *path) {
    sr_bytes lines = {0};
    srnn_status status = read_whole(&lines, path);
    uint64_t number = 0;
    for (size_t at = 0; at < lines.count && status == SRNN_OK && !progress_interrupted();) {
        const char *end = memchr(lines.data + at, '\n', lines.count - at);
        const size_t length = end ? (size_t)(end - lines.data) - at : lines.count - at;
        status = generate_one(g, lines.data + at, length, number++);
        at += length + 1;
    }
    sr_bytes_free(&lines);
    return status;
}

static srnn_status generate(const generation_request *r) {
    generator g = {0};
    srnn_status status = generator_open(&g, r);
    if (status == SRNN_OK)
        status = r->prompts ? generate_lines(&g, r->prompts)
                            : generate_one(&g, r->prompt, strlen(r->prompt), 0);
    if (status == SRNN_OK && r->stats)
        fprintf(stderr, "softrnn: %lld tokens, %.1f tokens/s, state %.1f KB, %s\n",
                (long long)g.produced, g.seconds > 0 ? (double)g.produced / g.seconds : 0.0,
                (double)sr_session_state_bytes(g.session) / 1024,
                sr_session_is_fixed(g.session) ? "of fixed size" : "growing with the text");
    generator_close(&g);
    return status;
}

int command_generate(int argc, char **argv) {
    static const char *const forms[] = {"auto", "cache", "state", NULL};
    const char *stop = NULL;
    generation_request r = {.prompt = "",
                            .tokens = 200,
                            .temperature = 1,
                            .top_p = 0.9,
                            .seed = 1,
                            .state_megabytes = 1024};
    const command_option options[] = {
        OPTION_TEXT("--model", &r.model, "DIR", "a model's folder, a run, or a llama2.c .bin"),
        OPTION_TEXT("--tokenizer", &r.tokenizer, "NAME", "if it is not in the model's folder"),
        OPTION_TEXT("--prompt", &r.prompt, "TEXT", "what to continue"),
        OPTION_TEXT("--prompts", &r.prompts, "FILE", "one prompt a line, each continued"),
        OPTION_INTEGER("--tokens", &r.tokens, 1, 1 << 24, "N", "at most so many new tokens"),
        OPTION_FLAG("--greedy", &r.greedy, "always the most probable token"),
        OPTION_NUMBER("--temperature", &r.temperature, 0, 100, "X", "0: as --greedy"),
        OPTION_INTEGER("--top-k", &r.top_k, 0, 1 << 24, "K", "only the K most probable; 0: all"),
        OPTION_NUMBER("--top-p", &r.top_p, 0, 1, "P",
                      "only the most probable that make up P together; 1: all"),
        OPTION_INTEGER64("--seed", &r.seed, 0, INT64_MAX, "N", "of the choice"),
        OPTION_TEXT("--stop", &stop, "TEXT", "end before this text; several separated by |"),
        OPTION_CHOICE("--form", &r.form, forms, "FORM",
                      "auto; cache: keys and values; state: the fixed-size state"),
        OPTION_INTEGER64("--state-limit", &r.state_megabytes, 1, 1 << 24, "MB",
                         "most memory for a fixed-size state"),
        OPTION_INTEGER("--threads", &r.threads, 0, 4096, "N", "0: all cores"),
        OPTION_FLAG("--stats", &r.stats, "speed and size of the state, on stderr"),
    };
    const command_line line = {
        .usage = "softrnn generate --model DIR [options]",
        .purpose = "Continues a text, token by token, with the variant's own state.",
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
    char *stops = stop ? strdup(stop) : NULL, *rest = stops;
    for (int i = 0; rest && i < STOPS_MAX; i++)
        r.stops[i] = strsep(&rest, "|");
    progress_catch_interrupt();
    exit_code = command_report(generate(&r));
    free(stops);
    return exit_code;
}
