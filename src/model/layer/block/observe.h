/* observe.h (private): the arrays that an observer of a decoder layer sees. */
#ifndef SR_MODEL_LAYER_BLOCK_OBSERVE_H
#define SR_MODEL_LAYER_BLOCK_OBSERVE_H

#include "model/layer/block/block.h"

/* Shows the observer, if there is one, what the equation has read and made, `saved` by the
 * attention layer, and takes its changes of o over; raises block->largest, if that is wanted. */
srnn_status sr_block_observe(const sr_block *block, const sr_layer_weights *weights, void *saved);

#endif
