/* real.h (private): the number type that a kernel file is compiled for, and the names derived from
 * it.
 *
 * The build compiles each source once per type (SR_REAL_BITS 32 or 64) and, for the fast kernels,
 * once per instruction set (SR_ISA, which becomes part of the names). */
#ifndef SR_ATTENTION_CPU_SHARED_REAL_H
#define SR_ATTENTION_CPU_SHARED_REAL_H

#include "equation/facts.h"

#include "softrnn.h"

#if SR_REAL_BITS == 64
typedef double real;
typedef int64_t real_bits;     /* the result of a comparison, lane by lane */
typedef uint64_t real_pattern; /* the bit pattern of a number, for integer arithmetic */
#define SR_REAL_SUFFIX f64
#define SR_REAL_DTYPE  SRNN_F64
#else
typedef float real;
typedef int32_t real_bits;
typedef uint32_t real_pattern;
#define SR_REAL_SUFFIX f32
#define SR_REAL_DTYPE  SRNN_F32
#endif

#define SR_JOIN3(a, b, c)   a##_##b##_##c
#define SR_EXPAND3(a, b, c) SR_JOIN3(a, b, c)
#define SR_ISA_REAL(name)   SR_EXPAND3(name, SR_ISA, SR_REAL_SUFFIX)

#endif
