/* cublaslt.c: GEMMs by cuBLASLt, loaded at run time.
 *
 * The library stores matrices by columns. A matrix stored by rows is its transpose there, so the
 * call computes D^T = B^T A^T + C^T: its first operand is our b, its second our a. */
#include "ops/cuda/gemm/cublaslt.h"

#include "base/memory.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The part of its interface that is used; the same in versions 12 and 13. */
typedef int status_code; /* 0: success */
typedef struct {
    uint64_t data[8];
} algorithm;
typedef struct {
    algorithm chosen;
    size_t workspace_bytes;
    status_code state;
    float waves;
    int reserved[4];
} heuristic_result;

enum {
    COMPUTE_32F = 68,
    TYPE_32F = 0,
    TYPE_16BF = 14,
    TYPE_8F_E4M3 = 28,
    TYPE_8F_E5M2 = 29,
    OP_N = 0,
    OP_T = 1,
    DESC_TRANSA = 3,
    DESC_TRANSB = 4,
    DESC_A_SCALE_POINTER = 17,
    DESC_B_SCALE_POINTER = 18,
    DESC_FAST_ACCUM = 25,
    LAYOUT_BATCH_COUNT = 5,
    LAYOUT_BATCH_OFFSET = 6,
    PREF_MAX_WORKSPACE_BYTES = 1,
    PREF_MIN_ALIGNMENT_A_BYTES = 5, /* B, C and D follow */
    CONFIG_FAMILY = 0,              /* "algorithm id" */
    CONFIG_TILE = 1,
    CONFIG_PARTS = 2, /* into which K is split */
    FAMILY_HOPPER = 66,
    TILE_128_128 = 20,
    TILE_128_96 = 28,
    TILE_128_160 = 29,
    TILE_128_176 = 201,
};

typedef struct functions {
    status_code (*Create)(void **handle);
    status_code (*Destroy)(void *handle);
    const char *(*GetStatusString)(status_code status);
    status_code (*MatmulDescCreate)(void **desc, int compute_type, int scale_type);
    status_code (*MatmulDescDestroy)(void *desc);
    status_code (*MatmulDescSetAttribute)(void *desc, int attribute, const void *value,
                                          size_t bytes);
    status_code (*MatrixLayoutCreate)(void **layout, int type, uint64_t rows, uint64_t columns,
                                      int64_t stride);
    status_code (*MatrixLayoutDestroy)(void *layout);
    status_code (*MatrixLayoutSetAttribute)(void *layout, int attribute, const void *value,
                                            size_t bytes);
    status_code (*MatmulPreferenceCreate)(void **preference);
    status_code (*MatmulPreferenceDestroy)(void *preference);
    status_code (*MatmulPreferenceSetAttribute)(void *preference, int attribute, const void *value,
                                                size_t bytes);
    status_code (*MatmulAlgoGetHeuristic)(void *handle, void *desc, void *a, void *b, void *c,
                                          void *d, void *preference, int wanted,
                                          heuristic_result *results, int *found);
    status_code (*MatmulAlgoConfigGetAttribute)(const algorithm *algo, int attribute, void *value,
                                                size_t bytes, size_t *written);
    status_code (*Matmul)(void *handle, void *desc, const void *alpha, const void *a,
                          void *a_layout, const void *b, void *b_layout, const void *beta,
                          const void *c, void *c_layout, void *d, void *d_layout,
                          const algorithm *algo, void *workspace, size_t workspace_bytes,
                          void *stream);
} functions;

