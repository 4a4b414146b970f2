/* test_attention_cuda.c: every attention kernel of a GPU, real or emulated, against the float64
 * oracle. */
#include "attention/cuda/shared/computes.h"
#include "attention/kernel.h"
#include "device/device.h"
#include "equation/facts.h"
#include "equation/operands.h"
#include "equation/support.h"
#include "test.h"
#include "verify/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static srnn_device *gpu;

static size_t operand_bytes(const attention_call *run, sr_operand which) {
    const sr_shape shape = sr_operand_shape(which, &run->problem);
    return (size_t)sr_shape_numbers(&shape) * sizeof(float);
}

static size_t output_bytes(const attention_call *run) {
    const sr_shape shape = sr_output_shape(&run->problem);
    return (size_t)sr_shape_numbers(&shape) * sizeof(float);
}

/* Families, gates on scores that have none in the table, and scores of high order. */
static const char *const others[] = {
    "order:1",
    "order:4",
    "order:12",
    "elu:2",
    "cosine:3",
    "power:3",
    "power:16",
    "score=taylor:40,norm=l2",
    "linear_elu,decay,value_gate,output_gate,norm=rms",
    "order:2,decay,value_gate,output_gate,post_gate,norm=l2",
    "order:2,value_gate,normaliser=cumulative_gate,norm=layer",
    "order:2,normaliser=row_sum_min1,detach,epsilon=0.1",
    "softmax,decay,clamp=0.5",
};

/* The text of case n: the named variants, then the others; NULL past the end. */
static const char *spec_at(size_t n) {
    size_t named = 0;
    while (srnn_variant_at(named))
        named++;
    if (n < named)
        return srnn_variant_at(n)->name;
    return n - named < sizeof others / sizeof *others ? others[n - named] : NULL;
}

static const int64_t documents[] = {0, 1, 18, 70, 71, 80, 140};

