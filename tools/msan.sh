#!/bin/bash
# msan.sh: configures a build with MemorySanitizer (clang). It reports every branch on uninitialised memory,
# and memory written by a library built without it counts as uninitialised. Usage:
#     tools/msan.sh FOLDER            with a stand-in for CBLAS: for the tests that call no other library
#     tools/msan.sh FOLDER libraries  with all libraries built with it, from the sources of Debian (downloaded): for all tests
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
mkdir -p "$folder"
prefix=$(cd "$folder" && pwd)/prefix
flags='-O1 -g -fPIC -fsanitize=memory -fno-omit-frame-pointer'

# describe MODULE LIBRARY: a pkg-config file for libraries that do not install one.
describe() {
    cat >"$prefix/lib/pkgconfig/$1.pc" <<END
Name: $1
Description: built by tools/msan.sh
Version: 1
Cflags: -I$prefix/include
Libs: -L$prefix/lib -l$2
END
}

# The stand-in.
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig"
cp tests/msan/cblas.h "$prefix/include"
# shellcheck disable=SC2086 # several flags
clang $flags -c tests/msan/cblas.c -o "$prefix/lib/cblas.o"
ar rcs "$prefix/lib/libcblas_plain.a" "$prefix/lib/cblas.o"
describe blas cblas_plain

# The other libraries (make: ninja refuses the files of xz), each with the options that disable its tests and tools.
sources='
jansson   .            -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
libyaml   .            -DBUILD_TESTING=OFF
utf8proc  .
pcre2     .            -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF
libzstd   build/cmake  -DZSTD_BUILD_PROGRAMS=OFF -DZSTD_BUILD_TESTS=OFF -DZSTD_BUILD_SHARED=OFF
xz-utils  .            -DBUILD_TESTING=OFF
cmocka    .            -DWITH_STATIC_LIB=ON -DUNIT_TESTING=OFF -DWITH_EXAMPLES=OFF
'

# get PACKAGE: its source, unpacked into the current folder. Uses separate package lists: a machine may have none for sources.
get() {
    local apt=(apt-get -qq -o Dir::Etc::SourceList="$PWD/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$PWD/lists" -o APT::Sandbox::User=root)
    if [ ! -f updated ]; then
        mkdir -p lists/partial
        # The mirror configured on the machine.
        local mirror
        mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n 1)
        echo "deb-src $mirror $(. /etc/os-release && echo "$VERSION_CODENAME") main" >sources.list
        "${apt[@]}" update
        touch updated
    fi
    "${apt[@]}" source --download-only "$1"
    rm -rf "$1.partial"
    mkdir "$1.partial"
    tar -xf "$(compgen -G "$1_*.orig.tar.*[0-9z]")" -C "$1.partial" --strip-components 1
    mv "$1.partial" "$1"
}

# Without the files that Debian removes, only this way of building zlib works.
build_zlib() {
    [ -d zlib ] || get zlib
    (cd zlib && CC=clang CFLAGS=$flags ./configure --static --prefix="$prefix" && make install) >zlib.log 2>&1 ||
        { tail -n 20 zlib.log; exit 1; }
}

# build_library PACKAGE FOLDER [OPTION]...
build_library() {
    local name=$1 within=$2
    shift 2
    [ -d "$name" ] || get "$name"
    cmake -S "$name/$within" -B "$name/build-msan" -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang \
        -DCMAKE_C_FLAGS="$flags" -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_PREFIX="$prefix" \
        -DCMAKE_INSTALL_LIBDIR=lib "$@" >"$name.log"
    cmake --build "$name/build-msan" --target install >>"$name.log" || { tail -n 20 "$name.log"; exit 1; }
}

if [ "${2:-}" = libraries ]; then
    mkdir -p "$folder/sources"
    (cd "$folder/sources" && build_zlib)
    while read -r name within options; do
        # shellcheck disable=SC2086 # several options
        [ -z "$name" ] || (cd "$folder/sources" && build_library "$name" "$within" $options)
    done <<<"$sources"
    describe yaml-0.1 yaml
    describe liblzma lzma
    export PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig # no system libraries
else
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
fi
cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang \
    -DCMAKE_CXX_COMPILER=clang++ -DSOFTRNN_SANITIZE=memory -DSOFTRNN_GEMM=cblas -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON \
    -DSOFTRNN_CPU_LEVELS=OFF $(command -v ccache >/dev/null && echo -DCMAKE_C_COMPILER_LAUNCHER=ccache) >"$folder/configure.log" ||
    { cat "$folder/configure.log"; exit 1; }
