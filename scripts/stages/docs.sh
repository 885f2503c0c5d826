# The site, from docs/ and docstrings; stage whole runs the code in its pages.
# reads: docs mkdocs.yml *.md python scripts bench/results examples
"$PYTHON" -m pip install -q --group docs
NO_MKDOCS_2_WARNING=1 "$PYTHON" -m mkdocs build --strict --quiet
