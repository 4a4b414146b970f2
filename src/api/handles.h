/* handles.h (private): the structs behind the handles of softrnn_lab.h. */
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

/* Checks ids (B, T) from the user, with which an op would read outside the embedding: each must be
 * 0 .. V-1, or negative if that is allowed. */
srnn_status sr_lab_check_ids(const int32_t *ids, int B, int T, int V, bool negative);

#endif
