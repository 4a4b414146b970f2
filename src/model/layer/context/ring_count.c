/* ring_count.c: what a ring sends, counted. */
#include "model/layer/context/ring.h"

#include "model/layer/context/ring_steps.h"
#include "model/layer/context/sums.h"

sr_ring_numbers sr_ring_numbers_of(const srnn_problem *p, int T, int parts) {
    const circle c = {parts, reach_of(&p->attention, shortest_part(T, parts), parts)};
    const double Q = (double)p->H * p->D, S = (double)sr_sums_columns(p);
    const bool gates = sr_operand_used(SR_OPERAND_VALUE_GATE, &p->attention);
    const double decays = (double)decay_columns(p), sums = (double)sum_columns(p);
    const double keys = (double)p->Hkv * (p->D + p->Dv + (gates ? 1 : 0)) + decays;
    /* Of what continues at each cut: forward, and backward once more with its gradient. */
    sr_ring_numbers n = {(parts - 1) * (decays + sums), 2 * (parts - 1) * (decays + sums)};
    for (int part = 0; part < parts; part++)
        for (int s = 1; 2 * s <= parts; s++) {
            const int from = keys_in(c, part, s), visitor = queries_in(c, part, s);
            if (from >= 0) {
                n.forward += (double)extent_of(T, from, parts).tokens * keys;
                n.backward += (double)extent_of(T, from, parts).tokens * 2 * keys;
            }
            if (visitor >= 0) {
                const extent all = extent_of(T, visitor, parts);
                const double tokens = (double)visiting(all, is_halved(c, s)).tokens;
                n.forward += tokens * (Q + 1 + decays + S);
                n.backward += tokens * (Q + 1 + decays + S + Q + decays);
            }
        }
    return n;
}
