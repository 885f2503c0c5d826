# Cross-compiled for ARM64 and run under qemu: every kernel set, and whole engines in every precision.
# Host code of the CUDA backend, and what is macOS's own, are only compiled.
# reads: *CMakeLists.txt CMakePresets.json VERSION pyproject.toml cmake cpp cuda python/bindings tests/cpp
# reads: tests/testing tests/data scripts/arm64_tests.sh scripts/check_macos.sh scripts/cuda_toolkit.py
# reads: :!cuda/kernels/*.cu :!cuda/kernels/*.cuh :!cuda/emulation
ensure_packages \
  /usr/bin/aarch64-linux-gnu-g++ g++-aarch64-linux-gnu \
  /usr/bin/qemu-aarch64-static qemu-user-static \
  /usr/src/googletest/CMakeLists.txt googletest
build arm64 specdec_{core,cpu_attention,cpu_linear,cpu_moe,cpu_pointwise,cpu_recurrent,precisions,sampler,simd}_test
scripts/arm64_tests.sh build/arm64

# The host code of the CUDA backend on ARM64 (GH200), where the toolkit's headers are the same.
headers=$("$PYTHON" scripts/cuda_toolkit.py headers build/cuda-headers)
printf '%s\n' cuda/factory.cc cuda/gpu_survey.cc cuda/{backend,gemm,gpu}/*.cc |
  xargs -P "$jobs" -n 1 aarch64-linux-gnu-g++ -std=c++20 -fsyntax-only -Wall -Wextra -Wno-psabi \
    -Werror -DSPECDEC_CUDA_ARCHITECTURES='""' -Icpp/include -Icpp/src -I. -isystem "$headers"

# For macOS, what includes headers of the operating system, and one file of the bindings;
# scripts/check_macos.sh alone takes all of both.
"$PYTHON" -m pip install -q --group macos
mapfile -t sources < <(git grep -lE '^#include <(sys/|net|linux/|unistd|poll|sched|fcntl|dlfcn)' \
  -- 'cpp/src/*.cc')
PYTHON=$PYTHON scripts/check_macos.sh "${sources[@]}" python/bindings/bind_ranks.cc
