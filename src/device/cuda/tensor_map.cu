/* tensor_map.cu: tensor maps for TMA. */
#include "device/cuda/hopper.h"

#include <pthread.h>

/* The driver's function, found at run time so that the program starts on machines without a
 * driver. */
typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Looked up once: that takes longer than calling it. */
static pthread_once_t looked_for = PTHREAD_ONCE_INIT;
static encode_function encode;
static cudaError_t not_found;

static void encode_function_find() {
    void *address = nullptr;
    cudaDriverEntryPointQueryResult found;
    not_found = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000,
                                                 cudaEnableDefault, &found);
    if (not_found == cudaSuccess && found != cudaDriverEntryPointSuccess)
        not_found = cudaErrorInsufficientDriver;
    encode = reinterpret_cast<encode_function>(address);
}

cudaError_t sr_tensor_map_encode(CUtensorMap *map, const void *data, const sr_tensor_shape *shape) {
    pthread_once(&looked_for, encode_function_find);
    if (not_found != cudaSuccess)
        return not_found;
    const cuuint32_t every[5] = {1, 1, 1, 1, 1};
    cuuint64_t size[5], stride[4];
    for (int i = 0; i < shape->dimensions; i++)
        size[i] = shape->size[i];
    for (int i = 0; i + 1 < shape->dimensions; i++)
        stride[i] = shape->stride[i];
    CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)shape->dimensions,
                             const_cast<void *>(data), size, stride, shape->box, every,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
