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
