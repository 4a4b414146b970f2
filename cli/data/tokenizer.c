/* tokenizer.c: `softrnn tokenizer`: encode, decode and describe with a tokenizer. */
#include "data/tokenizer/tokenizer.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/data/tokenizer_train.h"
#include "cli/line/options.h"
#include "files/json.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTION_TOKENIZER(pointer)               \
    OPTION_TEXT("--tokenizer", pointer, "FILE", \
                "a .json, .json.gz, .model or .bin file, a folder with one, or bytes")

static srnn_status read_stdin(sr_bytes *text) {
    size_t got = 1;
    while (got > 0) {
        SR_TRY(sr_bytes_reserve(text, 1 << 16));
        got = fread(text->data + text->count, 1, text->capacity - text->count, stdin);
        text->count += got;
    }
    if (ferror(stdin))
        return SR_FAIL(SRNN_ERR_IO, "could not read the standard input: %s", strerror(errno));
    return SRNN_OK;
}

/* ---- encode ---- */

static srnn_status encode(sr_tokens *tokens, const sr_tokenizer *tokenizer, const sr_bytes *text,
                          bool bos) {
    sr_encoder *encoder;
    if (bos && sr_tokenizer_bos(tokenizer) < 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "--bos: this tokenizer has no BOS token, or puts several in front");
    if (bos)
        SR_TRY(sr_tokens_push(tokens, (uint32_t)sr_tokenizer_bos(tokenizer)));
    SR_TRY(sr_encoder_create(&encoder, tokenizer));
    srnn_status status = sr_encoder_encode(encoder, tokens, text->data, text->count);
    sr_encoder_free(encoder);
    return status;
}

static srnn_status encode_text(sr_tokens *tokens, const char *name, const char *given, bool bos) {
    sr_tokenizer *tokenizer;
    SR_TRY(sr_tokenizer_load(&tokenizer, name));
    sr_bytes text = {0};
    srnn_status status = given ? sr_bytes_append(&text, given, strlen(given)) : read_stdin(&text);
    if (status == SRNN_OK)
        status = encode(tokens, tokenizer, &text, bos);
    sr_bytes_free(&text);
    sr_tokenizer_free(tokenizer);
    return status;
}

static int run_encode(int argc, char **argv) {
    const char *name = NULL, *text = NULL;
    bool bos = false;
    const command_option options[] = {
        OPTION_TOKENIZER(&name),
        OPTION_TEXT("--text", &text, "TEXT", "encode this instead of the standard input"),
        OPTION_FLAG("--bos", &bos, "put the token that starts a document in front"),
    };
    const command_line line = {
        .usage = "softrnn tokenizer encode --tokenizer FILE [--bos] [--text TEXT]",
        .purpose = "Prints the token ids of a text. Special tokens written in the text become\n"
                   "their ids where the tokenizer's file says so.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .examples = "  softrnn tokenizer encode --tokenizer tokenizer.json < story.txt\n"
                    "  softrnn tokenizer encode --tokenizer bytes --text Hello\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (!name)
        return command_refuse("encode needs --tokenizer FILE");
    sr_tokens tokens = {0};
    srnn_status status = encode_text(&tokens, name, text, bos);
    for (size_t i = 0; status == SRNN_OK && i < tokens.count; i++)
        printf(i ? " %" PRIu32 : "%" PRIu32, tokens.ids[i]);
    if (status == SRNN_OK)
        printf("\n");
    sr_tokens_free(&tokens);
    return command_report(status);
}

/* ---- decode ---- */

/* Appends the numbers in a text, separated by white space or commas. */
static srnn_status parse_ids(sr_tokens *tokens, const char *text) {
    while (*text) {
        if (isspace((unsigned char)*text) || *text == ',') {
            text++;
            continue;
        }
        char *end;
        errno = 0;
        unsigned long long id = strtoull(text, &end, 10);
        if (!isdigit((unsigned char)*text) || errno || id > UINT32_MAX)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "\"%.20s\" is not a token id", text);
        SR_TRY(sr_tokens_push(tokens, (uint32_t)id));
        text = end;
    }
    return SRNN_OK;
}

static srnn_status collect_ids(sr_tokens *tokens, const command_arguments *arguments) {
    for (int i = 0; i < arguments->count; i++)
        SR_TRY(parse_ids(tokens, arguments->values[i]));
    if (arguments->count > 0)
        return SRNN_OK;
    sr_bytes text = {0};
    srnn_status status = read_stdin(&text);
    if (status == SRNN_OK)
        status = sr_bytes_append(&text, "", 1);
    if (status == SRNN_OK && strlen(text.data) + 1 != text.count)
        status = SR_FAIL(SRNN_ERR_FORMAT, "the standard input is not a list of token ids");
    if (status == SRNN_OK)
        status = parse_ids(tokens, text.data);
    sr_bytes_free(&text);
    return status;
}

static srnn_status decode_ids(sr_bytes *text, const char *name,
                              const command_arguments *arguments) {
    sr_tokenizer *tokenizer;
    SR_TRY(sr_tokenizer_load(&tokenizer, name));
    sr_tokens tokens = {0};
    srnn_status status = collect_ids(&tokens, arguments);
    if (status == SRNN_OK)
        status = sr_tokenizer_decode(tokenizer, text, tokens.ids, tokens.count);
    sr_tokens_free(&tokens);
    sr_tokenizer_free(tokenizer);
    return status;
}

