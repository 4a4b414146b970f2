/* cuda.h: the part of the driver's interface that this project uses, emulated; see
 * cuda_runtime.h. */
#ifndef SR_EMULATOR_CUDA_H
#define SR_EMULATOR_CUDA_H

#include <stdint.h>

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;

typedef enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;

typedef enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9 } CUtensorMapDataType;
typedef enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 } CUtensorMapInterleave;
typedef enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B = 3 } CUtensorMapSwizzle;
typedef enum CUtensorMapL2promotion {
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3
} CUtensorMapL2promotion;
typedef enum CUtensorMapFloatOOBfill {
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0
} CUtensorMapFloatOOBfill;

/* 128 bytes, as the driver's. */
typedef struct CUtensorMap {
    char *data;
    uint32_t dimensions;
    uint64_t size[5];   /* numbers */
    uint64_t stride[4]; /* bytes */
    uint32_t box[5];    /* numbers */
} __attribute__((aligned(64))) CUtensorMap;

#endif
