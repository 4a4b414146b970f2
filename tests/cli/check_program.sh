#!/bin/bash
# check_program.sh: exit codes, output streams and lost output of the program.
# Usage: check_program.sh PROGRAM
set -uo pipefail
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# expect CODE STREAM TEXT ARGUMENTS...: the program ends with CODE, and TEXT is in "out" or "err";
# the other stream is empty.
expect() {
    local code=$1 stream=$2 text=$3 other=out got
    shift 3
    [ "$stream" = out ] && other=err
    "$program" "$@" >"$work/out" 2>"$work/err"
    got=$?
    if [ "$got" != "$code" ] || ! grep -qF -- "$text" "$work/$stream" || [ -s "$work/$other" ]; then
        echo "softrnn $*: exit $got, expected $code and '$text' in std$stream only"
        cat "$work/out" "$work/err"
        failures=$((failures + 1))
    fi
}

expect 0 out "Commands:" --help
expect 0 out "Commands:" -h
expect 0 out "softrnn 0." --version
expect 0 out "softrnn 0." -V
expect 0 out "Commands:" help
expect 0 out "Usage: softrnn train" help train
expect 0 out "Usage: softrnn data prepare" help data prepare
expect 2 err "unknown command 'trian': did you mean 'train'?" help trian
expect 2 err "Commands:"
expect 2 err "unknown command 'inof': did you mean 'info'?" inof
expect 2 err "unknown command 'qqqqqq'" qqqqqq
expect 2 err "unknown option '--hlep': did you mean '--help'?" info --hlep
expect 2 err "unexpected argument 'x'" info x

# A whole model is not an attention, and the message says so.
expect 0 out "avey_causal     Avey made causal" variants
expect 0 out '"name": "avey_causal"' variants --json --head-size 32

# Learned tensors are listed by their names in files, and every level has a state.
expect 0 out "    learns g_proj, gk_proj.0, gk_proj.1, g_norm_swish_gate" variants
expect 0 out "    learns in_proj, conv1d, out_proj, norm, A_log, dt_bias, D" variants
expect 0 out "log_linear                                                        240 KB" variants
expect 1 err "'avey' is a whole model, not an attention" verify --attention avey
expect 1 err "'avey' is a whole model, not an attention" attend --attention avey \
    --in "$work/in" --out "$work/result"
expect 1 err "'avey_causal' is a whole model, not an attention" train --out "$work/run" \
    --data recall:pairs=2 --layers 2 --attention 0:avey_causal,1:norm

# caution TEXT ARGUMENTS...: the program succeeds, and TEXT is in stderr; no text: stderr is empty.
caution() {
    local text=$1 right=yes
    shift
    "$program" "$@" >"$work/out" 2>"$work/err" || right=
    if [ -n "$text" ]; then
        grep -qF -- "$text" "$work/err" || right=
    else
        [ ! -s "$work/err" ] || right=
    fi
    if [ -z "$right" ]; then
        echo "softrnn $*: expected '$text' in stderr"
        cat "$work/err"
        failures=$((failures + 1))
    fi
}

# Warnings: a form that only the generic kernel computes, and a delta rule that may diverge.
small="--T 16 --H 1 --D 4 --repeats 1"
caution "delta_net: the parallel form is left to the generic kernel" bench attention --attention delta_net \
    --form parallel $small
caution "" bench attention --attention delta_net $small
caution "" bench attention --attention forget --form parallel $small
caution "the delta rule is stable while" bench attention --attention softmax,write=delta $small
caution "the delta rule is stable while" train --out "$work/delta" --data recall:pairs=2,vocab=16,length=16 \
    --attention softmax,write=delta --hidden 8 --heads 1 --layers 2 --batch 2 --steps 1 --validate-batches 1

# Commands that show losses of Avey as published warn that it is not causal.
"$program" train --out "$work/leaking" --data recall:pairs=2,vocab=16,length=16 --attention avey,chunk=4,chunks=2 \
    --hidden 8 --layers 1 --batch 2 --steps 1 --validate-batches 1 >"$work/out" 2>"$work/err"
