# install.cmake: headers, libraries, program with its manual, pkg-config files and CMake package.
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/softrnn)
install(FILES include/softrnn.h include/softrnn_lab.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS softrnn RUNTIME)
set(manual ${PROJECT_BINARY_DIR}/cli/manual_pages)
install(DIRECTORY ${manual}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
install(FILES ${manual}/softrnn.bash RENAME softrnn
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${manual}/_softrnn DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${manual}/softrnn.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
install(DIRECTORY studies DESTINATION ${CMAKE_INSTALL_DATADIR}/softrnn)
install(TARGETS softrnn_static softrnn_shared softrnn_lab_static softrnn_lab_shared EXPORT softrnn)
install(EXPORT softrnn NAMESPACE softrnn:: FILE softrnnTargets.cmake
  DESTINATION ${package_folder})

# The prefix is found from the file's own place, so that an installed tree can be moved.
file(RELATIVE_PATH pkgconfig_to_prefix
  /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pkgconfig_to_prefix ${pkgconfig_to_prefix})

# softrnn_pkgconfig(NAME DESCRIPTION REQUIRES): NAME.pc for a library with the others that it stands on.
function(softrnn_pkgconfig name description requires)
  get_property(packages GLOBAL PROPERTY ${name}_packages)
  get_property(libraries GLOBAL PROPERTY ${name}_libraries)
  list(JOIN packages " " packages)
  list(TRANSFORM libraries PREPEND -l REGEX "^[^/-]")
  list(JOIN libraries " " libraries)
  configure_file(cmake/softrnn.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
softrnn_pkgconfig(softrnn "${PROJECT_DESCRIPTION}" "")
softrnn_pkgconfig(softrnn_lab "Models, tokenizers and training around softrnn" softrnn)

get_property(packages GLOBAL PROPERTY softrnn_packages)
get_property(lab_packages GLOBAL PROPERTY softrnn_lab_packages)
list(APPEND packages ${lab_packages})
configure_package_config_file(cmake/softrnnConfig.cmake.in softrnnConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(softrnnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/softrnnConfig.cmake ${PROJECT_BINARY_DIR}/softrnnConfigVersion.cmake
  DESTINATION ${package_folder})

# `make deb`: what is installed, as a package for the Debian that built it.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME softrnn)
set(CPACK_PACKAGE_CONTACT "softrnn <softrnn@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Both libraries are in the package itself.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
if(TARGET softrnn_mpi)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin)
endif()
include(CPack)