/* The first for every variant, the others for one in each score's class. */
static const srnn_problem shapes[] = {
    {.B = 2, .H = 4, .Hkv = 2, .T = 70, .D = 20, .Dv = 12, .offsets = documents, .documents = 6},
    {.B = 1, .H = 1, .Hkv = 1, .T = 1, .D = 8, .Dv = 8},
    {.B = 1, .H = 2, .Hkv = 2, .T = 33, .D = 64, .Dv = 64},
    {.B = 1, .H = 3, .Hkv = 1, .T = 64, .D = 3, .Dv = 128},
    {.B = 2, .H = 2, .Hkv = 1, .T = 40, .D = 130, .Dv = 255},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

static srnn_problem problem_of(const char *spec, size_t shape) {
    srnn_problem problem = shapes[shape];
    assert_int_equal(srnn_attention_parse(&problem.attention, spec), SRNN_OK);
    return problem;
}

/* Larger states take long and test nothing new. */
enum { STATE_BYTES_MAX = 4 << 20 };

/* A call on the GPU, and the oracle on the same operands. */
static void create_both(attention_call *run, attention_call *oracle, srnn_problem problem) {
    assert_int_equal(probe_oracle(oracle, &problem, 3), SRNN_OK);
    problem.device = gpu;
    problem.state_limit = STATE_BYTES_MAX;
    assert_int_equal(probe_copy(run, &problem, oracle), SRNN_OK);
}

/* Whether a kernel, by its place in the list of names, was compared with the oracle. */
enum { KERNELS_MAX = 64 };
static bool compared[KERNELS_MAX];

/* Every kernel on the operands that `run` holds. A gate before a norm cancels in it: in float its
 * gradient is only rounding error of the row sums. */
static void check_kernels(const char *spec, attention_call *run, const attention_call *oracle,
                          double limit) {
    const double gradient_limit = 1e-4;
    const srnn_problem *p = &run->problem;
    int ran = 0;
    for (size_t n = 0; srnn_kernel_name(gpu, n); n++) {
        run->problem.kernel = srnn_kernel_name(gpu, n);
        const srnn_status status = call_forward_backward(run);
        if (status == SRNN_ERR_UNSUPPORTED ||
            status == SRNN_ERR_LIMIT) /* of a state that is too large */
            continue;
        assert_int_equal(status, SRNN_OK);
        const double output = probe_output_error(run, oracle);
        const double gradient = probe_gradient_error(run, oracle);
        if (!(output <= limit) || !(gradient <= gradient_limit))
            fail_msg("%s, %s, H=%d Hkv=%d T=%d D=%d Dv=%d documents=%d: off by %g, gradients by %g",
                     spec, p->kernel, p->H, p->Hkv, p->T, p->D, p->Dv, (int)p->documents, output,
                     gradient);
        assert_true(n < KERNELS_MAX);
        compared[n] = true;
        ran++;
    }
    assert_true(ran > 0);
}

static void check_problem(const char *spec, const srnn_problem *problem) {
    attention_call run, oracle;
    create_both(&run, &oracle, *problem);
    check_kernels(spec, &run, &oracle, probe_limit(problem, SRNN_FORM_PARALLEL));
    call_free(&run);
    call_free(&oracle);
}

/* GPUs refuse writes with a key of their own by name. */
static bool is_computed(const srnn_problem *problem) {
    return sr_computes(SR_CUDA_EVERYTHING, &problem->attention, NULL);
}

static void every_variant(void **state) {
    (void)state;
    for (size_t n = 0; spec_at(n); n++) {
        const srnn_problem problem = problem_of(spec_at(n), 0);
        if (is_computed(&problem))
            check_problem(spec_at(n), &problem);
    }
}

/* Every axis beyond the plain equation, alone and combined, also in bf16: packed documents, prime
 * lengths, one token, grouped heads. */
static const char *const axes[] = {
    "softmax,decay=log_sigmoid,decay_width=channel,decay_place=logit",
    "softmax,decay=softplus,decay_place=logit,clamp=2",
    "score=linear,decay=softplus,decay_width=channel,normaliser=none",
    "score=linear,position=rope_features,feature=elu1,decay,value_gate",
    "softmax,position=rope_features,feature=norm_cosine",
    "score=linear,feature=unit_smooth,write=delta,normaliser=none,decay=log_sigmoid,"
    "decay_width=channel",
    "score=exp,feature=unit_smooth,write=delta,position=rope_features,norm=l2",
    "softmax,share=qk,levels=fenwick,skip=channel,norm=layer,norm_width=row",
    "score=power:2,share=qk_tiled,feature=unit_heads,levels=fenwick,normaliser=none,skip=head",
    "softmax,pool=3,position=rope_chunks,value_gate,normaliser=value_power",
    "softmax,skip=conv:2,output_gate,post_gate,gate_width=channel,gate_shape=silu,norm=rms",
    "score=power:12,feature=norm_split,normaliser=cumulative_gate,epsilon=0.5,norm=l2_scaled",
    "score=linear,feature=unit,write=delta,levels=fenwick,decay=softplus,value_gate=time_step,"
    "normaliser=none",
    "score=linear,feature=unit_smooth,write=delta,write_range=2,decay=softplus,decay_width=channel,"
    "dt_width=channel,normaliser=none",
    "score=power:2,decay=bounded,decay_bound=5,levels=fenwick",
    "softmax,decay=bounded,decay_bound=0.6,dt_width=none,decay_width=channel,decay_place=logit",
    "score=taylor:2,decay=neg_softplus,value_gate",
    "softmax,output_gate,gate_width=channel,gate_shape=identity,norm=layer,norm_weight=head",
    "softmax,window=5,sink=learned,cap=3",
    "softmax,window=40,decay=log_sigmoid,normaliser=row_length",
    "score=sigmoid,score_bias=-2,normaliser=none,window=7,decay=given,decay_width=channel,"
    "decay_place=logit",
    "score=linear,feature=unit,write=delta,write_gate=given,normaliser=none,decay=given",
    "score=power:2,sink=zero,position=rope_features",
    "score=linear,skip=bonus,post_gate,gate_width=channel,norm=layer,norm_weight=head,share=qk",
    "softmax,skip=bonus,feature=unit,output_gate",
};

enum { AXES = sizeof axes / sizeof *axes };

static const int64_t packed[] = {0, 1, 18, 37, 74};

static const srnn_problem axes_shapes[] = {
    {.B = 2, .H = 4, .Hkv = 2, .T = 37, .D = 6, .Dv = 5, .offsets = packed, .documents = 4},
    {.B = 1, .H = 2, .Hkv = 1, .T = 1, .D = 3, .Dv = 2},
};

/* Whether the result is rounding noise: norms across one head. */
static bool is_noise(const srnn_problem *p) {
    return p->attention.feature == SRNN_FEATURE_UNIT_HEADS && p->Hkv == 1;
}

static void every_axis(void **state) {
    (void)state;
    for (size_t n = 0; n < AXES; n++)
        for (size_t shape = 0; shape < sizeof axes_shapes / sizeof *axes_shapes; shape++) {
            srnn_problem problem = axes_shapes[shape];
            assert_int_equal(srnn_attention_parse(&problem.attention, axes[n]), SRNN_OK);
            if (!is_noise(&problem))
                check_problem(axes[n], &problem);
        }
}

/* The tolerance is derived from a plain computation in bf16. */
static void every_axis_in_bf16(void **state) {
    (void)state;
    for (size_t n = 0; n < AXES; n++) {
        srnn_problem problem = axes_shapes[0];
        attention_call run, oracle;
        probe_errors plain;
        problem.dtype = SRNN_BF16;
        assert_int_equal(srnn_attention_parse(&problem.attention, axes[n]), SRNN_OK);
        create_both(&run, &oracle, problem);
        assert_int_equal(probe_plain_errors(&plain, &problem, &oracle), SRNN_OK);
        assert_int_equal(call_forward_backward(&run), SRNN_OK);
        const probe_errors errors = probe_errors_of(&run, &oracle, true);
        if (!(probe_worst(&errors) <= probe_plain_limit(probe_worst(&plain))))
            fail_msg("%s, %s in bf16: off by %g, a plain computation by %g", axes[n], run.kernel,
                     probe_worst(&errors), probe_worst(&plain));
        call_free(&run);
        call_free(&oracle);
    }
}

/* Draws with rows that see few keys, with small weights, before a norm: their gradients are the
 * largest, and as accurate as those weights. And gradients of decays, which are differences of
 * sums. */
static void what_cancels_in_bf16(void **state) {
    (void)state;
    static const char ORDER_2[] = "order:2,decay,value_gate,output_gate,post_gate,norm=l2";
    static const struct {
        const char *spec, *kernel;
        int T, D;
        uint64_t seed;
    } draws[] = {
        {"gla", "chunks", 1, 8, 39},    {"gla", "chunks", 1, 8, 44},  {"gla", "chunks", 17, 16, 18},
        {"kda", "chunks", 17, 16, 11},  {"gla", "chunks", 5, 24, 46}, {"gla", "chunks", 19, 40, 29},
        {ORDER_2, "order2", 40, 64, 5},
    };
    for (size_t n = 0; n < sizeof draws / sizeof *draws; n++) {
        srnn_problem problem = {.B = 1,
                                .H = 2,
                                .Hkv = 2,
                                .T = draws[n].T,
                                .D = draws[n].D,
                                .Dv = draws[n].D,
                                .dtype = SRNN_BF16,
                                .device = gpu,
                                .kernel = draws[n].kernel};
        attention_call run, oracle;
        probe_errors plain;
        assert_int_equal(srnn_attention_parse(&problem.attention, draws[n].spec), SRNN_OK);
        assert_int_equal(probe_oracle(&oracle, &problem, draws[n].seed), SRNN_OK);
        assert_int_equal(probe_plain_errors(&plain, &problem, &oracle), SRNN_OK);
        assert_int_equal(probe_copy(&run, &problem, &oracle), SRNN_OK);
        assert_int_equal(call_forward_backward(&run), SRNN_OK);
        const probe_errors errors = probe_errors_of(&run, &oracle, true);
        if (!(probe_worst(&errors) <= probe_plain_limit(probe_worst(&plain))))
            fail_msg("%s, T=%d in bf16: off by %g, a plain computation by %g", draws[n].spec,
                     problem.T, probe_worst(&errors), probe_worst(&plain));
        call_free(&run);
        call_free(&oracle);
    }
}

/* Chunks on tensor cores with decays per head: lengths around a chunk, prime ones, one token;
 * widths that are not those of a tile; groups; documents. */
static const int64_t chunk_documents[] = {0, 1, 50, 131, 195, 262};
static const srnn_problem chunk_shapes[] = {
    {.B = 2,
     .H = 4,
     .Hkv = 2,
     .T = 131,
     .D = 16,
     .Dv = 24,
     .offsets = chunk_documents,
     .documents = 5},
    {.B = 1, .H = 2, .Hkv = 1, .T = 1, .D = 64, .Dv = 64},
    {.B = 1, .H = 2, .Hkv = 1, .T = 257, .D = 15, .Dv = 17},
    {.B = 1, .H = 2, .Hkv = 1, .T = 63, .D = 128, .Dv = 64},
    {.B = 1, .H = 2, .Hkv = 2, .T = 65, .D = 48, .Dv = 112},
    {.B = 1, .H = 2, .Hkv = 1, .T = 129, .D = 128, .Dv = 120},
};

enum { CHUNK_SHAPES = sizeof chunk_shapes / sizeof *chunk_shapes };

/* A kernel on the operands of `run`, which the oracle has computed, twice. */
static void check_kernel(const char *kernel, const char *spec, attention_call *run,
                         const attention_call *oracle) {
    const srnn_problem *const p = &run->problem;
    probe_errors plain;
    attention_call again;
    run->problem.kernel = kernel;
    assert_int_equal(probe_plain_errors(&plain, p, oracle), SRNN_OK);
    assert_int_equal(probe_copy(&again, p, oracle), SRNN_OK);
    assert_int_equal(call_forward_backward(run), SRNN_OK);
    assert_int_equal(call_forward_backward(&again), SRNN_OK);
    const probe_errors errors = probe_errors_of(run, oracle, true);
    if (!(probe_worst(&errors) <= probe_plain_limit(probe_worst(&plain))))
        fail_msg("%s, T=%d D=%d Dv=%d in bf16: off by %g, a plain computation by %g", spec, p->T,
                 p->D, p->Dv, probe_worst(&errors), probe_worst(&plain));
    assert_memory_equal(run->host.o, again.host.o, output_bytes(run) / 2);
    for (int which = 0; which < SR_OPERANDS; which++) /* learned vectors are float */
        if (run->host.operand[which])
            assert_memory_equal(run->host.gradient[which], again.host.gradient[which],
                                operand_bytes(run, (sr_operand)which) /
                                    (which < SR_OPERAND_NORM_WEIGHT ? 2 : 1));
    call_free(&again);
}

/* Every kind of decay, row sums, shared queries, epilogues. */
static void decayed_chunks_in_bf16(void **state) {
    (void)state;
    static const char *const specs[] = {
        "mamba2",
        "gated_softmax_plusplus_mamba2",
        "linear_elu,decay,value_gate,output_gate,norm=rms",
        "linear_elu,decay=log_sigmoid",
        "score=linear,normaliser=none,decay=given,feature=unit",
        "score=linear,normaliser=none,position=none,norm=rms",
        "linear_elu,decay=bounded,decay_bound=5,normaliser=row_sum_min1,detach,epsilon=0.1",
        "score=linear,share=qk_tiled,decay=neg_softplus,normaliser=row_length,skip=bonus",
        "score=linear,feature=unit_smooth,decay=softplus,normaliser=none,skip=channel,norm=layer",
        "score=linear,share=qk_tiled,normaliser=none,value_gate,skip=head,decay=given",
        ("score=linear,share=qk,feature=relu,normaliser=none,decay=softplus,value_gate=time_step,"
         "skip=channel,norm=rms,norm_width=row"),
    };
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (size_t shape = 0; shape < CHUNK_SHAPES; shape++) {
            srnn_problem problem = chunk_shapes[shape];
            attention_call run, oracle;
            problem.dtype = SRNN_BF16;
            assert_int_equal(srnn_attention_parse(&problem.attention, specs[n]), SRNN_OK);
            create_both(&run, &oracle, problem);
            check_kernel("chunks", specs[n], &run, &oracle);
            call_free(&run);
            call_free(&oracle);
        }
}

/* Gates of 1, e^-40 and some that forget everything between ordinary ones, which have to stay
 * exact; zero keys. All numbers are exact in bf16. */
static void awkward_gates_in_chunks(void **state) {
    (void)state;
    static const char *const specs[] = {
        "score=linear,normaliser=none,position=none,decay=given",
        "linear_elu,decay=given",
        "score=linear,normaliser=none,position=none,decay=given,feature=unit",
    };
    /* four rows of keys for a warp of the steps around the core */
    static const srnn_problem narrow = {.B = 1, .H = 2, .Hkv = 1, .T = 70, .D = 64, .Dv = 64};
    static const float gates[] = {-98304, -0.25f, -3008, 0, -0.0625f, -0.25f, -40, 0, 0, -0.125f};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (size_t shape = 0; shape < 4; shape++) {
            srnn_problem problem = shape < 3 ? chunk_shapes[shape] : narrow;
            attention_call run, oracle;
            problem.dtype = SRNN_BF16;
            assert_int_equal(srnn_attention_parse(&problem.attention, specs[n]), SRNN_OK);
            assert_int_equal(probe_oracle(&oracle, &problem, 3), SRNN_OK);
            double *const decay = oracle.host.operand[SR_OPERAND_DECAY];
            double *const k = oracle.host.operand[SR_OPERAND_K];
            const size_t tokens = (size_t)problem.B * (size_t)problem.Hkv * (size_t)problem.T;
            for (size_t i = 0; i < tokens; i++)
                decay[i] = (double)gates[(i * i + i / 64) % 10];
            for (size_t i = 0; i < tokens * (size_t)problem.D; i++)
                k[i] = i / (size_t)problem.D % 7 == 5 ? 0 : k[i];
            assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
            problem.device = gpu;
            assert_int_equal(probe_copy(&run, &problem, &oracle), SRNN_OK);
            check_kernel("chunks", specs[n], &run, &oracle);
            call_free(&run);
            call_free(&oracle);
        }
}

/* Averages of chunks on tensor cores: chunks of one token, shorter and longer than a tile, than a
 * document and than the text; more slots than a tile; shared queries and groups; documents. */
static void averages_in_bf16(void **state) {
    (void)state;
    static const char *const specs[] = {
        "rat,pool=4",
        "rat,pool=1",
        "softmax,pool=3,position=rope_chunks",
        "softmax,pool=16,clamp=0.5,scale=one",
        "softmax,pool=100,position=rope_chunks,share=qk,norm=rms",
        "softmax,pool=1000,normaliser=row_length,norm=layer,output_gate=sigmoid",
        "softmax,pool=2,normaliser=row_sum_min1,epsilon=0.1,detach",
    };
    static const srnn_problem averaged[] = {
        {.B = 2,
         .H = 4,
         .Hkv = 2,
         .T = 131,
         .D = 16,
         .Dv = 16,
         .offsets = chunk_documents,
         .documents = 5},
        {.B = 1, .H = 4, .Hkv = 2, .T = 1, .D = 64, .Dv = 64},
        {.B = 1, .H = 4, .Hkv = 1, .T = 257, .D = 64, .Dv = 64},
        {.B = 1, .H = 2, .Hkv = 2, .T = 65, .D = 128, .Dv = 128},
    };
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (size_t shape = 0; shape < sizeof averaged / sizeof *averaged; shape++) {
            srnn_problem problem = averaged[shape];
            attention_call run, oracle;
            problem.dtype = SRNN_BF16;
            assert_int_equal(srnn_attention_parse(&problem.attention, specs[n]), SRNN_OK);
            create_both(&run, &oracle, problem);
            check_kernel("pooled", specs[n], &run, &oracle);
            call_free(&run);
            call_free(&oracle);
        }
}

static void every_shape(void **state) {
    (void)state;
    static const char *const specs[] = {"gated_softmax_decay", "linear_elu,value_gate,norm=rms",
                                        "order:12"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (size_t shape = 1; shape < SHAPES; shape++) {
            const srnn_problem problem = problem_of(specs[n], shape);
            check_problem(specs[n], &problem);
        }
}

/* Queries of zeros have weights of zero under a power, and 0/0 is 0. */
static void rows_without_weights(void **state) {
    (void)state;
    static const char *const specs[] = {"power:2", "score=linear,norm=rms", "power:3,norm=l2"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        attention_call run, oracle;
        create_both(&run, &oracle, problem_of(specs[n], 0));
        const int64_t T = run.problem.T, D = run.problem.D;
        float *narrow = run.host.operand[SR_OPERAND_Q];
        double *exact = oracle.host.operand[SR_OPERAND_Q];
        for (int64_t i = 0; i < run.problem.B * run.problem.H * T * D; i++)
            exact[i] = (double)(narrow[i] *= i / D % T % 16 != 7);
        assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
        check_kernels(specs[n], &run, &oracle, 1e-5);
        call_free(&run);
        call_free(&oracle);
    }
}

/* Integers whose products are exact in float, so that only the score is tested; |s| up to about
 * 10^4. */
static void large_logits(void **state) {
    (void)state;
    static const char *const specs[] = {"softmax,scale=one", "norm,scale=one",
                                        "score=exp,scale=one,value_gate,output_gate,norm=rms"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        attention_call run, oracle;
        create_both(&run, &oracle, problem_of(specs[n], 0));
        for (int which = SR_OPERAND_Q; which <= SR_OPERAND_K; which++) {
            float *narrow = run.host.operand[which];
            double *exact = oracle.host.operand[which];
            for (size_t i = 0; i < operand_bytes(&run, (sr_operand)which) / sizeof *narrow; i++)
                exact[i] = (double)(narrow[i] = (which == SR_OPERAND_Q ? 40.0f : 16.0f) *
                                                (float)(int)(2 * narrow[i]));
        }
        assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
        check_kernels(specs[n], &run, &oracle, 1e-6);
        call_free(&run);
        call_free(&oracle);
    }
}

/* Sinks far above a row's maximum, whose gradient is tiny but not zero. */
static void large_sinks(void **state) {
    (void)state;
    static const char *const specs[] = {"softmax,sink=learned",
                                        "score=linear,feature=elu1,sink=learned"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        attention_call run, oracle;
        create_both(&run, &oracle, problem_of(specs[n], 0));
        float *narrow = run.host.operand[SR_OPERAND_SINKS];
        double *exact = oracle.host.operand[SR_OPERAND_SINKS];
        for (int h = 0; h < run.problem.H; h++)
            exact[h] = (double)(narrow[h] = 60);
        assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
        check_kernels(specs[n], &run, &oracle, 1e-5);
        call_free(&run);
        call_free(&oracle);
    }
}

/* Numbers that are difficult for recurrences: gates of e^-40, e^-3000 and 1, betas of 1, keys that
 * are the same, nearly the same, and zero. */
static void awkward_recurrences(void **state) {
    (void)state;
    static const char *const specs[] = {"gla",
                                        "gated_delta_net",
                                        "delta_net,decay=log_sigmoid,decay_width=channel",
                                        "mamba2,value_gate=off",
                                        "log_linear_gated_delta_net",
                                        "forget,decay_place=logit"};
    static const float gates[] = {-40, -3000, 90, 2};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        attention_call run, oracle;
        srnn_problem problem = axes_shapes[0];
        assert_int_equal(srnn_attention_parse(&problem.attention, specs[n]), SRNN_OK);
        create_both(&run, &oracle, problem);
        const float sign = problem.attention.decay == SRNN_DECAY_SOFTPLUS ? -1 : 1;
        for (int which = 0; which < SR_OPERANDS; which++) {
            float *narrow = run.host.operand[which];
            double *exact = oracle.host.operand[which];
            const int64_t width = which == SR_OPERAND_K ? problem.D : 1, T = problem.T;
            if (which != SR_OPERAND_K && which != SR_OPERAND_DECAY &&
                which != SR_OPERAND_WRITE_GATE)
                continue;
            for (size_t i = 0; narrow && i < operand_bytes(&run, (sr_operand)which) / 4; i++) {
                const int64_t t = (int64_t)i / width % T, c = (int64_t)i % width;
                if (which == SR_OPERAND_K && t % 3 != 0) /* equal to the previous key, or almost */
                    narrow[i] = narrow[i - (size_t)width] * (c == 0 && t % 3 == 2 ? 1.0001f : 1);
                if (which == SR_OPERAND_K && t % 7 == 5)
                    narrow[i] = 0;
                if (which == SR_OPERAND_DECAY && i % 5 < 4)
                    narrow[i] = sign * gates[i % 5];
                if (which == SR_OPERAND_WRITE_GATE && i % 2)
                    narrow[i] = 40;
                exact[i] = (double)narrow[i];
            }
        }
        assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
        check_kernels(specs[n], &run, &oracle, 2e-5);
        call_free(&run);
        call_free(&oracle);
    }
}

/* An emulated GPU runs its threads in another order the second time. */
static void the_same_bits_twice(void **state) {
    (void)state;
    static const char *const specs[] = {"gated_softmax_decay", "linear_elu,value_gate,norm=layer",
                                        "gla", "log_linear_gated_delta_net", "rat"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        srnn_problem problem = problem_of(specs[n], 0);
        attention_call one, two;
        problem.device = gpu;
        assert_int_equal(probe_create(&one, &problem, 5), SRNN_OK);
        assert_int_equal(probe_create(&two, &problem, 5), SRNN_OK);
        assert_int_equal(call_forward_backward(&one), SRNN_OK);
        assert_int_equal(call_forward_backward(&two), SRNN_OK);
        assert_memory_equal(one.host.o, two.host.o, output_bytes(&one));
        for (int which = 0; which < SR_OPERANDS; which++)
            if (one.host.operand[which])
                assert_memory_equal(one.host.gradient[which], two.host.gradient[which],
                                    operand_bytes(&one, (sr_operand)which));
        call_free(&one);
        call_free(&two);
    }
}

/* ---- states ---- */

static void check_state(const char *spec, srnn_problem problem) {
    attention_call run, oracle;
    create_both(&run, &oracle, problem);
    if (probe_feed(&run, 4) != SRNN_OK)
        fail_msg("%s: %s", spec, srnn_error_detail());
    const double error = probe_output_error(&run, &oracle);
    if (!(error <= probe_limit(&problem, problem.form)))
        fail_msg("%s, %s state, number type %d, T=%d D=%d: off by %g", spec,
                 problem.form == SRNN_FORM_PARALLEL ? "kept" : "fixed", (int)problem.dtype,
                 problem.T, problem.D, error);
    call_free(&run);
    call_free(&oracle);
}

/* The KV cache, and the fixed-size state if float is accurate enough for it. */
static void check_states(const char *spec, srnn_problem problem) {
    problem.form = SRNN_FORM_PARALLEL;
    check_state(spec, problem);
    problem.form = SRNN_FORM_CHUNKED;
    if (srnn_attention_has_state(&problem.attention) && problem.attention.order < 9)
        check_state(spec, problem);
}

static void states_of_every_variant(void **state) {
    (void)state;
    for (size_t n = 0; spec_at(n); n++) {
        srnn_problem problem = problem_of(spec_at(n), 0);
        problem.offsets = NULL;
        problem.documents = 0;
        if (is_computed(&problem))
            check_states(spec_at(n), problem);
    }
}

/* Cut anywhere, the last piece longer than a tile. */
static void states_of_every_axis(void **state) {
    (void)state;
    for (size_t n = 0; n < AXES; n++) {
        srnn_problem problem = axes_shapes[0];
        problem.offsets = NULL;
        problem.documents = 0;
        problem.T = 71;
        assert_int_equal(srnn_attention_parse(&problem.attention, axes[n]), SRNN_OK);
        check_states(axes[n], problem);
    }
}

/* Token by token over enough keys that several blocks share them. */
static void one_token_at_a_time(void **state) {
    (void)state;
    static const char *const specs[] = {"softmax", "norm,decay,value_gate", "order:3"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        srnn_problem problem = {.B = 1, .H = 2, .Hkv = 1, .T = 150, .D = 12, .Dv = 20};
        attention_call run, oracle;
        assert_int_equal(srnn_attention_parse(&problem.attention, specs[n]), SRNN_OK);
        problem.form = SRNN_FORM_PARALLEL;
        create_both(&run, &oracle, problem);
        assert_int_equal(probe_feed_tokens(&run, 0), SRNN_OK);
        const double error = probe_output_error(&run, &oracle);
        if (!(error <= 1e-5))
            fail_msg("%s, token by token: off by %g", specs[n], error);
        call_free(&run);
        call_free(&oracle);
    }
}

/* Decode leaves levels that only decay as they were written; a longer piece reads them later. */
static void levels_in_pieces(void **state) {
    (void)state;
    static const char *const specs[] = {
        "log_linear_mamba2", "log_linear_gated_delta_net",
        "log_linear,decay=log_sigmoid,decay_width=channel,normaliser=row_sum,feature=elu1",
        "log_linear_gated_delta_net,decay=learned"};
    for (int piece = 0; piece <= 7; piece += 7)
        for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
            srnn_problem problem = {.B = 2, .H = 4, .Hkv = 2, .T = 70, .D = 12, .Dv = 20};
            attention_call run, oracle;
            assert_int_equal(srnn_attention_parse(&problem.attention, specs[n]), SRNN_OK);
            problem.form = SRNN_FORM_CHUNKED;
            create_both(&run, &oracle, problem);
            assert_int_equal(probe_feed_tokens(&run, piece), SRNN_OK);
            const double error = probe_output_error(&run, &oracle);
            if (!(error <= 1e-5))
                fail_msg("%s, pieces of %d: off by %g", specs[n], piece, error);
            call_free(&run);
            call_free(&oracle);
        }
}

