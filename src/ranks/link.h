/* link.h: transport between the processes of one job: a table of functions that a module fills.
 *
 * A module is a shared library that is loaded only if the program was started as one of several
 * ranks, so that its dependencies are needed only then. It depends on this file alone. Calls return
 * 0 or an error number that `explain` translates; only open and close block. */
#ifndef SR_RANKS_LINK_H
#define SR_RANKS_LINK_H

#include <stddef.h>
#include <stdint.h>

/* Incremented when the table changes. */
enum { SR_LINK_VERSION = 1, SR_LINK_TEXT = 256, SR_LINK_NAME = 64 };

/* A pending operation; its memory belongs to the link until `test` reports that it is done. */
typedef uint64_t sr_link_request;

typedef struct sr_link sr_link;
struct sr_link {
    int rank, count;
    int neighbours;             /* ranks on this machine, including this one */
    char host[SR_LINK_NAME];    /* this machine */
    char library[SR_LINK_TEXT]; /* name and version of the transport library */

    /* Send to or receive from another rank; messages with the same tag arrive in order. */
    int (*send)(sr_link *link, sr_link_request *request, int to, int tag, const void *data,
                int bytes);
    int (*receive)(sr_link *link, sr_link_request *request, int from, int tag, void *data,
                   int bytes);
    /* All-gather: rank r contributes counts[r] bytes at all + starts[r]. Both arrays must stay
     * unchanged until it is done; every rank passes the same ones, in the same order of calls. */
    int (*gather)(sr_link *link, sr_link_request *request, void *all, const int *counts,
                  const int *starts);
    int (*test)(sr_link *link, sr_link_request *request, int *done);
    /* Whether a message with this tag has arrived, and from which rank. */
    int (*probe)(sr_link *link, int tag, int *there, int *from);

    void (*explain)(char text[SR_LINK_TEXT], int error);
    void (*abort)(sr_link *link, int code); /* ends the processes of all ranks; does not return */
    void (*close)(sr_link *link);
};

/* The symbol that a module exports: *link = the one link of this process, or a text with the reason
 * why there is none. */
#define SR_LINK_OPEN "softrnn_link_open"
typedef int sr_link_open(sr_link **link, int version, char why[SR_LINK_TEXT]);

#endif
