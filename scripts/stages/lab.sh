# Training, evaluation, planning and benchmarks: each option, trainer and report.
# reads: *CMakeLists.txt CMakePresets.json VERSION pyproject.toml cmake cpp cuda python/bindings python/specdec_native
# reads: python/specdec_vllm python/specdec_lab python/specdec_serve python/specdec_cli bench scripts docs/gpu.md tests/data
# reads: tests/python/conftest.py tests/python/testing tests/python/bench tests/python/specdec_lab
# reads: tests/python/specdec_serve tests/testing/core_testing.cc tests/testing/draft_probe.* tests/testing/quantized_matrix.*
build release cuda_step_bench cuda_head_bench cuda_kernel_bench  # whose launches tests predict
install_module
"$PYTHON" -m pytest -m "not fuzz and breadth" -n "$jobs" tests/python/{bench,specdec_lab}
