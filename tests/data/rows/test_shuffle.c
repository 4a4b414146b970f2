/* test_shuffle.c: the rows of a step are a pure function of data, seed and step. */
#include "base/memory.h"
#include "data/rows/permutation.h"
#include "data/rows/shuffle.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { B = 3, T = 5, DOCUMENTS = 23, MOST = 4096 };

/* Documents of 1 .. 9 bytes in shards of three documents; token t of the whole is t % 251. */
static sr_dataset make_dataset(int64_t documents, int per_shard) {
    sr_shard *shards;
    assert_int_equal(sr_alloc((void **)&shards, (size_t)documents, sizeof *shards), SRNN_OK);
    int64_t count = 0, token = 0;
    for (int64_t document = 0; document < documents;) {
        char text[MOST];
        uint64_t starts[MOST] = {0};
        int64_t in_shard = 0;
        size_t bytes = 0;
        for (; in_shard < per_shard && document < documents; document++) {
            for (int64_t i = 0; i < document * 7 % 9 + 1; i++)
                text[bytes++] = (char)(token++ % 251);
            starts[++in_shard] = bytes;
        }
        sr_shard *shard = &shards[count++];
        assert_int_equal(sr_shard_from_text(shard, text, bytes), SRNN_OK);
        unsigned char *owned;
        size_t index = ((size_t)in_shard + 1) * sizeof *starts;
        assert_int_equal(sr_alloc((void **)&owned, index + bytes, 1), SRNN_OK);
        memcpy(owned, starts, index);
        memcpy(owned + index, text, bytes);
        free(shard->owned);
        shard->owned = owned;
        shard->starts = (const uint64_t *)(const void *)owned;
        shard->tokens = owned + index;
        shard->document_count = in_shard;
        shard->end_token = 250;
    }
    sr_dataset dataset;
    assert_int_equal(sr_dataset_create(&dataset, shards, count), SRNN_OK);
    return dataset;
}

static sr_source *make_source(sr_token_layout layout, uint64_t seed, int length, int per_shard) {
    sr_dataset datasets[SR_SPLITS] = {make_dataset(DOCUMENTS, per_shard),
                                      make_dataset(7, per_shard)};
    const sr_shuffle_settings settings = {.seed = seed, .T = length, .layout = layout};
    sr_source *source;
    assert_int_equal(sr_shuffle_create(&source, datasets, &settings), SRNN_OK);
    return source;
}

/* The halves of the validation split together have every row once, for every seed. */
static void halves_have_no_row_in_common(void **state) {
    (void)state;
    bool seen[64] = {false};
    int64_t all = 0, rows = 0;
    for (sr_half half = SR_HALF_ALL; half <= SR_HALF_SECOND; half++) {
        sr_dataset datasets[SR_SPLITS] = {make_dataset(7, 3), make_dataset(DOCUMENTS, 3)};
        const sr_shuffle_settings settings = {.seed = (uint64_t)half,
                                              .T = T,
                                              .validation_half = half};
        sr_source *source;
        assert_int_equal(sr_shuffle_create(&source, datasets, &settings), SRNN_OK);
        const int64_t count = source->rows[SR_SPLIT_VALIDATION];
        assert_in_range(count, 2, 63);
        all = half == SR_HALF_ALL ? count : all;
        for (int64_t n = 0; n < count && half != SR_HALF_ALL; n++, rows++) {
            int32_t ids[T], targets[T];
            int64_t starts[T];
            sr_token_row row = {ids, targets, starts, 0};
            assert_int_equal(source->fill(source, &row, SR_SPLIT_VALIDATION, n), SRNN_OK);
            assert_false(seen[ids[0] / T]);
            seen[ids[0] / T] = true;
        }
        sr_source_free(source);
    }
    assert_int_equal(rows, all);
}

