# Every kernel for the architectures that are built for, on a machine that needs no GPU: what the
# compiler made of the kernels, and that the module is as good as any other there.
# minutes: 30
# reads: *CMakeLists.txt CMakePresets.json VERSION pyproject.toml cmake cpp cuda python tests/cuda
# reads: tests/testing bench/common bench/kernels scripts/cuda_gates.py scripts/cuda_gates.txt
# reads: scripts/cuda_toolkit.py tests/python/conftest.py tests/python/repository/test_cuda_gates.py
# reads: tests/python/specdec_native/engine/test_cuda_module.py
TIMEFORMAT='built for CUDA in %R s, %U s of CPU time'
objects=build/cuda/cuda/CMakeFiles
CUDACXX=$("$PYTHON" scripts/cuda_toolkit.py nvcc build/cuda-toolkit)
export CUDACXX
disassembler=$("$PYTHON" scripts/cuda_toolkit.py disassembler build/cuda-disassembler)
cutlass=$("$PYTHON" scripts/cuda_toolkit.py cutlass build/cuda-cutlass)
cmake --preset cuda -DSPECDEC_CUTLASS="$cutlass" \
  -Dpybind11_DIR="$("$PYTHON" -m pybind11 --cmakedir)" >/dev/null
time build cuda _core cuda_kernel_bench cuda_machine_bench cuda_step_bench tests/cuda/all
"$PYTHON" scripts/cuda_gates.py --disassembler "$disassembler" --build build/cuda \
  $objects/specdec_cuda_native.dir/kernels/*.o $objects/specdec_cuda_cutlass.dir/gemm/*.o
mkdir -p build/cuda/module
cp -r python/specdec_* build/cuda/module
cp build/cuda/python/bindings/_core*.so build/cuda/module/specdec_native
PYTHONPATH=build/cuda/module "$PYTHON" -m pytest \
  tests/python/repository/test_cuda_gates.py tests/python/specdec_native/engine/test_cuda_module.py
