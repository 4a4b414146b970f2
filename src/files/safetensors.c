/* safetensors.c: reading files of named arrays. */
#include "files/safetensors.h"

#include "base/memory.h"
#include "files/file.h"
#include "files/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, MOST_HEADER_BYTES = 100 * 1024 * 1024 };

struct sr_safetensors {
    char *path;         /* for messages */
    sr_mapping mapping; /* { 0 } if the bytes belong to the caller */
    json_t *header;     /* owns the names and the metadata */
    sr_tensor *tensors; /* (count), in the order of their data */
    size_t *by_name;    /* (count), indices in the order of the names */
    size_t count;
};

/* ---- one tensor of the header */

static srnn_status refuse(const sr_safetensors *file, const char *name, const char *reason) {
    return SR_FAIL(SRNN_ERR_FORMAT, "%s: tensor '%.200s': %s", file->path, name, reason);
}

static srnn_status read_dtype(sr_tensor *tensor, const sr_safetensors *file, const json_t *entry) {
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name)
        return refuse(file, tensor->name, "has no dtype");
    if (!sr_dtype_find(&tensor->dtype, name))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: tensor '%.200s': cannot read dtype '%.40s'",
                       file->path, tensor->name, name);
    return SRNN_OK;
}

static srnn_status read_shape(sr_tensor *tensor, const sr_safetensors *file, const json_t *entry) {
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return refuse(file, tensor->name, "has no shape");
    if (json_array_size(shape) > SR_TENSOR_MAX_RANK)
        return refuse(file, tensor->name, "has more than 8 dimensions");
    tensor->rank = (int)json_array_size(shape);
    for (int i = 0; i < tensor->rank; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return refuse(file, tensor->name, "has a size that is not a whole number from 0 up");
        tensor->shape[i] = json_integer_value(size);
    }
    if (!sr_tensor_measure(tensor))
        return refuse(file, tensor->name, "has a shape too large for the address space");
    return SRNN_OK;
}

static srnn_status read_offsets(sr_tensor *tensor, const sr_safetensors *file, const json_t *entry,
                                const uint8_t *data, size_t bytes) {
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return refuse(file, tensor->name, "has no pair of data_offsets");
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin)
        return refuse(file, tensor->name, "has data_offsets in the wrong order");
    if ((uint64_t)end > bytes)
        return refuse(file, tensor->name, "ends beyond the end of the file (is it cut short?)");
    if ((uint64_t)(end - begin) != tensor->bytes)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: tensor '%.200s': data_offsets span %lld bytes, its shape and dtype "
                       "need %zu",
                       file->path, tensor->name, (long long)(end - begin), tensor->bytes);
    tensor->data = data + begin;
    return SRNN_OK;
}

/* ---- the header as a whole */

static srnn_status check_metadata(const sr_safetensors *file) {
    json_t *metadata = json_object_get(file->header, SR_SAFETENSORS_METADATA);
    if (!metadata)
        return SRNN_OK;
    if (!json_is_object(metadata))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: " SR_SAFETENSORS_METADATA " is not an object",
                       file->path);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "%s: " SR_SAFETENSORS_METADATA " '%.200s' is not a text", file->path,
                           key);
    }
    return SRNN_OK;
}

static srnn_status read_tensors(sr_safetensors *file, const uint8_t *data, size_t bytes) {
    size_t entries = json_object_size(file->header);
    SR_TRY(sr_alloc_zero((void **)&file->tensors, entries, sizeof *file->tensors));
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry) {
        if (strcmp(name, SR_SAFETENSORS_METADATA) == 0)
            continue;
        sr_tensor *tensor = &file->tensors[file->count++];
        tensor->name = name;
        if (!json_is_object(entry))
            return refuse(file, name, "is not described by an object");
        SR_TRY(read_dtype(tensor, file, entry));
        SR_TRY(read_shape(tensor, file, entry));
        SR_TRY(read_offsets(tensor, file, entry, data, bytes));
    }
    return SRNN_OK;
}

static int compare_places(const void *a, const void *b) {
    const sr_tensor *first = a, *second = b;
    const uint8_t *first_data = first->data, *second_data = second->data;
    if (first_data != second_data)
        return first_data < second_data ? -1 : 1;
    /* Of several that begin here all but one are empty: those come first. */
    if (first->bytes != second->bytes)
        return first->bytes < second->bytes ? -1 : 1;
    return strcmp(first->name, second->name);
}

