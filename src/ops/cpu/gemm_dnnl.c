/* gemm_dnnl.c: one matrix product by oneDNN. */
#include "ops/cpu/gemm.h"

#include <dnnl.h>
#include <signal.h>

const char *sr_gemm_library(void) {
    return "oneDNN";
}

void sr_gemm_limit(sr_cpu_level level) {
    switch (level) {
    case SR_CPU_BASE:
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
        break;
    case SR_CPU_V3:
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
        break;
    case SR_CPU_V4:
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core);
        break;
    }
}

/* Where a sum is long, oneDNN's kernel for AVX takes the block that it allocated for its copies as
 * its stack. A signal handler would then run below that block, in memory that is somebody else's: a
 * Ctrl-C at the wrong moment broke the heap. So no handler may run here meanwhile; signals that
 * tell of a fault of this thread still arrive. Sums up to SHORT_SUM never were long in that sense
 * (320 was not, 640 is), and small products feel the price. */
enum { SHORT_SUM = 128 };

static void hold_signals(sigset_t *before) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t held;
    sigfillset(&held);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&held, faults[i]);
    pthread_sigmask(SIG_SETMASK, &held, before);
}

bool sr_gemm(const sr_product *p) {
    sigset_t before;
    if (p->K > SHORT_SUM)
        hold_signals(&before);
    const dnnl_status_t status =
        dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->M, p->N, p->K, 1.0f,
                   p->a, p->a_stride, p->b, p->b_stride, p->add ? 1.0f : 0.0f, p->c, p->c_stride);
    if (p->K > SHORT_SUM)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status == dnnl_success;
}
