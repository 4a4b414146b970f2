#!/bin/sh
# study_gpu.sh PROGRAM STUDY OUT [TEXT...]: tokens of the text in runs/gpu-data, then the study, which trains on them, and its
# report in OUT. Existing files are reused. JOBS=N: runs at a time.
set -eu
program=$1
study=$2
out=$3
shift 3
if [ ! -f runs/gpu-data/data.json ]; then
    if [ $# -eq 0 ]; then
        echo "no tokens in runs/gpu-data: add TEXT='corpus.txt.xz ...' to the command, which makes them" >&2
        exit 2
    fi
    mkdir -p runs
    "$program" tokenizer train "$@" --vocab 8192 --out runs/gpu-tokenizer.json
    "$program" data prepare --tokenizer runs/gpu-tokenizer.json --out runs/gpu-data "$@"
fi
status=0
"$program" study "$study" --out "$out" --jobs "${JOBS:-4}" || status=$?
"$program" report "$out"
exit "$status"
