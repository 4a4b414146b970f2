/* test_synthetic.c: answers of the synthetic tasks re-derived from the rows; their text form. */
#include "data/rows/synthetic.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 512 };

typedef struct buffers {
    int32_t ids[MOST], targets[MOST];
    int64_t starts[MOST];
} buffers;

static sr_source *make(const char *text, uint64_t seed) {
    sr_source *source;
    srnn_status status = sr_synthetic_create(&source, text, seed);
    if (status != SRNN_OK)
        print_message("%s\n", srnn_error_detail());
    assert_int_equal(status, SRNN_OK);
    return source;
}

static void get(buffers *out, const sr_source *source, sr_split split, int64_t number) {
    sr_token_row row = {out->ids, out->targets, out->starts, 0};
    assert_int_equal(source->fill(source, &row, split, number), SRNN_OK);
    assert_int_equal(row.documents, 1);
    assert_int_equal(out->starts[0], 0);
    for (int t = 0; t < source->T; t++) {
        assert_in_range(out->ids[t], 0, source->vocab - 1);
        assert_true(out->targets[t] >= -1 && out->targets[t] < source->vocab);
    }
}

static void recall_answers_stand_in_the_row(void **state) {
    (void)state;
    sr_source *source = make("recall", 5);
    assert_int_equal(source->T, 48);
    assert_int_equal(source->vocab, 32);
    int queries[16] = {0};
    for (int64_t number = 0; number < 200; number++) {
        buffers out;
        get(&out, source, SR_SPLIT_TRAIN, number);
        int value_of[16];
        memset(value_of, -1, sizeof value_of);
        for (int t = 0; t < 16; t += 2) {
            assert_in_range(out.ids[t], 0, 15);
            assert_in_range(out.ids[t + 1], 16, 31);
            assert_int_equal(value_of[out.ids[t]], -1); /* keys differ */
            value_of[out.ids[t]] = out.ids[t + 1];
        }
        for (int t = 0; t < 48; t++) {
            bool query = t >= 16 && t % 2 == 0;
            assert_int_equal(out.targets[t], query ? value_of[out.ids[t]] : -1);
            if (query) {
                assert_int_equal(out.ids[t + 1], out.targets[t]);
                queries[out.ids[t]]++;
            }
        }
    }
    for (int key = 0; key < 16; key++)
        assert_in_range(queries[key], 100, 300); /* 200 expected */
    sr_source_free(source);
}

static void recall_can_hide_its_answers(void **state) {
    (void)state;
    sr_source *source = make("recall:pairs=2,vocab=5,length=9,shown=0", 5);
    buffers out;
    get(&out, source, SR_SPLIT_TRAIN, 3);
    for (int t = 4; t < 9; t++) {
        int pair = out.ids[t] == out.ids[0] ? 0 : 2;
        assert_int_equal(out.ids[t], out.ids[pair]);
        assert_int_equal(out.targets[t], out.ids[pair + 1]);
    }
    sr_source_free(source);
}

static void mqar_asks_every_pair_once(void **state) {
    (void)state;
    static const char *const texts[] = {"mqar:vocab=256,length=64,pairs=16", "mqar",
                                        "mqar:noise=0,power=1,pairs=4", "mqar:power=0,pairs=16"};
    for (size_t i = 0; i < 4; i++) {
        sr_source *source = make(texts[i], 7);
        int pairs = i == 1 ? 8 : i == 2 ? 4 : 16, keys = source->vocab / 2;
        for (int64_t number = 0; number < 50; number++) {
            buffers out;
            get(&out, source, SR_SPLIT_VALIDATION, number);
            bool queried[16] = {false};
            for (int t = 0; t < source->T; t++) {
                if (t < 2 * pairs)
                    assert_in_range(out.ids[t], t % 2 ? keys : 1,
                                    t % 2 ? source->vocab - 1 : keys - 1);
                if (out.targets[t] < 0) {
                    if (i == 2 && t >= 2 * pairs)
                        assert_int_equal(out.ids[t], 0);
                    continue;
                }
                assert_true(t >= 2 * pairs && t % 2 == 0);
                int pair = 0;
                while (pair < pairs && out.ids[2 * pair] != out.ids[t])
                    pair++;
                assert_true(pair < pairs && !queried[pair]);
                queried[pair] = true;
                assert_int_equal(out.targets[t], out.ids[2 * pair + 1]);
            }
            for (int pair = 0; pair < pairs; pair++)
                assert_true(queried[pair]);
        }
        sr_source_free(source);
    }
}

