/* test_prepare.c: text files give the right documents with any number of threads, or a clear
 * message. */
#include "data/rows/source_open.h"
#include "data/shards/dataset.h"
#include "data/shards/manifest.h"
#include "data/shards/prepare.h"
#include "data/text/documents.h"
#include "data/tokenizer/tokenizer.h"
#include "files/file.h"
#include "files/folder.h"
#include "test.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/softrnn-prepare-XXXXXX";
static char out[128], other_out[128];
static sr_bytes content;

static void name(char *path, size_t size, const char *file) {
    snprintf(path, size, "%s/%s", folder, file);
}

static int enter_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    name(out, sizeof out, "out");
    name(other_out, sizeof other_out, "other");
    return 0;
}

static void empty(const char *where) {
    DIR *entries = opendir(where);
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(entries), entry->d_name, 0);
    if (entries)
        closedir(entries);
}

static int clean(void **state) {
    (void)state;
    empty(out);
    empty(other_out);
    rmdir(out);
    rmdir(other_out);
    empty(folder);
    return 0;
}

static int leave_folder(void **state) {
    clean(state);
    sr_bytes_free(&content);
    return rmdir(folder);
}

static int files_in(const char *where) {
    int count = 0;
    DIR *entries = opendir(where);
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        count += entry->d_name[0] != '.' && strcmp(entry->d_name, "lock") != 0;
    if (entries)
        closedir(entries);
    return count;
}

static const char *make_file(char *path, const char *file, const char *text, size_t bytes) {
    name(path, 128, file);
    assert_int_equal(sr_file_replace(path, text, bytes), SRNN_OK);
    return path;
}

/* Prepares one file; `settings` has the other options. */
static srnn_status prepare(sr_prepare_settings settings, const char *file, const char *text,
                           size_t bytes) {
    char path[128];
    const char *inputs[] = {make_file(path, file, text, bytes)};
    settings.tokenizer = "bytes";
    settings.folder = settings.folder ? settings.folder : out;
    settings.inputs = inputs;
    settings.input_count = 1;
    return sr_prepare(&settings, NULL);
}

static void assert_documents(const char *const *documents, int64_t count, bool end) {
    sr_dataset dataset;
    assert_int_equal(sr_dataset_open(&dataset, out, SR_SPLIT_TRAIN), SRNN_OK);
    assert_int_equal(dataset.document_count, count);
    for (int64_t n = 0; n < count; n++) {
        int64_t begin, tokens, bytes = (int64_t)strlen(documents[n]);
        assert_int_equal(sr_dataset_document(&dataset, n, &begin, &tokens), SRNN_OK);
        assert_int_equal(tokens, bytes + end);
        int32_t *ids = malloc((size_t)tokens * sizeof *ids);
        assert_int_equal(sr_dataset_read(&dataset, ids, begin, tokens), SRNN_OK);
        for (int64_t t = 0; t < bytes; t++)
            assert_int_equal(ids[t], (unsigned char)documents[n][t]);
        if (end)
            assert_int_equal(ids[bytes], 256);
        free(ids);
    }
    sr_dataset_free(&dataset);
}

