# library.cmake: how modules contribute objects and dependencies, and how these become the libraries.
#
# Everything goes through the functions below, so that the static library, the shared library, the
# pkg-config file and the CMake package of each all know the same dependencies.

find_package(PkgConfig REQUIRED)

# softrnn_left_out(NAME text): a part that this build lacks, and how to get it. `make` prints these at its end.
function(softrnn_left_out name text)
  message(STATUS "without ${name}: ${text}")
  set_property(GLOBAL APPEND_STRING PROPERTY softrnn_left_out "  ${name}: ${text}\n")
endfunction()

# softrnn_left_out_write(): all of them, into left_out.txt of the build folder.
function(softrnn_left_out_write)
  get_property(text GLOBAL PROPERTY softrnn_left_out)
  if(text)
    string(PREPEND text "built without\n")
  endif()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/left_out.txt CONTENT "${text}" @ONLY)
endfunction()

# softrnn_library_begin(NAME): what follows, up to softrnn_library_end, belongs to library NAME.
macro(softrnn_library_begin name)
  set(SOFTRNN_LIBRARY ${name})
  add_library(${name}_objects OBJECT)
  softrnn_objects_register(${name}_objects)
endmacro()

# softrnn_sources(files...): of the module that calls it.
function(softrnn_sources)
  target_sources(${SOFTRNN_LIBRARY}_objects PRIVATE ${ARGN})
endfunction()

# softrnn_objects_register(TARGET): TARGET is an OBJECT library that belongs to the library, compiled
# like the rest; it may add options of its own, such as an instruction set.
function(softrnn_objects_register target)
  target_link_libraries(${target} PUBLIC softrnn_options)
  set_property(GLOBAL APPEND PROPERTY ${SOFTRNN_LIBRARY}_object_targets ${target})
endfunction()

# softrnn_needs_package(PREFIX module): a library that pkg-config knows.
function(softrnn_needs_package prefix module)
  pkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET GLOBAL ${module})
  target_link_libraries(${SOFTRNN_LIBRARY}_objects PUBLIC PkgConfig::${prefix})
  set_property(GLOBAL APPEND PROPERTY ${SOFTRNN_LIBRARY}_packages ${module})
endfunction()

# softrnn_needs_library(name...): libraries that the linker finds by name.
function(softrnn_needs_library)
  target_link_libraries(${SOFTRNN_LIBRARY}_objects PUBLIC ${ARGN})
  set_property(GLOBAL APPEND PROPERTY ${SOFTRNN_LIBRARY}_libraries ${ARGN})
endfunction()

# softrnn_library_end([BASE]): makes NAME_static and NAME_shared of all that was registered. BASE is
# another library of this project, on which this one stands.
function(softrnn_library_end)
  set(name ${SOFTRNN_LIBRARY})
  set(base ${ARGV0})
  get_property(targets GLOBAL PROPERTY ${name}_object_targets)
  get_property(packages GLOBAL PROPERTY ${name}_packages)
  get_property(libraries GLOBAL PROPERTY ${name}_libraries)
  set(objects ${targets})
  list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")

  # In the build tree users get what the objects have, internal headers included; an installed static
  # library names its dependencies for softrnnConfig.cmake to find.
  add_library(${name}_static STATIC ${objects})
  target_link_libraries(${name}_static PUBLIC $<BUILD_INTERFACE:${name}_objects>)
  foreach(package ${packages})
    target_link_libraries(${name}_static INTERFACE
      $<INSTALL_INTERFACE:PkgConfig::softrnn_${package}>)
  endforeach()
  foreach(library ${libraries})
    target_link_libraries(${name}_static INTERFACE $<INSTALL_INTERFACE:${library}>)
  endforeach()

  add_library(${name}_shared SHARED ${objects})
  target_link_libraries(${name}_shared PRIVATE $<BUILD_INTERFACE:${name}_objects>)
  set_target_properties(${name}_shared PROPERTIES
    EXPORT_NAME ${name} VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  foreach(kind static shared)
    if(base)
      target_link_libraries(${name}_${kind} PUBLIC ${base}_${kind})
    endif()
    set_target_properties(${name}_${kind} PROPERTIES OUTPUT_NAME ${name})
    target_include_directories(${name}_${kind} INTERFACE
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  endforeach()
endfunction()

# softrnn_library_serves(): another library of this project stands on this one, so it shows that one its
# inner names (sr_), under a version that no other release has. Calls among its own files stay direct.
macro(softrnn_library_serves)
  get_property(targets GLOBAL PROPERTY ${SOFTRNN_LIBRARY}_object_targets)
  set_target_properties(${targets} PROPERTIES
    C_VISIBILITY_PRESET default CXX_VISIBILITY_PRESET default CUDA_VISIBILITY_PRESET default)
  foreach(target ${targets})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-fno-semantic-interposition>)
  endforeach()
  if(SOFTRNN_CUDA STREQUAL emulated) # whose runtime the other library calls, too
    set(SOFTRNN_EMULATED_NAMES " cuda*;")
  endif()
  configure_file(cmake/softrnn.map.in softrnn.map @ONLY)
  target_link_options(${SOFTRNN_LIBRARY}_shared PRIVATE
    -Wl,--version-script=${PROJECT_BINARY_DIR}/softrnn.map -Wl,-Bsymbolic)
  set_property(TARGET ${SOFTRNN_LIBRARY}_shared APPEND PROPERTY LINK_DEPENDS
    ${PROJECT_BINARY_DIR}/softrnn.map)
endmacro()

# softrnn_variant_objects(NAME definitions flags sources...): one source list compiled once more, with its
# own definitions and flags, into the library. Contraction makes a*b+c one rounding, as kernels expect.
function(softrnn_variant_objects name definitions flags)
  add_library(${name} OBJECT ${ARGN})
  target_compile_definitions(${name} PRIVATE ${definitions})
  # Sanitizers make -O3 of these files take minutes.
  target_compile_options(${name} PRIVATE $<IF:$<OR:$<BOOL:${SOFTRNN_SANITIZE}>,$<BOOL:${SOFTRNN_FUZZ}>>,-O1,-O3>
    -fno-math-errno -fno-trapping-math -ffp-contract=fast ${flags}
    $<$<C_COMPILER_ID:Clang>:-Wno-pass-failed>) # a loop that -O1 does not vectorise is no error
  softrnn_objects_register(${name})
endfunction()
