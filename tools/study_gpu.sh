#!/bin/sh
# study_gpu.sh PROGRAM TEXT...: tokens of the text in runs/gpu-data, then the study for a GPU in runs/study-gpu and its
# report. Existing files are reused.
set -eu
program=$1
shift
if [ ! -f runs/gpu-data/data.json ]; then
    if [ $# -eq 0 ]; then
        echo "no tokens in runs/gpu-data: make study-gpu TEXT='corpus.txt.xz ...' makes them" >&2
        exit 2
    fi
    mkdir -p runs
    "$program" tokenizer train "$@" --vocab 8192 --out runs/gpu-tokenizer.json
    "$program" data prepare --tokenizer runs/gpu-tokenizer.json --out runs/gpu-data "$@"
fi
status=0
"$program" study studies/gpu.yaml --out runs/study-gpu --jobs 4 || status=$?
"$program" report runs/study-gpu
exit "$status"
