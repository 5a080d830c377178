# A room is one folder of src/, one static library, one unit-test program. See docs/architecture.md.
#
# kvd_room(store LEVEL 2
#   SOURCES pool.cc flash_log.cc          .cc files, relative to the room's folder
#   DEPS base block io                    rooms below: a room of the same or a higher level is refused
#   LIBS uring fmt                        external libraries, by their short names in kvd_dependencies.cmake
#   PRIVATE_LIBS xxhash                   those that no header of the room includes
#   TESTS pool_test.cc flash_log_test.cc  -> kvd_store_test, label unit
#   SIM_TESTS crash_sim_test.cc           -> kvd_store_sim_test, label sim
#   TESTING testing/fake_disk.cc          -> kvd_store_testing: fakes, linked by tests only
#   TEST_DEPS io                          rooms whose fakes the tests use (kvd_io_testing)
#   FUZZ frame_fuzz.cc)                   -> kvd_store_frame_fuzz; corpus in corpus/frame/
#
# The library is kvd_<name>, alias kvd::<name>. Includes start at src/ or include/: "store/pool.h", "kvdepot/client.h".
# Nothing is globbed: a file that is not listed is not built, and tools/tidy.py reports it.

# How many pseudo-random inputs a replay adds to a committed corpus; about a tenth of a second for a parser.
set(KVD_FUZZ_REPLAY_RUNS 20000 CACHE STRING "Random inputs per fuzz target when it is replayed without libFuzzer")

function(kvd_room name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LEVEL"
    "SOURCES;DEPS;LIBS;PRIVATE_LIBS;TESTS;SIM_TESTS;TESTING;TEST_DEPS;TEST_LIBS;FUZZ")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvd_room(${name}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT "${arg_LEVEL}" MATCHES "^[0-9]+$")
    message(FATAL_ERROR "kvd_room(${name}): LEVEL <number> is missing")
  endif()

  set(target kvd_${name})
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES})
    kvd_group_sources(${target})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(kvd::${name} ALIAS ${target})
  set_property(GLOBAL PROPERTY KVD_LEVEL_${name} ${arg_LEVEL})
  set_property(GLOBAL APPEND PROPERTY KVD_ROOM_LIST ${name})

  target_link_libraries(${target} ${scope} kvd::flags)
  foreach(dep IN LISTS arg_DEPS)
    kvd_check_dep(${name} ${arg_LEVEL} ${dep} dep_target)
    target_link_libraries(${target} ${scope} ${dep_target})
  endforeach()
  kvd_external(libs ${arg_LIBS})
  target_link_libraries(${target} ${scope} ${libs})
  if(arg_PRIVATE_LIBS)
    kvd_external(libs ${arg_PRIVATE_LIBS})
    target_link_libraries(${target} PRIVATE ${libs})
  endif()

  if(NOT KVD_TESTS)
    return()
  endif()
  kvd_external(test_libs ${arg_TEST_LIBS})
  list(PREPEND test_libs ${target} ext::gtest)
  if(arg_TESTING)
    add_library(${target}_testing STATIC ${arg_TESTING})
    kvd_group_sources(${target}_testing)
    target_link_libraries(${target}_testing PUBLIC ${target} ext::gtest)
    list(APPEND test_libs ${target}_testing)
  endif()
  foreach(dep IN LISTS arg_TEST_DEPS)
    kvd_check_dep(${name} ${arg_LEVEL} ${dep} dep_target)
    list(APPEND test_libs ${dep_target})
    if(TARGET ${dep_target}_testing)
      list(APPEND test_libs ${dep_target}_testing)
    endif()
  endforeach()
  if(arg_TESTS)
    kvd_test(${target}_test LABEL unit SOURCES ${arg_TESTS} LIBS ${test_libs})
  endif()
  if(arg_SIM_TESTS)
    kvd_test(${target}_sim_test LABEL sim SOURCES ${arg_SIM_TESTS} LIBS ${test_libs})
  endif()
  foreach(source IN LISTS arg_FUZZ)
    kvd_fuzz(${name} ${source} ${test_libs})
  endforeach()
endfunction()

# With KVD_UNITY the target's sources are compiled in groups, so names in their anonymous namespaces must differ.
function(kvd_group_sources target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${KVD_UNITY} UNITY_BUILD_BATCH_SIZE 10)
endfunction()

# Sets out to the targets of external libraries: xxhash becomes ext::xxhash; other names are taken as they are.
function(kvd_external out)
  set(targets "")
  foreach(lib IN LISTS ARGN)
    if(TARGET ext::${lib})
      list(APPEND targets ext::${lib})
    else()
      list(APPEND targets ${lib})
    endif()
  endforeach()
  set(${out} ${targets} PARENT_SCOPE)
endfunction()

