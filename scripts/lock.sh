#!/bin/sh
# Rewrites the lock files from pyproject.toml (needs uv and the package registry).
# One file for each kind of machine, all on the versions that locks/dev.txt tests.
set -eu
cd "$(dirname "$0")/.."
compile() { uv pip compile pyproject.toml "$@" --universal --python-version 3.11 --generate-hashes --quiet --no-header; }
compile --extra cpu --extra dev -o locks/dev.txt "${@}"
compile -c locks/dev.txt -o locks/macos.txt
compile -c locks/dev.txt --extra cpu -o locks/linux-cpu.txt
compile -c locks/dev.txt --extra cuda12 -o locks/linux-cuda12.txt
compile -c locks/dev.txt --extra cuda13 -o locks/linux-cuda13.txt
# The extra `vision`, without what its packages ask for (docs/adr/0004-vision.md).
.venv/bin/python - <<'PY' | uv pip compile - --no-deps --universal --python-version 3.11 --generate-hashes --quiet --no-header -o locks/vision.txt
import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(*extras["vision"], sep="\n")
PY
# What install.sh builds the wheel with.
echo "hatchling>=1.27" | uv pip compile - --universal --python-version 3.11 --generate-hashes --quiet --no-header -o locks/build.txt
