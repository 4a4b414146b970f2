#!/bin/bash
# manylinux_link.sh ARGUMENTS...: links against glibc 2.28, whose symbols zig has. Objects are gcc's, and so is their
# runtime library. $SOFTRNN_ZIG: its program; else zig. $NVCC: the CUDA compiler, whose libraries are searched.
set -euo pipefail
arguments=("$@")
compiler=cc
case " $* " in *" -shared "*)
    # Debian's static jansson is not position-independent enough for a shared library; auditwheel adds the shared one.
    arguments=("${arguments[@]/%libjansson.a/libjansson.so}" -Wl,-z,defs)
    ;;
esac
if [ -n "${NVCC:-}" ]; then # the host code of kernels is C++
    compiler=c++
    arguments+=("-L$(dirname "$NVCC")/../lib64")
fi
exec "${SOFTRNN_ZIG:-zig}" $compiler -target x86_64-linux-gnu.2.28 "${arguments[@]}" "$(gcc -print-libgcc-file-name)"
