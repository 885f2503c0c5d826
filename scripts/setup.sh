# Sourced by the other scripts: installs what a fresh Debian-like machine lacks and makes a virtual
# environment in .venv (or $SPECDEC_VENV). Defines $PYTHON.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Installs Debian packages whose files are missing. Arguments: pairs of file and package.
ensure_packages() {
  local missing=()
  while (($# > 0)); do
    compgen -G "$1" >/dev/null || missing+=("$2")
    shift 2
  done
  ((${#missing[@]} == 0)) && return
  local as_root=()
  ((EUID == 0)) || as_root=(sudo)
  if ! command -v apt-get >/dev/null; then
    echo "please install: ${missing[*]}" >&2
    exit 1
  fi
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
}

ensure_python() {
  ensure_packages \
    /usr/bin/g++ g++ \
    /usr/bin/git git
  local python=${SPECDEC_BASE_PYTHON:-python3}
  command -v "$python" >/dev/null || ensure_packages /usr/bin/python3 python3
  # A distribution's Python keeps its headers and venv in packages of their own.
  if ! "$python" -c 'import ensurepip, sysconfig, os, sys
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null; then
    ensure_packages /nonexistent python3-dev /nonexistent python3-venv
  fi
  local venv=${SPECDEC_VENV:-.venv}
  if [[ ! -x $venv/bin/python ]]; then
    "$python" -m venv "$venv"
    echo '*' >"$venv/.gitignore" # as Python 3.13 does: lints leave it out, whatever its name
  fi
  PYTHON=$venv/bin/python
  "$PYTHON" -m pip install -q --upgrade "pip>=25.1"
}
