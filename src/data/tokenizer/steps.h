/* steps.h (private): reads the steps around the model of a tokenizer.json. */
#ifndef SR_DATA_TOKENIZER_STEPS_H
#define SR_DATA_TOKENIZER_STEPS_H

#include "data/tokenizer/files/json_fields.h"
#include "data/tokenizer/parts.h"

/* Each takes the value of one field, null included. */

srnn_status sr_json_normalizer(sr_normalizer *normalizer, const json_t *json);

/* *byte_level: the last step is ByteLevel. */
srnn_status sr_json_pre_tokenizer(sr_splitter *splitter, bool *byte_level, const json_t *json);

/* Derives BOS and EOS from the tokens put around a text. */
srnn_status sr_json_post_processor(sr_tokenizer *tokenizer, const json_t *json);

/* Fills tokenizer->decoding; the vocabulary must be complete. is_added (size): ids whose text is
 * decoded verbatim. */
srnn_status sr_json_decoder(sr_tokenizer *tokenizer, const bool *is_added, const json_t *json);

#endif
