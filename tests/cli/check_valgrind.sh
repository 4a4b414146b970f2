#!/bin/bash
# check_valgrind.sh: two steps of training, evaluation and generation under valgrind's memcheck.
# Usage: check_valgrind.sh PROGRAM
#
# oneDNN's generated AVX code reads whole vectors, also past the end of its own buffers: here it is
# limited to older instructions. The attention kernels are not.
set -euo pipefail
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ONEDNN_MAX_CPU_ISA=SSE41 DNNL_MAX_CPU_ISA=SSE41

check() {
    valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
        --errors-for-leak-kinds=definite "$program" "$@"
}

task=recall:pairs=2,vocab=257,length=12
check train --out "$work/run" --data "$task" --steps 2 --batch 2 --threads 2 --layers 4 \
    --attention 0:softmax,1:order:2,2:gated_softmax_decay,3:linear_cosine \
    --hidden 16 --heads 2 --mlp-hidden 16
check eval --model "$work/run" --data "$task" --batches 1
check generate --model "$work/run" --tokenizer bytes --prompt ab --tokens 4
