# The whole CUDA backend on the emulated device, in three orders of threads.
# reads: *CMakeLists.txt CMakePresets.json VERSION cmake cpp cuda tests/cuda tests/testing
build release tests/cuda/all
run_ctest release 'specdec_cuda_.*'