/* One validation row has no second half. */
static void a_half_is_not_empty(void **state) {
    (void)state;
    for (sr_half half = SR_HALF_FIRST; half <= SR_HALF_SECOND; half++) {
        sr_dataset datasets[SR_SPLITS] = {make_dataset(7, 3), make_dataset(1, 3)};
        const sr_shuffle_settings settings = {.T = 1,
                                              .layout = SR_ROWS_DOCUMENT,
                                              .validation_half = half};
        sr_source *source;
        assert_int_equal(sr_shuffle_create(&source, datasets, &settings), SRNN_ERR_ARGUMENT);
        assert_non_null(strstr(srnn_error_detail(), "fills 1 rows of 1 tokens"));
    }
}

typedef struct buffers {
    int32_t ids[MOST], targets[MOST];
    int64_t offsets[MOST + 1];
    int64_t documents;
} buffers;

static void get(buffers *out, const sr_source *source, int rows, int rank, int ranks,
                int64_t step) {
    memset(out, 0x55, sizeof *out);
    sr_batch batch = {rows, rank, ranks, out->ids, out->targets, out->offsets, 0};
    assert_int_equal(sr_source_batch(source, &batch, SR_SPLIT_TRAIN, step), SRNN_OK);
    out->documents = batch.documents;
}

static void a_permutation_is_a_bijection(void **state) {
    (void)state;
    static const uint64_t counts[] = {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4096};
    static bool seen[4096];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (uint64_t key = 0; key < 5; key++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t index = 0; index < counts[i]; index++) {
                uint64_t at = sr_permutation_at(key, counts[i], index);
                assert_true(at < counts[i] && !seen[at]);
                seen[at] = true;
            }
        }
    }
    uint64_t huge = (uint64_t)1 << 62;
    assert_true(sr_permutation_at(1, huge, huge - 1) < huge);
}

/* Every index is mapped to every place about equally often: chi-square over 16 places, 15 degrees
 * of freedom; 50 has a probability of 1e-5. */
static void a_permutation_is_uniform(void **state) {
    (void)state;
    enum { PLACES = 16, KEYS = 4000 };
    for (uint64_t index = 0; index < PLACES; index++) {
        int hits[PLACES] = {0};
        for (uint64_t key = 0; key < KEYS; key++)
            hits[sr_permutation_at(key, PLACES, index)]++;
        double chi_square = 0, expected = (double)KEYS / PLACES;
        for (int place = 0; place < PLACES; place++)
            chi_square += (hits[place] - expected) * (hits[place] - expected) / expected;
        assert_true(chi_square < 50);
    }
}

static void an_epoch_has_every_row_once_in_another_order(void **state) {
    (void)state;
    sr_source *source = make_source(SR_ROWS_STREAM, 1, T, 3);
    int64_t rows = source->rows[SR_SPLIT_TRAIN], same = 0;
    assert_true(rows > 15);
    int32_t first_epoch[64] = {0};
    buffers out;
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        bool seen[64] = {false};
        for (int64_t n = 0; n < rows; n++) {
            get(&out, source, 1, 0, 1, epoch * rows + n);
            assert_int_equal(out.ids[0] % T, 0);
            int row = out.ids[0] / T;
            assert_false(seen[row]);
            seen[row] = true;
            if (epoch == 0)
                first_epoch[n] = row;
            same += epoch == 1 && first_epoch[n] == row;
        }
    }
    assert_true(same < rows / 2);
    sr_source_free(source);
}

static void stream_rows_are_consecutive_tokens(void **state) {
    (void)state;
    sr_source *source = make_source(SR_ROWS_STREAM, 1, T, 3);
    buffers out;
    for (int64_t step = 0; step < 10; step++) {
        get(&out, source, B, 0, 0, step);
        assert_int_equal(out.documents, B);
        for (int i = 0; i < B * T; i++) {
            assert_int_equal(out.targets[i], out.ids[i] + 1);
            assert_int_equal(out.ids[i], out.ids[i - i % T] + i % T);
        }
        for (int b = 0; b <= B; b++)
            assert_int_equal(out.offsets[b], b * T);
    }
    sr_source_free(source);
}

