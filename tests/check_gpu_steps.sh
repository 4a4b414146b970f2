#!/bin/bash
# check_gpu_steps.sh: tools/gpu_check.sh in several calls, with a program that only says that it was called.
set -uo pipefail
cd "$(dirname "$0")/.."
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
fail() { echo "check_gpu_steps.sh: $1" >&2; exit 1; }

mkdir -p "$temporary/cli" "$temporary/bin"
printf '#!/bin/bash\necho "{\\"called\\": \\"$1\\"}"\necho "$*" >>%q\n' "$temporary/calls" >"$temporary/cli/softrnn"
printf '#!/bin/bash\nexit 0\n' >"$temporary/bin/compute-sanitizer"
chmod +x "$temporary/cli/softrnn" "$temporary/bin/compute-sanitizer"
check() {
    PATH=$temporary/bin:$PATH BUILD=$temporary RESULTS=$temporary/results tools/gpu_check.sh "$temporary/record" \
        >"$temporary/out" 2>&1
}
calls() { grep -c "^$1" "$temporary/calls"; }

[[ $(tools/gpu_check.sh --list) == *verify_bf16* ]] || fail "--list does not name verify_bf16"
ONLY='verify_float|step_nothing' check && fail "it passed without most steps"
[ -e "$temporary/record" ] && fail "it wrote a record without most steps"
grep -q 'steps have yet to run: .*verify_bf16' "$temporary/out" || fail "it does not name the missing steps"
[ "$(calls verify)" = 1 ] || fail "ONLY ran other steps"
BUDGET=0 check
[ "$(calls verify)" = 1 ] || fail "steps began after the budget"
check && fail "it passed with steps that cannot pass here"
[ "$(calls 'verify --device cuda --random 500')" = 1 ] || fail "a step that had passed ran again"
[ "$(calls 'verify --device cuda --dtype bf16 --random 500')" = 1 ] || fail "a step did not run"
python3 - "$temporary/record" <<'END' || fail "the record is wrong"
import json, sys
record = json.load(open(sys.argv[1]))
steps = record["steps"]
assert steps["verify_float"]["passed"] and steps["verify_float"]["numbers"] == [{"called": "verify"}]
assert not steps["same_bits"]["passed"] and not record["passed"]
END
echo 0 >"$temporary/results/sources"
check && fail "it took results of other sources"
grep -q "other CUDA sources" "$temporary/out" || fail "it does not say that results are of other sources"
exit 0
