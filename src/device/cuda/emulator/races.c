/* races.c: race detector: records the last accesses of each word; called before each access. */
#include "device/cuda/emulator/races.h"

#include "device/cuda/emulator/block.h"

#include <dlfcn.h>
#include <stdio.h>

enum { WORD = 4, TRACES = 1 << 18 };

/* The last accesses to a word. `time` counts barriers of blocks and is never reset, so that traces
 * of earlier blocks are simply old; `warp_time` counts those of a warp, `arrivals` those of a
 * thread at barriers of some warps. Threads that touch other bytes of the word do not conflict, and
 * may evict each other's traces, as distant words do: races may be missed, but there are no false
 * positives. */
typedef struct trace {
    uintptr_t word;
    uint32_t write_time, write_warp_time, write_arrivals, read_time, read_warp_time;
    uint32_t reader_warps; /* all warps that read at read_time */
    uint32_t read_arrivals[SR_EMULATOR_WARPS];
    int16_t writer, reader;
    uint8_t written, read; /* which bytes */
    bool many_lanes;       /* of the last reader's warp read, at read_warp_time */
} trace;

static trace *trace_of(uintptr_t word) {
    static _Thread_local trace *traces;
    if (traces == NULL)
        traces = calloc(TRACES, sizeof *traces);
    if (traces == NULL)
        sr_emulator_fail("no memory to look for races");
    trace *found = &traces[word % TRACES];
    if (found->word != word)
        *found = (trace){.word = word, .writer = -1, .reader = -1};
    return found;
}

static int warp_of(int thread) {
    return thread / SR_EMULATOR_WARP;
}

/* Whether no barrier of some warps orders what a warp did before its arrival of this number. */
static bool is_unordered(const sr_emulated_moment *now, int warp, uint32_t arrivals) {
    return now->ordered[warp] < arrivals;
}

/* Whether this access may be concurrent with a write of the word. */
static bool meets_writer(const trace *t, const sr_emulated_moment *now, uint8_t bytes) {
    if (t->writer < 0 || t->writer == now->thread || t->write_time != now->time ||
        (t->written & bytes) == 0 || !is_unordered(now, warp_of(t->writer), t->write_arrivals))
        return false;
    return warp_of(t->writer) != warp_of(now->thread) || t->write_warp_time == now->warp_time;
}

/* Whether a write may be concurrent with a read of the word. */
static bool meets_reader(const trace *t, const sr_emulated_moment *now, uint8_t bytes) {
    if (t->reader < 0 || t->read_time != now->time || (t->read & bytes) == 0)
        return false;
    const int own = warp_of(now->thread);
    for (int i = 0; i < SR_EMULATOR_WARPS; i++)
        if (i != own && (t->reader_warps >> i & 1) != 0 &&
            is_unordered(now, i, t->read_arrivals[i]))
            return true;
    return warp_of(t->reader) == own && is_unordered(now, own, t->read_arrivals[own]) &&
           t->read_warp_time == now->warp_time && (t->many_lanes || t->reader != now->thread);
}

static void note_write(trace *t, const sr_emulated_moment *now, uint8_t bytes) {
    const bool goes_on = t->writer == now->thread && t->write_time == now->time;
    t->written = goes_on ? t->written | bytes : bytes;
    t->writer = (int16_t)now->thread;
    t->write_time = now->time;
    t->write_warp_time = now->warp_time;
    t->write_arrivals = now->arrivals;
}

static void note_read(trace *t, const sr_emulated_moment *now, uint8_t bytes) {
    const bool same_time = t->reader >= 0 && t->read_time == now->time && t->read == bytes;
    const bool same_warp_time = same_time && warp_of(t->reader) == warp_of(now->thread) &&
                                t->read_warp_time == now->warp_time;
    t->reader_warps = (same_time ? t->reader_warps : 0) | 1u << warp_of(now->thread);
    t->many_lanes = same_warp_time && (t->many_lanes || t->reader != now->thread);
    t->read = bytes;
    t->reader = (int16_t)now->thread;
    t->read_time = now->time;
    t->read_warp_time = now->warp_time;
    t->read_arrivals[warp_of(now->thread)] = now->arrivals;
}

/* One access, and the code that made it. */
typedef struct access {
    const void *address, *code;
    bool write;
} access;

