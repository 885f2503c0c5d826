#!/usr/bin/env bash
# Builds the wheels and the sdist of a release: scripts/make_wheel.sh [--out DIR] [PYTHON ...]
#
# A wheel holds the core for one version of Python, so there is one for each PYTHON (a command or a
# path). Without any: for each of 3.10 to 3.13 that is on PATH or that pyenv has, and at least one.
# DIR is dist in the repository by default. Each wheel is built from the sdist, passes auditwheel for
# the glibc of Debian 12, and is tried in a new virtual environment before it is moved to DIR.
#
# SPECDEC_CUDA=ON builds for GPUs, too (nvcc is found or installed as for scripts/test.sh cuda).
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
platform=manylinux_2_36_$(uname -m)
out=dist
[[ ${1:-} != --out ]] || { out=$2 && shift 2; }
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$PWD/build/wheel

# A Python's own path, if it runs and has the headers to compile extensions.
usable_python() {
  "$1" -c 'import os, sys, sysconfig, venv, ensurepip
os.path.exists(sysconfig.get_path("include") + "/Python.h") or sys.exit(1)
print(sys.executable)' 2>/dev/null
}

find_pythons() {
  local minor candidate
  for minor in 10 11 12 13; do
    for candidate in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python; do
      usable_python "$candidate" && break
    done
  done
}

# The code that every processor runs is compiled for the baseline of the architecture. Nothing of a
# wider instruction set may stand in it, nor anything that the linker could take into it from a
# kernel's file: an inline function that both have. Those of a kernel's namespace are its own.
# (Objects of the bindings hold no machine code yet: the linker generates it, with the same options.)
check_baseline() {
  local wide shared
  [[ $(uname -m) == x86_64 ]] || return 0
  wide=$(find "$1" -name '*.o' -not -path '*specdec_cpu_*.dir*' -print0 |
    xargs -0 objdump -d --no-show-raw-insn |
    awk '/file format/ {file = $1} /%[yz]mm|%k[0-7]|\tv[a-z0-9]+ .*%xmm/ {print file}' | sort -u)
  shared=$(find "$1" -name '*.o' -path '*specdec_cpu_*.dir*' -not -path '*generic.dir*' -print0 |
    xargs -0 nm -C --defined-only | awk '$2 ~ /^[uVWvw]$/ && !/::(avx|amx)[0-9a-z_]*::/')
  [[ -z $wide && -z $shared ]] && return
  echo "not for every processor: ${wide:-nothing}; inline functions of kernels: ${shared:-none}" >&2
  return 1
}

# Builds the wheel of a Python from the unpacked sdist in $source.
build_wheel() {
  local python=$1 tools=$2 version=$3
  [[ -x $tools/bin/python ]] || "$python" -m venv "$tools"
  "$tools/bin/python" -m pip install -q --upgrade "pip>=25.1"
  "$tools/bin/python" -m pip install -q --group wheel
  rm -rf "$work/raw"
  (
    cd "$source" || exit
    PATH=$tools/bin:$PATH CCACHE_BASEDIR=$source "$tools/bin/python" -m pip wheel -q --no-deps \
      --no-build-isolation -C build-dir="$source/build/$version" -w "$work/raw" .
  )
  check_baseline "$source/build/$version"
  PATH=$tools/bin:$PATH "$tools/bin/python" -m auditwheel repair --plat "$platform" \
    -w "$work/repaired" "$work"/raw/*.whl
}

# Installs a wheel as its users do, and imports it.
try_wheel() {
  local python=$1 wheel=$2
  rm -rf "$work/trial"
  "$python" -m venv "$work/trial"
  "$work/trial/bin/python" -m pip install -q --disable-pip-version-check "${wheel}[cli]"
  (cd "$work" && "$work/trial/bin/specdec-native" info)
}

ensure_packages \
  /usr/bin/cmake cmake \
  /usr/bin/ninja ninja-build \
  /usr/bin/ccache ccache \
  /usr/bin/objdump binutils
ensure_python
pythons=("$@")
((${#pythons[@]})) || mapfile -t pythons < <(find_pythons)
((${#pythons[@]})) || {
  echo "no Python 3.10 to 3.13 with its headers was found; name one as an argument" >&2
  exit 1
}
export SPECDEC_CUDA=${SPECDEC_CUDA:-OFF} SPECDEC_CUDA_EMULATION=OFF SPECDEC_PYTHON_TESTING=OFF SPECDEC_ISAS=ALL
if [[ $SPECDEC_CUDA == ON ]]; then
  CUDACXX=$("$PYTHON" scripts/cuda_toolkit.py nvcc build/cuda-toolkit)
  SPECDEC_CUTLASS=$("$PYTHON" scripts/cuda_toolkit.py cutlass build/cuda-cutlass)
  export CUDACXX SPECDEC_CUTLASS
fi
export CXX=${CXX:-g++}
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache CCACHE_NOHASHDIR=1

"$PYTHON" -m pip install -q --group wheel
rm -rf "$work/sdist" "$work/source" "$work/repaired"
"$PYTHON" -m build -q --sdist --outdir "$work/sdist" .
mkdir "$work/source"
tar -xzf "$work"/sdist/*.tar.gz -C "$work/source"
source=$(echo "$work"/source/*)
for python in "${pythons[@]}"; do
  python=$(usable_python "$python") || {
    echo "a Python that was named does not run, or has no Python.h" >&2
    exit 1
  }
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  echo "== Python $version: $python"
  rm -rf "$work/repaired"
  build_wheel "$python" "$work/tools-$version" "$version"
  try_wheel "$python" "$(echo "$work"/repaired/*.whl)"
  mv "$work"/repaired/*.whl "$out"
done
mv "$work"/sdist/*.tar.gz "$out"
ls -l "$out"
