/* shard_writer.c: writes a shard file atomically. */
#include "base/memory.h"
#include "data/shards/shard.h"
#include "data/shards/shard_form.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { BUFFER_BYTES = 1 << 20 };

struct sr_shard_writer {
    sr_replacement *file;
    sr_shard_header header;
    unsigned char *buffer; /* (BUFFER_BYTES) of which `filled` wait to be written */
    size_t filled;
    uint64_t *starts; /* (capacity), of which header.documents + 1 are set */
    size_t capacity;
};

srnn_status sr_shard_writer_create(sr_shard_writer **writer, const char *path,
                                   const sr_shard_settings *settings) {
    sr_shard_writer *created;
    SR_TRY(sr_alloc_zero((void **)&created, 1, sizeof *created));
    created->header = (sr_shard_header){
        .version = SR_SHARD_VERSION,
        .width = settings->vocab <= UINT16_MAX + 1 ? 2 : 4,
        .tokenizer_hash = settings->tokenizer_hash,
        .vocab = settings->vocab,
        .end_token_plus_1 = (uint32_t)(settings->end_token + 1),
    };
    memcpy(created->header.magic, SR_SHARD_MAGIC, sizeof created->header.magic);
    created->capacity = 1024;
    srnn_status status = sr_alloc((void **)&created->buffer, BUFFER_BYTES, 1);
    if (status == SRNN_OK)
        status = sr_alloc_zero((void **)&created->starts, created->capacity, sizeof(uint64_t));
    if (status == SRNN_OK)
        status = sr_replacement_create(&created->file, path);
    /* The header is not known yet: its place is filled with zeros, which are not a valid header. */
    if (status == SRNN_OK)
        status = sr_replacement_write(created->file, &(sr_shard_header){0}, sizeof created->header);
    if (status != SRNN_OK) {
        sr_shard_writer_free(created);
        return status;
    }
    *writer = created;
    return SRNN_OK;
}

static srnn_status flush(sr_shard_writer *writer) {
    SR_TRY(sr_replacement_write(writer->file, writer->buffer, writer->filled));
    writer->header.token_crc =
        (uint32_t)crc32_z(writer->header.token_crc, writer->buffer, writer->filled);
    writer->filled = 0;
    return SRNN_OK;
}

static srnn_status grow_index(sr_shard_writer *writer) {
    if (writer->header.documents + 2 <= writer->capacity)
        return SRNN_OK;
    uint64_t *larger;
    SR_TRY(sr_alloc((void **)&larger, writer->capacity * 2, sizeof *larger));
    memcpy(larger, writer->starts, writer->capacity * sizeof *larger);
    free(writer->starts);
    writer->starts = larger;
    writer->capacity *= 2;
    return SRNN_OK;
}

srnn_status sr_shard_writer_append(sr_shard_writer *writer, const uint32_t *ids, size_t count) {
    sr_shard_header *header = &writer->header;
    SR_TRY(grow_index(writer));
    for (size_t i = 0; i < count; i++) {
        if (writer->filled + header->width > BUFFER_BYTES)
            SR_TRY(flush(writer));
        memcpy(writer->buffer + writer->filled, &ids[i], header->width);
        writer->filled += header->width;
    }
    header->tokens += count;
    writer->starts[++header->documents] = header->tokens;
    return SRNN_OK;
}

int64_t sr_shard_writer_tokens(const sr_shard_writer *writer) {
    return (int64_t)writer->header.tokens;
}

int64_t sr_shard_writer_documents(const sr_shard_writer *writer) {
    return (int64_t)writer->header.documents;
}

srnn_status sr_shard_writer_finish(sr_shard_writer *writer) {
    sr_shard_header *header = &writer->header;
    static const unsigned char zeros[8];
    size_t index_bytes = (header->documents + 1) * sizeof *writer->starts;
    SR_TRY(flush(writer));
    SR_TRY(sr_replacement_write(writer->file, zeros,
                                sr_shard_padding(header->tokens * header->width)));
    SR_TRY(sr_replacement_write(writer->file, writer->starts, index_bytes));
    header->index_crc = (uint32_t)crc32_z(0, (const Bytef *)writer->starts, index_bytes);
    header->header_crc =
        (uint32_t)crc32(0, (const Bytef *)header, offsetof(sr_shard_header, header_crc));
    SR_TRY(sr_replacement_overwrite(writer->file, 0, header, sizeof *header));
    return sr_replacement_commit(writer->file);
}

void sr_shard_writer_free(sr_shard_writer *writer) {
    if (!writer)
        return;
    sr_replacement_free(writer->file);
    free(writer->starts);
    free(writer->buffer);
    free(writer);
}