/* With exponent 0.01 - 1 slot n has a weight of about 1/n: the first of 56 slots 0.22. */
static void mqar_gaps_follow_the_power_law(void **state) {
    (void)state;
    sr_source *source = make("mqar:pairs=1,length=114,vocab=128", 7);
    int first = 0, second = 0, rows = 4000;
    for (int64_t number = 0; number < rows; number++) {
        buffers out;
        get(&out, source, SR_SPLIT_TRAIN, number);
        first += out.targets[2] >= 0;
        second += out.targets[4] >= 0;
    }
    assert_in_range(first, 750, 960); /* 0.213 of 4000 and four standard deviations */
    assert_in_range(second, 340, 520);
    sr_source_free(source);
}

static void induction_asks_what_followed(void **state) {
    (void)state;
    sr_source *source = make("induction:vocab=9,length=11", 2);
    bool places[11] = {false};
    for (int64_t number = 0; number < 300; number++) {
        buffers out;
        get(&out, source, SR_SPLIT_TRAIN, number);
        int first = -1;
        for (int t = 0; t < 10; t++) {
            assert_int_equal(out.targets[t], -1);
            if (out.ids[t] == 8) {
                assert_int_equal(first, -1);
                first = t;
            }
        }
        assert_in_range(first, 0, 8);
        places[first] = true;
        assert_int_equal(out.ids[10], 8);
        assert_int_equal(out.targets[10], out.ids[first + 1]);
    }
    for (int place = 0; place < 9; place++)
        assert_true(places[place]);
    sr_source_free(source);
}

static void copy_repeats_the_symbols(void **state) {
    (void)state;
    sr_source *source = make("copy:tokens=4,vocab=8,length=20", 2);
    int places[16] = {0};
    for (int64_t number = 0; number < 800; number++) {
        buffers out;
        get(&out, source, SR_SPLIT_TRAIN, number);
        int answer = 16;
        for (int t = 0; t < 16; t++) {
            assert_int_equal(out.targets[t], -1);
            assert_int_not_equal(out.ids[t], 7);
            if (out.ids[t] != 6) {
                assert_int_equal(out.targets[answer++], out.ids[t]);
                places[t]++;
            }
        }
        assert_int_equal(answer, 20);
        for (int t = 16; t < 20; t++)
            assert_int_equal(out.ids[t], 7);
    }
    for (int t = 0; t < 16; t++)
        assert_in_range(places[t], 140, 260); /* 200 expected */
    sr_source_free(source);
}

/* Lists all permutations in lexical order the slow way: count through base-n numbers. */
static int list(int n, int all[][5]) {
    int count = 0, total = 1;
    for (int i = 0; i < n; i++)
        total *= n;
    for (int code = 0; code < total; code++) {
        int images[5], used = 0, rest = code;
        for (int place = n - 1; place >= 0; place--, rest /= n)
            used |= 1 << (images[place] = rest % n);
        if (used == (1 << n) - 1)
            memcpy(all[count++], images, sizeof images);
    }
    return count;
}

static void permutation_tracks_the_product(void **state) {
    (void)state;
    for (int n = 2; n <= 5; n++) {
        char text[64];
        int all[120][5];
        int count = list(n, all);
        snprintf(text, sizeof text, "permutation:size=%d,length=30", n);
        sr_source *source = make(text, 3);
        assert_int_equal(source->vocab, count);
        for (int64_t number = 0; number < 20; number++) {
            buffers out;
            get(&out, source, SR_SPLIT_TRAIN, number);
            for (int t = 0; t < 30; t++) {
                for (int start = 0; start < n; start++) {
                    int at = start; /* follow one element through all permutations so far */
                    for (int step = 0; step <= t; step++)
                        at = all[out.ids[step]][at];
                    assert_int_equal(all[out.targets[t]][start], at);
                }
            }
        }
        sr_source_free(source);
    }
}

/* A mixture's row is its part's row of the same number; parts occur according to their weights. */
static void mixtures_take_rows_by_weight(void **state) {
    (void)state;
    sr_source *mixed = make("3*parity:length=9 + recall:length=20,pairs=2", 4);
    sr_source *parity = make("parity:length=9", 4), *recall = make("recall:length=20,pairs=2", 4);
    int of_parity = 0;
    assert_int_equal(mixed->T, 20);
    assert_int_equal(mixed->vocab, 32);
    for (int64_t number = 0; number < 400; number++) {
        buffers out, own;
        get(&out, mixed, SR_SPLIT_TRAIN, number);
        bool padded = true;
        for (int t = 8; t < 20; t++)
            padded = padded && out.ids[t] == 0 && out.targets[t] == -1;
        const sr_source *part = padded ? parity : recall;
        get(&own, part, SR_SPLIT_TRAIN, number);
        assert_memory_equal(out.ids, own.ids, (size_t)part->T * sizeof *out.ids);
        assert_memory_equal(out.targets, own.targets, (size_t)part->T * sizeof *out.ids);
        of_parity += padded;
    }
    assert_in_range(of_parity, 260, 340); /* 300 expected */
    assert_true(sr_synthetic_chance(parity) == 0.5);
    assert_true(sr_synthetic_chance(recall) == 1.0 / 16);
    /* A row of parity has one target, a row of recall eight. */
    assert_true(fabs(sr_synthetic_chance(mixed) - (0.75 * 0.5 + 0.25 * 8 / 16) / 2.75) < 1e-12);
    sr_source_free(mixed);
    sr_source_free(parity);
    sr_source_free(recall);
}

