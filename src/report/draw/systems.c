/* systems.c: descriptions of related systems. H heads; Dk and Dv are the widths of a head's keys
 * and values; C = H Dv is the model's width unless stated otherwise. */
#include "report/draw/systems.h"

#include <string.h>

#define LINEAR_STATE "One matrix of Dk × Dv numbers a head, however long the text is."
#define LINEAR_WORK  "Dk Dv multiplications a token and head, for every token the same."
#define GIVES_UP_EXP                                                                               \
    "exp makes every product of powers of q and k its own feature, so softmax has no finite "      \
    "state. Without exp the weight is the product itself, the first order of the series, and the " \
    "sum over the past can be kept as one matrix. "
#define NO_ROW_SUM "The row sum goes too: a norm of the output bounds it instead. "
#define MAMBA_INPUT(convolved)                                \
    "z, x, B, C, Δ = projections of the token" convolved "\n" \
    "Δ ← softplus(Δ + dt_bias),  a = −e^A_log Δ\n"
#define MAMBA_LINES(convolved, gate) \
    MAMBA_INPUT(convolved)           \
    "S ← e^a S + Δ B xᵀ\n"      \
    "y = Cᵀ S + D x,  out = W (RMS(y · " gate "))"
#define CONVOLVED ", x, B and C convolved over 4 tokens and through SiLU"
#define MAMBA_SOFTMAX(convolved, divisor, gate)         \
    MAMBA_INPUT(convolved)                              \
    "c ← c + a,  append B, Δ x and c to the cache\n" \
    "s = C·B e^(c − c of the key)\n"                 \
    "y = Σ exp(s) Δ x / " divisor " + D x,  " gate
#define DELTA_LINES(decay, scale, gate)                                               \
    "q, k, v convolved over 4 tokens and through SiLU, q and k at length one\n" decay \
    "u = β (v − Sᵀ k),  β = σ(W_b h)\n"                                        \
    "S ← S + k uᵀ\n"                                                              \
    "y = qᵀ S" scale ",  out = W_o (RMS(y)" gate ")"
#define DELTA_DECAY "S ← e^a S,  a = −e^A_log softplus(W_a h + dt_bias)\n"
#define LEVELS_LINES                                                                             \
    "\nwith one S for every level, of which what is new goes to level 0, after levels below m, " \
    "the trailing zeros of the token's number plus 1, went to level m\n"                         \
    "q reads Σ λ[ℓ] S[ℓ],  λ = softplus(L · W_l h)"
#define FENWICK                                                                           \
    "The past is cut like a Fenwick tree into stretches that double in length, and each " \
    "stretch has a weight that the token chooses: between one state and all of them. "
#define NALA_LINES(features)                                                             \
    features "\nS ← S + R φ(k) vᵀ,  z ← z + φ(k),  R the rotation by position\n" \
             "y = (R φ(q))ᵀ S / (φ(q)·z + 1e-6)\n"                                  \
             "out = W_o (LayerNorm(y) · SiLU(W_g h))"
#define AVEY_LINES(asker, divisor)                                                                \
    "score of an earlier chunk: Σ over the tokens of " asker " of the largest cosine within it\n" \
    "context = the best chunks times score / " divisor ", in order of time, then this chunk\n"    \
    "a = relu(W_e RMS(x) + b)²,  a = [x0 | x1 | tail]\n"                                         \
    "x ← x + W_f [((tril(V) · cos(x0, x0)) x0) · x1 | tail] + b"
#define AVEY_SOFTMAX                                                                               \
    "It does not: there are no queries, keys and weights. A ranker looks for the earlier "         \
    "chunks that are most like this one, and blocks without attention and MLP mix the rows of "    \
    "that context by a learned matrix times cosines. It stands here as the one neighbour outside " \
    "of the equation."
#define AVEY_STATE                                                                               \
    "The embeddings of all tokens, which the ranker reads: C numbers a token, once and not for " \
    "every layer."
#define AVEY_WORK                                                                              \
    "Every chunk takes its context of k chunks of c tokens through all blocks: k times the "   \
    "linear work, and k² c C for mixing a token. A block has about 7 C² weights and no MLP " \
    "of its own."

const char sr_system_leak[] =
    "In Avey as published a chunk's later tokens weigh what its earlier ones read, so its losses "
    "are not those of a model that predicts, and cannot be compared with the others.";

