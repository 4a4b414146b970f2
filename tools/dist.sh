#!/bin/bash
# dist.sh: everything that a release consists of, into a folder; nothing is uploaded.
#
# Usage: tools/dist.sh [FOLDER]        (build-dist)
#
# The source archive and the wheels (Python), the Debian package, the change log, a bill of materials and checksums.
# A wheel with CUDA is made where nvcc is ($NVCC). Needs the network, for the Python packages that build wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-build-dist}")
if [ -n "$(ls -A "$out" 2>/dev/null)" ] && [ ! -f "$out/SHA256SUMS" ]; then
    echo "dist.sh: $out is not empty and not an earlier release: name another folder" >&2
    exit 1
fi
rm -rf "$out"
mkdir -p "$out"
tools/wheel.sh cpu "$out"
if [ -n "${NVCC:-}" ]; then
    tools/wheel.sh cuda "$out/cuda"
else
    echo "dist.sh: no nvcc: the wheel with CUDA is left out" >&2
fi
build-python/tools/bin/python -m build --sdist --outdir "$out" .
make --no-print-directory deb DIST="$out"
cp CHANGELOG.md Containerfile "$out"
build/cli/softrnn --version | { read -r _ version; build-python/tools/bin/python tools/sbom.py bom "$version"; } \
    >"$out/sbom.cdx.json"
(cd "$out" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS)
ls -l "$out"
