# The service: each endpoint, flag and tool, the chat page, replicas.
# reads: *CMakeLists.txt VERSION pyproject.toml cmake cpp cuda python/bindings python/specdec_native
# reads: python/specdec_vllm python/specdec_serve python/specdec_cli examples tests/clients tests/data
# reads: tests/python/conftest.py tests/python/testing tests/python/specdec_native
# reads: tests/python/specdec_serve tests/testing/core_testing.cc tests/testing/draft_probe.*
ensure_packages /usr/bin/chromium chromium  # for the tests of the chat page
install_module
"$PYTHON" -m pytest -m "not fuzz and breadth" -n "$jobs" tests/python/specdec_serve
