#!/bin/bash
# deps.sh: makes sure that everything the build needs is there; `deps.sh test`: what the tests need
# too. Installs only what is missing, with apt-get; says nothing when nothing is. `deps.sh browser`:
# also a browser, without which the test of the report's page is left out. `deps.sh torch`: also torch,
# without which the tests of the Python package on its tensors are left out. `deps.sh slurm`: also Slurm, on
# which a nightly test runs a study. `deps.sh docs`: also what makes the site of `make docs`.
set -euo pipefail

# package        how to see that it is there: a command, a pkg-config module, a file, a Python module
needed='
gcc              command gcc
libc6-dev        file    /usr/include/stdio.h
cmake            command cmake
ninja-build      command ninja
pkg-config       command pkg-config
libjansson-dev   module  jansson
libdnnl-dev      file    /usr/include/dnnl.h
libyaml-dev      module  yaml-0.1
libpcre2-dev     module  libpcre2-8
libutf8proc-dev  module  libutf8proc
libzstd-dev      module  libzstd
zlib1g-dev       module  zlib
liblzma-dev      module  liblzma
libjs-dygraphs   file    /usr/share/javascript/dygraphs/dygraph.min.js
bible-kjv        command bible
'
[ "${1:-}" = "" ] || needed+='
libcmocka-dev    module  cmocka
g++              command g++
clang            command clang
clang-format     command clang-format
libclang-rt-dev  file    /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a
python3          command python3
python3-numpy    python  numpy
python3-cffi     python  cffi
valgrind         command valgrind
ccache           command ccache
openmpi-bin      command mpirun
libopenmpi-dev   file    /usr/lib/*/openmpi/include/mpi.h
'
[ "${1:-}" != browser ] || needed+='
chromium         command chromium
'
[ "${1:-}" != torch ] || needed+='
python3-torch    python  torch
'

[ "${1:-}" != docs ] || needed+='
doxygen          command doxygen
python3-sphinx   command sphinx-build
python3-breathe  python  breathe
python3-myst-parser python myst_parser
furo             python  furo
'

[ "${1:-}" != slurm ] || needed+='
slurm-wlm        command slurmctld
munge            command munged
'

is_there() {
    case $1 in
    command) command -v "$2" >/dev/null ;;
    module) pkg-config --exists "$2" 2>/dev/null ;;
    file) compgen -G "$2" >/dev/null ;;
    python) python3 -c "import $2" 2>/dev/null || /usr/bin/python3 -c "import $2" 2>/dev/null ;;
    esac
}

missing=()
while read -r package kind what; do
    [ -z "$package" ] || is_there "$kind" "$what" || missing+=("$package")
done <<<"$needed"
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "Missing (by their names in Debian 12): ${missing[*]}" >&2
    echo "This system has no apt-get: please install what corresponds to them, then try again." >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "Missing: ${missing[*]}" >&2
        echo "Please run as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "Installing ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
