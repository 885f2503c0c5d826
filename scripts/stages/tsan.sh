# Under ThreadSanitizer, what runs on several threads; of attention, which no kernel set does otherwise,
# one set's tests.
# reads: *CMakeLists.txt CMakePresets.json VERSION cmake cpp cuda tests/cpp tests/testing
# reads: :!cuda/kernels :!cuda/emulation :!tests/cpp/speculation :!tests/cpp/model
executables=(specdec_{comm,core,cpu_attention,cpu_linear,engine,sampler}_test)
build tsan "${executables[@]}"
filters=(
  '*ThreadPool*' '*Communicator*threads*' '*Cpu*Linear*' '*CpuSlices*Late*/avx2_*'
  '*CpuAttention*/avx2_bfloat16' '*OnAnyThreads*' '*Engine*' '*Pipeline*' '*Speculation*'
)
SPECDEC_FEW_SHAPES=1 GTEST_FILTER=$(IFS=:; echo "${filters[*]}") run_ctest tsan "${executables[@]}"
