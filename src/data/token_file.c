/* token_file.c: token sequences that have no index of documents: .bin files and plain text. */
#include "base/memory.h"
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>

/* llm.c: dev/data/data_common.py writes 256 int32 before the tokens. */
enum { LLMC_MAGIC = 20240520, LLMC_VERSION = 1, LLMC_HEADER_BYTES = 256 * 4, BYTE_VOCAB = 257 };

static srnn_status find_tokens(sr_shard *shard) {
    const uint8_t *data = shard->mapping.data;
    size_t bytes = shard->mapping.bytes;
    int32_t header[3] = {0};
    if (bytes >= LLMC_HEADER_BYTES)
        memcpy(header, data, sizeof header);
    if (header[0] == LLMC_MAGIC) {
        if (header[1] != LLMC_VERSION)
            return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: llm.c token file of version %d, not %d",
                           shard->path, header[1], LLMC_VERSION);
        if (header[2] < 0 || (size_t)header[2] * 2 != bytes - LLMC_HEADER_BYTES)
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: the header states %d tokens, the file holds %zu",
                           shard->path, header[2], (bytes - LLMC_HEADER_BYTES) / 2);
        data += LLMC_HEADER_BYTES;
        bytes -= LLMC_HEADER_BYTES;
    }
    if (bytes == 0 || bytes % 2 != 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %zu bytes are no sequence of 16-bit tokens",
                       shard->path, bytes);
    shard->tokens = data;
    shard->token_count = (int64_t)(bytes / 2);
    return SRNN_OK;
}

/* True if a document starts at `token`, which is not the first. */
static bool starts_at(const uint16_t *tokens, int64_t token, const sr_bin_settings *settings) {
    switch (settings->boundary) {
    case SR_BOUNDARY_NONE:
        return false;
    case SR_BOUNDARY_AFTER:
        return tokens[token - 1] == settings->token;
    case SR_BOUNDARY_BEFORE:
        return tokens[token] == settings->token;
    }
    return false;
}

static srnn_status index_documents(sr_shard *shard, const sr_bin_settings *settings) {
    const uint16_t *tokens = shard->tokens;
    int64_t count = 1;
    for (int64_t token = 1; token < shard->token_count; token++)
        count += starts_at(tokens, token, settings);
    SR_TRY(sr_alloc_zero(&shard->owned, (size_t)count + 1, sizeof(uint64_t)));
    uint64_t *starts = shard->owned;
    int64_t document = 0;
    for (int64_t token = 1; token < shard->token_count; token++)
        if (starts_at(tokens, token, settings))
            starts[++document] = (uint64_t)token;
    starts[count] = (uint64_t)shard->token_count;
    shard->starts = starts;
    shard->document_count = count;
    return SRNN_OK;
}

srnn_status sr_shard_open_bin(sr_shard *shard, const char *path, const sr_bin_settings *settings) {
    *shard = (sr_shard){.width = 2, .vocab = settings->vocab ? settings->vocab : UINT16_MAX + 1};
    shard->end_token = settings->boundary == SR_BOUNDARY_AFTER ? (int64_t)settings->token : -1;
    shard->path = strdup(path);
    srnn_status status = shard->path ? sr_mapping_open(&shard->mapping, path)
                                     : SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory", path);
    if (status == SRNN_OK)
        status = find_tokens(shard);
    if (status == SRNN_OK)
        status = index_documents(shard, settings);
    if (status != SRNN_OK)
        sr_shard_close(shard);
    return status;
}

srnn_status sr_shard_from_text(sr_shard *shard, const char *text, size_t bytes) {
    *shard = (sr_shard){0};
    if (bytes == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "the text is empty: there is nothing to learn from");
    unsigned char *owned;
    SR_TRY(sr_alloc((void **)&owned, bytes + 2 * sizeof(uint64_t), 1));
    const uint64_t starts[2] = {0, bytes};
    memcpy(owned, starts, sizeof starts);
    memcpy(owned + sizeof starts, text, bytes);
    *shard = (sr_shard){
        .tokens = owned + sizeof starts,
        .width = 1,
        .token_count = (int64_t)bytes,
        .starts = (const uint64_t *)(const void *)owned,
        .document_count = 1,
        .vocab = BYTE_VOCAB,
        .end_token = -1,
        .owned = owned,
        .path = strdup("text"),
    };
    return SRNN_OK;
}
