# library.cmake: how modules contribute objects and dependencies, and how these become the library.
#
# Everything goes through the functions below, so that the static library, the shared library, the
# pkg-config file and the CMake package all know the same dependencies.

find_package(PkgConfig REQUIRED)

# softrnn_objects_register(TARGET): TARGET is an OBJECT library that belongs to the library, compiled
# like the rest; it may add options of its own, such as an instruction set.
function(softrnn_objects_register target)
  target_link_libraries(${target} PUBLIC softrnn_options)
  set_property(GLOBAL APPEND PROPERTY SOFTRNN_OBJECT_TARGETS ${target})
endfunction()

# softrnn_needs_package(PREFIX module): a library that pkg-config knows.
function(softrnn_needs_package prefix module)
  pkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET GLOBAL ${module})
  target_link_libraries(softrnn_objects PUBLIC PkgConfig::${prefix})
  set_property(GLOBAL APPEND PROPERTY SOFTRNN_PACKAGES ${module})
endfunction()

# softrnn_needs_library(name...): libraries that the linker finds by name.
function(softrnn_needs_library)
  target_link_libraries(softrnn_objects PUBLIC ${ARGN})
  set_property(GLOBAL APPEND PROPERTY SOFTRNN_LIBRARIES ${ARGN})
endfunction()

# Makes softrnn_static and softrnn_shared of all registered objects.
function(softrnn_assemble)
  get_property(targets GLOBAL PROPERTY SOFTRNN_OBJECT_TARGETS)
  get_property(packages GLOBAL PROPERTY SOFTRNN_PACKAGES)
  get_property(libraries GLOBAL PROPERTY SOFTRNN_LIBRARIES)
  set(objects ${targets})
  list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")

  # In the build tree users get what softrnn_objects has, internal headers included; an installed static
  # library names its dependencies for softrnnConfig.cmake to find.
  add_library(softrnn_static STATIC ${objects})
  target_link_libraries(softrnn_static PUBLIC $<BUILD_INTERFACE:softrnn_objects>)
  foreach(package ${packages})
    target_link_libraries(softrnn_static INTERFACE
      $<INSTALL_INTERFACE:PkgConfig::softrnn_${package}>)
  endforeach()
  foreach(library ${libraries})
    target_link_libraries(softrnn_static INTERFACE $<INSTALL_INTERFACE:${library}>)
  endforeach()

  add_library(softrnn_shared SHARED ${objects})
  target_link_libraries(softrnn_shared PRIVATE $<BUILD_INTERFACE:softrnn_objects>)
  set_target_properties(softrnn_shared PROPERTIES
    EXPORT_NAME softrnn VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  foreach(target softrnn_static softrnn_shared)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME softrnn)
    target_include_directories(${target} INTERFACE
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  endforeach()
endfunction()

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
