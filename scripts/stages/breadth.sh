# What stage python leaves out of the tests of the engine, vLLM's names, the command line, the docs.
# reads: . :!tests/cpp :!tests/cuda :!tests/testing :!tests/python/bench :!tests/python/specdec_lab
# reads: :!tests/python/specdec_serve
install_module
"$PYTHON" -m pytest -m "not fuzz and breadth" -n "$jobs" \
  tests/python/{repository,specdec_cli,specdec_native,specdec_vllm}