#define FUNCTION(name) \
    { "cublasLt" #name, offsetof(functions, name) }
static const struct {
    const char *name;
    size_t offset;
} function_table[] = {
    FUNCTION(Create),
    FUNCTION(Destroy),
    FUNCTION(GetStatusString),
    FUNCTION(MatmulDescCreate),
    FUNCTION(MatmulDescDestroy),
    FUNCTION(MatmulDescSetAttribute),
    FUNCTION(MatrixLayoutCreate),
    FUNCTION(MatrixLayoutDestroy),
    FUNCTION(MatrixLayoutSetAttribute),
    FUNCTION(MatmulPreferenceCreate),
    FUNCTION(MatmulPreferenceDestroy),
    FUNCTION(MatmulPreferenceSetAttribute),
    FUNCTION(MatmulAlgoGetHeuristic),
    FUNCTION(MatmulAlgoConfigGetAttribute),
    FUNCTION(Matmul),
};

/* What the choice of an algorithm may depend on. No padding: keys are compared byte by byte. */
typedef struct product_key {
    int64_t M, N, K, a_stride, b_stride, c_stride, d_stride;
    int64_t batch, batches[4]; /* products; numbers between those of b, a, c, d */
    int32_t alignment[4];      /* bytes, of b, a, c, d */
    int32_t transpose_a, transpose_b;
    int32_t types[3]; /* cuBLASLt's, of b, a, and c and d */
    int32_t fast;
} product_key;

/* The library's own order of operands. */
enum { FIRST, SECOND, ADDEND, RESULT, OPERANDS };

typedef struct gemm_choice {
    product_key key;
    bool taken, possible;
    void *desc, *layouts[OPERANDS];
    algorithm chosen;
} gemm_choice;

enum { MAX_CHOICES = 1024 }; /* more shapes than a program uses */

struct sr_cublaslt {
    void *file, *handle;
    functions call;
    int64_t used;
    gemm_choice choices[MAX_CHOICES]; /* hash table with linear probing */
};

static void forget_choice(sr_cublaslt *library, gemm_choice *w) {
    for (int i = 0; i < OPERANDS; i++)
        if (w->layouts[i])
            library->call.MatrixLayoutDestroy(w->layouts[i]);
    if (w->desc)
        library->call.MatmulDescDestroy(w->desc);
    memset(w, 0, sizeof *w);
}

static void forget_all(sr_cublaslt *library) {
    for (int i = 0; i < MAX_CHOICES; i++)
        forget_choice(library, &library->choices[i]);
    library->used = 0;
}

void sr_cublaslt_close(sr_cublaslt *library) {
    if (!library)
        return;
    forget_all(library);
    if (library->handle)
        library->call.Destroy(library->handle);
    if (library->file)
        dlclose(library->file);
    free(library);
}

static void *open_file(const char *named) {
    static const char *const usual[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    if (named)
        return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    void *file = NULL;
    for (size_t i = 0; !file && i < sizeof usual / sizeof *usual; i++)
        file = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
    return file;
}

static bool find_functions(sr_cublaslt *library) {
    for (size_t i = 0; i < sizeof function_table / sizeof *function_table; i++) {
        void *function = dlsym(library->file, function_table[i].name);
        if (!function)
            return false;
        memcpy((char *)&library->call + function_table[i].offset, &function, sizeof function);
    }
    return true;
}

srnn_status sr_cublaslt_open(sr_cublaslt **out) {
    const char *named = getenv("SOFTRNN_CUBLASLT");
    void *memory;
    *out = NULL;
    if (named && strcmp(named, "none") == 0)
        return SRNN_OK;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(sr_cublaslt)));
    sr_cublaslt *library = memory;
    library->file = open_file(named);
    const bool usable =
        library->file && find_functions(library) && library->call.Create(&library->handle) == 0;
    if (usable) {
        *out = library;
        return SRNN_OK;
    }
    const char *reason = library->file ? "it is not cuBLASLt, or not for this GPU" : dlerror();
    srnn_status status = SRNN_OK;
    if (named)
        status = SR_FAIL(SRNN_ERR_UNSUPPORTED, "SOFTRNN_CUBLASLT=%s: %s", named,
                         reason ? reason : "it cannot be loaded");
    sr_cublaslt_close(library);
    return status;
}

static int32_t type_of(srnn_dtype dtype) {
    return dtype == SRNN_BF16 ? TYPE_16BF : TYPE_32F;
}

static int32_t operand_type(srnn_dtype in, sr_fp8_format format) {
    switch (format) {
    case SR_FP8_E4M3:
        return TYPE_8F_E4M3;
    case SR_FP8_E5M2:
        return TYPE_8F_E5M2;
    case SR_FP8_NONE:
        break;
    }
    return type_of(in);
}

static size_t type_bytes(int32_t type) {
    return type == TYPE_32F ? 4 : type == TYPE_16BF ? 2 : 1;
}

/* The largest power of two that divides the addresses of all matrices of a batch, which are `batch`
 * numbers apart; 256 at most. */
static int32_t alignment_of(const void *address, int64_t batch, int32_t type) {
    const uintptr_t bits = (uintptr_t)address | (uintptr_t)((size_t)batch * type_bytes(type)) | 256;
    return (int32_t)(bits & (~bits + 1));
}