/* Another order of steps and other shards give the same rows: there is no state between steps. */
static void seek_equals_sequence(void **state) {
    (void)state;
    for (int layout = SR_ROWS_STREAM; layout <= SR_ROWS_DOCUMENT; layout++) {
        sr_source *forward = make_source((sr_token_layout)layout, 9, T, 3);
        static buffers steps[40];
        for (int64_t step = 0; step < 40; step++)
            get(&steps[step], forward, B, 0, 1, step);
        sr_source *backward = make_source((sr_token_layout)layout, 9, T, 5);
        for (int64_t step = 39; step >= 0; step--) {
            buffers out;
            get(&out, backward, B, 0, 1, step);
            assert_memory_equal(&out, &steps[step], sizeof out);
        }
        sr_source_free(forward);
        sr_source_free(backward);
    }
}

static void seeds_differ(void **state) {
    (void)state;
    sr_source *one = make_source(SR_ROWS_STREAM, 1, T, 3);
    sr_source *two = make_source(SR_ROWS_STREAM, 2, T, 3);
    buffers a, b;
    get(&a, one, 8, 0, 1, 0);
    get(&b, two, 8, 0, 1, 0);
    assert_memory_not_equal(a.ids, b.ids, 8 * T * sizeof *a.ids);
    sr_source_free(one);
    sr_source_free(two);
}

static void ranks_share_the_step(void **state) {
    (void)state;
    sr_source *source = make_source(SR_ROWS_PACKED, 4, T, 3);
    for (int64_t step = 0; step < 12; step++) {
        buffers whole, part;
        get(&whole, source, 6, 0, 1, step);
        for (int ranks = 1; ranks <= 6; ranks++) {
            if (6 % ranks != 0)
                continue;
            int64_t documents = 0;
            for (int rank = 0; rank < ranks; rank++) {
                get(&part, source, 6 / ranks, rank, ranks, step);
                documents += part.documents;
                for (int b = 0; b < 6 / ranks; b++) {
                    int row = rank + b * ranks;
                    assert_memory_equal(part.ids + b * T, whole.ids + row * T, T * 4);
                    assert_memory_equal(part.targets + b * T, whole.targets + row * T, T * 4);
                }
            }
            assert_int_equal(documents, whole.documents);
        }
    }
    sr_source_free(source);
}

/* The documents of a packed row, re-derived from the dataset token by token. */
static void packed_offsets_are_document_boundaries(void **state) {
    (void)state;
    sr_dataset dataset = make_dataset(DOCUMENTS, 3);
    int64_t document_of[MOST];
    for (int64_t document = 0; document < dataset.document_count; document++) {
        int64_t begin, count;
        assert_int_equal(sr_dataset_document(&dataset, document, &begin, &count), SRNN_OK);
        for (int64_t i = 0; i < count; i++)
            document_of[begin + i] = document;
    }
    for (int length = 1; length <= 30; length += 3) {
        sr_source *source = make_source(SR_ROWS_PACKED, 3, length, 3);
        buffers out;
        for (int64_t step = 0; step < 30; step++) {
            get(&out, source, B, 0, 1, step);
            int64_t next = 0;
            for (int i = 0; i < B * length; i++) {
                int64_t token = out.ids[i]; /* fewer than 251 tokens: the id is the place */
                bool starts = i % length == 0 || document_of[token] != document_of[token - 1];
                if (starts)
                    assert_int_equal(out.offsets[next++], i);
                bool ends = document_of[token] != document_of[token + 1];
                assert_int_equal(out.targets[i], ends ? -1 : token + 1);
            }
            assert_int_equal(next, out.documents);
            assert_int_equal(out.offsets[next], B * length);
        }
        sr_source_free(source);
    }
    sr_dataset_free(&dataset);
}

