#!/bin/sh
# Regenerates proto/swiftlm_proto/_gen from the two .proto files. Usage: generate_proto.sh [OUT_DIR]
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=${1:-proto/swiftlm_proto/_gen}
rm -rf "$out" && mkdir -p "$out"
PATH="$(dirname "$python"):$PATH" "$python" -m grpc_tools.protoc -I proto \
  --python_betterproto2_out="$out" --python_betterproto2_opt=client_generation=async --python_betterproto2_opt=server_generation=async \
  proto/swiftlm/v1/admin.proto proto/swiftlm/v1/engine.proto
