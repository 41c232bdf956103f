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
[ -x "$cache/venv/bin/python" ] || "$python" -m venv "$cache/venv"
"$cache/venv/bin/pip" install -q -r "$here/requirements.txt"
# aider pins nearly everything, so it lives alone.
[ -x "$cache/aider/bin/python" ] || "$python" -m venv "$cache/aider"
"$cache/aider/bin/pip" install -q "aider-chat==$AIDER_VERSION"
if command -v npm >/dev/null; then
  cp "$here/package.json" "$cache/agents/"
  npm install --prefix "$cache/agents" --silent --no-fund --no-audit
else
  echo "npm is not installed: the agents that need it are skipped" >&2
fi

export SWIFTLM_AGENTS="$cache/agents/node_modules/.bin:$cache/aider/bin"
export CLIENTS_TABLE=docs/clients.md AIDER_VERSION
exec "$cache/venv/bin/python" -m pytest "$here" -W ignore "$@"
