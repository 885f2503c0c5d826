# The same by Debian's clang-16, with the C and C++ libraries of the cross compiler.
include("${CMAKE_CURRENT_LIST_DIR}/aarch64-linux-gnu.cmake")
set(CMAKE_C_COMPILER clang-16)
set(CMAKE_C_COMPILER_TARGET aarch64-linux-gnu)
set(CMAKE_CXX_COMPILER clang++-16)
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
