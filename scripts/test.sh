#!/usr/bin/env bash
# Installs everything and passes the tests:
#   scripts/test.sh             lint, the library for this machine, its C++ tests, the engine in Python
#   scripts/test.sh changed     these, then every further stage whose inputs changed since it passed
#   scripts/test.sh all         every stage
#   scripts/test.sh STAGE ...   some of them
# A stage is a file of scripts/stages, which says what the stage is for and what it reads. With
# SPECDEC_MINUTES set, `changed` leaves stages to a later run that would take longer than so many
# minutes in all; a stage of more than ten says how many it takes with empty caches.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
first=(lint cpp python)
further=(docs example bench fuzz breadth lab serve whole emulated arm64 tsan asan cuda)
mode=${1:-first}
case $mode in
first) stages=("${first[@]}") ;;
changed | all) stages=("${first[@]}" "${further[@]}") ;;
*) stages=("$@") ;;
esac
for stage in "${stages[@]}"; do
  if [[ ! -f scripts/stages/$stage.sh ]]; then
    echo "no stage '$stage': ${first[*]} ${further[*]}, or 'changed', or 'all'" >&2
    exit 2
  fi
done
jobs=$(nproc)
left=()
echo "stages: ${stages[*]}. Installing what they need comes first, a few minutes on a new machine."

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

# build PRESET [TARGET ...], which must have read nothing but what the stage says.
build() {
  local targets=("${@:2}")
  ((${#targets[@]} > 0)) || targets=(all)
  cmake --preset "$1" >/dev/null
  cmake --build --preset "$1" -j "$jobs" --target "${targets[@]}"
  "$PYTHON" scripts/stages.py check "$stage" "build/$1" "${targets[@]}"
}
# run_ctest PRESET [EXECUTABLE ...]: all of a build's tests, or those of some executables.
# $GTEST_FILTER chooses among their tests.
run_ctest() {
  local names=("${@:2}")
  ((${#names[@]} > 0)) || names=('.*')
  ctest --preset "$1" -j "$jobs" -R "^($(IFS='|'; echo "${names[*]}"))\\."
}

# Compiled with the options of preset release, so that ccache has the objects.
install_module() {
  SPECDEC_CUDA_EMULATION=ON SPECDEC_PYTHON_TESTING=ON "$PYTHON" -m pip install -q --no-build-isolation \
    -C cmake.define.SPECDEC_WERROR=ON ".[all]"
}

for stage in "${stages[@]}"; do
  inputs=$("$PYTHON" scripts/stages.py hash "$stage")
  is_further=$([[ " ${further[*]} " == *" $stage "* ]] && echo yes || echo no)
  if [[ $mode == changed && $is_further == yes ]] && "$PYTHON" scripts/stages.py passed "$stage"; then
    echo "== $stage: skipped, since it passed with these inputs ($inputs)"
    continue
  fi
  minutes=$(sed -n 's/^# minutes: //p' "scripts/stages/$stage.sh")
  if [[ $mode == changed && $is_further == yes && -n ${SPECDEC_MINUTES:-} ]] \
    && ((SECONDS / 60 + ${minutes:-10} > SPECDEC_MINUTES)); then
    echo "== $stage: left to a later run, since it may take ${minutes:-10} minutes and $((SECONDS / 60)) of $SPECDEC_MINUTES have passed"
    left+=("$stage")
    continue
  fi
  echo "== $stage, after $SECONDS s"
  source "scripts/stages/$stage.sh"
  [[ $is_further == no ]] || "$PYTHON" scripts/stages.py record "$stage" "$inputs"
done
echo "all stages passed in $SECONDS s: ${stages[*]}"
((${#left[@]} == 0)) || echo "but these, which were left to a later run: ${left[*]}"
