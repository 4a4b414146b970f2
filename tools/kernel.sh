#!/bin/bash
# kernel.sh: runs kernel.py with the Python packages that it needs.
#
# Usage: tools/kernel.sh [FOLDER [BACKEND=WHEEL]...]        (build-python/kernels, that of build-python/wheels)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-build-python/kernels}")
tools=build-python/tools
[ -d "$tools" ] || python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --upgrade pip cffi kernel-abi-check kernels numpy
[ $# -gt 1 ] || set -- "$folder" "cpu=$(ls build-python/wheels/softrnn-*.whl)"
"$tools/bin/python" tools/kernel.py "$folder" "${@:2}"