static void tell(const sr_emulated_moment *now, const access *a, int other, const char *did) {
    Dl_info info = {0};
    const bool found = dladdr(a->code, &info) != 0;
    const size_t code =
        found ? (size_t)((const char *)a->code - (const char *)info.dli_fbase) : (size_t)0;
    sr_emulator_fail("a race: thread %d %s what thread %d %s, no barrier between (%p, shared "
                     "memory begins at %p; code: addr2line -e %s %#zx)",
                     now->thread, a->write ? "writes" : "reads", other, did, a->address,
                     (const void *)sr_emulated_shared, found ? info.dli_fname : "?", code);
}

static void touch_word(const sr_emulated_moment *now, const access *a, uintptr_t word,
                       uint8_t bytes) {
    trace *t = trace_of(word);
    if (meets_writer(t, now, bytes))
        tell(now, a, t->writer, "wrote");
    if (a->write && meets_reader(t, now, bytes))
        tell(now, a, t->reader, "or others read");
    if (a->write)
        note_write(t, now, bytes);
    else
        note_read(t, now, bytes);
}

static void touch(int lane, const access *a, size_t bytes) {
    sr_emulated_moment now;
    if (!sr_emulator_moment(&now, lane, a->address))
        return;
    const uintptr_t first = (uintptr_t)a->address, past = first + bytes;
    for (uintptr_t at = first; at < past;) {
        const uintptr_t word = at / WORD, end = (word + 1) * WORD < past ? (word + 1) * WORD : past;
        uint8_t mask = 0;
        for (; at < end; at++)
            mask |= (uint8_t)(1u << at % WORD);
        touch_word(&now, a, word, mask);
    }
}

void sr_emulator_touch(int lane, const void *address, size_t bytes, bool write) {
    const access a = {address, __builtin_return_address(0), write};
    touch(lane, &a, bytes);
}

/* ---- called by -fsanitize=thread ---- */

#define ACCESS(name, bytes, writes)                                      \
    void name(const void *address);                                      \
    void name(const void *address) {                                     \
        const access a = {address, __builtin_return_address(0), writes}; \
        touch(-1, &a, bytes);                                            \
    }
ACCESS(__tsan_read1, 1, false)
ACCESS(__tsan_read2, 2, false)
ACCESS(__tsan_read4, 4, false)
ACCESS(__tsan_read8, 8, false)
ACCESS(__tsan_read16, 16, false)
ACCESS(__tsan_write1, 1, true)
ACCESS(__tsan_write2, 2, true)
ACCESS(__tsan_write4, 4, true)
ACCESS(__tsan_write8, 8, true)
ACCESS(__tsan_write16, 16, true)
ACCESS(__tsan_unaligned_read2, 2, false)
ACCESS(__tsan_unaligned_read4, 4, false)
ACCESS(__tsan_unaligned_read8, 8, false)
ACCESS(__tsan_unaligned_read16, 16, false)
ACCESS(__tsan_unaligned_write2, 2, true)
ACCESS(__tsan_unaligned_write4, 4, true)
ACCESS(__tsan_unaligned_write8, 8, true)
ACCESS(__tsan_unaligned_write16, 16, true)
#undef ACCESS

void __tsan_read_range(const void *address, size_t bytes);
void __tsan_read_range(const void *address, size_t bytes) {
    const access a = {address, __builtin_return_address(0), false};
    touch(-1, &a, bytes);
}

void __tsan_write_range(const void *address, size_t bytes);
void __tsan_write_range(const void *address, size_t bytes) {
    const access a = {address, __builtin_return_address(0), true};
    touch(-1, &a, bytes);
}

void __tsan_init(void);
void __tsan_init(void) {
}

void __tsan_func_entry(const void *caller);
void __tsan_func_entry(const void *caller) {
    (void)caller;
}

void __tsan_func_exit(void);
void __tsan_func_exit(void) {
}

/* Concurrent atomic accesses are not a race. */
#define ATOMIC(bits)                                                                             \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *from, int order);   \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *from, int order) {  \
        (void)order;                                                                             \
        return __atomic_load_n(from, __ATOMIC_SEQ_CST);                                          \
    }                                                                                            \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *to, uint##bits##_t x, int order);  \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *to, uint##bits##_t x, int order) { \
        (void)order;                                                                             \
        __atomic_store_n(to, x, __ATOMIC_SEQ_CST);                                               \
    }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)
#undef ATOMIC
