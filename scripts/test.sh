#!/usr/bin/env bash
# Installs everything and passes the tests: scripts/test.sh [stage ...]
# Stages: lint docs cpp bench cuda arm64 python fuzz example asan tsan (all of these by default).
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
stages=${*:-lint docs cpp bench cuda arm64 python fuzz example asan tsan}
jobs=$(nproc)

ensure_packages \
  /usr/bin/cmake cmake \
  /usr/bin/ninja ninja-build \
  /usr/bin/ccache ccache \
  /usr/bin/curl curl \
  /usr/include/gtest/gtest.h libgtest-dev \
  /usr/include/nlohmann/json.hpp nlohmann-json3-dev
ensure_python
"$PYTHON" -m pip install -q torch==2.13.0  # by itself first: its CPU build is not on every index
"$PYTHON" -m pip install -q --group dev "pybind11>=3.0" "scikit-build-core>=0.11"
export PATH="$(cd "$(dirname "$PYTHON")" && pwd):$PATH"
# Stages share most of their compilations, whichever build folder they are in; by one name of the
# compiler, which ccache tells apart.
export CXX=${CXX:-g++}
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

stage_lint() {
  local cpp_files cmake_files
  mapfile -t cpp_files < <(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
  mapfile -t cmake_files < <(git ls-files '*CMakeLists.txt' 'cmake/*.cmake')
  clang-format --dry-run --Werror "${cpp_files[@]}"
  gersemi --check --no-warn-about-unknown-commands "${cmake_files[@]}"
  ruff check .
  ruff format --check .
  mypy
}

# The site, from docs/ and docstrings; stage python runs the code in its pages.
stage_docs() {
  "$PYTHON" -m pip install -q --group docs
  NO_MKDOCS_2_WARNING=1 "$PYTHON" -m mkdocs build --strict --quiet
}

# Builds a preset and runs the C++ tests; or those that match $2, which the other arguments build.
build_and_ctest() {
  local preset=$1 tests=${2:-.} targets=("${@:3}")
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" -j "$jobs" ${targets:+--target "${targets[@]}"}
  ctest --preset "$preset" -j "$jobs" -R "$tests"
}

stage_cpp() { build_and_ctest release; }
# Only that they run: no figure is looked at.
stage_bench() {
  cmake --preset release >/dev/null
  cmake --build --preset release -j "$jobs"
  "$PYTHON" bench/run.py build/release --smoke --json build/release/microbenchmarks.json
  "$PYTHON" bench/run.py build/release --smoke --device emulated
}
stage_asan() { build_and_ctest asan; }
# What runs on several threads; of attention, which no kernel set does otherwise, one's tests.
stage_tsan() {
  build_and_ctest tsan 'ThreadPool|Communicator.*threads|Cpu.*Linear|CpuSlices.*Late.*/avx2_|CpuAttention.*/avx2_bfloat16( |$)|OnAnyThreads|Engine|Pipeline|Speculation' \
    specdec_{comm,core,cpu_attention,cpu_linear,engine,sampler}_test
}

# Every kernel for the architectures that are built for, on a machine that needs no GPU: what the
# compiler made of them, and that the module is as good as any other there.
stage_cuda() {
  local TIMEFORMAT='built for CUDA in %R s, %U s of CPU time'
  local disassembler cutlass objects=build/cuda/cuda/CMakeFiles
  CUDACXX=$("$PYTHON" scripts/cuda_toolkit.py nvcc build/cuda-toolkit)
  export CUDACXX
  disassembler=$("$PYTHON" scripts/cuda_toolkit.py disassembler build/cuda-disassembler)
  cutlass=$("$PYTHON" scripts/cuda_toolkit.py cutlass build/cuda-cutlass)
  cmake --preset cuda -DSPECDEC_CUTLASS="$cutlass" -Dpybind11_DIR="$("$PYTHON" -m pybind11 --cmakedir)" >/dev/null
  time cmake --build --preset cuda -j "$jobs" --target \
    _core cuda_kernel_bench cuda_machine_bench cuda_step_bench tests/cuda/all
  "$PYTHON" scripts/cuda_gates.py --disassembler "$disassembler" --build build/cuda \
    $objects/specdec_cuda_native.dir/kernels/*.o $objects/specdec_cuda_cutlass.dir/gemm/*.o
  mkdir -p build/cuda/module
  cp -r python/specdec_native build/cuda/module
  cp build/cuda/python/bindings/_core*.so build/cuda/module/specdec_native
  PYTHONPATH=build/cuda/module "$PYTHON" -m pytest \
    tests/python/test_cuda_gates.py tests/python/test_cuda_module.py
}

# Cross-compiled for ARM64 and run under qemu: every kernel set, and whole engines in every precision.
# Host code of the CUDA backend, and what is macOS's own, are only compiled.
stage_arm64() {
  ensure_packages \
    /usr/bin/aarch64-linux-gnu-g++ g++-aarch64-linux-gnu \
    /usr/bin/qemu-aarch64-static qemu-user-static \
    /usr/src/googletest/CMakeLists.txt googletest
  cmake --preset arm64 -DSPECDEC_BENCH=OFF >/dev/null
  cmake --build --preset arm64 -j "$jobs" --target \
    specdec_{core,cpu_attention,cpu_linear,cpu_moe,cpu_pointwise,precisions,sampler,simd}_test
  scripts/arm64_tests.sh build/arm64
  check_cuda_hosts
  check_macos
}

# The host code of the CUDA backend on ARM64 (GH200), where the toolkit's headers are the same.
check_cuda_hosts() {
  local headers
  headers=$("$PYTHON" scripts/cuda_toolkit.py headers build/cuda-headers)
  printf '%s\n' cuda/factory.cc cuda/gpu_survey.cc cuda/{backend,gemm,gpu}/*.cc |
    xargs -P "$jobs" -n 1 aarch64-linux-gnu-g++ -std=c++20 -fsyntax-only -Wall -Wextra -Wno-psabi \
      -Werror -DSPECDEC_CUDA_ARCHITECTURES='""' -Icpp/include -Icpp/src -I. -isystem "$headers"
}

# For macOS, what includes headers of the operating system, and one file of the bindings;
# scripts/check_macos.sh alone takes all of both.
check_macos() {
  local sources
  "$PYTHON" -m pip install -q --group macos
  mapfile -t sources < <(git grep -lE '^#include <(sys/|net|linux/|unistd|poll|sched|fcntl|dlfcn)' \
    -- 'cpp/src/*.cc')
  PYTHON=$PYTHON scripts/check_macos.sh "${sources[@]}" python/bindings/bind_ranks.cc
}

# Compiled with the options of stage cpp, so that ccache has the objects.
install_module() {
  SPECDEC_CUDA_EMULATION=ON "$PYTHON" -m pip install -q --no-build-isolation \
    -C cmake.define.SPECDEC_WERROR=ON ".[all]"
}
stage_python() {
  ensure_packages /usr/bin/chromium chromium  # for the tests of the chat page
  install_module
  "$PYTHON" -m pytest -m "not fuzz" -n "$jobs"
}
# Seeded random files, parameters and interrupts, for a minute or two. CONTRIBUTING.md says how to
# ask for more; stage asan runs the fuzzers written in C++.
stage_fuzz() {
  install_module
  "$PYTHON" -m pytest -m fuzz
}

# An embedder's view: install the library, then build against nothing but what was installed.
stage_example() {
  local prefix=$PWD/build/example-prefix
  cmake --preset release >/dev/null
  cmake --build --preset release -j "$jobs"
  cmake --install build/release --prefix "$prefix" >/dev/null
  cmake -S examples/cpp -B build/example -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
  cmake --build build/example
  "$PYTHON" tests/python/make_checkpoints.py llama build/example/checkpoint
  build/example/generate build/example/checkpoint 1 2 3 4
  build/example/custom_drafter build/example/checkpoint 1 2 3 4
}

for stage in $stages; do
  echo "== $stage, after $SECONDS s"
  "stage_$stage"
done
echo "all stages passed in $SECONDS s: $stages"
