#!/bin/sh
# Installs every client at its pinned version and runs them all against the scripted server; after
# the installs nothing needs the network. The table goes into docs/clients.md.
# Usage: sh tests/clients/run.sh [pytest options]     (CLIENTS_CACHE: where to install)
set -eu
cd "$(dirname "$0")/../.."
here=tests/clients
cache=${CLIENTS_CACHE:-.cache/clients}
python=${PYTHON:-python3}
AIDER_VERSION=0.86.2

mkdir -p "$cache/agents"
cache=$(cd "$cache" && pwd)

install() { # folder, then what pip is to install into it
  folder=$cache/$1
  shift
  [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
  "$folder/bin/pip" install -q "$@"
}

install venv -r "$here/requirements.txt"
install older -r "$here/requirements-older.txt"
# aider pins nearly everything, so it lives alone.
install aider "aider-chat==$AIDER_VERSION"
if command -v npm >/dev/null; then
  cp "$here/package.json" "$cache/agents/"
  npm install --prefix "$cache/agents" --silent --no-fund --no-audit
else
  echo "npm is not installed: the agents that need it are skipped" >&2
fi

export SWIFTLM_AGENTS="$cache/agents/node_modules/.bin:$cache/aider/bin"
export CLIENTS_TABLE=docs/clients.md AIDER_VERSION
failed=0
"$cache/venv/bin/python" -m pytest "$here" -W ignore "$@" || failed=1
"$cache/older/bin/python" -m pytest "$here/test_client_frameworks.py" -W ignore \
  -k "instructor or llama_index" || failed=1
exit $failed
