/* hopper.h: the instructions of ../hopper.h, emulated; that file documents them. */
#ifndef SR_EMULATOR_HOPPER_H
#define SR_EMULATOR_HOPPER_H

#include "device/cuda/emulator/warpgroup.h"

SR_DEVICE void mbarrier_init(uint64_t *barrier, int arrivals) {
    sr_emulator_mbarrier_init(barrier, arrivals);
}

SR_DEVICE void mbarrier_init_fence() {
}

SR_DEVICE void mbarrier_arrive(uint64_t *barrier) {
    sr_emulator_mbarrier_arrive(barrier, 0);
}

SR_DEVICE void mbarrier_arrive_expect(uint64_t *barrier, int bytes) {
    sr_emulator_mbarrier_arrive(barrier, bytes);
}

SR_DEVICE void mbarrier_wait(uint64_t *barrier, int parity) {
    sr_emulator_mbarrier_wait(barrier, parity);
}

SR_DEVICE void mbarrier_arrive_copies(uint64_t *barrier) {
    sr_emulator_copy_commit();
    sr_emulator_copy_wait(0);
    sr_emulator_mbarrier_arrive(barrier, 0);
}

SR_DEVICE void fence_proxy_async() {
}

SR_DEVICE void tensor_load_2d(void *shared, const CUtensorMap *map, uint64_t *barrier,
                              const int (&at)[2]) {
    sr_emulator_tensor_load(shared, map, barrier, at);
}

SR_DEVICE void tensor_load_3d(void *shared, const CUtensorMap *map, uint64_t *barrier,
                              const int (&at)[3]) {
    sr_emulator_tensor_load(shared, map, barrier, at);
}

SR_DEVICE void tensor_load_4d(void *shared, const CUtensorMap *map, uint64_t *barrier,
                              const int (&at)[4]) {
    sr_emulator_tensor_load(shared, map, barrier, at);
}

SR_DEVICE void tensor_store_2d(const CUtensorMap *map, const void *shared, const int (&at)[2]) {
    sr_emulator_tensor_store(map, shared, at);
}

SR_DEVICE void tensor_store_3d(const CUtensorMap *map, const void *shared, const int (&at)[3]) {
    sr_emulator_tensor_store(map, shared, at);
}

SR_DEVICE void tensor_store_4d(const CUtensorMap *map, const void *shared, const int (&at)[4]) {
    sr_emulator_tensor_store(map, shared, at);
}

SR_DEVICE void tensor_store_commit() {
}

template <int pending> SR_DEVICE void tensor_store_wait_read() {
}

template <int pending> SR_DEVICE void tensor_store_wait() {
}

SR_DEVICE void bulk_store(void *global, const void *shared, int bytes) {
    sr_emulator_bulk_store(global, shared, bytes);
}

SR_DEVICE void bulk_add(float *global, const float *shared, int bytes) {
    sr_emulator_bulk_add(global, shared, bytes);
}

SR_DEVICE bool ticket_is_due(const int *ticket, int mine) {
    return sr_emulator_ticket_is_due(ticket, mine);
}

SR_DEVICE void ticket_pass(int *ticket, int next) {
    sr_emulator_ticket_pass(ticket, next);
}

SR_DEVICE void wgmma_fence() {
}

SR_DEVICE void wgmma_commit() {
    sr_emulator_wgmma_commit();
}

template <int pending> SR_DEVICE void wgmma_wait() {
    sr_emulator_wgmma_wait(pending);
}

template <int count> SR_DEVICE void wgmma_settle(float (&)[count]) {
}

template <int registers> SR_DEVICE void registers_decrease() {
}

template <int registers> SR_DEVICE void registers_increase() {
}

SR_DEVICE int thread_index_again() {
    return (int)threadIdx.x;
}

SR_DEVICE uint64_t wgmma_descriptor(const void *shared, int lead_bytes = 16) {
    return (uint64_t)(sr_emulator_shared_offset(shared) >> 4) | (uint64_t)(lead_bytes >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

SR_DEVICE uint64_t wgmma_descriptor_16(const void *shared) {
    return (uint64_t)(sr_emulator_shared_offset(shared) >> 4) | (uint64_t)(256 >> 4) << 16 |
           (uint64_t)(256 >> 4) << 32 | (uint64_t)3 << 62;
}

template <int N, int transpose_a, int transpose_b>
SR_DEVICE void wgmma_shared(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
    const sr_emulated_wgmma product = {d,        nullptr, a, b, transpose_a != 0, transpose_b != 0,
                                       add != 0, N};
    sr_emulator_wgmma(&product);
}

template <int N, int transpose_b>
SR_DEVICE void wgmma_registers(float (&d)[N / 2], const uint32_t *a, uint64_t b, int add) {
    const sr_emulated_wgmma product = {d, a, 0, b, false, transpose_b != 0, add != 0, N};
    sr_emulator_wgmma(&product);
}

#endif
