/* tensorboard.c: TensorBoard's event files.
 *
 * A record is: length (8 bytes), masked crc32c of those, the event, masked crc32c of it. An event
 * is a protocol buffer: wall_time = 1 (double), step = 2 (varint), file_version = 3 (text), summary
 * = 5; a summary's value = 1 has tag = 1 (text) and simple_value = 2 (float), or tensor = 8 and
 * metadata = 9 that names the plugin which shows it. */
#include "train/run/tensorboard.h"

#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Upper bound of the bytes around a name or a text. */
enum { AROUND_BYTES = 256, NAME_BYTES = 200, EVENT_BYTES = AROUND_BYTES + NAME_BYTES };

typedef struct buffer {
    uint8_t *bytes; /* large enough for everything written */
    size_t count;
} buffer;

/* Castagnoli's polynomial, bit by bit; fast enough for few, short records. */
static uint32_t crc32c(const uint8_t *data, size_t count) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1u ? 0x82f63b78u : 0u);
    }
    return ~crc;
}

static uint32_t masked(const uint8_t *data, size_t count) {
    const uint32_t crc = crc32c(data, count);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put(buffer *b, const void *data, size_t count) {
    memcpy(b->bytes + b->count, data, count);
    b->count += count;
}

static void put_little(buffer *b, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        const uint8_t byte = (uint8_t)(value >> (8 * i));
        put(b, &byte, 1);
    }
}

static void put_varint(buffer *b, uint64_t value) {
    for (; value >= 0x80; value >>= 7)
        put_little(b, (value & 0x7f) | 0x80, 1);
    put_little(b, value, 1);
}

/* Kinds of fields: 0 varint, 1 eight bytes, 2 bytes with a length, 5 four bytes. */
static void put_key(buffer *b, int field, int kind) {
    put_varint(b, (uint64_t)(field << 3 | kind));
}

static void put_bytes(buffer *b, int field, const void *data, size_t count) {
    put_key(b, field, 2);
    put_varint(b, count);
    put(b, data, count);
}

static void put_double(buffer *b, int field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(b, field, 1);
    put_little(b, bits, 8);
}

bool sr_tensorboard_ends(const uint8_t *file, size_t bytes) {
    enum { AROUND = 8 + 4 + 4 };
    for (size_t at = 0; at < bytes;) {
        uint64_t length;
        if (bytes - at < AROUND)
            return false;
        memcpy(&length, file + at, sizeof length);
        if (length > bytes - at - AROUND)
            return false;
        at += AROUND + (size_t)length;
    }
    return true;
}

/* `record` is a buffer for the event and its framing. */
static srnn_status write_record(sr_log_file *file, const buffer *event, buffer record) {
    put_little(&record, event->count, 8);
    put_little(&record, masked(record.bytes, 8), 4);
    put(&record, event->bytes, event->count);
    put_little(&record, masked(event->bytes, event->count), 4);
    return sr_log_file_append(file, record.bytes, record.count);
}

srnn_status sr_tensorboard_begin(sr_log_file *file, double seconds) {
    uint8_t buffers[2][EVENT_BYTES];
    buffer event = {buffers[0], 0};
    put_double(&event, 1, seconds);
    put_bytes(&event, 3, "brain.Event:2", 13);
    return write_record(file, &event, (buffer){buffers[1], 0});
}

/* The event of one summary that holds one value. */
static void put_summary(buffer *event, double seconds, int64_t step, const buffer *value,
                        buffer summary) {
    put_bytes(&summary, 1, value->bytes, value->count);
    put_double(event, 1, seconds);
    put_key(event, 2, 0);
    put_varint(event, (uint64_t)step);
    put_bytes(event, 5, summary.bytes, summary.count);
}

srnn_status sr_tensorboard_scalar(sr_log_file *file, double seconds, int64_t step, const char *name,
                                  double value) {
    uint8_t buffers[4][EVENT_BYTES];
    buffer event = {buffers[0], 0}, number = {buffers[1], 0};
    const float simple = (float)value;
    uint32_t bits;
    memcpy(&bits, &simple, sizeof bits);
    put_bytes(&number, 1, name, strnlen(name, NAME_BYTES));
    put_key(&number, 2, 5);
    put_little(&number, bits, 4);
    put_summary(&event, seconds, step, &number, (buffer){buffers[2], 0});
    return write_record(file, &event, (buffer){buffers[3], 0});
}

/* A tensor of one text: dtype = 1 (7: text), tensor_shape = 2 with one dim = 2 of size = 1, and
 * string_val = 8. */
static void put_text_tensor(buffer *tensor, const char *text, size_t bytes) {
    static const uint8_t type_and_shape[] = {1 << 3, 7, 2 << 3 | 2, 4, 2 << 3 | 2, 2, 1 << 3, 1};
    put(tensor, type_and_shape, sizeof type_and_shape);
    put_bytes(tensor, 8, text, bytes);
}

srnn_status sr_tensorboard_text(sr_log_file *file, double seconds, const char *name,
                                const char *text, size_t bytes) {
    /* plugin_data = 1 with plugin_name = 1 */
    static const uint8_t metadata[] = {1 << 3 | 2, 6, 1 << 3 | 2, 4, 't', 'e', 'x', 't'};
    const size_t capacity = bytes + EVENT_BYTES;
    void *memory;
    SR_TRY(sr_alloc(&memory, 5 * capacity, 1));
    uint8_t *at = memory;
    buffer event = {at, 0}, value = {at + capacity, 0}, tensor = {at + 2 * capacity, 0};
    put_text_tensor(&tensor, text, bytes);
    put_bytes(&value, 1, name, strnlen(name, NAME_BYTES));
    put_bytes(&value, 8, tensor.bytes, tensor.count);
    put_bytes(&value, 9, metadata, sizeof metadata);
    put_summary(&event, seconds, 0, &value, (buffer){at + 3 * capacity, 0});
    const srnn_status status = write_record(file, &event, (buffer){at + 4 * capacity, 0});
    free(memory);
    return status;
}
