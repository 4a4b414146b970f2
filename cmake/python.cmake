# python.cmake: what pip installs besides the Python files: the headers, which the package reads, both libraries, and the
# program with its manual and its studies, where an installed program has them.
#
# A wheel has no links, so its libraries have one name each; they find each other in their own folder.
if(NOT SKBUILD)
  return()
endif()
foreach(target softrnn_shared softrnn_lab_shared)
  set_property(TARGET ${target} PROPERTY VERSION)
  set_property(TARGET ${target} PROPERTY SOVERSION)
  set_property(TARGET ${target} PROPERTY INSTALL_RPATH "$ORIGIN")
endforeach()
install(TARGETS softrnn_shared softrnn_lab_shared LIBRARY DESTINATION softrnn/lib COMPONENT python)
install(FILES include/softrnn.h include/softrnn_lab.h DESTINATION softrnn/include COMPONENT python)
install(TARGETS softrnn RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
install(DIRECTORY ${PROJECT_BINARY_DIR}/cli/manual_pages/ DESTINATION ${SKBUILD_DATA_DIR}/share/man/man1
  COMPONENT python FILES_MATCHING PATTERN "*.1")
install(DIRECTORY studies DESTINATION ${SKBUILD_DATA_DIR}/share/softrnn COMPONENT python)

# A wheel for other machines (manylinux.cmake): names of the static libraries in it stay inside.
if(SOFTRNN_MANYLINUX)
  target_link_options(softrnn_lab_shared PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/softrnn_lab.map)
endif()
