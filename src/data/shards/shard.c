/* shard.c: reads shard files, which may be damaged or hostile. */
#include "data/shards/shard.h"

#include "base/memory.h"
#include "data/shards/shard_form.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static srnn_status check_header(const sr_shard_header *header, const char *name) {
    if (memcmp(header->magic, SR_SHARD_MAGIC, sizeof header->magic) != 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: not a softrnn token shard (wrong magic)", name);
    if (header->version != SR_SHARD_VERSION)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: shard version %u; this program reads version %d",
                       name, header->version, SR_SHARD_VERSION);
    uLong crc = crc32(0, (const Bytef *)header, offsetof(sr_shard_header, header_crc));
    if (crc != header->header_crc)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the header is damaged (wrong checksum)", name);
    if ((header->width != 2 && header->width != 4) || header->zero != 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %u bytes per token; 2 or 4 are possible", name,
                       header->width);
    if (header->vocab == 0 || header->vocab > INT32_MAX || header->end_token_plus_1 > header->vocab)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: impossible vocabulary size %u", name, header->vocab);
    return SRNN_OK;
}

/* The file must be exactly as long as its header says. */
static srnn_status check_size(const sr_shard_header *header, size_t size, const char *name) {
    uint64_t remaining = size - sizeof *header;
    uint64_t token_bytes =
        header->tokens <= remaining / header->width ? header->tokens * header->width : UINT64_MAX;
    if (token_bytes <= remaining && header->documents < remaining / 8) {
        uint64_t index_bytes = (header->documents + 1) * 8;
        if (remaining == token_bytes + sr_shard_padding(token_bytes) + index_bytes)
            return SRNN_OK;
    }
    return SR_FAIL(SRNN_ERR_FORMAT,
                   "%s: %zu bytes do not hold the %llu tokens and %llu documents that the header "
                   "states; the file is cut off or damaged",
                   name, size, (unsigned long long)header->tokens,
                   (unsigned long long)header->documents);
}

static srnn_status check_index(const sr_shard_header *header, const uint64_t *starts,
                               const char *name) {
    uint64_t left = (header->documents + 1) * 8;
    if (crc32_z(0, (const Bytef *)starts, left) != header->index_crc)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the document index is damaged (wrong checksum)", name);
    bool increasing = starts[0] == 0 && starts[header->documents] == header->tokens;
    for (uint64_t n = 0; n < header->documents; n++)
        increasing = increasing && starts[n] < starts[n + 1];
    if (!increasing || header->documents == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the document index does not increase", name);
    return SRNN_OK;
}

static srnn_status set_path(sr_shard *shard, const char *path) {
    shard->path = strdup(path);
    return shard->path ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its name", path);
}

srnn_status sr_shard_parse(sr_shard *shard, const void *bytes, size_t size, const char *name) {
    *shard = (sr_shard){0};
    sr_shard_header header;
    if (size < sizeof header)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %zu bytes are too few for a token shard", name, size);
    memcpy(&header, bytes, sizeof header);
    SR_TRY(check_header(&header, name));
    SR_TRY(check_size(&header, size, name));
    const unsigned char *tokens = (const unsigned char *)bytes + sizeof header;
    uint64_t token_bytes = header.tokens * header.width;
    const void *starts = tokens + token_bytes + sr_shard_padding(token_bytes);
    SR_TRY(check_index(&header, starts, name));
    *shard = (sr_shard){
        .tokens = tokens,
        .width = (int)header.width,
        .token_count = (int64_t)header.tokens,
        .starts = starts,
        .document_count = (int64_t)header.documents,
        .vocab = header.vocab,
        .end_token = (int64_t)header.end_token_plus_1 - 1,
        .tokenizer_hash = header.tokenizer_hash,
        .token_crc = header.token_crc,
        .index_crc = header.index_crc,
    };
    return set_path(shard, name);
}

srnn_status sr_shard_open(sr_shard *shard, const char *path) {
    *shard = (sr_shard){0};
    sr_mapping mapping;
    SR_TRY(sr_mapping_open(&mapping, path));
    srnn_status status = sr_shard_parse(shard, mapping.data, mapping.bytes, path);
    if (status != SRNN_OK) {
        sr_mapping_close(&mapping);
        return status;
    }
    shard->mapping = mapping;
    return SRNN_OK;
}

void sr_shard_close(sr_shard *shard) {
    sr_mapping_close(&shard->mapping);
    free(shard->owned);
    free(shard->path);
    *shard = (sr_shard){0};
}

static void widen(int32_t *ids, const sr_shard *shard, int64_t begin, int64_t count) {
    const unsigned char *at = (const unsigned char *)shard->tokens + begin * shard->width;
    for (int64_t i = 0; i < count; i++, at += shard->width) {
        uint32_t id = 0;
        memcpy(&id, at, (size_t)shard->width);
        ids[i] = id < shard->vocab ? (int32_t)id : -1;
    }
}

srnn_status sr_shard_check(const sr_shard *shard) {
    return shard->mapping.data ? sr_mapping_check(&shard->mapping, shard->path) : SRNN_OK;
}

srnn_status sr_shard_read(const sr_shard *shard, int32_t *ids, int64_t begin, int64_t count) {
    SR_TRY(sr_shard_check(shard));
    widen(ids, shard, begin, count);
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0)
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "%s: token %lld is not in the vocabulary of %u; the file is damaged or "
                           "belongs to another tokenizer",
                           shard->path, (long long)(begin + i), shard->vocab);
    }
    return SRNN_OK;
}

int64_t sr_shard_document_of(const sr_shard *shard, int64_t token) {
    int64_t low = 0, high = shard->document_count; /* starts[low] <= token < starts[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (shard->starts[middle] <= (uint64_t)token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

srnn_status sr_shard_verify(const sr_shard *shard) {
    size_t bytes = (size_t)shard->token_count * (size_t)shard->width;
    /* Only shard files contain a checksum; anything else that is mapped has `owned` set too. */
    if (!shard->owned && crc32_z(0, shard->tokens, bytes) != shard->token_crc)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the tokens are damaged (wrong checksum)", shard->path);
    int32_t ids[4096];
    for (int64_t begin = 0; begin < shard->token_count; begin += 4096) {
        int64_t left = shard->token_count - begin;
        SR_TRY(sr_shard_read(shard, ids, begin, left < 4096 ? left : 4096));
    }
    return SRNN_OK;
}
