/* test_ranks.c: ranks that wait in vain name whom they wait for, and leave alone what may still arrive. */
#include "ranks/ranks.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, SILENT = -1, QUESTION = 1, ANSWER = 2 };

/* A link on which nothing ever arrives but answers to the roll call. */
static struct {
    int answers[RANKS]; /* what each rank answers; SILENT: nothing */
    bool asked[RANKS];
    void *late; /* where a gather would still write */
    size_t late_bytes;
    int told; /* the last answer that this rank gave */
    int asks; /* a rank that asks this one; SILENT: none */
} world;

static int send_word(sr_link *link, sr_link_request *request, int to, int tag, const void *data,
                     int bytes) {
    (void)link, (void)bytes;
    *request = 1;
    if (tag == QUESTION)
        world.asked[to] = true;
    else
        world.told = *(const char *)data;
    return 0;
}

static int receive_word(sr_link *link, sr_link_request *request, int from, int tag, void *data,
                        int bytes) {
    (void)link, (void)bytes;
    *request = 1;
    *(char *)data = tag == ANSWER ? (char)world.answers[from] : 0;
    return 0;
}

static int gather(sr_link *link, sr_link_request *request, void *all, const int *counts,
                  const int *starts) {
    (void)link;
    *request = 2; /* never done */
    world.late = all;
    world.late_bytes = (size_t)(starts[RANKS - 1] + counts[RANKS - 1]);
    return 0;
}

static int is_done(sr_link *link, sr_link_request *request, int *done) {
    (void)link;
    *done = *request == 1;
    return 0;
}

static int probe(sr_link *link, int tag, int *there, int *from) {
    (void)link;
    *there = 0;
    if (tag == QUESTION && world.asks != SILENT) {
        *from = world.asks;
        *there = 1;
        world.asks = SILENT;
    }
    for (int r = 0; tag == ANSWER && r < RANKS && !*there; r++)
        if (world.asked[r] && world.answers[r] != SILENT) {
            world.asked[r] = false;
            *from = r;
            *there = 1;
        }
    return 0;
}

static sr_link link_of_test = {.count = RANKS,
                               .send = send_word,
                               .receive = receive_word,
                               .gather = gather,
                               .test = is_done,
                               .probe = probe};
static char hosts[RANKS][SR_LINK_NAME] = {"a", "b", "c", "d"};
static int counts[RANKS], starts[RANKS];

static sr_ranks begin(int answer1, int answer2, int answer3) {
    memset(&world, 0, sizeof world);
    world.answers[1] = answer1;
    world.answers[2] = answer2;
    world.answers[3] = answer3;
    world.asks = SILENT;
    return (sr_ranks){.count = RANKS,
                      .link = &link_of_test,
                      .hosts = hosts,
                      .counts = counts,
                      .starts = starts,
                      .patience = 0.15};
}

static void assert_told(const char *words) {
    if (!strstr(srnn_error_detail(), words))
        fail_msg("\"%s\" is not in: %s", words, srnn_error_detail());
}

/* The verdicts of others may come after this rank gave up: their place must still be there. */
static void test_gives_up(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, SILENT, 0);
    assert_int_equal(sr_ranks_agree(&ranks, SRNN_OK), SRNN_ERR_IO);
    assert_told("rank 2 on c gave no answer for 0.15 seconds");
    assert_null(strstr(srnn_error_detail(), "rank 1"));
    assert_true(ranks.broken);
    memset(world.late, 1, world.late_bytes); /* freed memory, as a sanitizer sees */
    free(world.late);
}

static void test_all_wait(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, 0, 0);
    assert_int_equal(sr_ranks_agree(&ranks, SRNN_OK), SRNN_ERR_IO);
    assert_told("every rank waits for another one");
    free(world.late);
}

/* What a device that never ends looks like. */
static srnn_status never(void *context, bool *done) {
    (void)context;
    *done = false;
    return SRNN_OK;
}

static void test_hanging_device(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, 0, 1);
    assert_int_equal(sr_ranks_wait_until(&ranks, never, NULL, 1e-3), SRNN_ERR_IO);
    assert_told("the GPU of rank 3 on d has not ended its own part");
    assert_true(ranks.broken);
    ranks = begin(0, 0, 0);
    ranks.busy = 1; /* its own */
    assert_int_equal(sr_ranks_wait_until(&ranks, never, NULL, 1e-3), SRNN_ERR_IO);
    assert_told("the GPU of rank 0 on a has");
    ranks = begin(0, SILENT, 1); /* the process comes first */
    assert_int_equal(sr_ranks_wait_until(&ranks, never, NULL, 1e-3), SRNN_ERR_IO);
    assert_told("rank 2 on c gave no answer");
}

/* A device whose own library has noticed that others are gone. */
static srnn_status lost(void *context, bool *done) {
    (void)context, (void)done;
    return SR_FAIL(SRNN_ERR_IO, "the link is down");
}

static void test_lost_rank(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, 0, SILENT);
    assert_int_equal(sr_ranks_wait_until(&ranks, lost, NULL, 1e-3), SRNN_ERR_IO);
    assert_told("rank 3 on d gives no answer; the link is down");
    assert_true(ranks.broken);
    ranks = begin(0, 0, 0);
    assert_int_equal(sr_ranks_wait_until(&ranks, lost, NULL, 1e-3), SRNN_ERR_IO);
    assert_string_equal(srnn_error_detail(), "the link is down");
}

static void test_answers(void **state) {
    (void)state;
    for (char busy = 0; busy < 2; busy++) {
        sr_ranks ranks = begin(0, 0, 0);
        ranks.busy = busy;
        world.asks = 2;
        world.told = SILENT;
        assert_int_equal(sr_ranks_wait_until(&ranks, never, NULL, 1e-3), SRNN_ERR_IO);
        assert_int_equal(world.told, busy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gives_up),       cmocka_unit_test(test_all_wait),
        cmocka_unit_test(test_hanging_device), cmocka_unit_test(test_lost_rank),
        cmocka_unit_test(test_answers),
    };
    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