static void states_in_bf16(void **state) {
    (void)state;
    static const char *const specs[] = {"softmax",    "gated_softmax_decay",           "norm",
                                        "linear_elu", "order:2,value_gate,norm=layer", "kda"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        srnn_problem problem = {.B = 2, .H = 4, .Hkv = 2, .T = 40, .D = 16, .dtype = SRNN_BF16};
        problem.Dv = 24;
        assert_int_equal(srnn_attention_parse(&problem.attention, specs[n]), SRNN_OK);
        check_states(specs[n], problem);
    }
}

/* Longer than the initial capacity of a state, wide heads, one more query head than are processed
 * at a time. */
static void long_and_wide_states(void **state) {
    (void)state;
    static const char *const specs[] = {"gated_softmax_decay", "linear_elu,decay,norm=rms",
                                        "power:2", "order:12"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        srnn_problem problem = {.B = 1, .H = 5, .Hkv = 1, .T = 130, .D = 7, .Dv = 129};
        assert_int_equal(srnn_attention_parse(&problem.attention, specs[n]), SRNN_OK);
        check_states(specs[n], problem);
    }
}

/* *to = another state of the problem, with a copy of the first one's content. */
static void move_state(srnn_state **to, const srnn_state *from, const srnn_problem *problem) {
    const size_t bytes = srnn_state_saved_bytes(from);
    void *saved = malloc(bytes);
    assert_non_null(saved);
    assert_int_equal(srnn_state_create(to, problem), SRNN_OK);
    assert_int_equal(srnn_state_save(from, saved, bytes), SRNN_OK);
    assert_int_equal(srnn_state_load(*to, saved, bytes), SRNN_OK);
    assert_int_equal(srnn_state_saved_bytes(*to), bytes);
    free(saved);
}

