/* tensor_map.cu: maps of tensors for bulk copies. */
#include "device/cuda/hopper.h"

/* The driver's function, found at run time so that the program starts where no driver is. */
typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static cudaError_t encode_function_find(encode_function *encode) {
    static encode_function known; /* looking for it takes longer than using it */
    *encode = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (*encode)
        return cudaSuccess;
    void *address = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000,
                                                         cudaEnableDefault, &found);
    if (error != cudaSuccess)
        return error;
    if (found != cudaDriverEntryPointSuccess)
        return cudaErrorInsufficientDriver;
    *encode = reinterpret_cast<encode_function>(address);
    __atomic_store_n(&known, *encode, __ATOMIC_RELAXED);
    return cudaSuccess;
}

cudaError_t sr_tensor_map_encode(CUtensorMap *map, const void *data, const sr_tensor_shape *shape) {
    encode_function encode = nullptr;
    cudaError_t error = encode_function_find(&encode);
    if (error != cudaSuccess)
        return error;
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
