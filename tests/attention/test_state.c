/* test_state.c: saved states: modified ones are refused. */
#include "softrnn.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { H = 2, D = 4, VERSION_AT = 6 };

static srnn_state *make_state(const char *spec) {
    srnn_problem problem = {.B = 1, .H = H, .T = 3, .D = D};
    srnn_state *state;
    assert_int_equal(srnn_attention_parse(&problem.attention, spec), SRNN_OK);
    assert_int_equal(srnn_state_create(&state, &problem), SRNN_OK);
    return state;
}

static void feed_three(srnn_state *state) {
    float numbers[H * 3 * D], o[H * 3 * D];
    for (int n = 0; n < H * 3 * D; n++)
        numbers[n] = (float)(n % 7) - 3;
    const srnn_operands in = {.q = {.data = numbers},
                              .k = {.data = numbers},
                              .v = {.data = numbers}};
    assert_int_equal(srnn_state_feed(state, (srnn_tensor){.data = o}, &in, 3), SRNN_OK);
}

static char *save(const srnn_state *state, size_t *size) {
    *size = srnn_state_saved_bytes(state);
    char *bytes = malloc(*size);
    assert_non_null(bytes);
    assert_int_equal(srnn_state_save(state, bytes, *size), SRNN_OK);
    return bytes;
}

static void every_changed_byte_is_refused(void **unused) {
    (void)unused;
    static const char *const specs[] = {"order:2", "softmax"};
    for (size_t n = 0; n < 2; n++) {
        srnn_state *state = make_state(specs[n]), *other = make_state(specs[n]);
        size_t size;
        feed_three(state);
        char *bytes = save(state, &size);
        assert_int_equal(srnn_state_load(other, bytes, size), SRNN_OK);
        assert_int_equal(srnn_state_position(other), 3);
        for (size_t at = 0; at < size; at++) {
            bytes[at] ^= 0x40;
            if (srnn_state_load(other, bytes, size) != SRNN_ERR_FORMAT)
                fail_msg("%s: byte %zu of %zu was changed", specs[n], at, size);
            bytes[at] ^= 0x40;
        }
        assert_int_equal(srnn_state_load(other, bytes, size - 1), SRNN_ERR_FORMAT);
        assert_int_equal(srnn_state_load(other, bytes, size), SRNN_OK);
        free(bytes);
        srnn_state_free(state);
        srnn_state_free(other);
    }
}

/* The highest bits of two words, which would cancel in a hash without folding: two signs. */
static void two_changed_signs_are_refused(void **unused) {
    (void)unused;
    srnn_state *state = make_state("order:2");
    size_t size;
    feed_three(state);
    char *bytes = save(state, &size);
    const size_t last = size / 8 * 8 - 1; /* of the last whole word */
    for (size_t back = 8; back <= 64; back += 8) {
        bytes[last] ^= (char)0x80;
        bytes[last - back] ^= (char)0x80;
        assert_int_equal(srnn_state_load(state, bytes, size), SRNN_ERR_FORMAT);
        bytes[last] ^= (char)0x80;
        bytes[last - back] ^= (char)0x80;
    }
    free(bytes);
    srnn_state_free(state);
}

static void other_versions_are_named(void **unused) {
    (void)unused;
    srnn_state *state = make_state("order:2");
    size_t size;
    char *bytes = save(state, &size);
    memcpy(bytes + VERSION_AT, "02", 2);
    assert_int_equal(srnn_state_load(state, bytes, size), SRNN_ERR_FORMAT);
    assert_non_null(strstr(srnn_error_detail(), "version 02 of the format; version 03 is read"));
    free(bytes);
    srnn_state_free(state);
}

/* With pool a state has an entry for each chunk: fewer numbers than tokens. */
static void pooled_states_are_loaded(void **unused) {
    (void)unused;
    enum { T = 300 };
    static float numbers[T], o[T];
    srnn_problem problem = {.B = 1, .H = 1, .Hkv = 1, .T = T, .D = 1, .Dv = 1};
    srnn_state *state, *again;
    assert_int_equal(srnn_attention_parse(&problem.attention, "softmax,position=none,pool=256"),
                     SRNN_OK);
    assert_int_equal(srnn_state_create(&state, &problem), SRNN_OK);
    assert_int_equal(srnn_state_create(&again, &problem), SRNN_OK);
    const srnn_tensor row = {.data = numbers};
    const srnn_operands in = {.q = row, .k = row, .v = row, .pool_gate = row};
    assert_int_equal(srnn_state_feed(state, (srnn_tensor){.data = o}, &in, T), SRNN_OK);
    const size_t size = srnn_state_saved_bytes(state);
    void *bytes = malloc(size);
    assert_int_equal(srnn_state_save(state, bytes, size), SRNN_OK);
    assert_int_equal(srnn_state_load(again, bytes, size), SRNN_OK);
    assert_int_equal(srnn_state_position(again), T);
    free(bytes);
    srnn_state_free(state);
    srnn_state_free(again);
}

static void other_problems_are_refused(void **unused) {
    (void)unused;
    srnn_state *state = make_state("order:2"), *other = make_state("power:2");
    size_t size;
    char *bytes = save(state, &size);
    assert_int_equal(srnn_state_load(other, bytes, size), SRNN_ERR_FORMAT);
    assert_non_null(strstr(srnn_error_detail(), "belongs to another problem"));
    free(bytes);
    srnn_state_free(state);
    srnn_state_free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_changed_byte_is_refused),
        cmocka_unit_test(two_changed_signs_are_refused),
        cmocka_unit_test(other_versions_are_named),
        cmocka_unit_test(other_problems_are_refused),
        cmocka_unit_test(pooled_states_are_loaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
