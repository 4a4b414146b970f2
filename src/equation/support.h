/* support.h: which axes and values a kernel computes, declared as text.
 *
 *     "score=exp|linear position=rope|none clamp=any decay=none|learned"
 *
 * An axis that a declaration names has exactly the values listed there ("any": every number of an
 * axis that takes numbers). An axis that it does not name has its default only, so a new axis, or a
 * new word of an old one, is refused by every kernel that does not say that it computes it. Axes of
 * the layer around the equation are not declared: kernels do not see them. */
#ifndef SR_EQUATION_SUPPORT_H
#define SR_EQUATION_SUPPORT_H

#include "equation/axes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True if the declaration covers every axis of the variant. Otherwise *missing (or NULL: not
 * wanted) is the first axis that it does not cover. */
bool sr_computes(const char *declaration, const srnn_attention *attention, const sr_axis **missing);

/* The same for a table of axes that ends in an axis without a name. */
bool sr_computes_axes(const char *declaration, const sr_axis *axes, const srnn_attention *attention,
                      const sr_axis **missing);

/* True if every axis and word of a declaration exists. Otherwise `wrong` (64 bytes) is the first
 * that does not. */
bool sr_declaration_is_valid(const char *declaration, char wrong[64]);

#ifdef __cplusplus
}
#endif

#endif
