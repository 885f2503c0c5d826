#!/usr/bin/env bash
# Compiles sources of the library for macOS on Apple's processors, on any machine: by the clang and
# the headers of the package ziglang (pip install --group macos). Nothing is linked or run.
#   scripts/check_macos.sh [source ...]   without sources: all of cpp/src
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
sources=("$@")
((${#sources[@]})) || mapfile -t sources < <(git ls-files 'cpp/src/*.cc')
json=$("$python" -c 'import importlib.util, os
spec = importlib.util.find_spec("nlohmann_json")
print(os.path.dirname(spec.origin) + "/include" if spec else "/usr/include")')
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# nlohmann/json alone: the other headers beside it are not those of macOS.
ln -s "$json/nlohmann" "$out/nlohmann"
compile() {
  "$PYTHON" -m ziglang c++ -target aarch64-macos -std=c++20 -O0 -ffp-contract=off \
    -Wall -Wextra -Werror -DSPECDEC_ISA=neon -DSPECDEC_NEON -DSPECDEC_HAS_ISA_neon \
    -DSPECDEC_VERSION='"0"' -DSPECDEC_COMPILER='"zig"' -DSPECDEC_BUILD_TYPE='"Release"' \
    -DSPECDEC_CUDA_NOTE='"off"' -Icpp/include -Icpp/src -I. -isystem "$out" \
    -c "$1" -o "$out/$BASHPID.o"
}
export -f compile
export PYTHON=$python out
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 1 bash -c 'compile "$0"'
