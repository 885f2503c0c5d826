#!/usr/bin/env bash
# Installs everything and runs the main job on real weights: scripts/demo.sh [demo options]
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
ensure_python
echo "building and installing specdec-native (a few minutes the first time) ..."
"$PYTHON" -m pip install -q ".[all]"
exec "$PYTHON" -m specdec_native demo "$@"
