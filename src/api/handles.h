/* handles.h (private): what the handles of softrnn_lab.h are. */
#ifndef SR_API_HANDLES_H
#define SR_API_HANDLES_H

#include "data/tokenizer/tokenizer.h"
#include "files/path.h"
#include "model/model.h"
#include "model/pass.h"
#include "softrnn_lab.h"

struct srnl_model {
    char where[SR_PATH_BYTES];
    sr_backend *backend;
    sr_model *model;
    sr_pass *pass; /* of the last shape, or NULL */
    int B, T;      /* of the pass */
};

struct srnl_tokenizer {
    sr_tokenizer *tokenizer;
    sr_encoder *encoder;
};

/* Ids come from a user, and an op would read outside the embedding: (B, T) of them must be 0 ..
 * V-1, or below 0 where that is allowed. */
srnn_status sr_lab_check_ids(const int32_t *ids, int B, int T, int V, bool negative);

#endif
