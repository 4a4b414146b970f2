#!/bin/bash
# check_report_page.sh: reports in a real browser: nothing on the console, every chart drawn and
# reacting, hostile names stay text. Usage: check_report_page.sh PROGRAM MAKE_STUDY
# Exit 77 (skipped) without a browser; `make deps-browser` installs one.
set -uo pipefail
program=$1 make_study=$2
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "$1"
    failures=$((failures + 1))
}

# open_page PAGE WIDTH: the page's elements after its own self-test, and the browser's messages.
open_page() {
    HOME=$work timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" \
        --enable-logging=stderr --window-size="$2",900 --virtual-time-budget=10000 \
        --dump-dom "file://$1#selftest" >"$work/dom" 2>"$work/messages"
}

for kind in plain hostile one-seed broken systems; do
    "$make_study" "$work/$kind" $kind || fail "$kind: no study made"
    "$program" report "$work/$kind" >/dev/null 2>&1 || fail "$kind: no report"
    for width in 1200 390; do
        open_page "$work/$kind/report.html" $width || fail "$kind: the browser failed"
        grep -q 'selftest passed: [1-9][0-9]* charts' "$work/dom" ||
            fail "$kind at $width: $(grep -o '<p id="selftest">.*</p>' "$work/dom")"
        if grep 'CONSOLE' "$work/messages"; then
            fail "$kind at $width: words on the console"
        fi
    done
    # An injected element would carry the attribute unescaped.
    ! grep -q '<img' "$work/dom" || fail "$kind: a name became an element"
    [ "$(grep -c '<script' "$work/dom")" = 4 ] || fail "$kind: there are other scripts than the page's own"
done

# A study of students: its charts begin with logarithmic axes.
cat >"$work/students.yaml" <<'END'
seeds: [1, 2]
teacher: {settings: {steps: 4}}
variants: {window: "softmax,window=3", linear: linear_elu}
budgets: {none: "", "<img src=x>": "1"}
students: {align-steps: 2, distil-steps: 2}
settings: {layers: 2, heads: 2, hidden: 16, mlp-hidden: 32, initial-range: 0.3, batch: 4, validate-every: 1}
tasks: {recall: {measure: accuracy, settings: {data: "recall:pairs=2,vocab=8,length=12"}}}
END
"$program" study "$work/students.yaml" --out "$work/students" >/dev/null 2>&1 || fail "students: no study"
for width in 1200 390; do
    open_page "$work/students/report.html" $width || fail "students: the browser failed"
    grep -q 'selftest passed: [1-9][0-9]* charts' "$work/dom" ||
        fail "students at $width: $(grep -o '<p id="selftest">.*</p>' "$work/dom")"
    ! grep 'CONSOLE' "$work/messages" || fail "students at $width: words on the console"
    ! grep -q '<img' "$work/dom" || fail "students: a name became an element"
done

# The page of a system.
open_page "$work/systems/systems/4-mamba2/report.html" 390 || fail "a system: the browser failed"
grep -q '<math' "$work/dom" || fail "a system: no equation"
! grep 'CONSOLE' "$work/messages" || fail "a system: words on the console"

# The orders of a run's checkpoints.
task='recall:pairs=2,vocab=8,length=12'
"$program" train --out "$work/run" --data "$task" --layers 1 --heads 2 --hidden 16 --steps 2 --batch 2 \
    --initial-range 3 --save-every 1 --keep 2 >/dev/null 2>&1 || fail "orders: no run"
"$program" orders --run "$work/run" --data "$task" --tokens 256 --trial-tokens 32 --most-order 4 \
    --text-tokens 0 --threads 1 --out "$work/orders" >/dev/null 2>&1 || fail "orders: not measured"
"$program" report "$work/orders" >/dev/null 2>&1 || fail "orders: no page"
for width in 1200 390; do
    open_page "$work/orders/report.html" $width || fail "orders: the browser failed"
    grep -q 'selftest passed: [1-9][0-9]* charts' "$work/dom" ||
        fail "orders at $width: $(grep -o '<p id="selftest">.*</p>' "$work/dom")"
    if grep 'CONSOLE' "$work/messages"; then
        fail "orders at $width: words on the console"
    fi
done
# The axis fits seven characters; longer labels would be cut off and show wrong numbers.
labels=$(grep -o 'dygraph-axis-label-y[^>]*>[^<]*<' "$work/dom" | sed 's/.*>//; s/<//')
[ -n "$labels" ] || fail "orders: an axis without labels"
! grep '........' <<<"$labels" || fail "orders: a label that the axis cuts off"

# A page that throws must be noticed: the test can fail.
sed 's/window.reportBoards = boards/window.reportBoards = nothing/' "$work/plain/report.html" >"$work/broken.html"
open_page "$work/broken.html" 1200
grep -q 'CONSOLE' "$work/messages" || fail "a page with an error goes unnoticed"
[ "$failures" = 0 ]