static product_key key_of(const sr_cuda_gemm_call *p, const sr_cublaslt_fp8 *fp8) {
    const void *c = p->c ? p->c : p->d;
    const int32_t a = operand_type(p->in, fp8 ? fp8->a : SR_FP8_NONE),
                  b = operand_type(p->in, fp8 ? fp8->b : SR_FP8_NONE), out = type_of(p->out);
    return (product_key){.M = p->M,
                         .N = p->N,
                         .K = p->K,
                         .a_stride = p->a_stride,
                         .b_stride = p->b_stride,
                         .c_stride = p->c ? p->c_stride : p->d_stride,
                         .d_stride = p->d_stride,
                         .batch = p->batch.count > 1 ? p->batch.count : 1,
                         .batches = {p->batch.b, p->batch.a, p->c ? p->batch.c : p->batch.d,
                                     p->batch.d},
                         .alignment = {alignment_of(p->b, p->batch.b, b),
                                       alignment_of(p->a, p->batch.a, a),
                                       alignment_of(c, p->c ? p->batch.c : p->batch.d, out),
                                       alignment_of(p->d, p->batch.d, out)},
                         .transpose_a = p->transpose_a,
                         .transpose_b = p->transpose_b,
                         .types = {b, a, out},
                         .fast = fp8 && fp8->fast};
}

static uint64_t hash_of(const product_key *key) {
    uint64_t words[sizeof *key / sizeof(uint64_t)], hash = 0;
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return hash;
}

/* The slot of this key, which may still be free. */
static gemm_choice *find_choice(sr_cublaslt *library, const product_key *key) {
    uint64_t i = hash_of(key) % MAX_CHOICES;
    while (library->choices[i].taken && memcmp(&library->choices[i].key, key, sizeof *key) != 0)
        i = (i + 1) % MAX_CHOICES;
    return &library->choices[i];
}

static bool set_batch(const functions *call, void *layout, const product_key *k, int operand) {
    const int32_t count = (int32_t)k->batch;
    const int64_t offset = k->batches[operand];
    return k->batch == 1 ||
           (call->MatrixLayoutSetAttribute(layout, LAYOUT_BATCH_COUNT, &count, sizeof count) == 0 &&
            call->MatrixLayoutSetAttribute(layout, LAYOUT_BATCH_OFFSET, &offset, sizeof offset) ==
                0);
}

/* The scales belong to a call, not to its shape. */
static status_code set_scales(const functions *call, void *desc, const sr_cublaslt_fp8 *fp8) {
    const status_code status = call->MatmulDescSetAttribute(desc, DESC_A_SCALE_POINTER,
                                                            &fp8->b_scale, sizeof fp8->b_scale);
    return status != 0 ? status
                       : call->MatmulDescSetAttribute(desc, DESC_B_SCALE_POINTER, &fp8->a_scale,
                                                      sizeof fp8->a_scale);
}

/* Matrices as the library sees them: rows and columns exchanged. The heuristic sees that there are
 * scales: those of the first call. */
static bool describe(const sr_cublaslt *library, gemm_choice *w, const sr_cublaslt_fp8 *fp8) {
    const functions *call = &library->call;
    const product_key *k = &w->key;
    const int32_t first = k->transpose_b ? OP_T : OP_N, second = k->transpose_a ? OP_T : OP_N;
    const int64_t rows[] = {k->transpose_b ? k->K : k->N, k->transpose_a ? k->M : k->K, k->N, k->N};
    const int64_t columns[] = {k->transpose_b ? k->N : k->K, k->transpose_a ? k->K : k->M, k->M,
                               k->M};
    const int64_t strides[] = {k->b_stride, k->a_stride, k->c_stride, k->d_stride};
    const int types[] = {k->types[0], k->types[1], k->types[2], k->types[2]};
    const int8_t fast = 1;
    bool good = call->MatmulDescCreate(&w->desc, COMPUTE_32F, TYPE_32F) == 0 &&
                call->MatmulDescSetAttribute(w->desc, DESC_TRANSA, &first, sizeof first) == 0 &&
                call->MatmulDescSetAttribute(w->desc, DESC_TRANSB, &second, sizeof second) == 0;
    if (good && fp8)
        good = set_scales(call, w->desc, fp8) == 0;
    if (good && k->fast)
        good = call->MatmulDescSetAttribute(w->desc, DESC_FAST_ACCUM, &fast, sizeof fast) == 0;
    for (int i = 0; good && i < OPERANDS; i++)
        good = call->MatrixLayoutCreate(&w->layouts[i], types[i], (uint64_t)rows[i],
                                        (uint64_t)columns[i], strides[i]) == 0 &&
               set_batch(call, w->layouts[i], k, i);
    return good;
}

/* -1: the library does not report it. */
static int32_t config_of(const sr_cublaslt *library, const heuristic_result *result,
                         int attribute) {
    int32_t value = -1;
    size_t written;
    const status_code status =
        library->call.MatmulAlgoConfigGetAttribute(&result->chosen, attribute, &value, sizeof value,
                                                   &written);
    return status == 0 ? value : -1;
}

/* Whether the last wave of tiles leaves at most a tenth of the GPU's time unused. */
static bool fills_rounds(const heuristic_result *result) {
    return result->waves >= 0.9f * ceilf(result->waves);
}

