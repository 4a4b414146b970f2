#!/bin/bash
# check_manual.sh: manual pages and completions contain every command and option of --help.
# Usage: check_manual.sh PROGRAM MANUAL_FOLDER
set -uo pipefail
program=$1
manual=$2
failures=0

bash_text=$(cat "$manual/softrnn.bash")
zsh_text=$(cat "$manual/_softrnn")
fish_text=$(cat "$manual/softrnn.fish")

complain() {
    echo "$*"
    failures=$((failures + 1))
}

# commands_of WORDS...: the rows of a table of commands; empty for a command without subcommands.
commands_of() {
    "$program" "$@" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'
}

check_command() {
    local page="$manual/softrnn${*:+-}$(IFS=-; echo "$*").1" text option
    [ -s "$page" ] || complain "softrnn $*: no manual page"
    text=$(cat "$page")
    for option in $("$program" "$@" --help | sed -n 's/^  \(--[a-zA-Z0-9-]*\).*/\1/p'); do
        [[ $text == *"${option//-/\\-}"* ]] || complain "softrnn $*: no $option in its page"
        [[ $bash_text == *"$option"* ]] || complain "bash: no $option of $*"
        [[ $zsh_text == *"$option"* ]] || complain "zsh: no $option of $*"
        [[ $fish_text == *"-l ${option#--}"* ]] || complain "fish: no $option of $*"
    done
}

check_table() {
    local name
    check_command "$@"
    for name in $(commands_of "$@"); do
        check_table "$@" "$name"
    done
}
check_table
if command -v groff >/dev/null; then
    for page in "$manual"/*.1; do
        [ -z "$(groff -man -ww -z "$page" 2>&1)" ] || complain "$page: groff complains"
    done
fi

# completes EXPECTED WORDS...: bash would offer EXPECTED for the last of the words.
completes() {
    local expected=$1 got
    shift
    got=$(bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _softrnn
        echo "${COMPREPLY[*]}"' - "$manual/softrnn.bash" softrnn "$@")
    [ "$got" = "$expected" ] || complain "bash offers '$got' for '$*', not '$expected'"
}
completes "tokenizer train" t
completes "prepare" data pr
completes "--layout --layers" train --out runs/a --la
completes "packed" train --layout pa
completes "linear_elu" train --attention linear_e
completes "" train --steps 1
! command -v zsh >/dev/null || zsh -n "$manual/_softrnn" || complain "zsh cannot read its completion"
if command -v fish >/dev/null; then
    got=$(fish -c "source '$manual/softrnn.fish'; complete -C 'softrnn train --layout pa'" | cut -f1)
    [ "$got" = packed ] || complain "fish offers '$got' for 'train --layout pa'"
fi
[ "$failures" = 0 ]
