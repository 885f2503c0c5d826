# The C++ tests: those of the host, and one order of threads of the CUDA kernels on the emulated device.
# reads: *CMakeLists.txt CMakePresets.json VERSION cmake cpp cuda tests/cpp tests/cuda tests/testing tests/data
executables=(
  specdec_{allocation_failure,backend,c_api,comm,config,core,cpu_attention,cpu_linear,cpu_moe}_test
  specdec_{cpu_pointwise,cpu_recurrent,engine,grammar,hostile_files,kv_bookkeeping,model,precisions,runtime,sampler}_test
  specdec_{sched,simd,speculation,verification}_test
  specdec_cuda_{attention,projection,sampling,verify,device_executor}_test
)
build release "${executables[@]}"
GTEST_FILTER='-*/EmulatedForward*:*/EmulatedReverse*' run_ctest release "${executables[@]}"
