#!/bin/bash
# check_install.sh: installs into a temporary prefix, then builds and runs a program against it
# through pkg-config and through find_package, shared and static.
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

# The manual, the completions, and the studies that --help names come along.
for name in man/man1/softrnn.1 man/man1/softrnn-data-prepare.1 \
    bash-completion/completions/softrnn zsh/site-functions/_softrnn \
    fish/vendor_completions.d/softrnn.fish softrnn/studies/full.yaml; do
    [ -s "$prefix/share/$name" ] || { echo "share/$name was not installed"; exit 1; }
done
(cd "$work" && "$prefix/bin/softrnn" study studies/full.yaml --dry-run >"$work/log") ||
    { echo "studies/full.yaml is not found beside the program"; exit 1; }

read -ra flags < <(pkg-config --cflags softrnn)
read -ra shared < <(pkg-config --libs softrnn)
read -ra static < <(pkg-config --static --libs softrnn)
strict=(-std=c11 -Wall -Wextra -Wpedantic -Werror)
"$compiler" "${strict[@]}" "${flags[@]}" "$source/consumer.c" -o "$work/shared" "${shared[@]}"
expect "pkg-config, shared" env LD_LIBRARY_PATH="$libraries" "$work/shared"
# With both libraries in one folder the linker would take the shared one. All of the static one is
# linked, so that a dependency missing from softrnn.pc is noticed.
"$compiler" "${strict[@]}" "${flags[@]}" "$source/consumer.c" -o "$work/static" \
    "${static[@]/#-lsoftrnn/-Wl,--whole-archive,-l:libsoftrnn.a,--no-whole-archive}"
expect "pkg-config, static" "$work/static"

cmake -S "$source" -B "$work/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$compiler" >"$work/log"
cmake --build "$work/consumer" >"$work/log" || { cat "$work/log"; exit 1; }
expect "find_package, shared" "$work/consumer/shared"
expect "find_package, static" "$work/consumer/static"

# The shared library shows the public names and no others.
if nm -D --defined-only "$libraries/libsoftrnn.so" | awk '{print $3}' | grep -v '^srnn_'; then
    echo "libsoftrnn.so shows names that are not public"
    exit 1
fi
