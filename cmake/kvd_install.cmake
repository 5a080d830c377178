# What is installed. From pip: the programs, onto PATH beside Python (the bindings module is python/CMakeLists.txt's).
# From cmake --install: programs, the systemd unit and an example of its configuration, beside what kvd_library.cmake
# installs.

get_property(kvd_programs GLOBAL PROPERTY KVD_PROGRAM_LIST)
if(SKBUILD)
  if(kvd_programs)
    install(TARGETS ${kvd_programs} RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT python)
  endif()
else()
  if(kvd_programs)
    install(TARGETS ${kvd_programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
  install(FILES deploy/kvdepot.service DESTINATION lib/systemd/system)
  install(FILES deploy/kvdepot.toml DESTINATION "${CMAKE_INSTALL_DOCDIR}")
  # The study's tables are compiled in; their licence asks to go with them.
  install(FILES data/ipdps25/LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" RENAME LICENSE.ipdps25)
endif()
