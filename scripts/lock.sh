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
# What install.sh builds the wheel with.
echo "hatchling>=1.27" | uv pip compile - --universal --python-version 3.11 --generate-hashes --quiet --no-header -o locks/build.txt
