/* documents.c: cuts text files into documents. */
#include "data/text/documents.h"

#include "base/memory.h"
#include "data/text/input.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 256 * 1024, BATCH_BYTES = 1 << 20, BATCH_DOCUMENTS = 1 << 14 };

static const char separator[] = "<|endoftext|>";

struct sr_document_reader {
    const char *const *files; /* (count) */
    int count;
    size_t most_bytes;
    int file; /* the one being read */
    bool is_json;
    sr_input *input; /* NULL: the file is still to be opened */
    int64_t finished_bytes;
    char *block; /* (BLOCK_BYTES): begin .. end-1 are not used yet */
    size_t begin, end;
    int64_t line, byte; /* of the line being read */
    int64_t number;     /* of the next document */
    sr_document open;   /* the document being read; its text is the end of the batch's text */
    size_t line_begin;  /* of the line being read, in the batch's text */
};

static bool ends_with(const char *name, size_t length, const char *suffix) {
    size_t suffix_length = strlen(suffix);
    return length >= suffix_length &&
           memcmp(name + length - suffix_length, suffix, suffix_length) == 0;
}

static bool is_json_name(const char *name) {
    static const char *const compressions[] = {".gz", ".zst", ".xz"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof compressions / sizeof *compressions; i++) {
        if (ends_with(name, length, compressions[i])) {
            length -= strlen(compressions[i]);
            break;
        }
    }
    return ends_with(name, length, ".jsonl") || ends_with(name, length, ".ndjson");
}

void sr_document_batch_free(sr_document_batch *batch) {
    sr_bytes_free(&batch->text);
    free(batch->documents);
    *batch = (sr_document_batch){0};
}

srnn_status sr_document_reader_create(sr_document_reader **reader, const char *const *files,
                                      int count, size_t most_bytes) {
    sr_document_reader *created;
    SR_TRY(sr_alloc_zero((void **)&created, 1, sizeof *created));
    *created = (sr_document_reader){.files = files, .count = count, .most_bytes = most_bytes};
    srnn_status status = sr_alloc((void **)&created->block, BLOCK_BYTES, 1);
    if (status != SRNN_OK) {
        free(created);
        return status;
    }
    *reader = created;
    return SRNN_OK;
}

void sr_document_reader_free(sr_document_reader *reader) {
    if (!reader)
        return;
    sr_input_free(reader->input);
    free(reader->block);
    free(reader);
}

int64_t sr_document_reader_position(const sr_document_reader *reader) {
    return reader->finished_bytes + (reader->input ? sr_input_position(reader->input) : 0);
}

/* The next document starts with the line being read. */
static void start_document(sr_document_reader *reader, const sr_document_batch *batch) {
    reader->line_begin = batch->text.count;
    reader->open = (sr_document){.begin = batch->text.count,
                                 .line = reader->line,
                                 .byte = reader->byte,
                                 .file = reader->file,
                                 .is_json = reader->is_json};
}

static srnn_status open_file(sr_document_reader *reader, const sr_document_batch *batch) {
    const char *name = reader->files[reader->file];
    SR_TRY(sr_input_open(&reader->input, name));
    reader->is_json = is_json_name(name);
    reader->line = 1;
    reader->byte = 0;
    start_document(reader, batch);
    return SRNN_OK;
}

static srnn_status add_document(sr_document_batch *batch, const sr_document *document) {
    if (batch->count == batch->capacity) {
        size_t capacity = batch->capacity ? batch->capacity * 2 : 256;
        sr_document *larger;
        SR_TRY(sr_alloc((void **)&larger, capacity, sizeof *larger));
        if (batch->count > 0)
            memcpy(larger, batch->documents, batch->count * sizeof *larger);
        free(batch->documents);
        batch->documents = larger;
        batch->capacity = capacity;
    }
    batch->documents[batch->count++] = *document;
    return SRNN_OK;
}

/* Ends the open document after `bytes` bytes of its text, and drops the rest. */
static srnn_status end_document(sr_document_reader *reader, sr_document_batch *batch,
                                size_t bytes) {
    batch->text.count = reader->open.begin + bytes;
    if (bytes > 0) {
        reader->open.bytes = bytes;
        reader->open.number = reader->number++;
        SR_TRY(add_document(batch, &reader->open));
    }
    start_document(reader, batch);
    return SRNN_OK;
}

