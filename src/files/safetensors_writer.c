/* safetensors_writer.c: writing files of named arrays. */
#include "files/safetensors.h"

#include "base/memory.h"
#include "base/text.h"
#include "files/file.h"
#include "files/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 8, BLOCK_BYTES = 1 << 20 };

struct sr_safetensors_writer {
    sr_tensor *tensors; /* (capacity); `count` are used, each owns its name */
    size_t count, capacity;
    json_t *metadata;
    sr_tensor_reader read; /* NULL: data is host memory, written as it is */
    void *context;
};

#define WHAT "the header of a safetensors file"

static srnn_status no_memory(void) {
    return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the header of a safetensors file");
}

srnn_status sr_safetensors_writer_create(sr_safetensors_writer **writer) {
    SR_TRY(sr_alloc_zero((void **)writer, 1, sizeof **writer));
    (*writer)->metadata = json_object();
    if ((*writer)->metadata)
        return SRNN_OK;
    sr_safetensors_writer_free(*writer);
    *writer = NULL;
    return no_memory();
}

void sr_safetensors_writer_free(sr_safetensors_writer *writer) {
    if (!writer)
        return;
    for (size_t i = 0; i < writer->count; i++)
        free((char *)(uintptr_t)writer->tensors[i].name);
    free(writer->tensors);
    json_decref(writer->metadata);
    free(writer);
}

srnn_status sr_safetensors_writer_add(sr_safetensors_writer *writer, const sr_tensor *tensor) {
    sr_tensor added = *tensor;
    if (tensor->rank < 0 || tensor->rank > SR_TENSOR_MAX_RANK || !sr_tensor_measure(&added))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "tensor '%s' has an impossible shape", tensor->name);
    if (writer->count == writer->capacity) {
        size_t capacity = writer->capacity ? 2 * writer->capacity : 16;
        sr_tensor *larger = realloc(writer->tensors, capacity * sizeof *larger);
        if (!larger)
            return no_memory();
        writer->tensors = larger;
        writer->capacity = capacity;
    }
    added.name = strdup(tensor->name);
    if (!added.name)
        return no_memory();
    writer->tensors[writer->count++] = added;
    return SRNN_OK;
}

srnn_status sr_safetensors_writer_metadata(sr_safetensors_writer *writer, const char *key,
                                           const char *value) {
    if (!sr_text_is_utf8(key, strlen(key)) || !sr_text_is_utf8(value, strlen(value)))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "metadata '%s' is not valid UTF-8", key);
    return json_object_set_new(writer->metadata, key, json_string(value)) == 0 ? SRNN_OK
                                                                               : no_memory();
}

void sr_safetensors_writer_reader(sr_safetensors_writer *writer, sr_tensor_reader read,
                                  void *context) {
    writer->read = read;
    writer->context = context;
}

/* ---- the file */

/* Wide types first: the data begins aligned, so every tensor is aligned for its type. */
static int compare_tensors(const void *a, const void *b) {
    const sr_tensor *first = *(const sr_tensor *const *)a, *second = *(const sr_tensor *const *)b;
    size_t first_bytes = sr_dtype_bytes(first->dtype), second_bytes = sr_dtype_bytes(second->dtype);
    if (first_bytes != second_bytes)
        return first_bytes > second_bytes ? -1 : 1;
    return strcmp(first->name, second->name);
}

static json_t *describe(const sr_tensor *tensor, size_t begin) {
    json_t *shape = json_array();
    for (int i = 0; i < tensor->rank; i++)
        sr_json_append(shape, json_integer(tensor->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", sr_dtype_name(tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)(begin + tensor->bytes));
}

static srnn_status add_descriptions(json_t *header, const sr_tensor **sorted, size_t count) {
    size_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        const char *name = sorted[i]->name;
        if (json_object_get(header, name) || strcmp(name, SR_SAFETENSORS_METADATA) == 0)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "tensor '%s': the name is already taken", name);
        if (!sr_text_is_utf8(name, strlen(name)))
            return SR_FAIL(SRNN_ERR_ARGUMENT, "tensor '%s': the name is not valid UTF-8", name);
        sr_json_set(header, name, describe(sorted[i], begin));
        begin += sorted[i]->bytes;
    }
    return sr_json_complete(header, WHAT);
}

