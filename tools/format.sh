#!/bin/bash
# format.sh: formats every C and CUDA file; with --check only lists those that need it, and lines beyond the columns,
# which clang-format does not break in comments and strings.
set -euo pipefail
cd "$(dirname "$0")/.."
columns=$(sed -n 's/^ColumnLimit: //p' .clang-format)
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)
sources() {
    find . -path './build*' -prune -o -path ./.git -prune -o \
        -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0
}
sources | xargs -0 clang-format "${mode[@]}"
if [ "${1:-}" = --check ] && sources | LC_ALL=C.UTF-8 xargs -0 grep -nE "^.{$((columns + 1)),}" >&2; then
    echo "format.sh: lines of more than $columns columns" >&2
    exit 1
fi
