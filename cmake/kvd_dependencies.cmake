# External libraries, each under one short name: kvd_room(... LIBS ext::uring ext::fmt).
# All are distribution packages, listed once in tools/packages-debian.txt; nothing is downloaded here.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

# ext_library(name target...): the short name for one or more imported targets.
function(ext_library name)
  add_library(ext_${name} INTERFACE)
  add_library(ext::${name} ALIAS ext_${name})
  target_link_libraries(ext_${name} INTERFACE ${ARGN})
endfunction()

set(kvd_missing "")

# ext_package(name CMakePackage target...): a package with a CMake config file.
macro(ext_package name package)
  find_package(${package} QUIET)
  if(${package}_FOUND)
    ext_library(${name} ${ARGN})
  else()
    list(APPEND kvd_missing ${package})
  endif()
endmacro()

# ext_pkgconfig(name module): a package with a .pc file only.
macro(ext_pkgconfig name module)
  pkg_check_modules(${name} QUIET IMPORTED_TARGET ${module})
  if(${name}_FOUND)
    ext_library(${name} PkgConfig::${name})
  else()
    list(APPEND kvd_missing ${module})
  endif()
endmacro()

ext_library(threads Threads::Threads)
ext_pkgconfig(uring liburing)
ext_pkgconfig(xxhash libxxhash)
ext_package(fmt fmt fmt::fmt)
ext_package(spdlog spdlog spdlog::spdlog)
ext_package(json nlohmann_json nlohmann_json::nlohmann_json)
ext_package(toml tomlplusplus tomlplusplus::tomlplusplus)
ext_package(cli11 CLI11 CLI11::CLI11)
ext_package(boost Boost Boost::headers)
ext_package(prometheus prometheus-cpp prometheus-cpp::core)
ext_package(openssl OpenSSL OpenSSL::SSL OpenSSL::Crypto)
if(KVD_TESTS)
  ext_package(gtest GTest GTest::gmock GTest::gtest)
endif()

# XXH3 picked at run time: Debian's libxxhash is built for SSE2 and also holds AVX2 and AVX-512 variants behind
# *_dispatch names, which xxh_x86dispatch.h puts in the place of XXH3_64bits and its relatives. Same values, on an AMD
# EPYC with AVX2 at 96 KiB: 41.5 GB/s dispatched, 17.1 GB/s plain, 41.9 GB/s inlined with -mavx2. Including it from
# the command line keeps #if out of the sources: where the library has no such names (aarch64) nothing is added.
if(TARGET PkgConfig::xxhash)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES PkgConfig::xxhash)
  check_cxx_source_compiles("
    #include <xxh_x86dispatch.h>
    int main() { return static_cast<int>(XXH3_64bits_withSeed_dispatch(nullptr, 0, 0)); }" KVD_XXHASH_DISPATCH)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(KVD_XXHASH_DISPATCH)
    target_compile_options(ext_xxhash INTERFACE $<$<COMPILE_LANGUAGE:CXX>:SHELL:-include xxh_x86dispatch.h>)
  endif()
endif()

if(kvd_missing)
  list(JOIN kvd_missing ", " kvd_missing_text)
  message(FATAL_ERROR "missing libraries: ${kvd_missing_text}. Install them with: tools/setup.sh")
endif()