/* Runs with other seeds memorize the same values. */
static void memorized_values_do_not_depend_on_the_seed(void **state) {
    (void)state;
    enum { VOCAB = 10 };
    int32_t values[VOCAB];
    for (int key = 0; key < VOCAB; key++)
        values[key] = -1;
    for (uint64_t seed = 1; seed < 6; seed++) {
        sr_source *source = make("memorization:length=32,vocab=10", seed);
        buffers out;
        get(&out, source, SR_SPLIT_TRAIN, 0);
        for (int t = 0; t < source->T; t += 2) {
            int32_t *value = &values[out.ids[t]];
            *value = *value < 0 ? out.targets[t + 1] : *value;
            assert_int_equal(*value, out.targets[t + 1]);
        }
        sr_source_free(source);
    }
}

static const char *const every_task[] = {"recall:length=64,vocab=64",
                                         "mqar",
                                         "induction",
                                         "copy:length=64",
                                         "copying:length=64,shortest=30",
                                         "permutation:size=5",
                                         "cyclic",
                                         "parity:length=80,shortest=80",
                                         "arithmetic:length=80,shortest=80",
                                         "in-context-recall",
                                         "noisy-recall",
                                         "fuzzy-recall",
                                         "selective-copying",
                                         "compression",
                                         "memorization",
                                         "niah",
                                         "niah:haystack=1",
                                         "variable-tracking",
                                         "frequent-words",
                                         "2*mqar:length=64,pairs=4 + mqar:length=128"};
enum { TASKS = sizeof every_task / sizeof *every_task };

static void every_task_is_tried(void **state) {
    (void)state;
    for (size_t t = 0; sr_synthetic_at(t); t++) {
        const char *name = sr_synthetic_at(t)->name;
        size_t i = 0;
        while (i < TASKS && (strncmp(every_task[i], name, strlen(name)) != 0 ||
                             !strchr(":", every_task[i][strlen(name)])))
            i++;
        if (i == TASKS)
            fail_msg("%s is not tried", name);
    }
}

static void rows_depend_on_seed_split_and_number_only(void **state) {
    (void)state;
    for (size_t i = 0; i < TASKS; i++) {
        sr_source *source = make(every_task[i], 11), *again = make(every_task[i], 11);
        sr_source *other = make(every_task[i], 12);
        size_t bytes = (size_t)source->T * sizeof(int32_t);
        buffers a, b;
        for (int64_t number = 40; number >= 0; number--) {
            get(&a, source, SR_SPLIT_TRAIN, number);
            get(&b, again, SR_SPLIT_TRAIN, number);
            assert_memory_equal(a.ids, b.ids, bytes);
            assert_memory_equal(a.targets, b.targets, bytes);
            get(&b, other, SR_SPLIT_TRAIN, number);
            assert_memory_not_equal(a.ids, b.ids, bytes);
        }
        sr_source_free(source);
        sr_source_free(again);
        sr_source_free(other);
    }
}

static size_t row_bytes;

static int compare_rows(const void *a, const void *b) {
    return memcmp(a, b, row_bytes);
}

/* 2000 training rows and 2000 validation rows of long sequences: all 4000 differ. */
static void splits_never_coincide(void **state) {
    (void)state;
    for (size_t i = 0; i < TASKS; i++) {
        sr_source *source = make(every_task[i], 11);
        row_bytes = (size_t)source->T * sizeof(int32_t);
        char *rows = malloc(4000 * row_bytes);
        buffers out;
        for (int64_t n = 0; n < 4000; n++) {
            get(&out, source, n % 2 ? SR_SPLIT_TRAIN : SR_SPLIT_VALIDATION, n / 2);
            memcpy(rows + (size_t)n * row_bytes, out.ids, row_bytes);
        }
        qsort(rows, 4000, row_bytes, compare_rows);
        for (size_t n = 1; n < 4000; n++)
            assert_memory_not_equal(rows + n * row_bytes, rows + (n - 1) * row_bytes, row_bytes);
        free(rows);
        sr_source_free(source);
    }
}

