# libkvdepot.so: the client (and, where it is built, the embedded store) behind the public headers, for programs that
# are not part of this tree. Only the names in libkvdepot.map leave it. `pkg-config --cflags --libs kvdepot` after
# `cmake --install`; inside the tree, examples link kvd::library and see include/ only.
set(kvd_library_rooms base client embed)

set(kvd_library_objects "")
set(kvd_library_libs "")
foreach(room IN LISTS kvd_library_rooms)
  if(TARGET kvd_${room})
    list(APPEND kvd_library_objects "$<TARGET_OBJECTS:kvd_${room}>")
    list(APPEND kvd_library_libs kvd_${room})
  endif()
endforeach()

if(kvd_library_objects AND NOT SKBUILD)
  set(map "${PROJECT_SOURCE_DIR}/cmake/libkvdepot.map")
  add_library(kvd_library SHARED ${kvd_library_objects})
  add_library(kvd::library ALIAS kvd_library)
  target_link_libraries(kvd_library PRIVATE ${kvd_library_libs})
  target_include_directories(kvd_library INTERFACE "${PROJECT_SOURCE_DIR}/include")
  target_link_options(kvd_library PRIVATE "LINKER:--version-script=${map}")
  if(NOT KVD_SANITIZE)
    target_link_options(kvd_library PRIVATE LINKER:--no-undefined)
  endif()
  set_target_properties(kvd_library PROPERTIES OUTPUT_NAME kvdepot VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS "${map}")

  # The prefix is told from where the file lies, which is right below DESTDIR, behind --prefix and after a move. An
  # absolute LIBDIR has no place below the prefix.
  set(kvd_pc_prefix "${CMAKE_INSTALL_PREFIX}")
  if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    file(RELATIVE_PATH kvd_pc_prefix "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
    string(REGEX REPLACE "^(.*)/$" "\${pcfiledir}/\\1" kvd_pc_prefix "${kvd_pc_prefix}")
  endif()
  cmake_path(APPEND kvd_pc_includedir "\${prefix}" "${CMAKE_INSTALL_INCLUDEDIR}")
  cmake_path(APPEND kvd_pc_libdir "\${prefix}" "${CMAKE_INSTALL_LIBDIR}")
  configure_file(cmake/kvdepot.pc.in "${CMAKE_BINARY_DIR}/kvdepot.pc" @ONLY)
  install(TARGETS kvd_library LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(DIRECTORY include/kvdepot DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
  install(FILES "${CMAKE_BINARY_DIR}/kvdepot.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()
