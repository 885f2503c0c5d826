# The command line, the code in README and the pages of the site, what releases are made of.
# reads: . :!tests/cpp :!tests/cuda
install_module
"$PYTHON" -m pytest -m "not fuzz and breadth" -n "$jobs" tests/python/{repository,specdec_cli}
