#!/usr/bin/env bash
# Installs everything and runs the main job on real weights: scripts/demo.sh [demo options]
cd "$(dirname "${BASH_SOURCE[0]}")/.."
echo "specdec-native: makes an environment in ${SPECDEC_VENV:-.venv}, compiles for this CPU and generates
with SmolLM2-135M-Instruct (a download of 270 MB). The first time takes about five minutes on two cores."
source scripts/setup.sh
ensure_python
echo "compiling and installing ..."
"$PYTHON" -m pip install -q ".[all]"
exec "$PYTHON" -m specdec_native demo "$@"
