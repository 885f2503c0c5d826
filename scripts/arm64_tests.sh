#!/usr/bin/env bash
# Runs the tests of an arm64 build under qemu, on processors with more and with fewer of the
# instructions that kernel sets are made for: scripts/arm64_tests.sh [build folder]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$(realpath "${1:-build/arm64}")
jobs=$(nproc)
logs=$build/qemu
rm -rf "$logs"
mkdir -p "$logs"
export SPECDEC_FEW_SHAPES=1 QEMU_LD_PREFIX=/usr/aarch64-linux-gnu

# A processor, a test and the cases of it; a test in parts takes every jobs-th case each.
runs=()
add_run() {
  local cpu=$1 test=$2 filter=${3:-*} parts=${4:-1} part
  for ((part = 0; part < parts; ++part)); do
    runs+=("$cpu $test $filter $parts $part")
  done
}
# All sets: every test loops over those that the processor runs.
# No tests of ranks: waiting ranks spin, which takes minutes under qemu. These tests do not depend
# on the processor, and release, asan and tsan run them.
add_run max specdec_cpu_linear_test '-*Ranks*' "$jobs"
# These operations have no use for dot products of bytes: only two sets differ, in bfloat16. qemu
# takes a microsecond for a bfdot, so those of attention have one kind of cache here.
two_sets='*/neon_float32*:*/neon_bfloat16*:*/neon_bf16_*'
add_run max specdec_cpu_attention_test \
  "AttentionWork*:Features*:$two_sets-*/neon_bf16_float32*:*/neon_bf16_*_int8" "$jobs"
add_run max specdec_cpu_pointwise_test "$two_sets" "$jobs"
# Noise has the bits of x86 (CpuSameBits), so its distribution needs no draws here.
add_run max specdec_sampler_test '-*Distribution*:*PlantedRule*:NoisePairs*:Noise.*' "$jobs"
add_run max specdec_precisions_test '*' "$jobs"
add_run max specdec_cpu_moe_test
add_run max specdec_cpu_recurrent_test "$two_sets" "$jobs"
add_run max specdec_simd_test
add_run max specdec_core_test '*'
# Plain NEON, and dot products without anything later.
for cpu in cortex-a72 cortex-a76; do
  add_run "$cpu" specdec_cpu_linear_test 'Isa*:CpuSameBits*:*CpuIntLinearTest.ProductsMatch*'
done

run_one() {
  local cpu=$1 test=$2 filter=$3 parts=$4 part=$5 log
  log=$logs/$cpu-$test-$part.txt
  GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part timeout 600 \
    qemu-aarch64-static -cpu "$cpu" "$build/tests/cpp/$test" --gtest_filter="$filter" \
    >"$log" 2>&1 || {
    tail -n 40 "$log"
    echo "$test ($filter) failed on $cpu, or took 10 minutes: $log" >&2
    return 1
  }
  # A filter that names nothing must not pass.
  if ! grep -q '^\[  PASSED  \] [1-9]' "$log"; then
    echo "$test ($filter) ran no case on $cpu" >&2
    return 1
  fi
  echo "$cpu $test $((part + 1))/$parts: $(grep 'ran\. (' "$log" | sed 's/.*==\] //')"
}
# The sets that a processor runs, by the names of the tests' cases.
expect_sets() {
  local cpu=$1 expected=$2 found
  found=$(qemu-aarch64-static -cpu "$cpu" "$build/tests/cpp/specdec_cpu_linear_test" \
    --gtest_list_tests --gtest_filter='*CpuLinearTest.MatchesDoubleLoops/*_float32' |
    sed -n 's/.*\/\(.*\)_float32.*/\1/p' | xargs)
  if [[ $found != "$expected" ]]; then
    echo "$cpu runs the sets '$found', not '$expected'" >&2
    return 1
  fi
}
expect_sets max "generic neon neon_dotprod neon_i8mm neon_bf16"
expect_sets cortex-a76 "generic neon neon_dotprod"
expect_sets cortex-a72 "generic neon"

export -f run_one
export build logs
printf '%s\n' "${runs[@]}" | xargs -P "$jobs" -L 1 bash -c 'set -f; run_one $0 "$@"'