for leaking in "train --resume $work/leaking" "eval --model $work/leaking --data recall:pairs=2,vocab=16,length=16 --batches 1" \
    "generate --model $work/leaking --tokens 1" "convert --in $work/leaking --out $work/leaking-copy" \
    "orders --model $work/leaking --data recall:pairs=2,vocab=16,length=16" "compare $work/leaking" "report $work/leaking"; do
    "$program" $leaking >"$work/out" 2>"$work/err"
    if ! grep -q "avey is not causal" "$work/err"; then
        echo "softrnn $leaking says nothing of the leak: $(cat "$work/err")"
        failures=$((failures + 1))
    fi
done

# Every command explains itself, with an example.
for command in $("$program" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    expect 0 out "Usage: softrnn $command" "$command" --help
    expect 0 out "Examples:" "$command" --help
done

# Output that could not be written is a failure.
if "$program" info >/dev/full 2>"$work/err" || ! grep -q "could not write" "$work/err"; then
    echo "a full disk is not noticed"
    failures=$((failures + 1))
fi
# A reader that closes the pipe is not reported.
{ sleep 0.2; "$program" info 2>"$work/err"; echo $? >"$work/code"; } | true
if [ "$(cat "$work/code")" != 1 ] || [ -s "$work/err" ]; then
    echo "a closed pipe: exit $(cat "$work/code"), said: $(cat "$work/err")"
    failures=$((failures + 1))
fi
"$program" info >&- 2>"$work/err"
if [ $? != 1 ] || ! grep -q "could not write" "$work/err"; then
    echo "a closed output is not noticed"
    failures=$((failures + 1))
fi

# A word of the command line is shown without its control characters.
for word in $'\033[31mred' $'--\033[31mred' $'--steps=\033[31m'; do
    "$program" data tasks "$word" 2>"$work/err"
    if [ $? != 2 ] || grep -q $'\033' "$work/err"; then
        echo "a control character of an argument is printed: $(cat -v "$work/err")"
        failures=$((failures + 1))
    fi
done
"$program" train --steps $'\033[31m' 2>"$work/err"
"$program" $'\033[31m' 2>>"$work/err"
! grep -q $'\033' "$work/err" || { echo "control characters: $(cat -v "$work/err")"; failures=$((failures + 1)); }

# Nor are those of a text.
printf 'a\033[31m\0b\tc\n%.0s' $(seq 20) >"$work/steering.txt"
"$program" data show --length 16 --batch 1 "$work/steering.txt" >"$work/out" 2>&1
if grep -q $'\033' "$work/out" || ! grep -qF 'a\x1b[31m\x00b'$'\t''c' "$work/out"; then
    echo "data show prints control characters: $(cat -v "$work/out")"
    failures=$((failures + 1))
fi

# Wrong values are wrong usage, and missing files are not created.
expect 1 err "no folder of shards: it has no data.json" train --out "$work/run" --data "$work"
expect 2 err "no preset is called nosuch: they are tiny, mini" train --out "$work/run" --data recall --preset nosuch
expect 2 err "there is no study.json" report "$work/nosuch"
[ ! -e "$work/nosuch" ] || { echo "report makes the folder that it should read"; failures=$((failures + 1)); }

# A compressed text trains the same tokenizer, and too little text is reported.
printf 'abab abab ab\n' >"$work/a.txt"
gzip -c "$work/a.txt" >"$work/a.gz"
for name in a.txt a.gz; do
    "$program" tokenizer train "$work/$name" --vocab 300 --out "$work/$name.json" 2>"$work/err"
    if ! grep -q "of 300 tokens" "$work/err" || ! cmp -s "$work/a.txt.json" "$work/$name.json"; then
        echo "tokenizer train $name: another tokenizer, or no word on its size"
        failures=$((failures + 1))
    fi
done
[ "$failures" = 0 ]
