/* launch.h: sr_launch and SR_SHARED, emulated; see ../launch.h. */
#ifndef SR_EMULATOR_LAUNCH_H
#define SR_EMULATOR_LAUNCH_H

#include "device/cuda/emulator/runtime.h"

#include <new>
#include <tuple>

#define SR_SHARED(type, name) type *const name = reinterpret_cast<type *>(sr_emulated_shared)

/* A kernel and its arguments, as stored in the queue. */
template <class... P> struct sr_emulated_call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;

    static void run(const void *call) {
        const auto *self = static_cast<const sr_emulated_call *>(call);
        std::apply(self->kernel, self->arguments);
    }
};

/* The parameters of CUDA's launch. */
template <class... P>
cudaError_t sr_emulator_launch_call(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                    size_t shared_bytes, cudaStream_t stream,
                                    typename sr_as_declared<P>::type... arguments) {
    using call = sr_emulated_call<P...>;
    void *memory = nullptr;
    if (posix_memalign(&memory, 64, sizeof(call)) != 0)
        return cudaErrorMemoryAllocation;
    new (memory) call{kernel, std::tuple<P...>(arguments...)};
    const sr_emulated_kernel queued = {name, call::run, memory, grid, block, shared_bytes};
    return sr_emulator_launch(&queued, stream);
}

/* The text of the launch names the kernel in messages. */
#define sr_launch(...) sr_emulator_launch_call(#__VA_ARGS__, __VA_ARGS__)

/* No early start here. */
#define sr_launch_early(early, ...) ((void)(early), sr_launch(__VA_ARGS__))

#endif
