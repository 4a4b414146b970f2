/* link_mpi.c: the link between ranks over MPI; a separate module, so that the program does not need
 * MPI. */
#include "ranks/link.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(sr_link_request), "a request fits its place");

static MPI_Request in(const sr_link_request *request) {
    MPI_Request mpi;
    memcpy(&mpi, request, sizeof mpi);
    return mpi;
}

static int out(sr_link_request *request, MPI_Request mpi, int error) {
    *request = 0;
    memcpy(request, &mpi, sizeof mpi);
    return error;
}

static int send_bytes(sr_link *link, sr_link_request *request, int to, int tag, const void *data,
                      int bytes) {
    (void)link;
    MPI_Request mpi;
    const int error = MPI_Isend(data, bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, &mpi);
    return out(request, mpi, error);
}

static int receive_bytes(sr_link *link, sr_link_request *request, int from, int tag, void *data,
                         int bytes) {
    (void)link;
    MPI_Request mpi;
    const int error = MPI_Irecv(data, bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, &mpi);
    return out(request, mpi, error);
}

static int gather(sr_link *link, sr_link_request *request, void *all, const int *counts,
                  const int *starts) {
    (void)link;
    MPI_Request mpi;
    const int error = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, all, counts, starts, MPI_BYTE,
                                      MPI_COMM_WORLD, &mpi);
    return out(request, mpi, error);
}

static int test(sr_link *link, sr_link_request *request, int *done) {
    (void)link;
    MPI_Request mpi = in(request);
    const int error = MPI_Test(&mpi, done, MPI_STATUS_IGNORE);
    return out(request, mpi, error);
}

static int probe(sr_link *link, int tag, int *there, int *from) {
    (void)link;
    MPI_Status status = {.MPI_SOURCE = 0};
    const int error = MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, there, &status);
    *from = status.MPI_SOURCE;
    return error;
}

static void explain(char text[SR_LINK_TEXT], int error) {
    char words[MPI_MAX_ERROR_STRING];
    int length;
    snprintf(text, SR_LINK_TEXT, "error %d", error);
    if (MPI_Error_string(error, words, &length) == MPI_SUCCESS)
        snprintf(text, SR_LINK_TEXT, "%.*s", length < SR_LINK_TEXT ? length : SR_LINK_TEXT - 1,
                 words);
}

static void end_all(sr_link *link, int code) {
    (void)link;
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void close_link(sr_link *link) {
    (void)link;
    MPI_Finalize();
}

static sr_link world = {.send = send_bytes,
                        .receive = receive_bytes,
                        .gather = gather,
                        .test = test,
                        .probe = probe,
                        .explain = explain,
                        .abort = end_all,
                        .close = close_link};

static int look_around(sr_link *link) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING], host[MPI_MAX_PROCESSOR_NAME];
    MPI_Comm machine;
    int length, error = MPI_Comm_rank(MPI_COMM_WORLD, &link->rank);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_size(MPI_COMM_WORLD, &link->count);
    if (error == MPI_SUCCESS)
        error = MPI_Get_processor_name(host, &length);
    if (error == MPI_SUCCESS)
        error = MPI_Get_library_version(library, &length);
    if (error == MPI_SUCCESS)
        error =
            MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    if (error != MPI_SUCCESS)
        return error;
    snprintf(link->host, sizeof link->host, "%.63s", host);
    snprintf(link->library, sizeof link->library, "%.*s", (int)strcspn(library, ",\n"), library);
    error = MPI_Comm_size(machine, &link->neighbours);
    MPI_Comm_free(&machine);
    return error;
}

__attribute__((visibility("default"))) sr_link_open softrnn_link_open;

int softrnn_link_open(sr_link **link, int version, char why[SR_LINK_TEXT]) {
    int level, there = 0;
    *link = NULL;
    MPI_Initialized(&there);
    if (version != SR_LINK_VERSION || there) {
        snprintf(why, SR_LINK_TEXT,
                 there ? "MPI was begun already" : "the module is of another release");
        return 1;
    }
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS)
        error = look_around(&world);
    if (error != MPI_SUCCESS) {
        explain(why, error);
        return 1;
    }
    *link = &world;
    return 0;
}
