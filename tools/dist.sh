#!/bin/bash
# dist.sh: builds all parts of a release into a folder; nothing is uploaded.
#
# Usage: tools/dist.sh [FOLDER]        (build-dist)
#
# The source archive, wheels that are built from it, the layout of Hugging Face's `kernels`, the Debian package, the change
# log, a bill of materials and checksums. Also with CUDA if there is an nvcc ($NVCC). Needs the network, for the Python packages
# that build wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
release=$(realpath -m "${1:-build-dist}")
if [ -n "$(ls -A "$release" 2>/dev/null)" ] && [ ! -f "$release/SHA256SUMS" ]; then
    echo "dist.sh: $release is not empty and not an earlier release: name another folder" >&2
    exit 1
fi
out=$release.partial # until it is whole
rm -rf "$out"
mkdir -p "$out"
tools=build-python/tools
[ -d "$tools" ] || python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --upgrade pip build
"$tools/bin/python" -m build --sdist --outdir "$out" .
archive=$(ls "$out"/softrnn-*.tar.gz)
tools/wheel.sh cpu "$out" "$archive"
kernels=("cpu=$(ls "$out"/softrnn-*.whl)")
if [ -n "${NVCC:-}" ]; then
    tools/wheel.sh cuda "$out/cuda" "$archive"
    toolkit=$("$NVCC" --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1\2/p')
    kernels+=("cu$toolkit=$(ls "$out"/cuda/softrnn-*.whl)")
else
    echo "dist.sh: no nvcc: what has CUDA is left out" >&2
fi
tools/kernel.sh "$out/kernels" "${kernels[@]}"
make --no-print-directory deb DIST="$out"
cp CHANGELOG.md Containerfile "$out"
build/cli/softrnn --version | { read -r _ version; "$tools/bin/python" tools/sbom.py bom "$version"; } \
    >"$out/sbom.cdx.json"
(cd "$out" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS)
rm -rf "$release"
mv "$out" "$release"
ls -l "$release"
