#!/bin/bash
# format.sh: lays out every C and CUDA file; with --check only says which ones need it.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=-i
[ "${1:-}" = --check ] && mode="--dry-run --Werror"
# shellcheck disable=SC2086 # the mode is two words
find include src cli tests bench -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) \
    -print0 2>/dev/null | xargs -0 clang-format $mode
