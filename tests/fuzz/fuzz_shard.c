/* fuzz_shard.c: no bytes make the reader of shards read outside them. */
#include "base/memory.h"
#include "data/shards/shard.h"
#include "data/shards/shard_form.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Sets the right checksums in the header, which a fuzzer cannot guess, if possible. */
static void repair(uint8_t *bytes, size_t size) {
    sr_shard_header header;
    if (size < sizeof header)
        return;
    memcpy(&header, bytes, sizeof header);
    memcpy(header.magic, SR_SHARD_MAGIC, sizeof header.magic);
    header.version = SR_SHARD_VERSION;
    uint64_t index_bytes = (header.documents + 1) * 8;
    if (header.documents < size / 8 && index_bytes <= size - sizeof header)
        header.index_crc = (uint32_t)crc32_z(0, bytes + size - index_bytes, index_bytes);
    header.header_crc =
        (uint32_t)crc32(0, (const Bytef *)&header, offsetof(sr_shard_header, header_crc));
    memcpy(bytes, &header, sizeof header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *bytes;
    if (sr_alloc((void **)&bytes, size, 1) != SRNN_OK)
        return 0;
    memcpy(bytes, data, size);
    for (int repaired = 0; repaired < 2; repaired++) {
        sr_shard shard;
        if (sr_shard_parse(&shard, bytes, size, "fuzz") == SRNN_OK) {
            (void)!sr_shard_verify(&shard);
            for (int64_t token = 0; token < shard.token_count; token++)
                if (sr_shard_document_of(&shard, token) >= shard.document_count)
                    abort();
        }
        sr_shard_close(&shard);
        repair(bytes, size);
    }
    free(bytes);
    return 0;
}
