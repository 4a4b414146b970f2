/* axes.h: the axes of the equation as one table, from which the text form, its checks and
 * comparisons follow. A new axis is a field of srnn_attention and a row here. */
#ifndef SR_EQUATION_AXES_H
#define SR_EQUATION_AXES_H

#include "softrnn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The part of a model that an axis describes. */
typedef enum sr_axis_of {
    SR_AXIS_OF_EQUATION, /* the equation: kernels declare which values they compute (support.h) */
    SR_AXIS_OF_LAYER,    /* the layer around the equation */
} sr_axis_of;

typedef enum sr_axis_kind {
    SR_AXIS_WORD,   /* an enumeration: one of the words, in its order */
    SR_AXIS_SWITCH, /* a bool: one of two words */
    SR_AXIS_COUNT,  /* an int, or the first word, which is 0 */
    SR_AXIS_NUMBER, /* a double, or the first word, which is 0 */
} sr_axis_kind;

typedef struct sr_axis {
    const char *name;
    sr_axis_kind kind;
    size_t offset;            /* offset of its field in srnn_attention */
    const char *const *words; /* the first is the default; ends in NULL */
    sr_axis_of of;
    bool always;         /* printed even if it is the default */
    bool alone;          /* the name alone means its second word */
    unsigned counted;    /* bit n: word n takes a number, as in taylor:3 */
    size_t count_offset; /* offset of the field (an int) for that number */
    bool of_decay;       /* no effect without a decay */
} sr_axis;

/* In printing order; NULL past the end. They are one array that ends in an axis without a name. */
const sr_axis *sr_axis_at(size_t index);

/* False if another axis makes it irrelevant. */
bool sr_axis_matters(const sr_axis *axis, const srnn_attention *attention);

/* The number of words. */
size_t sr_axis_words(const sr_axis *axis);

/* The number of a word, or the number itself. */
double sr_axis_value(const sr_axis *axis, const srnn_attention *attention);
void sr_axis_set(const sr_axis *axis, srnn_attention *attention, double value);

/* The number after a word; 0 if there is none. */
int sr_axis_count(const sr_axis *axis, const srnn_attention *attention);
void sr_axis_set_count(const sr_axis *axis, srnn_attention *attention, int count);

#ifdef __cplusplus
}
#endif

#endif