static int run_decode(int argc, char **argv) {
    const char *name = NULL;
    command_arguments ids = {0};
    const command_option options[] = {OPTION_TOKENIZER(&name)};
    const command_line line = {
        .usage = "softrnn tokenizer decode --tokenizer FILE [ID ...]",
        .purpose = "Prints the text of token ids, given as arguments or on the standard input:\n"
                   "exactly its bytes, with no line end added.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .rest = &ids,
        .examples = "  softrnn tokenizer decode --tokenizer bytes 72 105 10\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (!name)
        return command_refuse("decode needs --tokenizer FILE");
    sr_bytes text = {0};
    srnn_status status = decode_ids(&text, name, &ids);
    if (status == SRNN_OK && text.count)
        fwrite(text.data, 1, text.count, stdout);
    sr_bytes_free(&text);
    return command_report(status);
}

/* ---- info ---- */

/* {"id": "text", ...} of the special tokens. */
static json_t *special_tokens(const sr_tokenizer *tokenizer) {
    json_t *list = json_object();
    for (uint32_t id = 0; id < sr_tokenizer_vocab_size(tokenizer); id++) {
        size_t bytes;
        const char *text = sr_tokenizer_token(tokenizer, id, &bytes);
        char key[16];
        snprintf(key, sizeof key, "%" PRIu32, id);
        if (text && sr_tokenizer_is_special(tokenizer, id) && sr_text_is_utf8(text, bytes))
            sr_json_set(list, key, json_stringn(text, bytes));
    }
    return list;
}

static srnn_status print_json(const sr_tokenizer *tokenizer, json_t *special, const char *hash) {
    json_t *record =
        json_pack("{s:s, s:I, s:I, s:I, s:s, s:O}", "kind", sr_tokenizer_kind(tokenizer),
                  "vocab_size", (json_int_t)sr_tokenizer_vocab_size(tokenizer), "bos",
                  (json_int_t)sr_tokenizer_bos(tokenizer), "eos",
                  (json_int_t)sr_tokenizer_eos(tokenizer), "hash", hash, "special_tokens", special);
    const srnn_status status = sr_json_print(stdout, record, JSON_COMPACT);
    json_decref(record);
    return status;
}

static void print_end(const char *label, int64_t id) {
    if (id < 0)
        printf("%s none\n", label);
    else
        printf("%s %" PRId64 "\n", label, id);
}

static srnn_status print_plain(const sr_tokenizer *tokenizer, const json_t *special,
                               const char *hash) {
    printf("kind        %s\n", sr_tokenizer_kind(tokenizer));
    printf("vocab size  %" PRIu32 "\n", sr_tokenizer_vocab_size(tokenizer));
    print_end("BOS        ", sr_tokenizer_bos(tokenizer));
    print_end("EOS        ", sr_tokenizer_eos(tokenizer));
    printf("hash        %s\n", hash);
    const char *id;
    json_t *text;
    json_object_foreach((json_t *)special, id, text) {
        char *quoted;
        SR_TRY(sr_json_dump(&quoted, text, JSON_ENCODE_ANY, "the output"));
        printf("special     %s %s\n", id, quoted);
        free(quoted);
    }
    return SRNN_OK;
}

static int run_info(int argc, char **argv) {
    const char *name = NULL;
    bool json = false;
    const command_option options[] = {
        OPTION_TOKENIZER(&name),
        OPTION_FLAG("--json", &json, "one JSON object"),
    };
    const command_line line = {
        .usage = "softrnn tokenizer info --tokenizer FILE [--json]",
        .purpose = "Prints the kind and the properties of a tokenizer.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .examples = "  softrnn tokenizer info --tokenizer tokenizer.model\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (!name)
        return command_refuse("info needs --tokenizer FILE");
    sr_tokenizer *tokenizer;
    srnn_status status = sr_tokenizer_load(&tokenizer, name);
    if (status != SRNN_OK)
        return command_report(status);
    char hash[20];
    snprintf(hash, sizeof hash, "%016" PRIx64, sr_tokenizer_hash(tokenizer));
    json_t *special = special_tokens(tokenizer);
    status = sr_json_complete(special, "the list of special tokens");
    if (status == SRNN_OK)
        status =
            json ? print_json(tokenizer, special, hash) : print_plain(tokenizer, special, hash);
    json_decref(special);
    sr_tokenizer_free(tokenizer);
    return command_report(status);
}

int command_tokenizer(int argc, char **argv) {
    static const command commands[] = {
        {"train", "learn a byte-level BPE from text", command_tokenizer_train},
        {"encode", "text to token ids", run_encode},
        {"decode", "token ids to text", run_decode},
        {"info", "what a tokenizer file holds", run_info},
    };
    static const command_table table = {
        .program = "softrnn tokenizer",
        .purpose = "Trains and uses tokenizers.",
        .commands = commands,
        .count = sizeof commands / sizeof *commands,
        .examples = "  softrnn tokenizer train corpus.txt --vocab 4096 --out tokenizer.json\n"
                    "  softrnn tokenizer encode --tokenizer tokenizer.json --text 'Hello'\n",
    };
    return command_dispatch(&table, argc, argv);
}