/* *text = the header, padded with spaces to a multiple of the alignment; free it with free(). */
static srnn_status make_header(char **text, const sr_safetensors_writer *writer,
                               const sr_tensor **sorted) {
    *text = NULL;
    json_t *header = json_object();
    srnn_status status = header ? SRNN_OK : no_memory();
    if (status == SRNN_OK && json_object_size(writer->metadata) > 0 &&
        json_object_set(header, SR_SAFETENSORS_METADATA, writer->metadata) != 0)
        status = no_memory();
    if (status == SRNN_OK)
        status = add_descriptions(header, sorted, writer->count);
    char *plain = NULL;
    if (status == SRNN_OK)
        status = sr_json_dump(&plain, header, JSON_COMPACT | JSON_SORT_KEYS, WHAT);
    json_decref(header);
    SR_TRY(status);
    size_t length = strlen(plain);
    size_t padded = (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *text = realloc(plain, padded + 1);
    if (!*text) {
        free(plain);
        return no_memory();
    }
    memset(*text + length, ' ', padded - length);
    (*text)[padded] = '\0';
    return SRNN_OK;
}

static srnn_status write_blocks(sr_replacement *out, const sr_safetensors_writer *writer,
                                const sr_tensor *tensor, void *block) {
    const size_t size = sr_dtype_bytes(tensor->dtype), most = BLOCK_BYTES / size;
    for (size_t first = 0; first < tensor->count; first += most) {
        const size_t count = tensor->count - first < most ? tensor->count - first : most;
        SR_TRY(writer->read(writer->context, block, tensor, first, count));
        SR_TRY(sr_replacement_write(out, block, count * size));
    }
    return SRNN_OK;
}

static srnn_status write_data(sr_replacement *out, const sr_safetensors_writer *writer,
                              const sr_tensor *tensor) {
    if (!writer->read)
        return sr_replacement_write(out, tensor->data, tensor->bytes);
    void *block;
    SR_TRY(sr_alloc(&block, BLOCK_BYTES, 1));
    const srnn_status status = write_blocks(out, writer, tensor, block);
    free(block);
    return status;
}

static srnn_status write_parts(sr_replacement *out, const char *header,
                               const sr_safetensors_writer *writer, const sr_tensor **sorted) {
    size_t length = strlen(header);
    uint8_t length_bytes[8];
    for (int i = 0; i < 8; i++)
        length_bytes[i] = (uint8_t)((uint64_t)length >> 8 * i);
    SR_TRY(sr_replacement_write(out, length_bytes, sizeof length_bytes));
    SR_TRY(sr_replacement_write(out, header, length));
    for (size_t i = 0; i < writer->count; i++)
        SR_TRY(write_data(out, writer, sorted[i]));
    return sr_replacement_commit(out);
}

static srnn_status write_sorted(const sr_safetensors_writer *writer, const char *path,
                                const sr_tensor **sorted) {
    for (size_t i = 0; i < writer->count; i++)
        sorted[i] = &writer->tensors[i];
    qsort(sorted, writer->count, sizeof *sorted, compare_tensors);
    char *header;
    SR_TRY(make_header(&header, writer, sorted));
    sr_replacement *out;
    srnn_status status = sr_replacement_create(&out, path);
    if (status == SRNN_OK) {
        status = write_parts(out, header, writer, sorted);
        sr_replacement_free(out);
    }
    free(header);
    return status;
}

srnn_status sr_safetensors_writer_write(const sr_safetensors_writer *writer, const char *path) {
    const sr_tensor **sorted;
    SR_TRY(sr_alloc((void **)&sorted, writer->count, sizeof *sorted));
    srnn_status status = write_sorted(writer, path, sorted);
    free(sorted);
    return status;
}