/* The library's first proposal for Hopper is a tile of 256 x 128 or more, which waits for its
 * results to be stored. Smaller tiles, two at a time, were faster on an H200 wherever they fill it,
 * most of all where an addend is read (docs/PERFORMANCE.md). The order of summation does not depend
 * on tiles where K is not split. */
static const heuristic_result *preferred(const sr_cublaslt *library, const product_key *key,
                                         const heuristic_result *results, int count) {
    static const int32_t tiles[2][2][2] = {
        /* operands of 16 bits or more: the result is float, bf16 */
        {{TILE_128_128, TILE_128_128}, {TILE_128_160, TILE_128_128}},
        {{TILE_128_128, TILE_128_96}, {TILE_128_160, TILE_128_176}}, /* of 8 bits */
    };
    const int32_t *const wanted = tiles[type_bytes(key->types[0]) == 1][key->types[2] == TYPE_16BF];
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < count; i++)
            if (results[i].state == 0 && fills_rounds(&results[i]) &&
                config_of(library, &results[i], CONFIG_FAMILY) == FAMILY_HOPPER &&
                config_of(library, &results[i], CONFIG_TILE) == wanted[t] &&
                config_of(library, &results[i], CONFIG_PARTS) == 1)
                return &results[i];
    return &results[0];
}

/* Queries the library's heuristic once; nothing is timed. */
static bool choose(const sr_cublaslt *library, gemm_choice *w, uint64_t workspace_bytes) {
    enum { PROPOSALS = 8 };
    const functions *call = &library->call;
    void *preference = NULL;
    heuristic_result best[PROPOSALS];
    int found = 0;
    bool good = call->MatmulPreferenceCreate(&preference) == 0 &&
                call->MatmulPreferenceSetAttribute(preference, PREF_MAX_WORKSPACE_BYTES,
                                                   &workspace_bytes, sizeof workspace_bytes) == 0;
    for (int i = 0; good && i < OPERANDS; i++) {
        const uint32_t alignment = (uint32_t)w->key.alignment[i];
        good = call->MatmulPreferenceSetAttribute(preference, PREF_MIN_ALIGNMENT_A_BYTES + i,
                                                  &alignment, sizeof alignment) == 0;
    }
    good = good &&
           call->MatmulAlgoGetHeuristic(library->handle, w->desc, w->layouts[FIRST],
                                        w->layouts[SECOND], w->layouts[ADDEND], w->layouts[RESULT],
                                        preference, PROPOSALS, best, &found) == 0 &&
           found >= 1 && best[0].state == 0;
    if (preference)
        call->MatmulPreferenceDestroy(preference);
    if (good)
        w->chosen = preferred(library, &w->key, best, found)->chosen;
    return good;
}

/* A full table is emptied. */
static gemm_choice *choice_of(sr_cublaslt *library, const sr_cuda_gemm_call *product,
                              const sr_cublaslt_fp8 *fp8, size_t workspace_bytes) {
    const product_key key = key_of(product, fp8);
    if (library->used > MAX_CHOICES / 2)
        forget_all(library);
    gemm_choice *w = find_choice(library, &key);
    if (!w->taken) {
        w->key = key;
        w->taken = true;
        w->possible = describe(library, w, fp8) && choose(library, w, workspace_bytes);
        library->used++;
    }
    return w;
}

bool sr_cublaslt_supports(sr_cublaslt *library, const sr_cuda_gemm_call *product,
                          const sr_cublaslt_fp8 *fp8, const sr_cublaslt_place *place) {
    return choice_of(library, product, fp8, place->workspace_bytes)->possible;
}

srnn_status sr_cublaslt_multiply(sr_cublaslt *library, bool *started, const sr_cuda_gemm_call *p,
                                 const sr_cublaslt_fp8 *fp8, const sr_cublaslt_place *place) {
    const gemm_choice *w = choice_of(library, p, fp8, place->workspace_bytes);
    const float one = 1, beta = p->c ? 1 : 0;
    *started = w->possible;
    if (!w->possible)
        return SRNN_OK;
    status_code status = fp8 ? set_scales(&library->call, w->desc, fp8) : 0;
    if (status == 0)
        status = library->call.Matmul(library->handle, w->desc, &one, p->b, w->layouts[FIRST], p->a,
                                      w->layouts[SECOND], &beta, p->c ? p->c : p->d,
                                      w->layouts[ADDEND], p->d, w->layouts[RESULT], &w->chosen,
                                      place->workspace, place->workspace_bytes, place->stream);
    if (status != 0)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "cuBLASLt: a product of %lld x %lld x %lld: %s",
                       (long long)p->M, (long long)p->N, (long long)p->K,
                       library->call.GetStatusString(status));
    return SRNN_OK;
}
