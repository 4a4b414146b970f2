#!/bin/bash
# check_make.sh: targets of the Makefile on machines other than a developer's.
# Usage: check_make.sh SOURCE_FOLDER
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Installing ccache after the first build does not recompile every file.
cp "$source/Makefile" "$work"
printf '#!/bin/sh\n' >"$work/ccache"
chmod +x "$work/ccache"
planned() { (cd "$work" && PATH=$work:$PATH make --no-print-directory -n build); }
grep -q LAUNCHER=ccache <<<"$(planned)" || { echo "the first build does not use ccache"; exit 1; }
mkdir "$work/build"
touch "$work/build/build.ninja"
! grep -q LAUNCHER=ccache <<<"$(planned)" || { echo "a second build changes the compiler launcher"; exit 1; }

# Without the packages of the tests, `make cuda` still finds its targets.
real=$(command -v pkg-config)
printf '#!/bin/sh\ncase "$*" in *cmocka*) exit 1 ;; esac\nexec %s "$@"\n' "$real" >"$work/pkg-config"
chmod +x "$work/pkg-config"
cmake -S "$source" -B "$work/bare" -G Ninja -DPKG_CONFIG_EXECUTABLE="$work/pkg-config" >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
grep -q 'no tests' "$work/log" || { echo "cmocka was found although it is hidden"; exit 1; }
targets=$(make -C "$source" --no-print-directory -n cuda NVCC=nvcc | sed -n 's/.*build-cuda.* --target //p')
[ -n "$targets" ] || { echo "make cuda names no targets"; exit 1; }
for target in $targets; do
    ninja -C "$work/bare" -t query "$target" >/dev/null || { echo "make cuda: no target $target"; exit 1; }
done
# What was left out is listed for the end of `make`.
grep -q 'make cuda' "$work/bare/left_out.txt" || { echo "left_out.txt does not mention CUDA"; exit 1; }

# `make cuda` compiles for this machine's GPUs, and for the default list where there is none or one is not known.
# gpus LIST: a machine whose GPUs have these compute capabilities.
gpus() { printf '#!/bin/sh\nprintf "%s"\n' "$1" >"$work/nvidia-smi"; }
gpus ''
printf '#!/bin/sh\nprintf "sm_75\\nsm_80\\nsm_90\\nsm_120\\n"\n' >"$work/nvcc"
chmod +x "$work/nvidia-smi" "$work/nvcc"
# compiles_for EXPECTED [ARGUMENT]...: what `make cuda ARGUMENT...` says to CMake.
compiles_for() {
    local expected=$1 found
    shift
    found=$(PATH=$work:$PATH make -C "$source" --no-print-directory -n cuda NVCC="$work/nvcc" "$@" | tr -d '"' |
        grep -oE -- '-[DU]CMAKE_CUDA_ARCHITECTURES[^ )]*')
    [ "$found" = "$expected" ] || { echo "make cuda $*, GPUs $("$work/nvidia-smi"): $found, expected $expected"; exit 1; }
}
default=-UCMAKE_CUDA_ARCHITECTURES
compiles_for $default
for unknown in '7.5\n' '9.0\n10.3\n' 'No devices were found\n'; do
    gpus "$unknown"
    compiles_for $default
done
gpus '9.0\n9.0\n'
compiles_for -DCMAKE_CUDA_ARCHITECTURES=90-real
compiles_for '-DCMAKE_CUDA_ARCHITECTURES=80-real;90-virtual' 'CUDA_ARCHITECTURES=80-real;90-virtual'
gpus '12.0\n8.0\n'
compiles_for '-DCMAKE_CUDA_ARCHITECTURES=80-real;120-real'
printf '#!/bin/sh\necho "NVIDIA-SMI has failed"\nexit 9\n' >"$work/nvidia-smi"
compiles_for $default
