#!/bin/bash
# test_python.sh: installs the Python package into a separate environment, build-python/environment, with the newest
# torch and transformers, and runs all of its tests and examples there. Needs the network.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=build-python/environment
[ -d $environment ] || python3 -m venv $environment
$environment/bin/pip install --quiet --upgrade pip
$environment/bin/pip install --quiet ".[torch,transformers,lab]" lm-eval mypy
$environment/bin/mypy --no-error-summary
cd build-python # away from the sources, so that the installed package is tested
environment/bin/python ../python/tests/run.py