/* Sorts the tensors by offset; they must cover every byte of the data exactly once. */
static srnn_status check_cover(sr_safetensors *file, const uint8_t *data, size_t bytes) {
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_places);
    const uint8_t *reached = data;
    for (size_t i = 0; i < file->count; i++) {
        const sr_tensor *tensor = &file->tensors[i];
        if ((const uint8_t *)tensor->data < reached)
            return refuse(file, tensor->name, "shares bytes with another tensor");
        if ((const uint8_t *)tensor->data > reached)
            return refuse(file, tensor->name, "has unused bytes before its data");
        reached += tensor->bytes;
    }
    if (reached != data + bytes)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %zu bytes at the end belong to no tensor", file->path,
                       (size_t)(data + bytes - reached));
    return SRNN_OK;
}

static int compare_names(const void *a, const void *b, void *context) {
    const sr_tensor *tensors = context;
    return strcmp(tensors[*(const size_t *)a].name, tensors[*(const size_t *)b].name);
}

static srnn_status sort_names(sr_safetensors *file) {
    SR_TRY(sr_alloc((void **)&file->by_name, file->count, sizeof *file->by_name));
    for (size_t i = 0; i < file->count; i++)
        file->by_name[i] = i;
    qsort_r(file->by_name, file->count, sizeof *file->by_name, compare_names, file->tensors);
    return SRNN_OK;
}

static srnn_status read_header(sr_safetensors *file, const uint8_t *bytes, size_t size) {
    if (size < LENGTH_BYTES)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %zu bytes are too few for a safetensors file",
                       file->path, size);
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > MOST_HEADER_BYTES)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: claims a header of %llu bytes: not a safetensors file",
                       file->path, (unsigned long long)length);
    if (length > size - LENGTH_BYTES)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: ends within its header of %llu bytes", file->path,
                       (unsigned long long)length);
    json_error_t error;
    if (!sr_json_scan(&file->header, &error, (const char *)bytes + LENGTH_BYTES, (size_t)length,
                      JSON_REJECT_DUPLICATES))
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to read its header", file->path);
    if (!file->header)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: header, byte %d: %s", file->path, error.position,
                       error.text);
    if (!json_is_object(file->header))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: its header is not a JSON object", file->path);
    const uint8_t *data = bytes + LENGTH_BYTES + length;
    size_t data_bytes = size - LENGTH_BYTES - (size_t)length;
    SR_TRY(check_metadata(file));
    SR_TRY(read_tensors(file, data, data_bytes));
    SR_TRY(check_cover(file, data, data_bytes));
    return sort_names(file);
}

/* ---- the contract */

srnn_status sr_safetensors_parse(sr_safetensors **file, const char *path, const void *data,
                                 size_t bytes) {
    *file = NULL;
    sr_safetensors *created;
    SR_TRY(sr_alloc_zero((void **)&created, 1, sizeof *created));
    created->path = strdup(path);
    srnn_status status = created->path ? read_header(created, data, bytes)
                                       : SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory", path);
    if (status != SRNN_OK) {
        sr_safetensors_free(created);
        return status;
    }
    *file = created;
    return SRNN_OK;
}

srnn_status sr_safetensors_open(sr_safetensors **file, const char *path) {
    *file = NULL;
    sr_mapping mapping;
    SR_TRY(sr_mapping_open(&mapping, path));
    srnn_status status = sr_safetensors_parse(file, path, mapping.data, mapping.bytes);
    if (status == SRNN_OK)
        (*file)->mapping = mapping;
    else
        sr_mapping_close(&mapping);
    return status;
}

void sr_safetensors_free(sr_safetensors *file) {
    if (!file)
        return;
    json_decref(file->header);
    sr_mapping_close(&file->mapping);
    free(file->by_name);
    free(file->tensors);
    free(file->path);
    free(file);
}

size_t sr_safetensors_count(const sr_safetensors *file) {
    return file->count;
}

const sr_tensor *sr_safetensors_at(const sr_safetensors *file, size_t index) {
    return &file->tensors[index];
}

const sr_tensor *sr_safetensors_find(const sr_safetensors *file, const char *name) {
    size_t low = 0, high = file->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const sr_tensor *tensor = &file->tensors[file->by_name[middle]];
        int order = strcmp(name, tensor->name);
        if (order == 0)
            return tensor;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

srnn_status sr_safetensors_require(const sr_tensor **tensor, const sr_safetensors *file,
                                   const char *name) {
    *tensor = sr_safetensors_find(file, name);
    if (!*tensor)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: has no tensor '%s'", file->path, name);
    return SRNN_OK;
}

const char *sr_safetensors_metadata(const sr_safetensors *file, const char *key) {
    const json_t *metadata = json_object_get(file->header, SR_SAFETENSORS_METADATA);
    return json_string_value(json_object_get(metadata, key));
}
