#!/bin/bash
# test.sh: all checks, step by step; a failed step does not stop the next ones. The last
# line is "N passed, M failed"; the exit code is 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/.."

echo "Every check: about 25 minutes on two cores. \`make check\` runs the quick ones in under four."

broken=() # steps that failed before testing
logs=()
stumbled=0 # steps that failed for any reason

# step TARGET [BUILD_FOLDER]: runs the target; its tests, if any, log into the folder.
step() {
    local target=$1 log=${2:+$2/Testing/Temporary/LastTest.log} start=$SECONDS
    echo "== $target"
    [ -z "$log" ] || rm -f "$log"
    if ! make --no-print-directory "$target"; then
        echo "== $target failed"
        stumbled=$((stumbled + 1))
        [ -n "$log" ] && [ -f "$log" ] || broken+=("$target")
    fi
    [ -z "$log" ] || [ ! -f "$log" ] || logs+=("$log")
    echo "== $target: $((SECONDS - start)) s"
}

step release build
step sanitize build-sanitize
step msan build-msan
step emulated build-emulated
if [ -n "${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}" ]; then
    step cuda-check
else
    echo "== cuda: left out, there is no nvcc here"
fi
step fuzz build-fuzz

passed=0
failed=0
if [ ${#logs[@]} -gt 0 ]; then
    summary=$(awk -f tools/count_tests.awk "${logs[@]}")
    read -r passed failed < <(tail -n 1 <<<"$summary")
    head -n -1 <<<"$summary"
fi
for target in "${broken[@]}"; do
    echo "failed: make $target"
done
failed=$((failed + ${#broken[@]}))
# No failure goes uncounted, even one that left no trace in a log.
[ "$failed" -gt 0 ] || failed=$stumbled
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
