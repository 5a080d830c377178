# What can be switched, and the compiler settings that every target shares through kvd_flags.

option(KVD_WERROR "Warnings are errors" OFF)
option(KVD_TESTS "Build unit, simulated and end-to-end tests" ON)
option(KVD_FUZZ "Build fuzz targets with libFuzzer (clang only); otherwise they are replayed over their corpus" OFF)
option(KVD_PYTHON "Build the Python bindings when nanobind is found" ON)
option(KVD_UNITY "Compile a room's sources in groups: two thirds of the time for all, more for one that changed" OFF)
option(KVD_CCACHE "Use ccache when it is installed" ON)
set(KVD_SANITIZE "" CACHE STRING "Sanitizers for every target, as -fsanitize takes them: address,undefined or thread")
set(KVD_ROOMS "" CACHE STRING "Build only these rooms, e.g. base;block (default: every room that has a CMakeLists.txt)")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

# KVD_CHECK and the library's own assertions stay on in release: NDEBUG is never defined.
# No -march=native anywhere: one binary runs on every x86-64 and aarch64 machine.
# Release has what backtraces need (-g1); all of -g would take a third longer to compile.
foreach(lang C CXX)
  set(CMAKE_${lang}_FLAGS_DEBUG "-O1 -g")
  set(CMAKE_${lang}_FLAGS_RELWITHDEBINFO "-O2 -g1")
  set(CMAKE_${lang}_FLAGS_RELEASE "-O2")
endforeach()

if(KVD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(KVD_CCACHE_PROGRAM ccache)
  mark_as_advanced(KVD_CCACHE_PROGRAM)
  if(KVD_CCACHE_PROGRAM)
    set(CMAKE_C_COMPILER_LAUNCHER "${KVD_CCACHE_PROGRAM}")
    # Without these it passes by what includes a precompiled header.
    set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros "${KVD_CCACHE_PROGRAM}")
  endif()
endif()

add_library(kvd_flags INTERFACE)
add_library(kvd::flags ALIAS kvd_flags)
target_include_directories(kvd_flags INTERFACE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
target_compile_definitions(kvd_flags INTERFACE KVD_VERSION="${PROJECT_VERSION}" _GLIBCXX_ASSERTIONS)
target_compile_options(kvd_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion)
if(KVD_WERROR)
  target_compile_options(kvd_flags INTERFACE -Werror)
endif()

# Unit tests themselves, not what they test: a third less to compile than with -O2 -g1, and far less under sanitizers.
add_library(kvd_test_flags INTERFACE)
add_library(kvd::test_flags ALIAS kvd_test_flags)
target_compile_options(kvd_test_flags INTERFACE $<$<CONFIG:RelWithDebInfo>:-Og$<SEMICOLON>-g0>
                       $<$<CONFIG:Debug>:-O0>)

set(kvd_sanitize "${KVD_SANITIZE}")
if(KVD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "KVD_FUZZ needs clang: cmake --preset asan")
  endif()
  list(APPEND kvd_sanitize "fuzzer-no-link")
  list(JOIN kvd_sanitize "," kvd_sanitize)
endif()
if(kvd_sanitize)
  # Every target and every external header-only library sees the same flags, so these are global.
  # Reports need lines, not the types of variables.
  add_compile_options(-fsanitize=${kvd_sanitize} -fno-sanitize-recover=all -fno-omit-frame-pointer
                      $<$<CXX_COMPILER_ID:Clang>:-gline-tables-only>)
  add_link_options(-fsanitize=${kvd_sanitize})
endif()
