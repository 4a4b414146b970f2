#!/bin/bash
# gpu_check.sh: all checks and timings that need a GPU, and a record of them.
#
# Usage: tools/gpu_check.sh [RECORD]                  (docs/gpu/H200.json)
#        tools/gpu_check.sh --list                    names of the steps
#
# Environment: BUILD    an existing build with CUDA; else `make cuda` makes build-cuda
#              DATA     tokens for the timed steps, from `softrnn data prepare`; else a synthetic task
#              RESULTS  folder for results and logs: build-cuda/gpu-check
#              ONLY     a pattern (verify_*, or 'memcheck_*|racecheck_*'): steps whose names match
#              BUDGET   seconds after which no step begins
#              PRESET, STEPS    of the compared runs: mini, 200
#              JOBS     concurrent checks: 4; timings run alone
# Runs the steps that have not passed yet in RESULTS, so that a check can be made in several calls, each as long as a GPU is
# lent; a step that was killed runs again. Continues after a failed step. Once all have run, writes the record; before, the
# missing ones are named. The exit code is 0 if all have passed.
set -uo pipefail
cd "$(dirname "$0")/.."
shopt -s extglob

record=${1:-docs/gpu/H200.json}
list=no
[ "$record" = --list ] && list=yes
data=${DATA:-recall}
preset=${PRESET:-mini}
steps=${STEPS:-200}
build=${BUILD:-build-cuda}
results=${RESULTS:-$build/gpu-check}
jobs=${JOBS:-4}
names=()

# run_step NAME COMMAND...: runs it, with its output in NAME.log; NAME.json is the outcome.
run_step() {
    local name=$1 start=$SECONDS passed=true
    shift
    rm -f "$results/$name.json"
    "$@" >"$results/$name.log" 2>&1 || passed=false
    printf '{"passed": %s, "seconds": %d}\n' $passed $((SECONDS - start)) >"$results/$name.new"
    mv "$results/$name.new" "$results/$name.json"
    echo "$name: $([ $passed = true ] && echo passed || echo "FAILED, see $results/$name.log"), $((SECONDS - start)) s"
}
# is_due NAME: whether this call runs the step, of which the record will know in any case.
is_due() {
    names+=("$1")
    [ $list = no ] && [ $SECONDS -lt "${BUDGET:-1000000}" ] && [[ $1 == @(${ONLY:-*}) ]] &&
        ! grep -qs '"passed": true' "$results/$1.json"
}
# step NAME COMMAND...: runs alone.
step() {
    is_due "$1" || return 0
    wait
    run_step "$@"
}
# check NAME COMMAND...: a step that is not timed, concurrent with others.
check() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    is_due "$1" || return 0
    run_step "$@" &
}

if [ $list = no ]; then
    mkdir -p "$results/runs" "$(dirname "$record")"
    sources=$(tools/gpu_record.py hash)
    if [ "$(cat "$results/sources" 2>/dev/null || echo "$sources")" != "$sources" ]; then
        echo "gpu_check.sh: $results has results of other CUDA sources: remove it, or choose another folder by RESULTS" >&2
        exit 1
    fi
    echo "$sources" >"$results/sources"
    [ -n "${BUILD:-}" ] || step build make cuda
fi
softrnn=$build/cli/softrnn
runs=$results/runs

machine() {
    local gpu
    gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
    python3 - "$gpu" "$("$softrnn" --version)" "$(nvcc --version 2>/dev/null | tail -n 2 | head -n 1)" <<'END'
import json, sys
print(json.dumps({"gpu": sys.argv[1], "softrnn": sys.argv[2], "nvcc": sys.argv[3]}))
END
}
[ $list = yes ] || machine >"$results/machine.json"

# ---- correctness

