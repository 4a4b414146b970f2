#!/bin/bash
# format.sh: formats every C and CUDA file; with --check only lists those that need it.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)
find . -path './build*' -prune -o -path ./.git -prune -o \
    -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 clang-format "${mode[@]}"
