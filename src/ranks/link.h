/* link.h: what carries bytes between the processes of one job: a table that a module fills.
 *
 * A module is a shared library that is loaded only where the program was started as one of several
 * ranks, so that nobody else needs what it stands on. It knows nothing of this program but this
 * file. Calls return 0 or a number that `explain` puts into words; none of them waits but open and
 * close. */
#ifndef SR_RANKS_LINK_H
#define SR_RANKS_LINK_H

#include <stddef.h>
#include <stdint.h>

/* Another number: another table. */
enum { SR_LINK_VERSION = 1, SR_LINK_TEXT = 256, SR_LINK_NAME = 64 };

/* Something under way; its memory belongs to the link until `test` says that it is done. */
typedef uint64_t sr_link_request;

typedef struct sr_link sr_link;
struct sr_link {
    int rank, count;
    int neighbours;             /* ranks on this machine, this one included */
    char host[SR_LINK_NAME];    /* this machine */
    char library[SR_LINK_TEXT]; /* whose messages these are, with its version */

    /* Bytes for or from another rank; what one sends under a tag arrives in the order it was
     * sent. */
    int (*send)(sr_link *link, sr_link_request *request, int to, int tag, const void *data,
                int bytes);
    int (*receive)(sr_link *link, sr_link_request *request, int from, int tag, void *data,
                   int bytes);
    /* Rank r's counts[r] bytes at all + starts[r] become known to everybody. Both lists must stay
     * as they are until it is done; every rank calls it with the same, in the same order of
     * calls. */
    int (*gather)(sr_link *link, sr_link_request *request, void *all, const int *counts,
                  const int *starts);
    int (*test)(sr_link *link, sr_link_request *request, int *done);
    /* Is there a message under this tag, and from whom? */
    int (*probe)(sr_link *link, int tag, int *there, int *from);

    void (*explain)(char text[SR_LINK_TEXT], int error);
    void (*abort)(sr_link *link, int code); /* ends the processes of all ranks; does not return */
    void (*close)(sr_link *link);
};

/* What a module shows under this name: *link = the one link of this process, or a text that says
 * why there is none. */
#define SR_LINK_OPEN "softrnn_link_open"
typedef int sr_link_open(sr_link **link, int version, char why[SR_LINK_TEXT]);

#endif
