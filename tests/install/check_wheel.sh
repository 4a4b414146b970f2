#!/bin/bash
# check_wheel.sh: installs a wheel into an empty environment; then the program trains and generates, and the package
# computes attention, with a PATH without a compiler.
# Usage: check_wheel.sh WHEEL
set -euo pipefail
wheel=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/environment"
"$work/environment/bin/pip" install --quiet "$wheel"
cd "$work"
# A PATH with only the commands of this script.
mkdir commands
for command in bash cat grep rm seq; do ln -s "$(command -v $command)" commands; done
PATH=$work/environment/bin:$work/commands
for compiler in cc c++ gcc g++ clang nvcc ld as; do
    ! command -v $compiler || { echo "$compiler is on the path, so that nothing is shown"; exit 1; }
done

softrnn info
package=$(python3 -c 'import softrnn; print(softrnn.__path__[0])')
if grep -q cudaGetDeviceCount "$package/lib/libsoftrnn.so"; then
    grep -q '^==== cudart' "$package"/../softrnn-*/licenses/THIRD_PARTY || { echo "no notice of cudart"; exit 1; }
fi
for line in $(seq 200); do echo "line $line of a text that says the same again"; done >text
softrnn data prepare --tokenizer bytes --out tokens text
softrnn train --out run --data tokens --preset tiny --batch 4 --length 64 --steps 20 --validate-every 0
softrnn generate --model run --prompt "line 1" --tokens 16 --greedy >generated
[ -s generated ] || { echo "nothing was generated"; exit 1; }
softrnn study studies/full.yaml --dry-run >/dev/null || { echo "the studies are not in the wheel"; exit 1; }
python3 - <<'END'
import numpy
import softrnn
import softrnn.lab
q, k, v = numpy.random.default_rng(0).normal(size=(3, 1, 2, 16, 8)).astype("float32")
scores = numpy.einsum("bhid,bhjd->bhij", q, k) / numpy.sqrt(8)
weights = numpy.where(numpy.tril(numpy.ones((16, 16))), numpy.exp(scores), 0)
expected = numpy.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdims=True), v)
error = numpy.abs(softrnn.attention(q, k, v, "softmax") - expected).max()
assert error < 1e-5, error
print(f"softrnn {softrnn.__version__}: attention differs from NumPy by {error:.1e}")
END