static const sr_system systems[] = {
    {"softmax", "Softmax attention", "1706.03762", "",
     "It is where the others begin. exp of a product is a series over all orders of it; the "
     "row sum makes the weights of a row add up to one.",
     "append k and v to the cache\n"
     "s = q·k / √D for every key of the cache\n"
     "y = Σ exp(s) v / Σ exp(s),  out = W_o y",
     "Keys and values of every token: H (Dk + Dv) numbers a token, which grow with the text.",
     "Each token looks at all that came before: H (Dk + Dv) multiplications for each of them. "
     "4 C² weights a layer.",
     false},
    {"power", "Power attention, gated", "2507.04239", "score=power:2, decay=log_sigmoid",
     "exp is the sum of all powers of q·k, each divided by n!. Power attention keeps one of "
     "them, the square, and with it the row sum, which an even power keeps positive. A gate "
     "lets old keys fade, which exp would do by large differences.",
     "a = log σ(W_g h + b)\n"
     "S ← e^a S + φ₂(k) vᵀ,  z ← e^a z + φ₂(k),  φ₂ all products of two entries\n"
     "y = φ₂(q)ᵀ S / φ₂(q)·z,  out = W_o y",
     "D (D + 1)/2 rows of Dv + 1 numbers a key head, however long the text is: larger than "
     "the others' by D/2, and in return the weights are as sharp as a square.",
     "D² Dv / 2 multiplications a token and head. 4 C² weights a layer and one gate a key "
     "head.",
     false},
    {"forget", "Forgetting attention", NULL, "decay=log_sigmoid",
     "Softmax with one thing more: the gates of all tokens after a key multiply its weight. "
     "All of exp and of the row sum stays, so that it shows what forgetting alone is worth.",
     "C ← C + log σ(W_g h + b),  append k, v and C to the cache\n"
     "s = q·k / √D + C − C of the key\n"
     "y = Σ exp(s) v / Σ exp(s),  out = W_o y",
     "Keys and values of every token, as softmax, and one number more.",
     "As softmax: all that came before, for every token. 4 C² weights a layer and one gate a "
     "key head.",
     false},
    {"2mamba", "2Mamba", "2602.17363",
     "power, forget without position, with decay=neg_softplus and a convolution of 2 without "
     "SiLU",
     "The square of q·k stands for exp, as in power attention, and the row sum stays. In "
     "place of positions it has a convolution over two tokens and a decay that each token "
     "chooses.",
     "q, k, v = convolution of W h over 2 tokens,  a = −softplus(W_A h)\n"
     "S ← e^a S + φ₂(k) vᵀ,  z ← e^a z + φ₂(k),  φ₂ all products of two entries\n"
     "y = φ₂(q)ᵀ S / φ₂(q)·z,  out = W_o y",
     "D (D + 1)/2 rows of Dv + 1 numbers a head, however long the text is, and 1 token of the "
     "convolution.",
     "D² Dv / 2 multiplications a token and head. 4 C² weights a layer.", false},
    {"2mamba_e", "2Mamba with exp", "2602.17363",
     "power, forget without position, with decay=neg_softplus and a convolution of 2 without "
     "SiLU",
     "2Mamba with all of exp instead of its square: forgetting attention with a convolution "
     "in place of positions.",
     "q, k, v = convolution of W h over 2 tokens,  C ← C − softplus(W_A h),  append k, v and "
     "C to the cache\n"
     "s = q·k / √D + C − C of the key\n"
     "y = Σ exp(s) v / Σ exp(s),  out = W_o y",
     "Keys and values of every token, as softmax, and one number more.",
     "As softmax: all that came before, for every token. 4 C² weights a layer.", false},
    {"mamba2", "Mamba-2", "2405.21060",
     "linear, no normaliser, scale one, no position; share=qk, decay=softplus, "
     "value_gate=time_step, skip=head; a silu gate per channel before an rms norm over the row",
     GIVES_UP_EXP NO_ROW_SUM
     "What it adds is a decay that each token chooses, by the same time step that weighs its "
     "value; all heads of a group share q and k, there called C and B, and the value itself "
     "is added.",
     MAMBA_LINES(CONVOLVED, "SiLU(z)"),
     LINEAR_STATE " Dk is its state size, 128 as published; and 3 tokens of the convolution.",
     LINEAR_WORK " 6 C² weights a layer; the published models are such layers alone, without MLPs.",
     false},
    {"linear_mamba", "Mamba-2 in the paper's own code", "2507.23632",
     "mamba2 with skip=channel and a convolution of 2",
     GIVES_UP_EXP NO_ROW_SUM "It is Mamba-2 with a skip of its own for every channel.",
     MAMBA_LINES(", x, B and C convolved over 2 tokens and through SiLU", "SiLU(z)"),
     LINEAR_STATE " And 1 token of the convolution.", LINEAR_WORK " 3 C² weights a layer.", false},
    {"gated_softmax_plusplus_mamba", "Softmax in Mamba-2's layer", "2507.23632",
     "mamba2 with exp and the row sum, decay_place=logit",
     "Mamba-2's layer with exp and the row sum put back. Its decay sits on the logit: the "
     "logit of an old key goes to 0, and its weight to that of any other old key.",
     MAMBA_SOFTMAX(CONVOLVED, "Σ exp(s)",
                   "out = h + W (RMS(y · SiLU(z))), of RMS(h) as the token: a norm and a residual "
                   "of its own"),
     "Keys and values of every token, as softmax.",
     "As softmax: all that came before, for every token. 6 C² weights a layer.", false},
    {"gated_softmax_plusplus_mamba2", "The second of these", "2507.23632",
     "mamba2 without convolution, skip=channel, gate_shape=silu_square; `_intended`: exp, "
     "decay_place=logit, row_length",
     GIVES_UP_EXP NO_ROW_SUM
     "The softmax of its name is commented out in the published code, and the gate is applied "
     "twice.",
     MAMBA_LINES("", "SiLU(z)²"), LINEAR_STATE, LINEAR_WORK " 3 C² weights a layer.", false},
    {"gated_softmax_plusplus_mamba2_intended", "The second of these, as its comments say",
     "2507.23632",
     "mamba2 without convolution, skip=channel, gate_shape=silu_square; `_intended`: exp, "
     "decay_place=logit, row_length",
     "exp of a decayed product, divided by the length of the row instead of its sum. What was "
     "intended is not certain.",
     MAMBA_SOFTMAX("", "i", "out = W (RMS(y · SiLU(z)²))"),
     "Keys and values of every token, as softmax.",
     "As softmax: all that came before, for every token. 3 C² weights a layer.", false},
    {"gla", "Gated linear attention", "2312.06635",
     "linear, no normaliser, no position; decay=log_sigmoid over 16, per channel; rms norm, "
     "then a silu gate per channel",
     GIVES_UP_EXP NO_ROW_SUM
     "What it adds is forgetting, by a gate for every channel of the key, and a gate on the "
     "output.",
     "a = log σ(W₂ W₁ h + b) / 16, one number for every channel of k\n"
     "S ← diag(e^a) S + k vᵀ\n"
     "y = qᵀ S / √Dk,  out = W_o (RMS(y) · SiLU(W_g h))",
     LINEAR_STATE " Dk is half of Dv as published.", LINEAR_WORK " 4 C² weights a layer.", false},
    {"delta_net", "DeltaNet, the delta rule", "2406.06484",
     "linear, no normaliser, no position; write=delta, feature=unit_smooth, a convolution of "
     "4; rms norm",
     GIVES_UP_EXP NO_ROW_SUM
     "A sum can only add: values under similar keys blur. The delta rule first takes back "
     "what its key reads, so that a key can be overwritten. Keys have length one, which keeps "
     "that stable.",
     DELTA_LINES("", " / √Dk", ""), LINEAR_STATE,
     "2 Dk Dv multiplications a token and head; over a chunk a triangle of equations is "
     "solved. 4 C² weights a layer.",
     false},
    {"gated_delta_net", "Gated DeltaNet", "2412.06464",
     "delta_net, decay=softplus, a silu gate per channel after the norm",
     GIVES_UP_EXP NO_ROW_SUM
     "It has both remedies at once: the delta rule overwrites one key, a decay forgets all of "
     "them.",
     DELTA_LINES(DELTA_DECAY, " / √Dk", " · SiLU(W_g h)"),
     LINEAR_STATE " As published Dv is twice Dk.",
     "2 Dk Dv multiplications a token and head. 5 C² weights a layer with Dk = Dv, 6 C² as "
     "published.",
     false},
    {"kda", "Kimi Delta Attention", "2510.26692",
     "gated_delta_net with decay_width=channel, dt_width=channel and share=qk; the gate after "
     "the norm is a sigmoid",
     GIVES_UP_EXP NO_ROW_SUM
     "It is Gated DeltaNet with a decay for every channel of the key, so that what is "
     "forgotten is chosen within a head.",
     DELTA_LINES("a = −e^A softplus(W₂ W₁ h + b), one number for every channel of k\n"
                 "S ← diag(e^a) S\n",
                 " / √Dk", " · σ(W₄ W₃ h)"),
     LINEAR_STATE,
     "2 Dk Dv multiplications a token and head. 4 C² weights a layer with Dk = Dv, and the "
     "low-rank paths.",
     false},
    {"gdn2", "Gated DeltaNet-2", "2605.22791", "kda with write_width=channel",
     GIVES_UP_EXP NO_ROW_SUM
     "It is Kimi Delta Attention with two gates in place of β: one for every channel of the "
     "key says what is taken back, one for every channel of the value what is written.",
     "q, k, v convolved over 4 tokens and through SiLU, q and k at length one\n"
     "a = −e^A softplus(W₂ W₁ h + b),  S ← diag(e^a) S\n"
     "u = σ(W_w h) · v − Sᵀ (σ(W_b h) · k),  S ← S + k uᵀ\n"
     "y = qᵀ S / √Dk,  out = W_o (RMS(y) · σ(W₄ W₃ h))",
     LINEAR_STATE,
     "2 Dk Dv multiplications a token and head. 6 C² weights a layer with Dk = Dv, and the "
     "low-rank paths.",
     false},
    {"rwkv7", "RWKV-7", "2503.14456",
     "linear, no normaliser, scale one, no position; write=removal, decay=bounded per channel "
     "with decay_bound=e^−½, dt_width=none; layer norm with norm_weight=head, then skip=bonus "
     "and a gate per channel, gate_shape=identity",
     GIVES_UP_EXP NO_ROW_SUM
     "What it adds is a rule that takes back what a key of its own reads, apart from the key "
     "that is written, and a decay for every channel that has a bound. Every projection reads "
     "the token mixed with the one before it.",
     "h of every projection mixed with the token before,  k~ = k (1 + (α − 1) k_a),  n = k "
     "k_k at length one,  b = α n\n"
     "a = −e^−½ σ(w),  e = Sᵀ n,  S ← diag(e^a) S + k~ vᵀ − b eᵀ\n"
     "y = rᵀ S,  out = W_o ((LayerNorm(y) + (Σ r k~ r_k) v) · g)",
     "One matrix of D × D numbers a head, however long the text is, and 1 token.",
     "3 D² multiplications a token and head. 4 C² weights a layer, and the low-rank paths.", false},
    {"log_linear", "Log-linear attention", "2506.04761",
     "linear, no normaliser, no position; levels=fenwick, rms norm",
     GIVES_UP_EXP NO_ROW_SUM FENWICK,
     "m = trailing zeros of t, plus 1:  S[m] = Σ of S below,  those below = 0\n"
     "S[0] = k vᵀ\n"
     "y = Σ λ[ℓ] qᵀ S[ℓ] / √D,  λ = softplus(L · W_l h),  out = W_o RMS(y)",
     "One matrix of Dk × Dv numbers a head and level: their number grows with the logarithm "
     "of the text.",
     "Dk Dv multiplications a token, head and level that holds something. 4 C² weights a "
     "layer, and C for every level and head.",
     false},
    {"log_linear_mamba2", "Log-linear Mamba-2", "2506.04761",
     "mamba2, gated_delta_net with levels=fenwick; the second without 1/√d",
     GIVES_UP_EXP NO_ROW_SUM FENWICK "All else is Mamba-2's.",
     MAMBA_LINES(CONVOLVED, "SiLU(z)") LEVELS_LINES, "Mamba-2's state once for every level.",
     "Mamba-2's work for every level that holds something.", false},
    {"log_linear_gated_delta_net", "Log-linear Gated DeltaNet", "2506.04761",
     "mamba2, gated_delta_net with levels=fenwick; the second without 1/√d",
     GIVES_UP_EXP NO_ROW_SUM FENWICK "All else is Gated DeltaNet's.",
     DELTA_LINES(DELTA_DECAY, "", " · SiLU(W_g h)") LEVELS_LINES,
     "Gated DeltaNet's state once for every level.",
     "Gated DeltaNet's work for every level that holds something.", false},
    {"rat", "RAT", "2507.04416",
     "exp over pool=16, position=rope_chunks, share=qk_tiled, a sigmoid gate per channel",
     "All of softmax stays: exp, the row sum, positions. What changes is what it looks at: "
     "inside a chunk a gated running average stands for the tokens, and of an earlier chunk "
     "only its last average is seen.",
     "k~ ← g k~ + (1 − g) k,  v~ ← g v~ + (1 − g) v,  both from zero at the start of a chunk\n"
     "q and k~ rotated by the index of their chunk\n"
     "softmax of q·k~ / √D over the last k~ of every earlier chunk, and this one\n"
     "out = W_out (σ(z) · y)",
     "One key and one value for every chunk of L tokens, and those of the running chunk: "
     "softmax's cache, L times smaller.",
     "Each token looks at one key of every chunk: softmax's work, L times less. 4 C² weights "
     "a layer.",
     false},
    {"grela", "RecGRELA, causal", "2506.13315",
     "linear on elu1, scale one, position=rope_features, epsilon, skip=conv:4, a silu gate "
     "per channel",
     "exp of a product is replaced by a product of positive features, elu + 1, so that the "
     "row sum can stay: both are sums over the past that a state keeps. A convolution of the "
     "values stands in for what the smooth weights blur.",
     "u = W_in h + b,  q, k = projections of u,  v = u,  φ = elu + 1\n"
     "S ← S + R φ(k) vᵀ,  z ← z + φ(k),  R the rotation by position\n"
     "y = (R φ(q))ᵀ S / (φ(q)·z + 1e-6)\n"
     "out = W_out ((y + SiLU(conv₄(v))) · SiLU(W_act h))",
     "D × D + D numbers a head, however long the text is, and 3 tokens of the convolution.",
     LINEAR_WORK " 5 C² weights a layer.", false},
    {"nala", "NaLaFormer, causal", "2506.21137",
     "linear on norm_split or norm_cosine, scale one, position=rope_features, epsilon; layer "
     "norm over the row, then a silu gate per channel",
     "exp makes weights sharper the longer q is; a product of features loses that with the "
     "row sum. Here entries of q are taken to a power that grows with its length, and those "
     "of k are cubed: sharpness comes back into features. Signs are split, so weights stay "
     "positive.",
     NALA_LINES("φ(q) = [relu(q), relu(−q)]/|q| to the power 3 (0.5 + tanh |q|),  φ(k) = [relu(k), "
                "relu(−k)]³"),
     "2D × D + 2D numbers a head, however long the text is.", LINEAR_WORK " 5 C² weights a layer.",
     false},
    {"nala_cosine", "NaLaFormer as its paper is described", "2506.21137",
     "linear on norm_split or norm_cosine, scale one, position=rope_features, epsilon; layer "
     "norm over the row, then a silu gate per channel",
     "As nala, but each entry becomes a phase, cosine and sine, in place of two signs. "
     "Weights can be negative.",
     NALA_LINES("φ(q) = |q/r|^p · [cos(q/r), sin(q/r)],  r = |q|,  p = 3 (0.5 + tanh r),  φ(k) = "
                "|k|³ · [cos(k/|k|), sin(k/|k|)]"),
     "2D × D + 2D numbers a head, however long the text is.", LINEAR_WORK " 5 C² weights a layer.",
     false},
    {"avey", "Avey, as published", "2506.11305", "no attention", AVEY_SOFTMAX,
     AVEY_LINES("this chunk", "the score of the oldest of them"), AVEY_STATE, AVEY_WORK, true},
    {"avey_causal", "Avey, made causal", "2506.11305", "no attention", AVEY_SOFTMAX,
     AVEY_LINES("the chunk before this one", "the largest score"), AVEY_STATE, AVEY_WORK, false},
};

const sr_system *sr_system_at(size_t index) {
    return index < sizeof systems / sizeof *systems ? &systems[index] : NULL;
}

const sr_system *sr_system_of(const char *text) {
    const size_t length = strcspn(text, ",");
    for (size_t i = 0; sr_system_at(i); i++)
        if (strlen(systems[i].name) == length && strncmp(systems[i].name, text, length) == 0)
            return &systems[i];
    return NULL;
}

bool sr_system_is_named(const char *text) {
    return sr_system_of(text) && !strchr(text, ',');
}

bool sr_system_leaks(const char *text) {
    const sr_system *system = sr_system_of(text);
    return system && system->leaks;
}
