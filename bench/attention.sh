#!/bin/sh
# attention.sh: the standard list of attention cases, one JSON line each.
# Usage: bench/attention.sh [PROGRAM]
set -eu
program=${1:-build/cli/softrnn}
run() {
    "$program" bench attention --threads 2 --backward "$@"
}

run --attention softmax,norm --T 1024,4096
run --attention all --T 1024 --repeats 3
run --attention linear_elu --form chunked --T 4096 --against softmax --repeats 3
run --attention order:2 --form chunked --H 4 --D 16 --T 16384 --against order:2 --repeats 2
