/* split.h: the parts that data is divided into. */
#ifndef SR_DATA_SHARDS_SPLIT_H
#define SR_DATA_SHARDS_SPLIT_H

typedef enum sr_split {
    SR_SPLIT_TRAIN = 0,
    SR_SPLIT_VALIDATION,
    SR_SPLITS,
} sr_split;

/* "train", "validation". Static text. */
const char *sr_split_name(sr_split split);

#endif