/* After T tokens on the CPU, the same tokens again, there and on the GPU. */
static void check_move(const char *spec, srnn_form form) {
    srnn_problem problem = {.B = 1, .H = 2, .Hkv = 1, .T = 20, .D = 5, .Dv = 6, .form = form};
    attention_call run, moved;
    srnn_state *on_cpu, *on_gpu;
    assert_int_equal(srnn_attention_parse(&problem.attention, spec), SRNN_OK);
    assert_int_equal(probe_create(&run, &problem, 3), SRNN_OK);
    assert_int_equal(srnn_state_create(&on_cpu, &problem), SRNN_OK);
    srnn_operands in = call_operands(&run);
    float *expected = run.host.o;
    assert_int_equal(srnn_state_feed(on_cpu, (srnn_tensor){.data = expected}, &in, 20), SRNN_OK);
    problem.device = gpu;
    assert_int_equal(probe_create(&moved, &problem, 3), SRNN_OK);
    move_state(&on_gpu, on_cpu, &problem);
    assert_int_equal(srnn_state_feed(on_cpu, (srnn_tensor){.data = expected}, &in, 20), SRNN_OK);
    assert_int_equal(call_send(&moved), SRNN_OK);
    in = call_operands(&moved);
    assert_int_equal(srnn_state_feed(on_gpu, (srnn_tensor){.data = moved.device.o}, &in, 20),
                     SRNN_OK);
    assert_int_equal(call_fetch(&moved), SRNN_OK);
    const float *found = moved.host.o;
    for (size_t i = 0; i < output_bytes(&run) / sizeof *found; i++)
        if (!(fabsf(found[i] - expected[i]) <= 1e-4f * fmaxf(1, fabsf(expected[i]))))
            fail_msg("%s: number %zu is %g, on the CPU %g", spec, i, (double)found[i],
                     (double)expected[i]);
    srnn_state_free(on_cpu);
    srnn_state_free(on_gpu);
    call_free(&run);
    call_free(&moved);
}