static void text_forms_are_read_and_printed(void **state) {
    (void)state;
    const char *cases[][2] = {
        {"recall", "recall:length=48,vocab=32,pairs=8,shown=1"},
        {"recall:pairs=4,vocab=8", "recall:length=48,vocab=8,pairs=4,shown=1"},
        {"mqar:power=0.25", "mqar:length=64,vocab=8192,pairs=8,power=0.25,noise=1"},
        {"permutation:", "permutation:length=48,size=3"},
        {"noisy-recall", "noisy-recall:length=128,vocab=32,noise-vocab=16,noise=0.2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(sr_synthetic_is(cases[i][0]));
        sr_source *source = make(cases[i][0], 0);
        char text[128], little[8];
        size_t length = sr_synthetic_print(text, sizeof text, source);
        assert_string_equal(text, cases[i][1]);
        assert_int_equal(length, strlen(text));
        assert_int_equal(sr_synthetic_print(little, sizeof little, source), length);
        assert_memory_equal(little, text, 7);
        sr_source_free(source);
    }
    assert_true(sr_synthetic_is("3*recall"));
    assert_true(sr_synthetic_is("recall:pairs=2 + mqar"));
    assert_false(sr_synthetic_is("3*recalls + recall"));
    assert_false(sr_synthetic_is("a + b"));
    assert_false(sr_synthetic_is("3*"));
    assert_false(sr_synthetic_is("recalls"));
    assert_false(sr_synthetic_is("data/recall"));
}

static void wrong_text_is_explained(void **state) {
    (void)state;
    const char *cases[][2] = {
        {"recal:pairs=3", "position 1"},
        {"recal:pairs=3", "\"recall\""},
        {"", "there are: recall, mqar, induction, copy, copying, permutation"},
        {"recall:pars=3", "position 8"},
        {"recall:pars=3", "\"pairs\""},
        {"recall:pairs=3,vocba=4", "position 16"},
        {"recall:pairs", "needs a value"},
        {"recall:pairs=", "pairs must be an integer"},
        {"recall:pairs=x", "position 14"},
        {"recall:pairs=1.5", "pairs must be an integer"},
        {"recall:pairs=3x", "pairs must be an integer"},
        {"recall:pairs=nan", "pairs must be an integer"},
        {"recall:pairs=1e300", "pairs must be an integer"},
        {"recall:pairs=-1", "pairs must be an integer from 1"},
        {"recall:pairs=3,", "missing after the comma"},
        {"recall:pairs=3,,", "no setting \"\""},
        {"recall:pairs=3,pairs=4", "twice"},
        {"recall:pairs=20", "vocab=40"},
        {"recall:pairs=8,length=16", "length=17"},
        {"mqar:length=63", "even length"},
        {"mqar:length=64,vocab=64", "vocab=65"},
        {"mqar:pairs=17", "68 or more"},
        {"copy:length=15", "length=16"},
        {"permutation:size=8", "from 2 to 7"},
        {"copying:length=5,shortest=3", "length=6"},
        {"parity:length=10,shortest=11", "longer than length=10"},
        {"in-context-recall:length=7", "must be even"},
        {"noisy-recall:vocab=17", "vocab=18"},
        {"fuzzy-recall:vocab=6", "fewer than one of them needs"},
        {"fuzzy-recall:length=12", "13 or more"},
        {"selective-copying:length=33", "length=34"},
        {"niah:length=19", "too short for 1 needles"},
        {"niah:haystack=1,vocab=30", "need vocab=43"},
        {"variable-tracking:length=50", "too short for 1 chains of 4 hops"},
        {"variable-tracking:vocab=23", "vocab=24"},
        {"frequent-words:length=16", "are as frequent"},
        {"2*recall + 0*recall", "the weight from 1"},
        {"recall + mqar:pears=3", "no setting \"pears\""},
        {"recall + recal", "there is no task \"recal\""},
        {"recall:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "no setting"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_source *source = NULL;
        assert_int_equal(sr_synthetic_create(&source, cases[i][0], 0), SRNN_ERR_FORMAT);
        if (!strstr(srnn_error_detail(), cases[i][1]))
            fail_msg("\"%s\" gives: %s", cases[i][0], srnn_error_detail());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recall_answers_stand_in_the_row),
        cmocka_unit_test(recall_can_hide_its_answers),
        cmocka_unit_test(mqar_asks_every_pair_once),
        cmocka_unit_test(mqar_gaps_follow_the_power_law),
        cmocka_unit_test(induction_asks_what_followed),
        cmocka_unit_test(copy_repeats_the_symbols),
        cmocka_unit_test(permutation_tracks_the_product),
        cmocka_unit_test(mixtures_take_rows_by_weight),
        cmocka_unit_test(memorized_values_do_not_depend_on_the_seed),
        cmocka_unit_test(every_task_is_tried),
        cmocka_unit_test(rows_depend_on_seed_split_and_number_only),
        cmocka_unit_test(splits_never_coincide),
        cmocka_unit_test(text_forms_are_read_and_printed),
        cmocka_unit_test(wrong_text_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
