#!/usr/bin/env bash
# Compiles the library and the Python bindings for macOS on Apple's processors, on any machine: by
# the clang and the headers of the package ziglang (pip install --group macos). Nothing is linked
# or run.
#   scripts/check_macos.sh [source ...]   without sources: all of cpp/src and python/bindings
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}
sources=("$@")
((${#sources[@]})) || mapfile -t sources < <(git ls-files 'cpp/src/*.cc' 'python/bindings/*.cc')
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# Only nlohmann/json: other headers beside it are not macOS's. Python's headers come from this
# machine, where types have the same widths as on macOS.
mapfile -t headers < <("$PYTHON" -c 'import importlib.util, os, pybind11, sysconfig
spec = importlib.util.find_spec("nlohmann_json")
print(os.path.dirname(spec.origin) + "/include" if spec else "/usr/include")
print(pybind11.get_include())
print(sysconfig.get_path("include"))
print(sysconfig.get_config_h_filename())')
ln -s "${headers[0]}/nlohmann" "$out/nlohmann"
pybind11=${headers[1]}
mkdir "$out/python"
ln -s "${headers[2]}"/* "$out/python"
ln -sf "${headers[3]}" "$out/python/pyconfig.h"  # Debian's own pyconfig.h is for Linux alone
compile() {
  "$PYTHON" -m ziglang c++ -target aarch64-macos -std=c++20 -O0 -ffp-contract=off \
    -Wall -Wextra -Werror -DSPECDEC_ISA=neon -DSPECDEC_NEON \
    -DSPECDEC_COMPILED_ISAS='SPECDEC_ISA(generic)SPECDEC_ISA(neon)' \
    -DSPECDEC_VERSION='"0"' -DSPECDEC_COMPILER='"zig"' -DSPECDEC_BUILD_TYPE='"Release"' \
    -DSPECDEC_CUDA_NOTE='"off"' -Icpp/include -Icpp/src -I. -isystem "$out" \
    -isystem "$out/python" -isystem "$pybind11" -c "$1" -o "$out/$BASHPID.o"
}
export -f compile
export PYTHON out pybind11
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 1 bash -c 'compile "$0"'
