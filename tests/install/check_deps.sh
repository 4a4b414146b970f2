#!/bin/bash
# check_deps.sh: building does not require packages that only the tests need.
# Usage: check_deps.sh SOURCE_FOLDER
set -euo pipefail
deps=$1/tools/deps.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A system without the tools of the tests, whose apt-get only prints its arguments.
for name in bash gcc cmake ninja pkg-config bible id env; do
    ln -s "$(command -v $name)" "$work/$name"
done
printf '#!/bin/bash\necho "apt-get $*" >>"%s"\n' "$work/asked" >"$work/apt-get"
cp "$work/apt-get" "$work/sudo"
chmod +x "$work/apt-get" "$work/sudo"

PATH=$work bash "$deps"
[ ! -e "$work/asked" ] || { echo "a build installs more: $(cat "$work/asked")"; exit 1; }
PATH=$work bash "$deps" test 2>/dev/null
grep -q clang "$work/asked" || { echo "the tests do not install clang"; exit 1; }
# A build with CUDA needs a C++ compiler, and nothing of the tests.
rm "$work/asked"
PATH=$work bash "$deps" cuda 2>/dev/null
grep -qF g++ "$work/asked" || { echo "a build with CUDA does not install g++"; exit 1; }
! grep -q cmocka "$work/asked" || { echo "a build with CUDA installs the tests' packages"; exit 1; }
if PATH=$work bash "$deps" nonsense 2>/dev/null; then
    echo "a kind that does not exist is accepted"
    exit 1
fi
