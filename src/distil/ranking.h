/* ranking.h: what replacing each layer alone costs, before and after it was aligned, and which
 * layers to keep for a budget of bytes. */
#ifndef SR_DISTIL_RANKING_H
#define SR_DISTIL_RANKING_H

#include "analysis/focus.h"
#include "analysis/loss_orders.h"
#include "distil/stages.h"

#include <jansson.h>

/* The teacher with this layer alone replaced. */
typedef struct sr_replacement_cost {
    double loss; /* nats per target */
    double kl;   /* KL(teacher, student), nats per target */
} sr_replacement_cost;

typedef struct sr_ranked_layer {
    sr_focus focus;       /* of the teacher's layer */
    sr_loss_order orders; /* the same */
    sr_replacement_cost copied, aligned;
    double cache_bytes, state_bytes; /* of one sequence of T tokens: the teacher's, the student's */
    bool keep;                       /* for the budget */
} sr_ranked_layer;

typedef struct sr_ranking_result {
    char *attention; /* that replaces the teacher's, owned */
    int L, T;
    int64_t targets;
    double loss;             /* the teacher's */
    int order_rows;          /* that `orders` were measured on */
    double tolerable;        /* nats: of `orders` */
    double budget;           /* bytes; NaN: none */
    double bytes;            /* of one sequence with the layers that are kept */
    sr_ranked_layer *layers; /* (L), owned */
} sr_ranking_result;

typedef struct sr_ranking_request {
    const char *folder; /* of stages, of which align is complete; every layer is replaced */
    int threads;
    const char *device; /* NULL: as planned */
    int window;         /* of sr_focus */
    int most_order;
    double tolerance; /* of an order in sr_focus */
    double tolerable; /* nats: of an order in sr_loss_order */
    double budget;    /* bytes of caches and states of one sequence; below 0: none */

    /* Called with the share of the work that is done; may be NULL. Returns true to stop. */
    bool (*progress)(void *context, double share);
    void *context;
} sr_ranking_request;

srnn_status sr_ranking_measure(sr_ranking_result *result, const sr_ranking_request *request);
void sr_ranking_free(sr_ranking_result *result);

/* The measures that rank layers without training, each with how well it ranks them by the KL of
 * the replaced layer, before and after alignment. */
enum { SR_RANKING_MEASURES = 9 };
const char *sr_ranking_measure_name(int measure);

/* {"format": "softrnn-layers", ...}, as docs/RECORDS.md has it; free with json_decref. */
srnn_status sr_ranking_record(json_t **record, const sr_ranking_result *result);

#endif
