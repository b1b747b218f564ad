# For ARM64 on another machine, with Debian's g++-aarch64-linux-gnu:
#   cmake -S . -B build/aarch64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux.cmake -DSKBUILD_STATE=none
# SKBUILD_STATE keeps the library in the build folder; without it, it would take the place of this machine's own.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
