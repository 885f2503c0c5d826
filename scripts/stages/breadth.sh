# Every Python test that stage python leaves out: each endpoint, option, drafter, trainer and tool.
# reads: . :!tests/cpp :!tests/cuda :!tests/testing
ensure_packages /usr/bin/chromium chromium  # for the tests of the chat page
install_module
"$PYTHON" -m pytest -m "not fuzz and breadth" -n "$jobs"
