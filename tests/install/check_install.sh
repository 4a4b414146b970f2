#!/bin/bash
# check_install.sh: installs into a temporary prefix, then builds and runs programs against both
# libraries through pkg-config and through find_package, shared and static.
# Usage: check_install.sh BUILD_FOLDER C_COMPILER
set -euo pipefail
build=$1
compiler=$2
source=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" >"$work/log"
# A moved tree still works.
mv "$work/first" "$work/prefix"
prefix=$work/prefix
pc=$(find "$prefix" -name softrnn.pc)
libraries=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH=${pc%/*}
version=$("$prefix/bin/softrnn" --version)

# expect NAME COMMAND...: the command prints the version of the installed program.
expect() {
    local name=$1 got
    shift
    got=$("$@")
    if [ "$got" != "$version" ]; then
        echo "$name: expected '$version', got '$got'"
        exit 1
    fi
    echo "$name: $got"
}

# The manual, the completions, and the studies that --help names are installed.
for name in man/man1/softrnn.1 man/man1/softrnn-data-prepare.1 \
    bash-completion/completions/softrnn zsh/site-functions/_softrnn \
    fish/vendor_completions.d/softrnn.fish softrnn/studies/full.yaml; do
    [ -s "$prefix/share/$name" ] || { echo "share/$name was not installed"; exit 1; }
done
(cd "$work" && "$prefix/bin/softrnn" study studies/full.yaml --dry-run >"$work/log") ||
    { echo "studies/full.yaml is not found next to the program"; exit 1; }

# With both kinds of a library in one folder the linker takes the shared one, so static ones are named
# by their files; all of each is linked, so that a dependency missing from the .pc file is noticed.
strict=(-std=c11 -Wall -Wextra -Wpedantic -Werror)
for program in attention lab; do
    library=softrnn
    [ $program = lab ] && library=softrnn_lab
    read -ra flags < <(pkg-config --cflags "$library")
    read -ra shared < <(pkg-config --libs "$library")
    static=$(pkg-config --static --libs "$library" |
        sed -E 's/-l(softrnn(_lab)?)( |$)/-Wl,--whole-archive,-l:lib\1.a,--no-whole-archive\3/g')
    read -ra static <<<"$static"
    "$compiler" "${strict[@]}" "${flags[@]}" "$source/$program.c" -o "$work/shared" "${shared[@]}"
    expect "pkg-config, $program, shared" env LD_LIBRARY_PATH="$libraries" "$work/shared"
    "$compiler" "${strict[@]}" "${flags[@]}" "$source/$program.c" -o "$work/static" "${static[@]}"
    expect "pkg-config, $program, static" "$work/static"
    [ $program = lab ] || mv "$work/shared" "$work/attends"
done

# As in the README; also the example that calls functions of libm itself.
line=$(sed -n 's/^    cc program.c //p' "$source/../../README.md")
[ -n "$line" ] || { echo "README.md has no line that compiles a program"; exit 1; }
(cd "$work" && eval "\"$compiler\" \"$source/../../examples/state.c\" -o state $line")
env LD_LIBRARY_PATH="$libraries" "$work/state" >"$work/log" || { cat "$work/log"; exit 1; }

cmake -S "$source" -B "$work/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$compiler" >"$work/log"
cmake --build "$work/consumer" >"$work/log" || { cat "$work/log"; exit 1; }
for program in attention_shared attention_static lab_shared lab_static; do
    expect "find_package, $program" "$work/consumer/$program"
done

# A program that uses only attention loads the attention library and the C library, and nothing else.
loaded=$(LD_LIBRARY_PATH=$libraries ldd "$work/attends" | awk '{print $1}' | sed 's,.*/,,')
if grep -Ev '^(libsoftrnn|libm|libc|libpthread|libdl|librt|linux-vdso|ld-linux[-a-z0-9_]*)\.so' <<<"$loaded"; then
    echo "a program that only attends loads more than libsoftrnn"
    exit 1
fi
grep -q '^libsoftrnn\.so' <<<"$loaded"

# names LIBRARY: the exported symbols of a shared library, with their versions.
names() {
    nm -D --defined-only --with-symbol-versions "$libraries/lib$1.so" | awk '$2 != "A" {print $3}'
}
# The attention library exports its public symbols, and internal ones for the laboratory of the same release
# only; the laboratory exports its public symbols.
if names softrnn | grep -Ev '^(srnn_[a-z0-9_]+@@SOFTRNN_[0-9.]+|sr_[A-Za-z0-9_]+@@SOFTRNN_PRIVATE_[0-9.]+)$' ||
    names softrnn_lab | grep -v '^srnl_'; then
    echo "a shared library shows names that are not public"
    exit 1
fi