/* Their serialised form is the same everywhere. */
static void states_move_between_devices(void **state) {
    (void)state;
    check_move("gated_softmax_decay", SRNN_FORM_PARALLEL);
    check_move("order:2,decay,value_gate,output_gate,post_gate,norm=l2", SRNN_FORM_CHUNKED);
    check_move("order:3", SRNN_FORM_CHUNKED);
    check_move("power:3,normaliser=row_length", SRNN_FORM_CHUNKED);
    check_move("gla", SRNN_FORM_CHUNKED);
    check_move("power", SRNN_FORM_CHUNKED);
    check_move("log_linear_gated_delta_net", SRNN_FORM_CHUNKED);
    check_move("log_linear_mamba2", SRNN_FORM_CHUNKED);
    check_move("gated_delta_net,position=rope_features", SRNN_FORM_PARALLEL);
    check_move("softmax,pool=3,position=rope_chunks", SRNN_FORM_PARALLEL);
    check_move("softmax,window=7,position=rope_features", SRNN_FORM_PARALLEL);
}

/* A window's KV cache is a ring: it goes round several times, in pieces shorter and longer than the
 * window, and rows are those of the whole sequence. */
static void check_ring(const char *spec) {
    enum { T = 150 };
    static const int pieces[] = {1, 30, 7, 1, 40, 2, 1, 1, 60, 7};
    srnn_problem problem = {.B = 2, .H = 4, .Hkv = 2, .T = T, .D = 6, .Dv = 10, .device = gpu};
    attention_call whole, fed;
    srnn_state *state;
    assert_int_equal(srnn_attention_parse(&problem.attention, spec), SRNN_OK);
    assert_int_equal(probe_create(&whole, &problem, 5), SRNN_OK);
    assert_int_equal(probe_copy(&fed, &problem, &whole), SRNN_OK);
    assert_int_equal(call_forward(&whole), SRNN_OK);
    assert_int_equal(call_send(&fed), SRNN_OK);
    assert_int_equal(srnn_state_create(&state, &problem), SRNN_OK);
    const srnn_operands all = call_operands(&fed);
    for (size_t n = 0, t = 0; n < sizeof pieces / sizeof *pieces; t += (size_t)pieces[n++]) {
        srnn_operands in = all;
        for (int m = 0; m < SR_OPERANDS; m++) {
            const sr_shape shape = sr_operand_shape((sr_operand)m, &problem);
            const int64_t width = shape.rank == 4 ? shape.sizes[3] : 1;
            float *const data = sr_operand_data((sr_operand)m, &all);
            if (data && sr_operand_is_tensor((sr_operand)m))
                sr_operand_set_tensor((sr_operand)m, &in,
                                      (srnn_tensor){data + (int64_t)t * width,
                                                    shape.sizes[1] * T * width, T * width, width});
        }
        const srnn_tensor o = {(float *)fed.device.o + (int64_t)t * problem.Dv,
                               (int64_t)problem.H * T * problem.Dv, (int64_t)T * problem.Dv,
                               problem.Dv};
        assert_int_equal(srnn_state_feed(state, o, &in, pieces[n]), SRNN_OK);
    }
    assert_int_equal(srnn_state_position(state), T);
    assert_int_equal(srnn_state_bytes(&problem, T), srnn_state_bytes(&problem, 100 * T));
    assert_int_equal(call_fetch(&fed), SRNN_OK);
    const float *got = fed.host.o, *want = whole.host.o;
    for (int64_t n = 0; n < (int64_t)problem.B * problem.H * T * problem.Dv; n++)
        if (!(fabsf(got[n] - want[n]) <= 1e-4f * fmaxf(1, fabsf(want[n]))))
            fail_msg("%s: number %lld is %g, not %g", spec, (long long)n, (double)got[n],
                     (double)want[n]);
    srnn_state_free(state);
    call_free(&whole);
    call_free(&fed);
}

