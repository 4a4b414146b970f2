#!/bin/bash
# cuda_architectures.sh: the GPUs of this machine as CMAKE_CUDA_ARCHITECTURES, so that `make cuda` compiles for these
# alone. Prints nothing where the default list of cmake/cuda.cmake is right: without a GPU, or with one that softrnn
# (8.0 and newer) or the compiler does not know.
#
# Usage: tools/cuda_architectures.sh NVCC
set -euo pipefail
nvcc=${1:-}
command -v nvidia-smi >/dev/null && [ -n "$nvcc" ] || exit 0
found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -un) || exit 0
known=$("$nvcc" --list-gpu-code)
list=()
for capability in $found; do
    if ! [[ $capability =~ ^[0-9]+$ ]] || [ "$capability" -lt 80 ] || ! grep -qx "sm_$capability" <<<"$known"; then
        exit 0
    fi
    list+=("$capability-real")
done
(IFS=';' && echo "${list[*]}")
