/* test_ranks.c: ranks that time out name the silent ranks, and keep buffers that may still be
 * written. */
#include "base/clock.h"
#include "ranks/ranks.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, SILENT = -1, QUESTION = 1, ANSWER = 2 };

/* A link on which nothing arrives except answers to the poll. */
static struct {
    int answers[RANKS]; /* what each rank answers; SILENT: nothing */
    bool polled[RANKS];
    void *late; /* buffer that a late gather would write */
    size_t late_bytes;
    int reply; /* the last answer of this rank */
    int asks;  /* a rank that polls this one; SILENT: none */
    int gone;  /* a rank to which nothing can be sent; SILENT: none */
} world;

static int send_word(sr_link *link, sr_link_request *request, int to, int tag, const void *data,
                     int bytes) {
    (void)link, (void)bytes;
    *request = 1;
    if (to == world.gone)
        return 1;
    if (tag == QUESTION)
        world.polled[to] = true;
    else
        world.reply = *(const char *)data;
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
        if (world.polled[r] && world.answers[r] != SILENT) {
            world.polled[r] = false;
            *from = r;
            *there = 1;
        }
    return 0;
}

static void explain(char text[SR_LINK_TEXT], int error) {
    snprintf(text, SR_LINK_TEXT, "error %d", error);
}

static sr_link link_of_test = {.count = RANKS,
                               .send = send_word,
                               .receive = receive_word,
                               .gather = gather,
                               .test = is_done,
                               .probe = probe,
                               .explain = explain};
static char hosts[RANKS][SR_LINK_NAME] = {"a", "b", "c", "d"};
static int counts[RANKS], starts[RANKS];

static sr_ranks begin(int answer1, int answer2, int answer3) {
    memset(&world, 0, sizeof world);
    world.answers[1] = answer1;
    world.answers[2] = answer2;
    world.answers[3] = answer3;
    world.asks = SILENT;
    world.gone = SILENT;
    return (sr_ranks){.count = RANKS,
                      .link = &link_of_test,
                      .hosts = hosts,
                      .counts = counts,
                      .starts = starts,
                      .patience = 0.15};
}

static void assert_reported(const char *words) {
    if (!strstr(srnn_error_detail(), words))
        fail_msg("\"%s\" is not in: %s", words, srnn_error_detail());
}

/* The verdicts of others may arrive after this rank gave up: their buffer must still exist. */
static void test_gives_up(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, SILENT, 0);
    assert_int_equal(sr_ranks_agree(&ranks, SRNN_OK), SRNN_ERR_IO);
    assert_reported("rank 2 on c gave no answer for 0.15 seconds");
    assert_null(strstr(srnn_error_detail(), "rank 1"));
    assert_true(ranks.broken);
    memset(world.late, 1, world.late_bytes); /* a use after free, if the buffer was freed */
    free(world.late);
}

/* The caller's memory, possibly on its stack, is never written late. */
static void test_own_memory(void **state) {
    (void)state;
    int all[RANKS] = {7};
    sr_ranks ranks = begin(0, SILENT, 0);
    assert_int_equal(sr_ranks_gather(&ranks, all, sizeof *all), SRNN_ERR_IO);
    assert_ptr_not_equal(world.late, all);
    free(world.late);
    ranks = begin(0, SILENT, 0);
    assert_int_equal(sr_ranks_share(&ranks, all, sizeof *all), SRNN_ERR_IO);
    assert_ptr_not_equal(world.late, all);
    free(world.late);
}

/* A communication failure is not sent to other ranks. */
static void test_agree_when_broken(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, SILENT, 0);
    ranks.broken = true;
    assert_int_equal(sr_ranks_agree(&ranks, SR_FAIL(SRNN_ERR_LIMIT, "lost")), SRNN_ERR_LIMIT);
    assert_string_equal(srnn_error_detail(), "lost");
    assert_null(world.late);
}

static void test_all_wait(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, 0, 0);
    assert_int_equal(sr_ranks_agree(&ranks, SRNN_OK), SRNN_ERR_IO);
    assert_reported("deadlock: all ranks have waited");
    free(world.late);
}

/* A device that never finishes. */
static srnn_status never(void *context, bool *done) {
    (void)context;
    *done = false;
    return SRNN_OK;
}

static void test_hanging_device(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, 0, 1);
    assert_int_equal(sr_ranks_wait_until(&ranks, never, NULL, 1e-3), SRNN_ERR_IO);
    assert_reported("the GPU of rank 3 on d has not ended its own part");
    assert_true(ranks.broken);
    ranks = begin(0, SILENT, 1); /* the process comes first */
    assert_int_equal(sr_ranks_wait_until(&ranks, never, NULL, 1e-3), SRNN_ERR_IO);
    assert_reported("rank 2 on c gave no answer");
}

/* A device that is busy for twice the patience. */
typedef struct long_step {
    sr_ranks *ranks;
    double begin;
} long_step;

static srnn_status work(void *context, bool *done) {
    const long_step *step = context;
    *done = sr_clock_seconds() - step->begin > 2 * step->ranks->patience;
    step->ranks->busy = !*done;
    return SRNN_OK;
}

static void test_long_step(void **state) {
    (void)state;
    sr_ranks ranks = begin(1, 1, 1);
    world.asks = 2;
    world.reply = SILENT;
    assert_int_equal(sr_ranks_wait_until(&ranks, work, &(long_step){&ranks, sr_clock_seconds()},
                                         1e-3),
                     SRNN_OK);
    assert_int_equal(world.reply, 1); /* a poll is answered with "busy" */
}

/* A device whose library has detected lost ranks. */
static srnn_status lost(void *context, bool *done) {
    (void)context, (void)done;
    return SR_FAIL(SRNN_ERR_IO, "the link is down");
}

static void test_lost_rank(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, 0, SILENT);
    assert_int_equal(sr_ranks_wait_until(&ranks, lost, NULL, 1e-3), SRNN_ERR_IO);
    assert_reported("rank 3 on d gives no answer; the link is down");
    assert_true(ranks.broken);
    ranks = begin(0, 0, 0);
    assert_int_equal(sr_ranks_wait_until(&ranks, lost, NULL, 1e-3), SRNN_ERR_IO);
    assert_string_equal(srnn_error_detail(), "the link is down");
}

/* A rank that cannot even be polled is named, with the original error. */
static void test_dead_rank(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, SILENT, 0);
    world.gone = 2;
    assert_int_equal(sr_ranks_wait_until(&ranks, lost, NULL, 1e-3), SRNN_ERR_IO);
    assert_string_equal(srnn_error_detail(), "rank 2 on c gives no answer; the link is down");
    ranks = begin(0, SILENT, 0);
    world.gone = 2;
    assert_int_equal(sr_ranks_wait_until(&ranks, never, NULL, 1e-3), SRNN_ERR_IO);
    assert_reported("rank 2 on c gave no answer for 0.15 seconds");
}

static void test_answers(void **state) {
    (void)state;
    sr_ranks ranks = begin(0, 0, 0);
    world.asks = 2;
    world.reply = SILENT;
    assert_int_equal(sr_ranks_wait_until(&ranks, never, NULL, 1e-3), SRNN_ERR_IO);
    assert_int_equal(world.reply, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gives_up),          cmocka_unit_test(test_all_wait),
        cmocka_unit_test(test_hanging_device),    cmocka_unit_test(test_lost_rank),
        cmocka_unit_test(test_answers),           cmocka_unit_test(test_dead_rank),
        cmocka_unit_test(test_long_step),         cmocka_unit_test(test_own_memory),
        cmocka_unit_test(test_agree_when_broken),
    };
    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