static void a_ring_holds_the_window(void **state) {
    (void)state;
    check_ring("window=1");
    check_ring("window=7,sink=learned");
    check_ring("window=45,decay=log_sigmoid,cap=4");
}

/* True if the kernel has a form with gradients, in float. */
static bool is_for_floats(const char *name) {
    for (const sr_attention_kernel *const *k = gpu->attention->list(); *k; k++)
        if (strcmp((*k)->name, name) == 0 && (*k)->dtype == SRNN_F32 &&
            (*k)->form != SRNN_FORM_RECURRENT)
            return true;
    return false;
}

/* After the tests above: a kernel that fits none of their problems would be tested by nothing. */
static void every_kernel_was_compared(void **state) {
    (void)state;
    bool any = false;
    for (size_t n = 0; n < KERNELS_MAX; n++)
        any |= compared[n];
    if (!any)
        skip();
    for (size_t n = 0; srnn_kernel_name(gpu, n); n++)
        if (is_for_floats(srnn_kernel_name(gpu, n)) && !compared[n])
            fail_msg("%s computes none of the problems here, forward and backward: add one",
                     srnn_kernel_name(gpu, n));
}

int main(void) {
    if (srnn_device_open(&gpu, "cuda") != SRNN_OK) {
        fprintf(stderr, "left out: %s\n", srnn_error_detail());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant),
        cmocka_unit_test(every_shape),
        cmocka_unit_test(every_axis),
        cmocka_unit_test(every_kernel_was_compared),
        cmocka_unit_test(every_axis_in_bf16),
        cmocka_unit_test(what_cancels_in_bf16),
        cmocka_unit_test(decayed_chunks_in_bf16),
        cmocka_unit_test(awkward_gates_in_chunks),
        cmocka_unit_test(averages_in_bf16),
        cmocka_unit_test(rows_without_weights),
        cmocka_unit_test(large_logits),
        cmocka_unit_test(the_same_bits_twice),
        cmocka_unit_test(states_of_every_variant),
        cmocka_unit_test(one_token_at_a_time),
        cmocka_unit_test(levels_in_pieces),
        cmocka_unit_test(states_in_bf16),
        cmocka_unit_test(long_and_wide_states),
        cmocka_unit_test(states_move_between_devices),
        cmocka_unit_test(states_of_every_axis),
        cmocka_unit_test(awkward_recurrences),
        cmocka_unit_test(large_sinks),
        cmocka_unit_test(a_ring_holds_the_window),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    srnn_device_close(gpu);
    return failed;
}
