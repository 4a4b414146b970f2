#!/bin/bash
# nvcc_checked.sh: runs a CUDA compiler and fails where it says (C75..) that it gave up on what a kernel was
# written for: matrix instructions in parallel, registers handed from warp to warp. To the compiler that is news,
# not an error.
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
