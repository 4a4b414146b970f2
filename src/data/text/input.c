/* input.c: streaming decompression behind one read function. */
#include "data/text/input.h"

#include "base/memory.h"
#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <lzma.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { BUFFER_BYTES = 256 * 1024, MAGIC_BYTES = 6 };
/* No xz preset needs more than 65 MiB to decompress; a hostile header can request gigabytes. */
#define XZ_MEMORY_BYTES ((uint64_t)256 << 20)

typedef struct decoder {
    const char *name;
    unsigned char magic[MAGIC_BYTES];
    size_t magic_bytes;
    unsigned char first_mask; /* bits of the magic's first byte that are compared */
    srnn_status (*start)(sr_input *input);
    /* Moves bytes from the buffer to `bytes`, possibly none; sets inside_member. */
    srnn_status (*step)(sr_input *input, void *bytes, size_t size, size_t *got);
    void (*stop)(sr_input *input);
} decoder;

struct sr_input {
    int file;
    const decoder *decoder;
    unsigned char *buffer; /* (BUFFER_BYTES): begin .. end-1 are not used yet */
    size_t begin, end;
    int64_t position;   /* bytes read from the file */
    int64_t given;      /* bytes decompressed */
    bool at_end;        /* the file has no more bytes */
    bool inside_member; /* the file must not end here */
    z_stream gzip;
    ZSTD_DStream *zstd;
    lzma_stream xz;
    char path[];
};

static srnn_status broken(const sr_input *input, const char *reason) {
    int64_t byte = input->position - (int64_t)(input->end - input->begin);
    return SR_FAIL(SRNN_ERR_FORMAT, "%s: the %s data is broken near byte %lld: %s", input->path,
                   input->decoder->name, (long long)byte, reason);
}

static srnn_status plain_start(sr_input *input) {
    (void)input;
    return SRNN_OK;
}

static srnn_status plain_step(sr_input *input, void *bytes, size_t size, size_t *got) {
    size_t there = input->end - input->begin;
    *got = there < size ? there : size;
    memcpy(bytes, input->buffer + input->begin, *got);
    input->begin += *got;
    return SRNN_OK;
}

static void plain_stop(sr_input *input) {
    (void)input;
}

static srnn_status gzip_start(sr_input *input) {
    /* 15: the largest window; 16: a gzip header. */
    if (inflateInit2(&input->gzip, 15 + 16) != Z_OK)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for decompression", input->path);
    return SRNN_OK;
}

static srnn_status gzip_step(sr_input *input, void *bytes, size_t size, size_t *got) {
    z_stream *stream = &input->gzip;
    *got = 0;
    /* Tape drives pad the last block with zeros. */
    while (!input->inside_member && input->begin < input->end && !input->buffer[input->begin])
        input->begin++;
    if (!input->inside_member && input->begin == input->end)
        return SRNN_OK;
    stream->next_in = input->buffer + input->begin;
    stream->avail_in = (uInt)(input->end - input->begin);
    stream->next_out = bytes;
    stream->avail_out = size < BUFFER_BYTES ? (uInt)size : BUFFER_BYTES;
    uInt available = stream->avail_out;
    input->inside_member = true;
    int code = inflate(stream, Z_NO_FLUSH);
    input->begin = input->end - stream->avail_in;
    *got = available - stream->avail_out;
    if (code == Z_STREAM_END) {
        input->inside_member = false;
        inflateReset(stream);
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
        return broken(input, stream->msg ? stream->msg : "not gzip");
    }
    return SRNN_OK;
}

static void gzip_stop(sr_input *input) {
    inflateEnd(&input->gzip);
}

static srnn_status zstd_start(sr_input *input) {
    input->zstd = ZSTD_createDStream();
    if (!input->zstd)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for decompression", input->path);
    return SRNN_OK;
}

static srnn_status zstd_step(sr_input *input, void *bytes, size_t size, size_t *got) {
    ZSTD_inBuffer in = {input->buffer, input->end, input->begin};
    ZSTD_outBuffer out = {bytes, size, 0};
    size_t hint = ZSTD_decompressStream(input->zstd, &out, &in);
    input->begin = in.pos;
    *got = out.pos;
    if (ZSTD_isError(hint))
        return broken(input, ZSTD_getErrorName(hint));
    input->inside_member = hint != 0;
    return SRNN_OK;
}

static void zstd_stop(sr_input *input) {
    ZSTD_freeDStream(input->zstd);
}

static srnn_status xz_start(sr_input *input) {
    input->xz = (lzma_stream)LZMA_STREAM_INIT;
    if (lzma_stream_decoder(&input->xz, XZ_MEMORY_BYTES, LZMA_CONCATENATED) != LZMA_OK)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for decompression", input->path);
    return SRNN_OK;
}