# Sets out to the target of room dep, given as `base` or `kvd::base`, when a room of this level may use it.
function(kvd_check_dep name level dep out)
  string(REGEX REPLACE "^kvd::" "" dep "${dep}")
  get_property(dep_level GLOBAL PROPERTY KVD_LEVEL_${dep})
  if("${dep_level}" STREQUAL "")
    message(FATAL_ERROR "room ${name} needs room ${dep}, which is not built: no src/${dep}/CMakeLists.txt, "
      "left out by KVD_ROOMS, or not below it")
  endif()
  if(NOT dep_level LESS level)
    message(FATAL_ERROR "room ${name} (level ${level}) may not use room ${dep} (level ${dep_level}): "
      "dependencies go down the levels only")
  endif()
  set(${out} kvd_${dep} PARENT_SCOPE)
endfunction()

# kvd_test(target LABEL unit SOURCES a_test.cc LIBS ...): one gtest program, one ctest entry.
function(kvd_test target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;TIMEOUT" "SOURCES;LIBS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
    if(KVD_SANITIZE)
      set(arg_TIMEOUT 600)
    endif()
  endif()
  add_executable(${target} ${arg_SOURCES})
  kvd_group_sources(${target})
  target_link_libraries(${target} PRIVATE ${arg_LIBS} kvd::flags ext::gtest GTest::gtest_main)
  if(arg_LABEL STREQUAL "unit")  # the others run for long: they are compiled as what they test
    target_link_libraries(${target} PRIVATE kvd::test_flags)
    # Parsed once for all of them: two seconds for each file otherwise.
    if(NOT TARGET kvd_gtest_headers)
      add_executable(kvd_gtest_headers EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/cmake/gtest_headers.cc")
      target_link_libraries(kvd_gtest_headers PRIVATE kvd::flags kvd::test_flags ext::gtest)
      target_precompile_headers(kvd_gtest_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
    endif()
    target_precompile_headers(${target} REUSE_FROM kvd_gtest_headers)
  endif()
  add_test(NAME ${target} COMMAND ${target} --gtest_brief=1)
  set_tests_properties(${target} PROPERTIES LABELS "${arg_LABEL}" TIMEOUT ${arg_TIMEOUT})
endfunction()

# kvd_fuzz(room frame_fuzz.cc libs...): LLVMFuzzerTestOneInput under libFuzzer, or its replay as a unit test. Not under
# the thread sanitizer.
function(kvd_fuzz room source)
  get_filename_component(stem "${source}" NAME_WE)
  string(REGEX REPLACE "_fuzz$" "" stem "${stem}")
  set(target kvd_${room}_${stem}_fuzz)
  set(corpus "${CMAKE_CURRENT_SOURCE_DIR}/corpus/${stem}")
  if(KVD_FUZZ)
    add_executable(${target} ${source})
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    set_property(GLOBAL APPEND PROPERTY KVD_FUZZ_LIST "${target} ${corpus}")
    if(NOT TARGET kvd_fuzzers)
      add_custom_target(kvd_fuzzers)
    endif()
    add_dependencies(kvd_fuzzers ${target})
  elseif(KVD_SANITIZE STREQUAL "thread")
    return()  # one thread each
  else()
    if(NOT TARGET kvd_replay_main)
      add_library(kvd_replay_main OBJECT "${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.cc")
      target_link_libraries(kvd_replay_main PRIVATE kvd::flags)
    endif()
    add_executable(${target} ${source} $<TARGET_OBJECTS:kvd_replay_main>)
    add_test(NAME ${target} COMMAND ${target} --runs ${KVD_FUZZ_REPLAY_RUNS} "${corpus}")
    set_tests_properties(${target} PROPERTIES LABELS "unit" TIMEOUT 300)
  endif()
  target_link_libraries(${target} PRIVATE ${ARGN} kvd::flags)
endfunction()

# kvd_program(kvdepot SOURCES main.cc ROOMS cmd LIBS ...): a program that is installed beside the library.
function(kvd_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;ROOMS;LIBS")
  add_executable(${name} ${arg_SOURCES})
  list(TRANSFORM arg_ROOMS PREPEND kvd_)
  kvd_external(libs ${arg_LIBS})
  target_link_libraries(${name} PRIVATE ${arg_ROOMS} ${libs} kvd::flags)
  set_property(GLOBAL APPEND PROPERTY KVD_PROGRAM_LIST ${name})
endfunction()

# Lists the libFuzzer programs with their corpus folders in <build>/fuzz_targets.txt, which .ci/run reads.
function(kvd_write_fuzz_list)
  get_property(fuzz_list GLOBAL PROPERTY KVD_FUZZ_LIST)
  list(JOIN fuzz_list "\n" text)
  file(WRITE "${CMAKE_BINARY_DIR}/fuzz_targets.txt" "${text}\n")
endfunction()
