# cmake -DFROM=python/kvdepot -DTO=build/release/python/kvdepot -P mirror_python.cmake
#
# Makes TO a folder of links to the files of FROM, so that the package can be used from the build folder, next to the
# bindings module, and a changed source is seen at once. Links whose source is gone are removed.
file(GLOB_RECURSE present RELATIVE "${FROM}" "${FROM}/*")
list(FILTER present EXCLUDE REGEX "__pycache__|\\.pyc$")
file(GLOB_RECURSE linked RELATIVE "${TO}" "${TO}/*")
foreach(name IN LISTS linked)
  if(IS_SYMLINK "${TO}/${name}" AND NOT EXISTS "${FROM}/${name}")
    file(REMOVE "${TO}/${name}")
  endif()
endforeach()
foreach(name IN LISTS present)
  if(NOT IS_SYMLINK "${TO}/${name}")
    get_filename_component(folder "${TO}/${name}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    file(CREATE_LINK "${FROM}/${name}" "${TO}/${name}" SYMBOLIC)
  endif()
endforeach()
