/* token_file.c: token sequences that have no index of documents: .bin files and plain text. */
#include "base/memory.h"
#include "data/shards/shard.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* llm.c: dev/data/data_common.py writes 256 int32 before the tokens: magic, version, count. */
enum { LLMC_HEADER_BYTES = 256 * 4, BYTE_VOCAB = 257 };

static const struct llmc_form {
    int32_t magic, version;
    int width;
    uint32_t vocab;
} llmc_forms[] = {
    {20240520, 1, 2, UINT16_MAX + 1}, /* GPT-2 */
    {20240801, 7, 4, 128256},         /* Llama-3 */
};

/* Size of the weights of a llama2.c model with this header; 0: not a valid header. */
static uint64_t llama2c_bytes(const int32_t *header) {
    enum { MOST = 1 << 20 };
    for (int i = 0; i < 7; i++)
        if (i != 5 && (header[i] < 1 || header[i] > MOST))
            return 0;
    const bool tied = header[5] > 0;
    const int64_t V = tied ? header[5] : -(int64_t)header[5];
    const uint64_t C = (uint64_t)header[0], F = (uint64_t)header[1], L = (uint64_t)header[2],
                   H = (uint64_t)header[3], Hkv = (uint64_t)header[4], T = (uint64_t)header[6];
    if (V < 1 || V > 1 << 24 || L > 4096 || C % H != 0 || C > 1 << 16 || F > 1 << 18)
        return 0;
    const uint64_t D = C / H;
    return 4 * ((tied ? 1 : 2) * (uint64_t)V * C + C + T * D +
                L * (2 * C + 2 * C * C + 2 * C * Hkv * D + 3 * C * F));
}

/* Models use this extension too, and any bytes are valid tokens. */
static bool is_model(const sr_shard *shard) {
    enum { SIZES = 7 };
    static const char *const magics[] = {"PK\3\4", "GGUF", "24ka"}; /* torch, llama.cpp, llama2.c */
    const uint8_t *data = shard->mapping.data;
    const size_t bytes = shard->mapping.bytes;
    int32_t header[SIZES];
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
        if (bytes > 4 && memcmp(data, magics[i], 4) == 0)
            return true;
    if (bytes <= sizeof header)
        return false;
    memcpy(header, data, sizeof header);
    return llama2c_bytes(header) == bytes - sizeof header;
}

/* Without a header: nanoGPT's uint16. */
static srnn_status read_header(sr_shard *shard, size_t *header_bytes) {
    size_t bytes = shard->mapping.bytes;
    int32_t header[3] = {0};
    *header_bytes = 0;
    if (bytes >= LLMC_HEADER_BYTES)
        memcpy(header, shard->mapping.data, sizeof header);
    for (size_t i = 0; i < sizeof llmc_forms / sizeof *llmc_forms; i++) {
        const struct llmc_form *form = &llmc_forms[i];
        if (header[0] != form->magic)
            continue;
        size_t there = bytes - LLMC_HEADER_BYTES;
        if (header[1] != form->version)
            return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: llm.c token file of version %d, not %d",
                           shard->path, header[1], form->version);
        if (header[2] < 0 || (size_t)header[2] * (size_t)form->width != there)
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: the header states %d tokens, the file holds %zu",
                           shard->path, header[2], there / (size_t)form->width);
        *header_bytes = LLMC_HEADER_BYTES;
        shard->width = form->width;
        shard->vocab = form->vocab;
    }
    return SRNN_OK;
}

static srnn_status find_tokens(sr_shard *shard) {
    size_t header_bytes;
    SR_TRY(read_header(shard, &header_bytes));
    size_t bytes = shard->mapping.bytes - header_bytes;
    if (bytes == 0 || bytes % (size_t)shard->width != 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %zu bytes are not a sequence of %d-bit tokens",
                       shard->path, bytes, shard->width * 8);
    shard->tokens = (const uint8_t *)shard->mapping.data + header_bytes;
    shard->token_count = (int64_t)(bytes / (size_t)shard->width);
    shard->token_crc = (uint32_t)crc32_z(0, shard->tokens, bytes);
    return SRNN_OK;
}

static uint32_t token_at(const sr_shard *shard, int64_t token) {
    return shard->width == 2 ? ((const uint16_t *)shard->tokens)[token]
                             : ((const uint32_t *)shard->tokens)[token];
}

/* True if a document starts at `token`, which is not the first. */
static bool starts_at(const sr_shard *shard, int64_t token, const sr_bin_settings *settings) {
    switch (settings->boundary) {
    case SR_BOUNDARY_NONE:
        return false;
    case SR_BOUNDARY_AFTER:
        return token_at(shard, token - 1) == settings->token;
    case SR_BOUNDARY_BEFORE:
        return token_at(shard, token) == settings->token;
    }
    return false;
}

static srnn_status index_documents(sr_shard *shard, const sr_bin_settings *settings) {
    int64_t count = 1;
    for (int64_t token = 1; token < shard->token_count; token++)
        count += starts_at(shard, token, settings);
    SR_TRY(sr_alloc_zero(&shard->owned, (size_t)count + 1, sizeof(uint64_t)));
    uint64_t *starts = shard->owned;
    int64_t document = 0;
    for (int64_t token = 1; token < shard->token_count; token++)
        if (starts_at(shard, token, settings))
            starts[++document] = (uint64_t)token;
    starts[count] = (uint64_t)shard->token_count;
    shard->starts = starts;
    shard->document_count = count;
    return SRNN_OK;
}

srnn_status sr_shard_open_bin(sr_shard *shard, const char *path, const sr_bin_settings *settings) {
    *shard = (sr_shard){.width = 2, .vocab = UINT16_MAX + 1};
    shard->end_token = settings->boundary == SR_BOUNDARY_AFTER ? (int64_t)settings->token : -1;
    shard->path = strdup(path);
    srnn_status status = shard->path ? sr_mapping_open(&shard->mapping, path)
                                     : SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory", path);
    if (status == SRNN_OK && is_model(shard))
        status = SR_FAIL(SRNN_ERR_ARGUMENT, "%s: holds a model, not tokens", path);
    if (status == SRNN_OK)
        status = find_tokens(shard);
    if (settings->vocab)
        shard->vocab = settings->vocab;
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
        .token_crc = (uint32_t)crc32_z(0, (const Bytef *)text, bytes),
        .starts = (const uint64_t *)(const void *)owned,
        .document_count = 1,
        .vocab = BYTE_VOCAB,
        .end_token = -1,
        .owned = owned,
        .path = strdup("text"),
    };
    if (shard->path)
        return SRNN_OK;
    sr_shard_close(shard);
    return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a name");
}
