/* json.c: JSON records in files, from untrusted input. */
#include "files/json.h"

#include "files/file.h"
#include "files/memory_stream.h"
#include "files/path.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Set if an allocation for this thread's JSON failed since the last sr_json_complete. */
static _Thread_local bool incomplete;

/* Jansson does not check every allocation and may then read out of bounds. This reserve lets it
 * finish; the result is discarded. */
enum { RESERVE_BYTES = 1 << 16, RESERVE_ALIGNMENT = 16 };
static struct {
    pthread_mutex_t lock;
    size_t used, blocks; /* reset when the last block is freed */
    _Alignas(RESERVE_ALIGNMENT) char bytes[RESERVE_BYTES];
} reserve = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *take_reserve(size_t bytes) {
    void *memory = NULL;
    bytes = (bytes + RESERVE_ALIGNMENT - 1) / RESERVE_ALIGNMENT * RESERVE_ALIGNMENT;
    pthread_mutex_lock(&reserve.lock);
    if (bytes <= RESERVE_BYTES - reserve.used) {
        memory = reserve.bytes + reserve.used;
        reserve.used += bytes;
        reserve.blocks++;
    }
    pthread_mutex_unlock(&reserve.lock);
    return memory;
}

static void *watched_malloc(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory)
        return memory;
    incomplete = true;
    return bytes <= RESERVE_BYTES ? take_reserve(bytes) : NULL;
}

static void watched_free(void *memory) {
    const uintptr_t at = (uintptr_t)memory, begin = (uintptr_t)reserve.bytes;
    if (at < begin || at >= begin + RESERVE_BYTES) {
        free(memory);
        return;
    }
    pthread_mutex_lock(&reserve.lock);
    if (--reserve.blocks == 0)
        reserve.used = 0;
    pthread_mutex_unlock(&reserve.lock);
}

void sr_json_watch(void) {
    json_set_alloc_funcs(watched_malloc, watched_free);
}

bool sr_json_scan(json_t **root, json_error_t *error, const char *text, size_t bytes,
                  size_t flags) {
    const bool before = incomplete;
    incomplete = false;
    *root = json_loadb(text, bytes, flags, error);
    const bool whole =
        !incomplete &&
        (*root || (json_error_code(error) != json_error_out_of_memory && *error->text));
    incomplete = before;
    if (whole)
        return true;
    json_decref(*root);
    *root = NULL;
    return false;
}

srnn_status sr_json_parse(json_t **root, const char *path, const char *text, size_t bytes,
                          size_t flags) {
    json_error_t error;
    if (!sr_json_scan(root, &error, text, bytes, flags))
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to read it", path);
    return *root ? SRNN_OK
                 : SR_FAIL(SRNN_ERR_FORMAT, "%s: line %d: %s", path, error.line, error.text);
}

srnn_status sr_json_load(json_t **root, const char *path, size_t flags) {
    sr_mapping mapping;
    *root = NULL;
    SR_TRY(sr_mapping_open(&mapping, path));
    const srnn_status status =
        sr_json_parse(root, path, (const char *)mapping.data, mapping.bytes, flags);
    sr_mapping_close(&mapping);
    return status;
}

static srnn_status check(const json_t *object, const char *path, const char *format) {
    if (strcmp(sr_json_text_of(object, "format"), format) != 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: its \"format\" is not \"%s\"", path, format);
    if (sr_json_number_of(object, "version") != 1)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s: its \"version\" is not 1: written by a newer softrnn?", path);
    return SRNN_OK;
}

srnn_status sr_json_read(json_t **object, const char *folder, const char *name,
                         const char *format) {
    char path[SR_PATH_BYTES];
    *object = NULL;
    SR_TRY(sr_path_join(path, folder, name));
    SR_TRY(sr_json_load(object, path, 0));
    const srnn_status status = check(*object, path, format);
    if (status != SRNN_OK) {
        json_decref(*object);
        *object = NULL;
    }
    return status;
}

srnn_status sr_json_lines_read(const char *path, sr_json_visit *visit, void *context) {
    sr_mapping file;
    srnn_status status = SRNN_OK;
    if (access(path, F_OK) != 0)
        return SRNN_OK;
    SR_TRY(sr_mapping_open(&file, path));
    const char *at = (const char *)file.data, *end = at + file.bytes, *stop;
    for (size_t line = 1;
         status == SRNN_OK && at < end && (stop = memchr(at, '\n', (size_t)(end - at)));
         line++, at = stop + 1) {
        json_t *object;
        status = sr_json_parse(&object, path, at, (size_t)(stop - at), 0);
        if (status != SRNN_ERR_MEMORY)
            status = visit(context, json_is_object(object) ? object : NULL, line);
        json_decref(object);
    }
    sr_mapping_close(&file);
    return status;
}

static int put(const char *text, size_t bytes, void *stream) {
    return fwrite(text, 1, bytes, stream) == bytes ? 0 : -1;
}

srnn_status sr_json_dump(char **text, const json_t *object, size_t flags, const char *what) {
    size_t bytes;
    *text = NULL;
    SR_TRY(sr_json_complete(object, what));
    FILE *out = sr_memory_stream(text, &bytes);
    const bool dumped = out && json_dump_callback(object, put, out, flags) == 0;
    const bool closed = out && fclose(out) == 0;
    if (dumped && closed && !incomplete)
        return SRNN_OK;
    incomplete = false;
    free(*text);
    *text = NULL;
    return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to write it", what);
}

static srnn_status replace(const json_t *object, const char *path, size_t flags) {
    char *text;
    SR_TRY(sr_json_dump(&text, object, flags, path));
    const srnn_status status = sr_file_replace(path, text, strlen(text));
    free(text);
    return status;
}

srnn_status sr_json_print(FILE *out, const json_t *object, size_t flags) {
    char *text;
    SR_TRY(sr_json_dump(&text, object, flags, "the output"));
    fprintf(out, "%s\n", text);
    free(text);
    return SRNN_OK;
}

srnn_status sr_json_replace(json_t *object, const char *folder, const char *name, size_t flags) {
    char path[SR_PATH_BYTES];
    srnn_status status = sr_path_join(path, folder, name);
    if (status == SRNN_OK)
        status = replace(object, path, flags);
    json_decref(object);
    return status;
}

const char *sr_json_text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

double sr_json_number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

int64_t sr_json_integer_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : 0;
}

const json_t *sr_json_object_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_object(value) ? value : NULL;
}

size_t sr_json_count_of(const json_t *object, const char *key) {
    return json_array_size(json_object_get(object, key));
}

const json_t *sr_json_element_of(const json_t *object, const char *key, size_t i) {
    const json_t *value = json_array_get(json_object_get(object, key), i);
    return json_is_object(value) ? value : NULL;
}

void sr_json_append(json_t *array, json_t *value) {
    incomplete |= json_array_append_new(array, value) != 0;
}

void sr_json_set(json_t *object, const char *key, json_t *value) {
    incomplete |= json_object_set_new(object, key, value) != 0;
}

srnn_status sr_json_complete(const json_t *whole, const char *what) {
    const bool failed = incomplete || !whole;
    incomplete = false;
    return failed ? SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to make it", what) : SRNN_OK;
}

json_t *sr_json_plain_text(const char *text) {
    json_t *string = json_string(text);
    if (string)
        return string;
    char *plain = malloc(4 * strlen(text) + 1);
    if (!plain)
        return NULL;
    size_t length = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        length += (size_t)sprintf(plain + length, *c < 0x80 ? "%c" : "\\x%02x", *c);
    string = json_string(plain);
    free(plain);
    return string;
}