static bool is_blank(const char *text, size_t bytes) {
    size_t i = 0;
    while (i < bytes && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n'))
        i++;
    return i == bytes;
}

static bool is_separator(const char *line, size_t bytes) {
    if (bytes > 0 && line[bytes - 1] == '\n')
        bytes--;
    if (bytes > 0 && line[bytes - 1] == '\r')
        bytes--;
    return bytes == sizeof separator - 1 && memcmp(line, separator, bytes) == 0;
}

/* A byte order mark is not part of the text. */
static void drop_mark(sr_document_reader *reader, sr_document_batch *batch) {
    char *line = batch->text.data + reader->line_begin;
    size_t bytes = batch->text.count - reader->line_begin;
    if (reader->byte > 0 || bytes < 3 || memcmp(line, "\xef\xbb\xbf", 3) != 0)
        return;
    memmove(line, line + 3, bytes - 3);
    batch->text.count -= 3;
    reader->byte = reader->open.byte = 3;
}

/* The line being read is complete, with its newline unless the file ends without one. */
static srnn_status end_line(sr_document_reader *reader, sr_document_batch *batch) {
    drop_mark(reader, batch);
    const char *document = batch->text.data + reader->open.begin;
    const char *line = batch->text.data + reader->line_begin;
    size_t line_bytes = batch->text.count - reader->line_begin;
    size_t before = reader->line_begin - reader->open.begin;
    reader->line++;
    reader->byte += (int64_t)line_bytes;
    if (reader->is_json)
        return end_document(reader, batch, is_blank(line, line_bytes) ? 0 : line_bytes);
    if (is_separator(line, line_bytes)) {
        if (before > 0 && document[before - 1] == '\n')
            before--;
        return end_document(reader, batch, before);
    }
    reader->line_begin = batch->text.count;
    return SRNN_OK;
}

static srnn_status end_file(sr_document_reader *reader, sr_document_batch *batch) {
    if (batch->text.count > reader->line_begin)
        SR_TRY(end_line(reader, batch));
    SR_TRY(end_document(reader, batch, batch->text.count - reader->open.begin));
    reader->finished_bytes += sr_input_position(reader->input);
    sr_input_free(reader->input);
    reader->input = NULL;
    reader->file++;
    return SRNN_OK;
}

/* Moves the rest of the line, or of the block, into the batch. */
static srnn_status take_piece(sr_document_reader *reader, sr_document_batch *batch) {
    const char *piece = reader->block + reader->begin;
    size_t there = reader->end - reader->begin;
    const char *newline = memchr(piece, '\n', there);
    size_t bytes = newline ? (size_t)(newline - piece) + 1 : there;
    if (batch->text.count - reader->open.begin + bytes > reader->most_bytes)
        return SR_FAIL(SRNN_ERR_LIMIT,
                       "%s:%lld: the document that starts here is longer than %zu bytes; separate "
                       "documents by a line %s, or allow longer ones",
                       reader->files[reader->file], (long long)reader->open.line,
                       reader->most_bytes, separator);
    SR_TRY(sr_bytes_append(&batch->text, piece, bytes));
    reader->begin += bytes;
    return newline ? end_line(reader, batch) : SRNN_OK;
}

srnn_status sr_document_reader_next(sr_document_reader *reader, sr_document_batch *batch) {
    /* Between two calls an open document is always empty. */
    batch->text.count = 0;
    batch->count = 0;
    start_document(reader, batch);
    while (reader->file < reader->count) {
        if (!reader->input)
            SR_TRY(open_file(reader, batch));
        if (reader->begin == reader->end) {
            reader->begin = 0;
            SR_TRY(sr_input_read(reader->input, reader->block, BLOCK_BYTES, &reader->end));
        }
        if (reader->end == 0)
            SR_TRY(end_file(reader, batch));
        else
            SR_TRY(take_piece(reader, batch));
        bool full = batch->text.count >= BATCH_BYTES || batch->count >= BATCH_DOCUMENTS;
        if (full && batch->count > 0 && batch->text.count == reader->open.begin)
            return SRNN_OK;
    }
    return SRNN_OK;
}
