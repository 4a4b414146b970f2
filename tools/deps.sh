#!/bin/bash
# deps.sh: installs missing build dependencies with apt-get; prints nothing if none is missing.
#
# Usage: deps.sh [KIND]
#   cuda     a build with CUDA, apart from the toolkit itself
#   mpi      training on several ranks
#   test     the tests
#   browser  the tests, and a browser that opens the report
#   torch    the tests, and Debian's torch for the Python package
#   slurm    the tests, and Slurm for a nightly study
#   python   a separate environment for Python packages
#   docs     the site of `make docs`
#   package  wheels and Debian packages, in such an environment
set -euo pipefail

# package        how to detect it: a command, a pkg-config module, a file, a Python module
build='
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
cuda='
g++              command g++
'
mpi='
openmpi-bin      command mpirun
libopenmpi-dev   file    /usr/lib/*/openmpi/include/mpi.h
'
test='
libcmocka-dev    module  cmocka
clang            command clang
clang-format     command clang-format
libclang-rt-dev  file    /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a
python3          command python3
python3-numpy    python  numpy
python3-cffi     python  cffi
valgrind         command valgrind
ccache           command ccache
xz-utils         command xz
'
browser='
chromium         command chromium
'
torch='
python3-torch    python  torch
'
docs='
python3-numpy    python  numpy
python3-cffi     python  cffi
doxygen          command doxygen
python3-sphinx   command sphinx-build
python3-breathe  python  breathe
python3-myst-parser python myst_parser
furo             python  furo
'
slurm='
slurm-wlm        command slurmctld
munge            command munged
'
python='
python3          command python3
python3-venv     python  ensurepip
'
package='
libblis-serial-dev file  /usr/lib/*/blis-serial/libblis.a
binutils         command strip
dpkg-dev         command dpkg-shlibdeps
file             command file
'
case ${1:-} in
'') needed=$build ;;
cuda) needed=$build$cuda ;;
mpi) needed=$build$mpi ;;
test) needed=$build$cuda$mpi$test ;;
browser | torch | slurm) needed=$build$cuda$mpi$test${!1} ;;
docs) needed=$build$python$docs ;;
python) needed=$build$python ;;
package) needed=$build$python$package ;;
*)
    echo "deps.sh: $1 is not a kind; expected cuda, mpi, test, browser, torch, slurm, docs, python or package" >&2
    exit 2
    ;;
esac

# Debian's packages are for Debian's Python, which need not be the first one on the path.
interpreter=python3
! command -v apt-get >/dev/null || interpreter=/usr/bin/python3
is_there() {
    case $1 in
    command) command -v "$2" >/dev/null ;;
    module) pkg-config --exists "$2" 2>/dev/null ;;
    file) compgen -G "$2" >/dev/null ;;
    python) "$interpreter" -c "import $2" 2>/dev/null ;;
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
