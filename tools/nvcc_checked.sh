#!/bin/bash
# nvcc_checked.sh: runs a CUDA compiler and fails on its messages (C75..) that an optimisation a kernel relies
# on was not possible: asynchronous wgmma, setmaxnreg. The compiler reports these as information, not as errors.
set -uo pipefail
log=$("$@" 2>&1)
status=$?
[ -z "$log" ] || printf '%s\n' "$log" >&2
if [ $status -eq 0 ] && grep -qE '\(C75[0-9]{2}\)' <<<"$log"; then
    echo "nvcc_checked.sh: C75.. above: the kernel would be right but slow" >&2
    while [ $# -gt 1 ]; do
        [ "$1" = -o ] && rm -f "$2"
        shift
    done
    status=1
fi
exit $status
