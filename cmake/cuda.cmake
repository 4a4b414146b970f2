# cuda.cmake: the CUDA language, as the project uses it.

# Hopper, and Ampere for older cards.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual CACHE STRING "GPUs to compile for")
enable_language(CXX CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY None) # linked by name, as every other dependency is
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -Xcompiler=-fno-exceptions,-fno-rtti,-Wall,-Wextra,-Wshadow,-Werror -Werror=all-warnings")