# train NAME OPTIONS...: a short run in $runs/NAME.
train() {
    local name=$1
    shift
    rm -rf "${runs:?}/$name"
    "$softrnn" train --out "$runs/$name" --data recall --preset "$preset" --batch 8 --length 256 \
        --validate-every 0 "$@"
}
resume() { "$softrnn" train --resume "$runs/$1" "${@:2}"; }
bf16() { train "$@" --device cuda --precision bf16; }
fp8() { train "$@" --device cuda --precision fp8; }
# Weights and moments of the last checkpoints of two runs.
last_of() { ls -td "$runs/$1"/checkpoints/*/ | head -n 1; }
same() {
    cmp "$(last_of "$1")/model.safetensors" "$(last_of "$2")/model.safetensors" &&
        cmp "$(last_of "$1")/optimizer.safetensors" "$(last_of "$2")/optimizer.safetensors"
}

same_bits() {
    bf16 once --steps 20 && bf16 again --steps 20 && same once again
}
same_bits_fp8() {
    fp8 narrow --steps 20 --stop-step 9 && resume narrow --stop-step 0 --device cuda && fp8 narrow_whole --steps 20 &&
        same narrow narrow_whole
}
stop_and_resume() {
    bf16 stopped --steps 20 --stop-step 9 && resume stopped --stop-step 0 --device cuda && bf16 whole --steps 20 &&
        same stopped whole
}
moves() { # a checkpoint from the CPU to the GPU and back
    train moving --steps 15 --stop-step 5 --device cpu && resume moving --device cuda --stop-step 10 &&
        resume moving --device cpu --stop-step 0 && [ -d "$runs/moving/checkpoints/step-000000015" ]
}
# bf16 on the GPU against float on the CPU, compared with the spread over seeds: the mean of the last losses.
follows() {
    train cpu --steps "$steps" --device cpu && bf16 gpu --steps "$steps" &&
        bf16 seed2 --steps "$steps" --seed 2 && bf16 seed3 --steps "$steps" --seed 3 &&
        python3 - "$runs" <<'END'
import json, sys
def last(run):
    losses = [json.loads(line).get("loss") for line in open(f"{sys.argv[1]}/{run}/metrics.jsonl")]
    losses = [loss for loss in losses if loss is not None][-20:]
    return sum(losses) / len(losses)
cpu, gpu, others = last("cpu"), last("gpu"), [last("seed2"), last("seed3")]
scatter = max(abs(other - gpu) for other in others)
print(json.dumps({"cpu_float": cpu, "gpu_bf16": gpu, "scatter_of_seeds": scatter}))
sys.exit(abs(cpu - gpu) > scatter)
END
}
golden() { SOFTRNN_TEST_DEVICE=cuda "$build/tests/test_golden_command"; }
# A few kernels of each kind under a tool, which makes them a hundred times slower.
sanitized() {
    compute-sanitizer --tool "$1" --error-exitcode 9 "$softrnn" verify --quick --random 0 \
        --device cuda --dtype bf16 --attention "$2"
}

# Steps of training with every kernel in them. Races within cuBLASLt's own kernels (nvjet) are ignored.
sanitized_training() {
    local words="$results/${1}_words"
    rm -rf "${runs:?}/$1"
    compute-sanitizer --tool "$1" --print-limit 1000000 \
        "$softrnn" train --out "$runs/$1" --data recall --preset tiny --batch 2 --length 64 --steps 2 \
        --validate-every 0 --device cuda --precision bf16 >"$words" 2>&1
    grep -E 'softrnn:|SUMMARY' "$words"
    grep -q 'finished: loss' "$words" && ! grep -E 'Error:|Invalid' "$words" | grep -v nvjet
}

# The longest first.
check_all() {
    local sanitizer tool variant test
    sanitizer=$(command -v compute-sanitizer)
    [ -z "$sanitizer" ] || check racecheck_order:2 sanitized racecheck order:2
    for test in test_attention_mma test_attention_cuda test_attention_hopper test_chunk_states test_ops_cuda test_ops_devices \
        test_model_cuda test_layers_cuda test_lesson_cuda test_muon test_qk_clip; do
        [ ! -x "$build/tests/$test" ] || check "$test" "$build/tests/$test"
    done
    check verify_bf16 "$softrnn" verify --device cuda --dtype bf16 --random 500
    check follows follows
    [ ! -x "$build/tests/test_golden_command" ] || check golden golden
    check verify_float "$softrnn" verify --device cuda --random 500
    check same_bits same_bits
    check same_bits_fp8 same_bits_fp8
    check stop_and_resume stop_and_resume
    check moves moves
    for tool in ${sanitizer:+memcheck racecheck}; do
        for variant in linear_elu softmax gated_softmax gated_softmax_decay mamba2 gla gated_delta_net forget; do
            # racecheck misreads bar.arrive, by which the warps of the delta rule's core meet: docs/PERFORMANCE.md
            [ "$tool-$variant" = racecheck-gated_delta_net ] || check "${tool}_$variant" sanitized "$tool" $variant
        done
        [ "$tool" = racecheck ] || for variant in kda log_linear rat power; do
            check "${tool}_$variant" sanitized "$tool" $variant
        done
        check "${tool}_training" sanitized_training "$tool"
    done
    [ -z "$sanitizer" ] || check memcheck_order:2 sanitized memcheck order:2
    wait
}
check_all

# ---- speed, compared with PyTorch if it is installed

# mlp_hidden VARIANT: the width that gives the small model softmax's 275.3 M parameters, within 0.3 %.
mlp_hidden() {
    case $1 in
    mamba2) echo 1264 ;;
    gated_delta_net) echo 1696 ;;
    kda) echo 1952 ;;
    *) echo 2048 ;;
    esac
}
# small VARIANT [PRECISION OPTIONS...]: the speed of a training step of the small model, its last line. One model remains, to
# decode with.
small() {
    rm -rf "${runs:?}/small_$1"
    "$softrnn" train --out "$runs/small_$1" --data "$data" --preset small --attention "$1" \
        --mlp-hidden "$(mlp_hidden "$1")" --batch 36 --length 1024 --steps 12 --validate-every 0 \
        --device cuda --precision "${2:-bf16}" "${@:3}" &&
        tail -n 1 "$runs/small_$1/timings.jsonl" || return 1
    [ "$1" = softmax ] || rm -rf "${runs:?}/small_$1"
}
# decode TEXTS: tokens per second of the small model, with this many texts at a time.
decode() {
    [ -d "$runs/small_softmax" ] || small softmax || return 1
    for text in $(seq "$1"); do echo "Once upon a time $text"; done >"$runs/prompts"
    "$softrnn" generate --model "$runs/small_softmax" --prompts "$runs/prompts" --batch "$1" --greedy \
        --tokens 500 --device cuda --bf16 --stats 2>&1 >/dev/null |
        sed -n 's/.* tokens, \([0-9.]*\) tokens\/s.*/{"texts": '"$1"', "tokens_per_second": \1}/p'
}
attention() {
    timed() { "$softrnn" bench attention --device cuda --dtype bf16 --backward "$@"; }
    local shape
    timed --attention linear_elu --form chunked --B 36 --H 16 --T 1024 --D 64 || return 1
    timed --attention order:2 --form chunked --B 8 --H 16 --T 4096 --D 16 --Dv 64 || return 1
    for shape in "36 16 1024 64" "8 16 4096 64" "2 16 16384 64" "4 16 4096 128" "1 16 16384 128"; do
        read -r B H T D <<<"$shape"
        timed --attention softmax,norm --B "$B" --H "$H" --T "$T" --D "$D" || return 1
    done
    for shape in "36 1024 64" "8 4096 64" "8 4096 128"; do
        read -r B T D <<<"$shape"
        timed --attention mamba2,gla,delta_net,gated_delta_net,kda,log_linear,forget --B "$B" --H 16 --T "$T" \
            --D "$D" --repeats 3 || return 1
    done
    python3 bench/peers.py attention
}
step attention attention
for variant in softmax norm gated_softmax linear_elu mamba2 gla gated_delta_net kda forget; do
    step "step_$variant" small "$variant"
done
step decode_1 decode 1
step decode_64 decode 64
for variant in softmax norm gated_softmax linear_elu; do
    step "step_fp8_$variant" small "$variant" fp8 --fp8-head
done
step step_peer python3 bench/peers.py step

if [ $list = yes ]; then
    printf '%s\n' "${names[@]}"
    exit
fi
printf '%s\n' "${names[@]}" >"$results/steps"
tools/gpu_record.py write "$record" "$results" || exit 1
echo "$record: sources ${sources:0:12}, logs in $results"
