/* pipeline.c: read in order, work in any order on all cores, write in order. */
#include "data/text/pipeline.h"

#include "base/memory.h"
#include "base/threads.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct pipeline_slot {
    bool busy; /* from read until written */
    bool done; /* ready to be written */
    srnn_status status;
    char *detail; /* error message */
} pipeline_slot;

typedef struct pipeline_run {
    const sr_pipeline *pipeline;
    pipeline_slot *slots;
    pthread_mutex_t reading; /* held by the reading thread; guards next_read and at_end */
    int64_t next_read;
    bool at_end;
    pthread_mutex_t lock; /* guards the rest and every slot's flags; taken after `reading` */
    pthread_cond_t freed;
    int64_t next_write;
    bool writing; /* a thread is writing, and will also write slots that become ready meanwhile */
    bool stopped;
    srnn_status status;
    char *detail;
} pipeline_run;

static void keep_failure(pipeline_slot *slot, srnn_status status) {
    slot->status = status;
    slot->detail = status == SRNN_OK ? NULL : strdup(srnn_error_detail());
}

static bool wait_until_free(pipeline_run *run, const pipeline_slot *slot) {
    pthread_mutex_lock(&run->lock);
    while (slot->busy && !run->stopped)
        pthread_cond_wait(&run->freed, &run->lock);
    bool go_on = !run->stopped;
    pthread_mutex_unlock(&run->lock);
    return go_on;
}

/* The index of a slot that was read; -1: no work is left. */
static int read_slot(pipeline_run *run) {
    const sr_pipeline *pipeline = run->pipeline;
    pthread_mutex_lock(&run->reading);
    int index = (int)(run->next_read % pipeline->slots);
    pipeline_slot *slot = &run->slots[index];
    if (run->at_end || !wait_until_free(run, slot)) {
        index = -1;
    } else {
        bool end = false;
        keep_failure(slot, pipeline->read(pipeline->context, index, &end));
        run->at_end = end || slot->status != SRNN_OK;
        if (end && slot->status == SRNN_OK) {
            index = -1;
        } else {
            pthread_mutex_lock(&run->lock);
            slot->busy = true;
            pthread_mutex_unlock(&run->lock);
            run->next_read++;
        }
    }
    pthread_mutex_unlock(&run->reading);
    return index;
}

/* Writes one slot outside the lock. */
static void write_slot(pipeline_run *run, int index) {
    pipeline_slot *slot = &run->slots[index];
    pthread_mutex_unlock(&run->lock);
    if (slot->status == SRNN_OK)
        keep_failure(slot, run->pipeline->write(run->pipeline->context, index));
    pthread_mutex_lock(&run->lock);
    if (slot->status != SRNN_OK) {
        run->stopped = true;
        run->status = slot->status;
        run->detail = slot->detail;
        slot->detail = NULL;
    }
    slot->done = false;
    slot->busy = false;
    run->next_write++;
    pthread_cond_broadcast(&run->freed);
}

static void deliver(pipeline_run *run, int index) {
    pthread_mutex_lock(&run->lock);
    run->slots[index].done = true;
    if (!run->writing) {
        run->writing = true;
        while (!run->stopped && run->slots[run->next_write % run->pipeline->slots].done)
            write_slot(run, (int)(run->next_write % run->pipeline->slots));
        run->writing = false;
    }
    pthread_mutex_unlock(&run->lock);
}

static void go(void *context, int64_t task, int worker) {
    (void)task;
    pipeline_run *run = context;
    for (int index; (index = read_slot(run)) >= 0;) {
        pipeline_slot *slot = &run->slots[index];
        if (slot->status == SRNN_OK)
            keep_failure(slot, run->pipeline->work(run->pipeline->context, index, worker));
        deliver(run, index);
    }
}

srnn_status sr_pipeline_run(const sr_pipeline *pipeline) {
    pipeline_run run = {.pipeline = pipeline};
    SR_TRY(sr_alloc_zero((void **)&run.slots, (size_t)pipeline->slots, sizeof *run.slots));
    pthread_mutex_init(&run.reading, NULL);
    pthread_mutex_init(&run.lock, NULL);
    pthread_cond_init(&run.freed, NULL);
    sr_parallel(go, &run, pipeline->workers, pipeline->workers);
    pthread_cond_destroy(&run.freed);
    pthread_mutex_destroy(&run.lock);
    pthread_mutex_destroy(&run.reading);
    for (int index = 0; index < pipeline->slots; index++)
        free(run.slots[index].detail);
    free(run.slots);
    if (run.status != SRNN_OK)
        sr_fail(run.status, "%s", run.detail ? run.detail : "no memory");
    free(run.detail);
    return run.status;
}