static void files_are_cut_into_documents(void **state) {
    (void)state;
    const struct {
        const char *file, *text, *documents[4];
    } cases[] = {
        {"a.txt", "one", {"one"}},
        {"a.txt", "one\ntwo\n", {"one\ntwo\n"}},
        {"a.txt", "one\n<|endoftext|>\ntwo\n", {"one", "two\n"}},
        {"a.txt", "one\r\n<|endoftext|>\r\ntwo", {"one\r", "two"}},
        {"a.txt", "<|endoftext|>\n\n<|endoftext|>\none\n\n<|endoftext|>", {"one\n"}},
        {"a.txt", "x <|endoftext|>\n<|endoftext|> y", {"x <|endoftext|>\n<|endoftext|> y"}},
        {"a.jsonl",
         "{\"text\":\"a\\n\\u00e9\"}\n\n \r\n{\"n\":1,\"text\":\"b\"}",
         {"a\n\xc3\xa9", "b"}},
        {"a.ndjson", "{\"text\":\"\"}\n{\"text\":\"b\"}\r\n", {"b"}},
        {"jsonl", "{\"text\":1}", {"{\"text\":1}"}},
        /* Numbers that exceed every machine type are ignored too. */
        {"a.jsonl",
         "{\"id\":18446744073709551615,\"text\":\"a 1e400\"}\n{\"x\":[1e400,-1E+400,NaN,-Infinity],"
         "\"text\":\"b\"}\n",
         {"a 1e400", "b"}},
        /* A byte order mark is not text. */
        {"a.jsonl", "\xef\xbb\xbf{\"text\":\"a\"}\n", {"a"}},
        {"a.txt",
         "\xef\xbb\xbf"
         "a\n\xef\xbb\xbf",
         {"a\n\xef\xbb\xbf"}},
        {"a.txt", "\xef\xbb\xbf<|endoftext|>\na", {"a"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t count = 0;
        while (cases[i].documents[count])
            count++;
        for (int end = 0; end < 2; end++) {
            sr_prepare_settings settings = {.without_end = !end, .overwrite = true};
            assert_int_equal(prepare(settings, cases[i].file, cases[i].text, strlen(cases[i].text)),
                             SRNN_OK);
            assert_documents(cases[i].documents, count, end);
        }
    }
}

static void the_field_can_be_named(void **state) {
    (void)state;
    const char line[] = "{\"text\":\"no\",\"body\":\"yes\"}\n";
    sr_prepare_settings settings = {.field = "body"};
    assert_int_equal(prepare(settings, "a.jsonl", line, sizeof line - 1), SRNN_OK);
    assert_documents((const char *const[]){"yes"}, 1, true);
}

static void wrong_input_is_explained(void **state) {
    (void)state;
    const struct {
        const char *file, *text, *message;
        size_t bytes; /* 0: as long as the text */
    } cases[] = {
        {"a.txt", "", "no document", 0},
        {"a.txt", "\n<|endoftext|>\n", "no document", 0},
        {"a.txt", "one\n<|endoftext|>\nab\nx\xffy", "a.txt:4: byte 22 (0xff)", 0},
        {"a.txt", "\xed\xa0\x80", "a.txt:1: byte 0", 0},
        {"a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"\n", "a.jsonl:2: ", 0},
        {"a.jsonl", "{\"text\":\"a\"}\n\n{\"txt\":\"b\"}\n", "a.jsonl:3: the line has no text", 0},
        {"a.jsonl", "{\"text\":7}\n", "a.jsonl:1: the line has no text member \"text\"", 0},
        {"a.jsonl", "[1]\n", "a.jsonl:1: the line has no", 0},
        {"a.jsonl", "{\"text\":\"\xff\"}\n", "a.jsonl:1: byte 9 (0xff)", 0},
        {"a.txt", "a\n<|endoftext|>\n01234567890123456789\n1", "a.txt:3: the document that starts",
         0},
        {"a.bin", "tokens", "holds tokens", 0},
        {"a.gz", "\x1f\x8b\x08", "a.gz: the gzip data is broken", 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_prepare_settings settings = {.document_bytes = 21, .threads = 1 + (int)i % 3};
        size_t bytes = cases[i].bytes ? cases[i].bytes : strlen(cases[i].text);
        assert_int_not_equal(prepare(settings, cases[i].file, cases[i].text, bytes), SRNN_OK);
        if (!strstr(srnn_error_detail(), cases[i].message))
            fail_msg("case %zu: %s", i, srnn_error_detail());
        assert_int_equal(files_in(out), 0);
    }
}

static void invalid_bytes_can_be_replaced(void **state) {
    (void)state;
    sr_prepare_settings settings = {.replace_invalid = true};
    const char line[] = "{\"text\":\"\\ud83d \\uDE00\\ud83d\\uDE00\\\\ud83d\"}";
    assert_int_equal(prepare((sr_prepare_settings){0}, "a.jsonl", line, sizeof line - 1),
                     SRNN_ERR_FORMAT);
    assert_int_equal(prepare(settings, "a.jsonl", line, sizeof line - 1), SRNN_OK);
    assert_documents((const char *const[]){"\xef\xbf\xbd \xef\xbf\xbd\U0001F600\\ud83d"}, 1, true);
    settings.overwrite = true;
    assert_int_equal(prepare(settings, "a.txt", "a\xff\xc3(\xe2\x82", 6), SRNN_OK);
    assert_documents((const char *const[]){"a\xef\xbf\xbd\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd"}, 1,
                     true);
}

/* About 3 MB: documents of very different lengths, so that batches are ready out of order. */
static void make_content(int documents) {
    content.count = 0;
    char line[128];
    for (int n = 0; n < documents; n++) {
        int lines = n % 50 == 0 ? 3000 : n * 7 % 23;
        for (int i = 0; i < lines; i++) {
            int bytes = snprintf(line, sizeof line, "document %d has line %d of %d\n", n, i, lines);
            assert_int_equal(sr_bytes_append(&content, line, (size_t)bytes), SRNN_OK);
        }
        assert_int_equal(sr_bytes_append(&content, "<|endoftext|>\n", 14), SRNN_OK);
    }
}

static void assert_same_folder(void) {
    DIR *entries = opendir(out);
    assert_int_equal(files_in(out), files_in(other_out));
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (entry->d_name[0] == '.')
            continue;
        char path[512];
        sr_mapping one, two;
        snprintf(path, sizeof path, "%s/%s", out, entry->d_name);
        assert_int_equal(sr_mapping_open(&one, path), SRNN_OK);
        snprintf(path, sizeof path, "%s/%s", other_out, entry->d_name);
        assert_int_equal(sr_mapping_open(&two, path), SRNN_OK);
        assert_int_equal(one.bytes, two.bytes);
        assert_memory_equal(one.data, two.data, one.bytes);
        sr_mapping_close(&one);
        sr_mapping_close(&two);
    }
    closedir(entries);
}

static void threads_do_not_change_the_result(void **state) {
    (void)state;
    make_content(1500);
    sr_prepare_settings settings = {.validation = 0.2, .seed = 3, .shard_tokens = 300000};
    settings.threads = 1;
    assert_int_equal(prepare(settings, "a.txt", content.data, content.count), SRNN_OK);
    assert_true(files_in(out) > 5);
    settings.folder = other_out;
    settings.overwrite = true;
    for (settings.threads = 2; settings.threads <= 9; settings.threads += 3) {
        assert_int_equal(prepare(settings, "a.txt", content.data, content.count), SRNN_OK);
        assert_same_folder();
    }
}

/* The first failure is reported, even if other threads meet later ones. */
static void threads_do_not_change_the_message(void **state) {
    (void)state;
    make_content(1500);
    for (size_t at = content.count / 2; at < content.count; at += 100001)
        content.data[at] = '\xff';
    char message[512] = "";
    for (int threads = 1; threads <= 9; threads += 2) {
        sr_prepare_settings settings = {.threads = threads};
        assert_int_equal(prepare(settings, "a.txt", content.data, content.count), SRNN_ERR_FORMAT);
        if (threads == 1)
            snprintf(message, sizeof message, "%s", srnn_error_detail());
        assert_string_equal(srnn_error_detail(), message);
        assert_int_equal(files_in(out), 0);
    }
}

/* Which document is in which split depends only on its number and the seed. */
static void splits_are_stable(void **state) {
    (void)state;
    int validation[2] = {0};
    int64_t first[2][64];
    for (int i = 0; i < 2; i++) {
        sr_prepare_settings settings = {.validation = 0.25, .seed = 5, .overwrite = true};
        settings.shard_tokens = i ? 1000 : 0;
        content.count = 0;
        char line[32];
        for (int n = 0; n < (i ? 400 : 200); n++) {
            int bytes = snprintf(line, sizeof line, "{\"text\":\"%c%c\"}\n",
                                 n % 200 + 1 < 100 ? 'a' : 'b', '0' + n % 10);
            assert_int_equal(sr_bytes_append(&content, line, (size_t)bytes), SRNN_OK);
        }
        assert_int_equal(prepare(settings, "a.jsonl", content.data, content.count), SRNN_OK);
        sr_dataset dataset;
        assert_int_equal(sr_dataset_open(&dataset, out, SR_SPLIT_VALIDATION), SRNN_OK);
        validation[i] = (int)dataset.document_count;
        for (int64_t n = 0; n < 30; n++) {
            int32_t ids[3];
            int64_t begin, count;
            assert_int_equal(sr_dataset_document(&dataset, n, &begin, &count), SRNN_OK);
            assert_int_equal(sr_dataset_read(&dataset, ids, begin, 3), SRNN_OK);
            first[i][n] = ids[0] << 16 | ids[1];
        }
        sr_dataset_free(&dataset);
    }
    assert_in_range(validation[0], 30, 70); /* 50 expected of 200 */
    assert_in_range(validation[1], 65, 135);
    assert_memory_equal(first[0], first[1], 30 * sizeof(int64_t));
}

static void data_is_not_overwritten_by_accident(void **state) {
    (void)state;
    sr_prepare_settings settings = {0};
    assert_int_equal(prepare(settings, "a.txt", "first", 5), SRNN_OK);
    assert_int_equal(prepare(settings, "a.txt", "second", 6), SRNN_ERR_ARGUMENT);
    assert_documents((const char *const[]){"first"}, 1, true);
    settings.overwrite = true;
    assert_int_equal(prepare(settings, "a.txt", "second", 6), SRNN_OK);
    assert_documents((const char *const[]){"second"}, 1, true);
}

/* The copy is the tokenizer that was used, with its BOS and EOS, whatever was there before. */
static void the_tokenizer_travels_with_its_settings(void **state) {
    (void)state;
    static const char json[] = "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, "
                               "\"c\": 2}, \"merges\": []}}";
    static const char config[] = "{\"bos_token\": \"b\", \"eos_token\": \"c\"}";
    char text[128], path[128], source[128];
    const char *inputs[] = {make_file(text, "a.txt", "abc", 3)};
    name(source, sizeof source, "other");
    assert_int_equal(mkdir(source, 0777), 0);
    make_file(path, "other/tokenizer.json", json, sizeof json - 1);
    make_file(path, "other/tokenizer_config.json", config, sizeof config - 1);
    sr_prepare_settings settings = {
        .tokenizer = source, .folder = out, .inputs = inputs, .input_count = 1, .overwrite = true};
    assert_int_equal(sr_prepare(&settings, NULL), SRNN_OK);
    sr_tokenizer *tokenizer;
    assert_int_equal(sr_tokenizer_load(&tokenizer, out), SRNN_OK);
    assert_int_equal(sr_tokenizer_bos(tokenizer), 1);
    assert_int_equal(sr_tokenizer_eos(tokenizer), 2);
    sr_tokenizer_free(tokenizer);
    /* Without the settings, under another name, and over itself. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(sr_prepare(&settings, NULL), SRNN_OK);
    assert_int_equal(sr_tokenizer_load(&tokenizer, out), SRNN_OK);
    assert_int_equal(sr_tokenizer_eos(tokenizer), -1);
    sr_tokenizer_free(tokenizer);
    settings.tokenizer = out;
    assert_int_equal(sr_prepare(&settings, NULL), SRNN_OK);
    assert_int_equal(sr_tokenizer_load(&tokenizer, out), SRNN_OK);
    sr_tokenizer_free(tokenizer);
    settings.tokenizer = "bytes";
    assert_int_equal(sr_prepare(&settings, NULL), SRNN_OK);
    assert_int_equal(sr_tokenizer_load(&tokenizer, out), SRNN_ERR_IO);
}

static bool stop_after_some(void *context, const sr_prepare_progress *progress) {
    (void)progress;
    return --*(int *)context > 0;
}

static void stopped_work_leaves_nothing(void **state) {
    (void)state;
    make_content(1500);
    for (int threads = 1; threads <= 4; threads += 3) {
        int calls = 3;
        sr_prepare_settings settings = {.threads = threads,
                                        .shard_tokens = 500000,
                                        .progress = stop_after_some,
                                        .context = &calls};
        assert_int_equal(prepare(settings, "a.txt", content.data, content.count),
                         SRNN_ERR_INTERRUPTED);
        assert_int_equal(files_in(out), 0);
    }
}

static void a_full_disk_is_reported(void **state) {
    (void)state;
    make_content(1500);
    char path[128];
    make_file(path, "a.txt", content.data, content.count);
    const char *inputs[] = {path};
    sr_prepare_settings settings = {
        .tokenizer = "bytes", .folder = out, .inputs = inputs, .input_count = 1, .threads = 2};
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = (struct rlimit){3 << 20, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    srnn_status status = sr_prepare(&settings, NULL);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, SRNN_ERR_IO);
    assert_non_null(strstr(srnn_error_detail(), "train-00000.tokens"));
    assert_int_equal(files_in(out), 0);
}

static void what_a_killed_process_left_is_removed(void **state) {
    (void)state;
    char path[128];
    assert_int_equal(mkdir(out, 0777), 0);
    make_file(path, "out/train-00007.tokens", "x", 1);
    make_file(path, "out/validation-00000.tokens.new-12-0", "x", 1);
    make_file(path, "out/train-notes.txt", "mine", 4);
    assert_int_equal(prepare((sr_prepare_settings){0}, "a.txt", "text", 4), SRNN_OK);
    assert_int_equal(files_in(out), 3); /* one shard, the manifest, and a foreign file */
    assert_documents((const char *const[]){"text"}, 1, true);
}

/* Each change makes the folder unusable, and opening it says so. */
static void a_wrong_manifest_is_refused(void **state) {
    (void)state;
    const char *changes[][2] = {
        {"train-00000.tokens", "../in-00000.tokens"},
        {"\"tokens\": 5", "\"tokens\": 6"},
        {"\"train\"", "\"trail\""},
        {"\"version\": 1", "\"version\": 2"},
        {"softrnn data", "softrnn dada"},
        {"257", "258"},
        {"\"shards\"", "\"shirts\""},
        {"\"hash\": \"", "\"hash\": \"z"},
        {"\"end_of_document\": 256", "\"end_of_document\": 999"},
        {"{", "["},
    };
    char path[128];
    assert_int_equal(prepare((sr_prepare_settings){0}, "a.txt", "text", 4), SRNN_OK);
    name(path, sizeof path, "out/" SR_MANIFEST_NAME);
    sr_mapping mapping;
    assert_int_equal(sr_mapping_open(&mapping, path), SRNN_OK);
    char *manifest = strndup((const char *)mapping.data, mapping.bytes);
    sr_mapping_close(&mapping);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        /* The last occurrence: the shard's entry of the manifest, not the summary before it. */
        char *at = NULL, *changed;
        for (char *next = manifest; (next = strstr(next, changes[i][0])); next++)
            at = next;
        assert_non_null(at);
        assert_true(asprintf(&changed, "%.*s%s%s", (int)(at - manifest), manifest, changes[i][1],
                             at + strlen(changes[i][0])) > 0);
        assert_int_equal(sr_file_replace(path, changed, strlen(changed)), SRNN_OK);
        sr_dataset dataset;
        srnn_status status = sr_dataset_open(&dataset, out, SR_SPLIT_TRAIN);
        if (status == SRNN_OK || !strstr(srnn_error_detail(), out))
            fail_msg("\"%s\" for \"%s\": %s", changes[i][1], changes[i][0], srnn_error_detail());
        free(changed);
    }
    free(manifest);
}

static void sources_open_by_name(void **state) {
    (void)state;
    char text_path[128], bin_path[128];
    make_file(text_path, "a.txt", "abcdefghij", 10);
    make_file(bin_path, "a.bin", "a\0b\0c\0d\0", 8);
    assert_int_equal(prepare((sr_prepare_settings){0}, "b.txt", "some text", 9), SRNN_OK);
    const struct {
        const char *where;
        int vocab, T;
        int64_t train, validation;
    } cases[] = {{text_path, 257, 2, 3, 1},
                 {bin_path, 65536, 2, 1, 0},
                 {out, 257, 2, 4, 0},
                 {"recall", 32, 48, INT64_MAX, INT64_MAX}};
    for (size_t i = 0; i < 4; i++) {
        const sr_source_settings settings = {.T = 2, .validation_share = 0.3};
        sr_source *source;
        assert_int_equal(sr_source_open(&source, cases[i].where, &settings), SRNN_OK);
        assert_int_equal(source->vocab, cases[i].vocab);
        assert_int_equal(source->T, cases[i].T);
        assert_true(source->rows[SR_SPLIT_TRAIN] == cases[i].train);
        assert_true(source->rows[SR_SPLIT_VALIDATION] == cases[i].validation);
        sr_source_free(source);
    }
    sr_source *source;
    const sr_source_settings both = {.T = 2, .validation = text_path};
    assert_int_equal(sr_source_open(&source, text_path, &both), SRNN_OK);
    assert_true(source->rows[SR_SPLIT_TRAIN] == 4 && source->rows[SR_SPLIT_VALIDATION] == 4);
    sr_source_free(source);
    assert_int_equal(sr_source_open(&source, "/no/such", &both), SRNN_ERR_IO);
}

/* A validation file next to them is not ignored: the message has the command that converts it to a
 * folder. */
static void shards_are_validated_by_shards(void **state) {
    (void)state;
    char text_path[128];
    make_file(text_path, "a.txt", "abcdefghij", 10);
    sr_prepare_settings how = {.folder = other_out, .overwrite = true};
    assert_int_equal(prepare((sr_prepare_settings){0}, "b.txt", "some text", 9), SRNN_OK);
    for (int split = 0; split < SR_SPLITS; split++) { /* all documents, of either split */
        how.validation = split;
        assert_int_equal(prepare(how, "a.txt", "abcdefghij", 10), SRNN_OK);
        const sr_source_settings settings = {.T = 2, .validation = other_out};
        sr_source *source;
        assert_int_equal(sr_source_open(&source, out, &settings), SRNN_OK);
        assert_int_equal(source->rows[SR_SPLIT_TRAIN], 4);
        assert_int_equal(source->rows[SR_SPLIT_VALIDATION], 5); /* ten bytes and the end */
        sr_source_free(source);
    }
    sr_source *source;
    const sr_source_settings file = {.T = 2, .validation = text_path};
    assert_int_equal(sr_source_open(&source, out, &file), SRNN_ERR_ARGUMENT);
    assert_non_null(strstr(srnn_error_detail(), "data prepare --tokenizer bytes"));
    assert_int_equal(sr_source_open(&source, "recall", &file), SRNN_ERR_ARGUMENT);
    assert_non_null(strstr(srnn_error_detail(), text_path));
}

/* "x" and ten two-byte characters: a cut in the middle of one moves to the next. */
static void text_is_not_cut_inside_a_character(void **state) {
    (void)state;
    const char text[] = "x\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9";
    sr_source *source;
    const sr_source_settings settings = {.T = 1, .validation_share = 0.35};
    assert_int_equal(sr_source_open_text(&source, text, 21, &settings), SRNN_OK);
    assert_int_equal(source->rows[SR_SPLIT_TRAIN], 12); /* 13.65: inside; 13 bytes start at one */
    assert_int_equal(source->rows[SR_SPLIT_VALIDATION], 7);
    sr_source_free(source);
}

/* The folder alone suffices to recover the text. */
static void real_text_comes_back(void **state) {
    (void)state;
    const char *data = getenv("SOFTRNN_REAL_DATA");
    if (!data)
        skip();
    char text_path[512], tokenizer_path[512];
    snprintf(text_path, sizeof text_path, "%s/text/tinyshakespeare.txt", data);
    snprintf(tokenizer_path, sizeof tokenizer_path, "%s/tokenizers/gpt2", data);
    const char *inputs[] = {text_path};
    const sr_prepare_settings settings = {.tokenizer = tokenizer_path,
                                          .folder = out,
                                          .inputs = inputs,
                                          .input_count = 1};
    assert_int_equal(sr_prepare(&settings, NULL), SRNN_OK);
    sr_dataset dataset;
    sr_tokenizer *tokenizer;
    sr_mapping text;
    sr_bytes decoded = {0};
    assert_int_equal(sr_dataset_open(&dataset, out, SR_SPLIT_TRAIN), SRNN_OK);
    assert_int_equal(sr_tokenizer_load(&tokenizer, out), SRNN_OK);
    assert_int_equal(sr_mapping_open(&text, text_path), SRNN_OK);
    int32_t *ids = malloc((size_t)dataset.token_count * sizeof *ids);
    assert_int_equal(sr_dataset_read(&dataset, ids, 0, dataset.token_count), SRNN_OK);
    assert_int_equal(ids[dataset.token_count - 1], 50256);
    assert_int_equal(sr_tokenizer_decode(tokenizer, &decoded, (const uint32_t *)ids,
                                         (size_t)dataset.token_count - 1),
                     SRNN_OK);
    assert_int_equal(decoded.count, text.bytes);
    assert_memory_equal(decoded.data, text.data, text.bytes);
    free(ids);
    sr_bytes_free(&decoded);
    sr_mapping_close(&text);
    sr_tokenizer_free(tokenizer);
    sr_dataset_free(&dataset);
}

static void two_processes_do_not_mix(void **state) {
    (void)state;
    char path[160];
    const char *const inputs[] = {make_file(path, "a.txt", "some text", 9)};
    const sr_prepare_settings settings = {.tokenizer = "bytes",
                                          .folder = out,
                                          .inputs = inputs,
                                          .input_count = 1};
    int lock;
    assert_int_equal(sr_folders_make(out), SRNN_OK);
    assert_int_equal(sr_folder_lock(&lock, out, 0), SRNN_OK);
    assert_int_equal(sr_prepare(&settings, NULL), SRNN_ERR_IO);
    assert_non_null(strstr(srnn_error_detail(), "another process"));
    assert_int_equal(files_in(out), 0);
    sr_folder_unlock(lock);
    assert_int_equal(sr_prepare(&settings, NULL), SRNN_OK);
}

/* Rows beyond the end of a truncated file are an error, wherever it was cut. */
static void shortened_shards_are_an_error(void **state) {
    (void)state;
    char path[160], shard[256], text[3000];
    memset(text, 'a', sizeof text);
    const char *const inputs[] = {make_file(path, "a.txt", text, sizeof text)};
    const sr_prepare_settings settings = {.tokenizer = "bytes",
                                          .folder = out,
                                          .inputs = inputs,
                                          .input_count = 1};
    assert_int_equal(sr_prepare(&settings, NULL), SRNN_OK);
    snprintf(shard, sizeof shard, "%s/train-00000.tokens", out);
    for (int layout = SR_ROWS_STREAM; layout <= SR_ROWS_DOCUMENT; layout++) {
        int32_t ids[16], targets[16];
        int64_t starts[16];
        sr_token_row row = {.ids = ids, .targets = targets, .starts = starts};
        sr_source *source;
        struct stat before;
        assert_int_equal(stat(shard, &before), 0);
        assert_int_equal(sr_source_open(&source, out,
                                        &(sr_source_settings){.T = 16,
                                                              .layout = (sr_token_layout)layout}),
                         SRNN_OK);
        assert_int_equal(source->fill(source, &row, SR_SPLIT_TRAIN, 0), SRNN_OK);
        assert_int_equal(truncate(shard, before.st_size - 1), 0);
        assert_int_equal(source->fill(source, &row, SR_SPLIT_TRAIN, 0), SRNN_ERR_IO);
        assert_int_equal(truncate(shard, 0), 0);
        assert_int_equal(source->fill(source, &row, SR_SPLIT_TRAIN, 0), SRNN_ERR_IO);
        sr_source_free(source);
        sr_prepare_settings again = settings;
        again.overwrite = true;
        assert_int_equal(sr_prepare(&again, NULL), SRNN_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(files_are_cut_into_documents, clean),
        cmocka_unit_test_teardown(the_field_can_be_named, clean),
        cmocka_unit_test_teardown(wrong_input_is_explained, clean),
        cmocka_unit_test_teardown(invalid_bytes_can_be_replaced, clean),
        cmocka_unit_test_teardown(threads_do_not_change_the_result, clean),
        cmocka_unit_test_teardown(threads_do_not_change_the_message, clean),
        cmocka_unit_test_teardown(splits_are_stable, clean),
        cmocka_unit_test_teardown(data_is_not_overwritten_by_accident, clean),
        cmocka_unit_test_teardown(the_tokenizer_travels_with_its_settings, clean),
        cmocka_unit_test_teardown(stopped_work_leaves_nothing, clean),
        cmocka_unit_test_teardown(a_full_disk_is_reported, clean),
        cmocka_unit_test_teardown(what_a_killed_process_left_is_removed, clean),
        cmocka_unit_test_teardown(a_wrong_manifest_is_refused, clean),
        cmocka_unit_test_teardown(sources_open_by_name, clean),
        cmocka_unit_test_teardown(shards_are_validated_by_shards, clean),
        cmocka_unit_test_teardown(text_is_not_cut_inside_a_character, clean),
        cmocka_unit_test_teardown(real_text_comes_back, clean),
        cmocka_unit_test_teardown(two_processes_do_not_mix, clean),
        cmocka_unit_test_teardown(shortened_shards_are_an_error, clean),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
