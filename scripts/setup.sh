#!/bin/sh
# Makes the development environment: a venv from the hashed lock, and the system packages that
# tests use where this machine lets us install them. Usage: setup.sh VENV
set -eu
cd "$(dirname "$0")/.."
venv=$1

system_packages() {
  command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || return 0
  missing=
  for package in libopenblas0-pthread shellcheck dash chromium; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  echo "installing system packages:$missing"
  # shellcheck disable=SC2086 # a list of package names
  { apt-get install -y -q $missing || { apt-get update -q && apt-get install -y -q $missing; }; } >/dev/null 2>&1 ||
    echo "could not install$missing; tests that need them are skipped or slower"
}

python_for_venv() {
  for candidate in "${PYTHON:-}" python3.12 python3.11 python3.13 python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "no Python >= 3.11 found" >&2
  exit 66
}

system_packages
[ -x "$venv/bin/python" ] || "$(python_for_venv)" -m venv "$venv"
echo "installing locked packages into $venv"
# Python compiles the few modules that are imported by itself; all of them would take half a minute.
install() { "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile --require-hashes "$@"; }
install -r locks/dev.txt
install --no-deps -r locks/vision.txt
