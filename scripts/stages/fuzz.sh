# Seeded random files, parameters and interrupts, for a minute or two. CONTRIBUTING.md says how to
# ask for more; stage asan runs the fuzzers written in C++.
# reads: *CMakeLists.txt VERSION pyproject.toml cmake cpp cuda python tests/python tests/data
# reads: tests/testing/core_testing.cc tests/testing/draft_probe.*
install_module
"$PYTHON" -m pytest -m fuzz
