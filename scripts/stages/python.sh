# What a user of the engine sees, and one path through everything else that is Python.
# reads: .
install_module
"$PYTHON" -m pytest -m "not fuzz and not breadth" -n "$jobs"
