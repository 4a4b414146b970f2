/* chunk_arrays.h (private): numbers on both sides of an emulated GPU, for tests of the cores of
 * chunks/. */
#ifndef SR_TESTS_CHUNK_ARRAYS_H
#define SR_TESTS_CHUNK_ARRAYS_H

#include "attention/cuda/chunks/core.h"

extern "C" {
#include "test.h"
}

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <vector>

#define RIGHT(call) assert_int_equal(call, cudaSuccess)

/* Twice the error of the plain computation in bf16: see test_attention_mma.c. */
static const double OUTPUT_LIMIT = 6e-3, GRADIENT_LIMIT = 1e-2;

static uint64_t number_state;

/* About normal: the sum of four uniform numbers. */
static float random_number() {
    float sum = 0;
    for (int n = 0; n < 4; n++) {
        number_state = number_state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(number_state >> 40) / (float)(1 << 24) - 0.5f;
    }
    return 1.7320508f * sum;
}

/* Numbers on both sides. */
template <class N> struct array {
    std::vector<N> host;
    N *there = nullptr;

    void create(size_t count) {
        host.resize(count);
        RIGHT(cudaMalloc(&there, count * sizeof(N)));
    }
    void random(size_t count, float size) {
        create(count);
        for (N &x : host)
            x = from_float<N>(size * random_number());
    }
    void send() {
        RIGHT(cudaMemcpy(there, host.data(), host.size() * sizeof(N), cudaMemcpyHostToDevice));
    }
    void fetch() {
        RIGHT(cudaMemcpy(host.data(), there, host.size() * sizeof(N), cudaMemcpyDeviceToHost));
    }
    double operator[](size_t n) const {
        return to_float(host[n]);
    }
    ~array() {
        cudaFree(there);
    }
};

typedef std::vector<double> doubles;

template <class N> static sr_chunk_rows rows_of(array<N> &x, int heads, int T, int columns) {
    return {x.there, (int64_t)heads * T * columns, (int64_t)T * columns, columns};
}

#endif
