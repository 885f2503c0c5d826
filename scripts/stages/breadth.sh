# What stage python leaves out of the tests of the engine and of vLLM's names.
# minutes: 24
# reads: *CMakeLists.txt VERSION pyproject.toml cmake cpp cuda python/bindings python/specdec_native
# reads: python/specdec_vllm scripts docs/supported.md docs/vllm.md tests/data tests/python/conftest.py tests/python/testing
# reads: tests/python/specdec_native tests/python/specdec_vllm tests/testing/core_testing.cc tests/testing/draft_probe.*
install_module
"$PYTHON" -m pytest -m "not fuzz and breadth" -n "$jobs" tests/python/{specdec_native,specdec_vllm}
