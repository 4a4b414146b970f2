/* real.h (private): the number type a kernel file is compiled for, and the names that follow from
 * it.
 *
 * The build compiles one source once per type (SR_REAL_BITS 32 or 64) and, for the fast kernels,
 * once per instruction set (SR_ISA, a word that becomes part of the names). */
#ifndef SR_ATTENTION_CPU_SHARED_REAL_H
#define SR_ATTENTION_CPU_SHARED_REAL_H

#include "equation/facts.h"

#include "softrnn.h"

#if SR_REAL_BITS == 64
typedef double real;
typedef int64_t real_bits;     /* what a comparison gives */
typedef uint64_t real_pattern; /* the bits of a number, to count with */
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