static srnn_status xz_step(sr_input *input, void *bytes, size_t size, size_t *got) {
    lzma_stream *stream = &input->xz;
    stream->next_in = input->buffer + input->begin;
    stream->avail_in = input->end - input->begin;
    stream->next_out = bytes;
    stream->avail_out = size;
    lzma_ret code = lzma_code(stream, input->at_end ? LZMA_FINISH : LZMA_RUN);
    input->begin = input->end - stream->avail_in;
    *got = size - stream->avail_out;
    /* The library chains members and reports whether the last one is complete. */
    input->inside_member = code != LZMA_STREAM_END;
    if (code == LZMA_MEMLIMIT_ERROR)
        return broken(input, "it needs more than 256 MiB of memory");
    if (code != LZMA_OK && code != LZMA_STREAM_END && code != LZMA_BUF_ERROR)
        return broken(input, code == LZMA_FORMAT_ERROR ? "not xz" : "wrong check or contents");
    return SRNN_OK;
}

static void xz_stop(sr_input *input) {
    lzma_end(&input->xz);
}

/* The first whose magic matches wins; plain, which has none, is last. */
static const decoder decoders[] = {
    {"gzip", {0x1f, 0x8b}, 2, 0xff, gzip_start, gzip_step, gzip_stop},
    {"zstd", {0x28, 0xb5, 0x2f, 0xfd}, 4, 0xff, zstd_start, zstd_step, zstd_stop},
    {"zstd", {0x50, 0x2a, 0x4d, 0x18}, 4, 0xf0, zstd_start, zstd_step, zstd_stop}, /* skippable */
    {"xz", {0xfd, '7', 'z', 'X', 'Z', 0}, 6, 0xff, xz_start, xz_step, xz_stop},
    {"plain", {0}, 0, 0, plain_start, plain_step, plain_stop},
};

/* Reads more of the file after the unused bytes of the buffer. */
static srnn_status refill(sr_input *input) {
    memmove(input->buffer, input->buffer + input->begin, input->end - input->begin);
    input->end -= input->begin;
    input->begin = 0;
    ssize_t count;
    do
        count = read(input->file, input->buffer + input->end, BUFFER_BYTES - input->end);
    while (count < 0 && errno == EINTR);
    if (count < 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: cannot read: %s", input->path, strerror(errno));
    input->at_end = count == 0;
    input->end += (size_t)count;
    input->position += count;
    return SRNN_OK;
}

static bool has_magic(const sr_input *input, const decoder *of) {
    if (of->magic_bytes == 0)
        return true;
    return input->end >= of->magic_bytes && (input->buffer[0] & of->first_mask) == of->magic[0] &&
           memcmp(input->buffer + 1, of->magic + 1, of->magic_bytes - 1) == 0;
}

/* A pipe may deliver its first bytes one at a time. */
static srnn_status read_magic(sr_input *input) {
    while (input->end < MAGIC_BYTES && !input->at_end)
        SR_TRY(refill(input));
    const decoder *found = decoders;
    while (!has_magic(input, found))
        found++;
    SR_TRY(found->start(input));
    input->decoder = found;
    return SRNN_OK;
}

srnn_status sr_input_open(sr_input **input, const char *path) {
    size_t path_bytes = strlen(path) + 1;
    sr_input *opened;
    SR_TRY(sr_alloc_zero((void **)&opened, 1, sizeof *opened + path_bytes));
    memcpy(opened->path, path, path_bytes);
    opened->file = sr_descriptor_open(path, O_RDONLY);
    srnn_status status = SRNN_OK;
    if (opened->file < 0)
        status = SR_FAIL(SRNN_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    if (status == SRNN_OK)
        status = sr_alloc((void **)&opened->buffer, BUFFER_BYTES, 1);
    if (status == SRNN_OK)
        status = read_magic(opened);
    if (status != SRNN_OK) {
        sr_input_free(opened);
        return status;
    }
    *input = opened;
    return SRNN_OK;
}

void sr_input_free(sr_input *input) {
    if (!input)
        return;
    if (input->decoder)
        input->decoder->stop(input);
    if (input->file >= 0)
        close(input->file);
    free(input->buffer);
    free(input);
}

/* A few bytes can decompress to any number of zeros and fill memory. Text never expands this
 * much. */
static srnn_status check_growth(const sr_input *input) {
    enum { MOST_GROWTH = 1000, ALWAYS_FINE = 16 << 20 };
    if (input->given <= ALWAYS_FINE || input->given / MOST_GROWTH <= input->position)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_LIMIT,
                   "%s: holds more than %d times as much as it is large: not a text; if it is one, "
                   "decompress it first",
                   input->path, MOST_GROWTH);
}

srnn_status sr_input_read(sr_input *input, void *bytes, size_t size, size_t *got) {
    *got = 0;
    for (;;) {
        if (input->begin == input->end && !input->at_end)
            SR_TRY(refill(input));
        bool nothing_left = input->begin == input->end && input->at_end;
        if (nothing_left && !input->inside_member)
            return SRNN_OK;
        SR_TRY(input->decoder->step(input, bytes, size, got));
        input->given += (int64_t)*got;
        SR_TRY(check_growth(input));
        if (*got > 0)
            return SRNN_OK;
        if (nothing_left && input->inside_member)
            return broken(input, "the file ends too early; was it copied completely?");
    }
}

bool sr_input_is_plain(const sr_input *input) {
    return input->decoder->magic_bytes == 0;
}

int64_t sr_input_position(const sr_input *input) {
    return input->position;
}
