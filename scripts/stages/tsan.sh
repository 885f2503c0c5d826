# Under ThreadSanitizer, what runs on several threads; of attention, which no kernel set does otherwise,
# one set's tests.
# reads: *CMakeLists.txt CMakePresets.json VERSION cmake cpp cuda tests/cpp tests/testing
# reads: :!cuda/kernels :!cuda/emulation :!tests/cpp/speculation :!tests/cpp/model
build tsan specdec_{comm,core,cpu_attention,cpu_linear,engine,sampler}_test
filters=(
  '*ThreadPool*' '*Communicator*threads*' '*Cpu*Linear*' '*CpuSlices*Late*/avx2_*'
  '*CpuAttention*/avx2_bfloat16' '*OnAnyThreads*' '*Engine*' '*Pipeline*' '*Speculation*'
)
GTEST_FILTER=$(IFS=:; echo "${filters[*]}") \
  SPECDEC_FEW_SHAPES=1 run_ctest tsan 'specdec_(comm|core|cpu_attention|cpu_linear|engine|sampler)_test'
