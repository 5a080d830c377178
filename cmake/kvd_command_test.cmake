# Tests that are commands: Python tests, end-to-end tests, checks by scripts. Unit tests in C++ are kvd_room()'s.
#
# kvd_command_test(name LABEL tidy [TIMEOUT s] [SERIAL] COMMAND ...): runs in the checkout's root with this build's
# programs first in PATH and its Python package in PYTHONPATH. Exit status 77 means skipped. SERIAL: alone on the
# machine, for tests that measure.
#
# kvd_python_test(name LABEL unit [TIMEOUT s] [SERIAL] [ENGINE] ARGS -m pytest ...): the same with the Python of
# build/venv, or with ENGINE of build/engine-venv; where that is not there the test is skipped.
#
# Labels: unit (fast; no daemon, no network but loopback), sim (virtual clock), tidy (house rules), e2e (real processes,
# a real engine). `make test` leaves out: mutation (breaks the code on purpose, which tests must see; CI has a step for
# these) and soak (long).

set(KVD_VENV_PYTHON "${PROJECT_SOURCE_DIR}/build/venv/bin/python" CACHE FILEPATH
  "Python with tools/requirements-build.txt, for bindings and tests")
set(KVD_ENGINE_PYTHON "${PROJECT_SOURCE_DIR}/build/engine-venv/bin/python" CACHE FILEPATH
  "Python with vLLM, for tests that need an engine")

# The package as it is built: links to python/kvdepot beside the bindings module.
set(kvd_python_package "${CMAKE_BINARY_DIR}/python/kvdepot")

function(kvd_command_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "LABEL;TIMEOUT" "COMMAND")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_LABEL)
    message(FATAL_ERROR "kvd_command_test(${name}): LABEL is missing or unknown: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set(changes "PATH=path_list_prepend:${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    "PYTHONPATH=path_list_prepend:${PROJECT_SOURCE_DIR}" "PYTHONPATH=path_list_prepend:${CMAKE_BINARY_DIR}/python"
    "PYTHONDONTWRITEBYTECODE=set:1")
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}" TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
    RUN_SERIAL "${arg_SERIAL}" ENVIRONMENT_MODIFICATION "${changes}")
endfunction()

function(kvd_python_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL;ENGINE" "LABEL;TIMEOUT" "ARGS")
  set(python "${KVD_VENV_PYTHON}")
  if(arg_ENGINE)
    set(python "${KVD_ENGINE_PYTHON}")
  endif()
  set(serial "")
  if(arg_SERIAL)
    set(serial SERIAL)
  endif()
  kvd_command_test(${name} LABEL ${arg_LABEL} TIMEOUT "${arg_TIMEOUT}" ${serial}
    COMMAND sh -c "test -x \"$0\" || { echo \"skipped: no $0: tools/setup.sh\"; exit 77; }; exec \"$0\" \"$@\""
    "${python}" ${arg_ARGS})
endfunction()
