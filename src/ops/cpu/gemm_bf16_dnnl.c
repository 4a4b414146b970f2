/* gemm_bf16_dnnl.c: one bf16 GEMM by oneDNN 2. */
#include "ops/cpu/gemm.h"

#include <dnnl.h>
#include <stdlib.h>

/* Creating a primitive takes longer than a small GEMM, so each worker caches its last ones. */
enum { ENTRIES = 64 };

typedef struct cached_gemm {
    sr_product_bf16 shape; /* without pointers */
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
} cached_gemm;

struct sr_gemm_bf16 {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    cached_gemm entries[ENTRIES];
    int count, next; /* next: the oldest entry once the cache is full */
};

bool sr_gemm_bf16_available(void) {
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
           dnnl_cpu_isa_avx512_core_bf16;
}

sr_gemm_bf16 *sr_gemm_bf16_create(void) {
    sr_gemm_bf16 *cache = calloc(1, sizeof *cache);
    if (!cache)
        return NULL;
    if (dnnl_engine_create(&cache->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&cache->stream, cache->engine, dnnl_stream_default_flags) ==
            dnnl_success)
        return cache;
    sr_gemm_bf16_free(cache);
    return NULL;
}

static void drop(cached_gemm *entry) {
    dnnl_primitive_destroy(entry->primitive);
    dnnl_memory_destroy(entry->a);
    dnnl_memory_destroy(entry->b);
    dnnl_memory_destroy(entry->c);
    *entry = (cached_gemm){.primitive = NULL};
}

void sr_gemm_bf16_free(sr_gemm_bf16 *cache) {
    if (!cache)
        return;
    for (int i = 0; i < cache->count; i++)
        drop(&cache->entries[i]);
    dnnl_stream_destroy(cache->stream);
    dnnl_engine_destroy(cache->engine);
    free(cache);
}

static bool same_shape(const sr_product_bf16 *x, const sr_product_bf16 *y) {
    return x->M == y->M && x->N == y->N && x->K == y->K && x->a_stride == y->a_stride &&
           x->b_stride == y->b_stride && x->c_stride == y->c_stride &&
           x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b && x->add == y->add;
}

/* A matrix (rows, columns) whose stored rows, or columns if it is transposed, lie `stride`
 * apart. */
static bool describe(dnnl_memory_desc_t *out, dnnl_data_type_t type, int64_t rows, int64_t columns,
                     int64_t stride, bool transposed) {
    const dnnl_dims_t sizes = {rows, columns};
    const dnnl_dims_t strides = {transposed ? 1 : stride, transposed ? stride : 1};
    return dnnl_memory_desc_init_by_strides(out, 2, sizes, type, strides) == dnnl_success;
}

static bool make_primitive(cached_gemm *entry, dnnl_engine_t engine,
                           const dnnl_memory_desc_t descs[3], dnnl_primitive_attr_t attributes) {
    dnnl_matmul_desc_t product;
    dnnl_primitive_desc_t desc;
    if (dnnl_matmul_desc_init(&product, &descs[0], &descs[1], NULL, &descs[2]) != dnnl_success ||
        dnnl_primitive_desc_create(&desc, &product, attributes, engine, NULL) != dnnl_success)
        return false;
    const bool made = dnnl_primitive_create(&entry->primitive, desc) == dnnl_success;
    dnnl_primitive_desc_destroy(desc);
    return made &&
           dnnl_memory_create(&entry->a, &descs[0], engine, DNNL_MEMORY_NONE) == dnnl_success &&
           dnnl_memory_create(&entry->b, &descs[1], engine, DNNL_MEMORY_NONE) == dnnl_success &&
           dnnl_memory_create(&entry->c, &descs[2], engine, DNNL_MEMORY_NONE) == dnnl_success;
}

/* Attributes that say whether the product is added to the destination. */
static bool make_attributes(dnnl_primitive_attr_t *attributes, bool add) {
    dnnl_post_ops_t after;
    if (dnnl_primitive_attr_create(attributes) != dnnl_success)
        return false;
    if (!add)
        return true;
    bool made = dnnl_post_ops_create(&after) == dnnl_success;
    if (made) {
        made = dnnl_post_ops_append_sum(after, 1.0f) == dnnl_success &&
               dnnl_primitive_attr_set_post_ops(*attributes, after) == dnnl_success;
        dnnl_post_ops_destroy(after);
    }
    if (!made)
        dnnl_primitive_attr_destroy(*attributes);
    return made;
}

static bool make(cached_gemm *entry, dnnl_engine_t engine, const sr_product_bf16 *p) {
    dnnl_memory_desc_t descs[3];
    dnnl_primitive_attr_t attributes;
    entry->shape = *p;
    if (!describe(&descs[0], dnnl_bf16, p->M, p->K, p->a_stride, p->transpose_a) ||
        !describe(&descs[1], dnnl_bf16, p->K, p->N, p->b_stride, p->transpose_b) ||
        !describe(&descs[2], dnnl_f32, p->M, p->N, p->c_stride, false) ||
        !make_attributes(&attributes, p->add))
        return false;
    const bool made = make_primitive(entry, engine, descs, attributes);
    dnnl_primitive_attr_destroy(attributes);
    if (!made)
        drop(entry);
    return made;
}

/* The primitive for this shape, created on a cache miss; NULL if that fails. */
static cached_gemm *find(sr_gemm_bf16 *cache, const sr_product_bf16 *p) {
    for (int i = 0; i < cache->count; i++)
        if (cache->entries[i].primitive && same_shape(&cache->entries[i].shape, p))
            return &cache->entries[i];
    cached_gemm *place = &cache->entries[cache->next];
    cache->next = (cache->next + 1) % ENTRIES;
    if (cache->count < ENTRIES)
        cache->count++;
    else
        drop(place);
    return make(place, cache->engine, p) ? place : NULL;
}

bool sr_gemm_bf16_run(sr_gemm_bf16 *cache, const sr_product_bf16 *p) {
    cached_gemm *entry = find(cache, p);
    if (!entry)
        return false;
    /* The library's handles are not const; it only reads its sources. */
    if (dnnl_memory_set_data_handle(entry->a, (void *)(uintptr_t)p->a) != dnnl_success ||
        dnnl_memory_set_data_handle(entry->b, (void *)(uintptr_t)p->b) != dnnl_success ||
        dnnl_memory_set_data_handle(entry->c, p->c) != dnnl_success)
        return false;
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, entry->a},
                                         {DNNL_ARG_WEIGHTS, entry->b},
                                         {DNNL_ARG_DST, entry->c}};
    return dnnl_primitive_execute(entry->primitive, cache->stream, 3, arguments) == dnnl_success &&
           dnnl_stream_wait(cache->stream) == dnnl_success;
}
