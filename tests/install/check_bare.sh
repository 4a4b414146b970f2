#!/bin/bash
# check_bare.sh: a wheel and a Debian package on a Debian that has nothing: no compiler, no library, no Python package.
# Usage: check_bare.sh WHEEL DEB [PACKAGES]
#     PACKAGES: a folder with torch for Debian's Python (site-packages); without it tensors of torch are not tried.
# Needs root, debootstrap and the network. Prints the seconds of each step.
set -euo pipefail
wheel=$(realpath "$1")
deb=$(realpath "$2")
packages=${3:+$(realpath "$3")}
work=$(mktemp -d)
finish() {
    ! mountpoint -q "$work/root/packages" || umount "$work/root/packages"
    rm -rf --one-file-system "$work"
}
trap finish EXIT

# step NAME COMMAND...: quiet unless it fails.
step() {
    local name=$1 start=$EPOCHREALTIME
    shift
    "$@" >"$work/log" 2>&1 || { echo "$name failed"; cat "$work/log"; exit 1; }
    awk -v name="$name" -v start="$start" -v end="$EPOCHREALTIME" 'BEGIN { printf "%6.1f s  %s\n", end - start, name }'
}
within() { chroot "$work/root" env -i PATH=/env/bin:/usr/bin:/bin HOME=/root "$@"; }

mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n 1)
step "Debian" debootstrap --variant=minbase bookworm "$work/debian" "$mirror"
cp -a "$work/debian" "$work/root"
within sh -c '! command -v cc gcc clang python3' || { echo "the root is not bare"; exit 1; }

step "Debian's Python" within apt-get install -y --no-install-recommends python3 python3-venv
step "what pip would download" python3 -m pip download --only-binary=:all: --python-version 3.11 --dest "$work/root/wheels" "$wheel"
step "an environment" within python3 -m venv /env
step "pip install" within pip install --no-index --find-links /wheels softrnn
step "softrnn info" within softrnn info
step "data prepare" within sh -c 'seq 20000 >/text && softrnn data prepare --tokenizer bytes --out /tokens /text'
step "train" within softrnn train --out /result --data /tokens --preset tiny --steps 20 --validate-every 0
step "generate" within softrnn generate --model /result --prompt 1 --tokens 16
attends='
import numpy, softrnn
q, k, v = numpy.random.default_rng(0).normal(size=(3, 1, 2, 16, 8)).astype("float32")
o = softrnn.attention(q, k, v)
'
step "attention on NumPy arrays" within python3 -c "$attends"
if [ -n "$packages" ]; then
    mkdir "$work/root/packages"
    mount --bind -o ro "$packages" "$work/root/packages"
    step "attention on tensors of torch" within env PYTHONPATH=/env/lib/python3.11/site-packages:/packages python3 -c "$attends
import torch
tensors = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
result = softrnn.attention(*tensors)
result.sum().backward()
expected = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
assert (result - expected).abs().max() < 1e-5 and tensors[0].grad is not None"
    umount "$work/root/packages"
fi
within sh -c '! command -v cc gcc clang' || { echo "something installed a compiler"; exit 1; }

rm -rf --one-file-system "$work/root"
mv "$work/debian" "$work/root"
cp "$deb" "$work/root/softrnn.deb"
step "apt-get install" within apt-get install -y --no-install-recommends /softrnn.deb
step "softrnn of the package" within sh -c 'softrnn info && softrnn train --out /result --data recall --preset tiny --steps 5'
