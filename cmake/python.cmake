# python.cmake: what pip puts into the Python package beside its own files: the headers, which it reads, and both libraries.
#
# A wheel has no links, so its libraries have one name each; they find each other in their own folder.
if(SKBUILD)
  foreach(target softrnn_shared softrnn_lab_shared)
    set_property(TARGET ${target} PROPERTY VERSION)
    set_property(TARGET ${target} PROPERTY SOVERSION)
    set_property(TARGET ${target} PROPERTY INSTALL_RPATH "$ORIGIN")
  endforeach()
endif()
install(TARGETS softrnn_shared softrnn_lab_shared LIBRARY DESTINATION softrnn/lib COMPONENT python EXCLUDE_FROM_ALL)
install(FILES include/softrnn.h include/softrnn_lab.h DESTINATION softrnn/include COMPONENT python EXCLUDE_FROM_ALL)
