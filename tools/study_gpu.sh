#!/bin/sh
# study_gpu.sh PROGRAM STUDY OUT [TEXT...]: tokens of the text in runs/gpu-data, then the study, which trains on them, and its
# report in OUT. Existing files are reused. JOBS=N: runs at a time. RANK="OPTIONS": of a study of students, also what each layer
# of its teacher of the text costs, by `softrnn distil --rank-layers OPTIONS`, next to the students.
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
# Most of it runs on the CPU, which the students leave idle.
rank_layers() {
    teacher=$out/teachers/runs/text.teacher.1 layers=$out/layers/text
    until [ -f "$teacher/result.json" ]; do sleep 1; done
    mkdir -p "$out/layers"
    if [ -f "$layers/layers.json" ]; then
        return
    elif [ -f "$layers/plan/copy.yaml" ]; then
        set -- --resume "$layers"
    else
        set -- --teacher "$teacher" --data runs/gpu-data --out "$layers" $RANK
    fi
    exec nice -n 19 "$program" distil --rank-layers "$@" >"$layers.log" 2>&1
}
status=0
ranking=
if [ -n "${RANK:-}" ]; then
    trap : INT # the study stops, and what follows it is done
    rank_layers &
    ranking=$!
fi
"$program" study "$study" --out "$out" --jobs "${JOBS:-4}" || status=$?
if [ -n "$ranking" ]; then
    [ "$status" -eq 0 ] || kill "$ranking" 2>/dev/null || true
    wait "$ranking" || [ "$status" -ne 0 ] || { echo "the layers of the teacher: see $out/layers/text.log" >&2; status=1; }
fi
"$program" report "$out"
exit "$status"
