# cuda.cmake: the CUDA language, as the project uses it.

# Ampere and newer. Files for Hopper alone (softrnn_hopper_objects) choose for themselves: its matrix
# instructions exist for 90a only, and older targets refuse them.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual CACHE STRING "GPUs to compile for")
enable_language(CXX CUDA)
# Not by FindCUDAToolkit: that of CMake 3.25 (Debian 12) fails with CUDA 13, which has no nvToolsExt. With another linker
# (manylinux.cmake) CMake does not learn nvcc's folders, so those of its toolkit are named.
cmake_path(GET CMAKE_CUDA_COMPILER PARENT_PATH cuda_toolkit)
cmake_path(GET cuda_toolkit PARENT_PATH cuda_toolkit)
find_library(CUDA_cudart_static_LIBRARY cudart_static REQUIRED HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES}
  ${cuda_toolkit}/lib64 ${cuda_toolkit}/targets/x86_64-linux/lib)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY None) # linked by name, as every other dependency is
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -Xcompiler=-fno-exceptions,-fno-rtti,-Wall,-Wextra,-Wshadow,-Werror -Werror=all-warnings")

# softrnn_cuda_objects(TARGET sources...): an OBJECT library of .cu files that belongs to the library. Spilled
# registers and arrays in local memory are errors, and so are matrix instructions that the compiler serialised,
# which it only mentions.
function(softrnn_cuda_objects target)
  add_library(${target} OBJECT ${ARGN})
  softrnn_objects_register(${target})
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xptxas -Werror,-warn-spills,-warn-lmem-usage>")
  set_property(TARGET ${target} PROPERTY CUDA_COMPILER_LAUNCHER
    ${PROJECT_SOURCE_DIR}/tools/nvcc_checked.sh ${CMAKE_CUDA_COMPILER_LAUNCHER})
endfunction()

# softrnn_hopper_objects(TARGET sources...): the same for files that include hopper.h.
function(softrnn_hopper_objects target)
  softrnn_cuda_objects(${target} ${ARGN})
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES 90a-real)
endfunction()
