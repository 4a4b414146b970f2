/* split.c: the names of the parts that data is divided into. */
#include "data/shards/split.h"

const char *sr_split_name(sr_split split) {
    return split == SR_SPLIT_TRAIN ? "train" : "validation";
}
