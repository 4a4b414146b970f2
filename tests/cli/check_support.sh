#!/bin/bash
# check_support.sh PROGRAM PAGE: the page of the support matrix is what the program prints. To update it, run
# this with --update in front, with the program of an emulated build, which has a GPU.
set -euo pipefail
update=
[ "$1" != --update ] || { update=yes; shift; }
program=$1 page=$2
made=$(mktemp)
trap 'rm -f "$made"' EXIT
{
    echo "# Support matrix"
    echo
    echo "Which kernel computes each variant, by device, number type and form. Read it before you choose a variant for a"
    echo "GPU. It is the output of \`softrnn variants --support\`, from what the kernels declare about themselves; the GPU is"
    echo "an H200 (compute capability 9.0). Where the attention is supported, layers of every wiring are, in float and in"
    echo "bf16: projections, low-rank gates, convolutions, norms and residuals run on the device of the attention. \`avey\`, which"
    echo "has no attention, trains and generates on both devices."
    echo
    "$program" variants --support
} >"$made"
if [ -n "$update" ]; then
    cp "$made" "$page"
elif ! diff -u "$page" "$made"; then
    echo "$page is out of date: run $0 --update $program $page" >&2
    exit 1
fi
