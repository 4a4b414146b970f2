# manylinux.cmake: the toolchain of wheels for every Linux with glibc 2.28 or newer (manylinux_2_28).
#
# gcc compiles, so that the kernels are those of every other build. tools/manylinux_link.sh links against the symbols of
# glibc 2.28. Other libraries are linked statically: the wheel then loads nothing but the C library.
set(link ${CMAKE_CURRENT_LIST_DIR}/../tools/manylinux_link.sh)
set(CMAKE_C_LINK_EXECUTABLE "${link} <FLAGS> <LINK_FLAGS> <OBJECTS> -o <TARGET> <LINK_LIBRARIES>")
set(CMAKE_CUDA_LINK_EXECUTABLE "${link} <LINK_FLAGS> <OBJECTS> -o <TARGET> <LINK_LIBRARIES>") # flags are nvcc's
foreach(language C CUDA)
  set(CMAKE_${language}_CREATE_SHARED_LIBRARY
    "${link} -shared <LINK_FLAGS> <SONAME_FLAG><TARGET_SONAME> -o <TARGET> <OBJECTS> <LINK_LIBRARIES>")
endforeach()

# Where Debian keeps libraries, which CMake learns from gcc's linker only.
set(CMAKE_LIBRARY_ARCHITECTURE x86_64-linux-gnu)
# The names under which pkg_check_modules keeps what it found.
foreach(library ZLIB:z LZMA:lzma PCRE2:pcre2-8 UTF8PROC:utf8proc ZSTD:zstd YAML:yaml JANSSON:jansson)
  string(REPLACE ":" ";" library ${library})
  list(GET library 0 prefix)
  list(GET library 1 name)
  execute_process(COMMAND gcc -print-file-name=lib${name}.a OUTPUT_VARIABLE archive OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(pkgcfg_lib_${prefix}_${name} ${archive} CACHE FILEPATH "")
endforeach()

# BLIS without threads of its own: as fast as oneDNN here, and 12 MB instead of 40 (docs/PYTHON.md).
set(SOFTRNN_GEMM blis CACHE STRING "")
set(SOFTRNN_MANYLINUX ON)
