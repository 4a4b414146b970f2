# cuda_emulated.cmake: CUDA files compiled as C++ for the emulator in src/device/cuda/emulator.
enable_language(CXX)

# softrnn_emulated(TARGET sources...): these .cu files of TARGET, in the folder that calls, are for the emulator.
# It casts memory between types as kernels do, and fast enough needs the vectors of this machine.
function(softrnn_emulated target)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden)
  target_include_directories(${target} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/src/device/cuda/emulator)
  target_compile_definitions(${target} PRIVATE $<$<BOOL:${SOFTRNN_CUDA_RACES}>:SR_EMULATOR_RACES>)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-O2;-march=native;-fno-strict-aliasing;-fno-exceptions;-fno-rtti>"
    # The emulator has the functions that this calls (races.c); the library of that name is not linked.
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${SOFTRNN_CUDA_RACES}>>:-fsanitize=thread;-g>"
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wno-unknown-pragmas;-Werror>")
endfunction()

if(SOFTRNN_CUDA STREQUAL emulated)
  # The functions of cuda.cmake.
  function(softrnn_cuda_objects target)
    add_library(${target} OBJECT ${ARGN})
    softrnn_objects_register(${target})
    softrnn_emulated(${target} ${ARGN})
  endfunction()

  function(softrnn_hopper_objects target)
    softrnn_cuda_objects(${target} ${ARGN})
  endfunction()
endif()