static void document_rows_are_padded_and_cut(void **state) {
    (void)state;
    sr_dataset dataset = make_dataset(DOCUMENTS, 3);
    sr_source *source = make_source(SR_ROWS_DOCUMENT, 3, T, 3);
    assert_int_equal(source->rows[SR_SPLIT_TRAIN], DOCUMENTS);
    int cut = 0, padded = 0;
    buffers out;
    for (int64_t n = 0; n < DOCUMENTS; n++) {
        get(&out, source, 1, 0, 1, n);
        int64_t begin, count;
        assert_int_equal(sr_dataset_document(&dataset, sr_dataset_document_of(&dataset, out.ids[0]),
                                             &begin, &count),
                         SRNN_OK);
        assert_int_equal(out.ids[0], begin);
        for (int t = 0; t < T; t++) {
            assert_int_equal(out.ids[t], t < count ? begin + t : 250);
            assert_int_equal(out.targets[t], t + 1 < count ? begin + t + 1 : -1);
        }
        cut += count > T;
        padded += count < T;
    }
    assert_true(cut > 3 && padded > 3);
    sr_source_free(source);
    sr_dataset_free(&dataset);
}

static void wrong_requests_are_refused(void **state) {
    (void)state;
    sr_source *source = NULL;
    sr_dataset few[SR_SPLITS] = {make_dataset(1, 3), {0}};
    assert_int_equal(sr_shuffle_create(&source, few, &(sr_shuffle_settings){.T = 1}),
                     SRNN_ERR_ARGUMENT);
    assert_null(few[0].shards);
    sr_dataset only[SR_SPLITS] = {make_dataset(9, 3), {0}};
    assert_int_equal(sr_shuffle_create(&source, only, &(sr_shuffle_settings){.T = 2}), SRNN_OK);
    buffers out;
    sr_batch batch = {1, 0, 1, out.ids, out.targets, out.offsets, 0};
    assert_int_equal(sr_source_batch(source, &batch, SR_SPLIT_VALIDATION, 0), SRNN_ERR_ARGUMENT);
    assert_int_equal(sr_source_batch(source, &batch, SR_SPLIT_TRAIN, -1), SRNN_ERR_ARGUMENT);
    assert_int_equal(sr_source_batch(source, &batch, SR_SPLIT_TRAIN, INT64_MAX), SRNN_ERR_ARGUMENT);
    batch.rank = 1;
    assert_int_equal(sr_source_batch(source, &batch, SR_SPLIT_TRAIN, 0), SRNN_ERR_ARGUMENT);
    batch = (sr_batch){.B = 0};
    assert_int_equal(sr_source_batch(source, &batch, SR_SPLIT_TRAIN, 0), SRNN_ERR_ARGUMENT);
    sr_source_free(source);
}

static void accuracy_counts_answers_only(void **state) {
    (void)state;
    const float nan = __builtin_nanf("");
    const float logits[] = {0, 1,        0,  /**/ 2, 2,        1,   /**/ 9, 0,
                            0, /**/ nan, -1, -2,     /**/ nan, nan, nan};
    const int32_t targets[] = {1, 1, -1, 1, 0};
    int64_t correct = 10, counted = 20;
    sr_accuracy_add(&correct, &counted, logits, targets, 5, 3);
    assert_int_equal(counted, 24);
    assert_int_equal(correct, 12); /* correct; a tie, won by the smaller id; NaN ignored; all NaN */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_have_no_row_in_common),
        cmocka_unit_test(a_half_is_not_empty),
        cmocka_unit_test(a_permutation_is_a_bijection),
        cmocka_unit_test(a_permutation_is_uniform),
        cmocka_unit_test(an_epoch_has_every_row_once_in_another_order),
        cmocka_unit_test(stream_rows_are_consecutive_tokens),
        cmocka_unit_test(seek_equals_sequence),
        cmocka_unit_test(seeds_differ),
        cmocka_unit_test(ranks_share_the_step),
        cmocka_unit_test(packed_offsets_are_document_boundaries),
        cmocka_unit_test(document_rows_are_padded_and_cut),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(accuracy_counts_answers_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
