#!/bin/sh
# Fetches swiftlm @VERSION@, checks its hash and runs its install.sh with the words given here:
#   curl -LsSf URL-OF-THIS-FILE | sh
#   curl -LsSf URL-OF-THIS-FILE | sh -s -- --uninstall
# Needs curl or wget, and tar. Written by `make release`, which puts the version and the hash in.
# Everything runs inside main(), called on the last line: half a script does nothing.
set -eu
VERSION='@VERSION@' SHA256='@SHA256@'
URL=${SWIFTLM_TARBALL:-'@URL@'}
BAD_HASH=65 NO_TOOL=69

fail() {
  code=$1
  shift
  printf 'swiftlm: %s\n' "$*" >&2
  exit "$code"
}

main() {
  folder=$(mktemp -d "${TMPDIR:-/tmp}/swiftlm.XXXXXX")
  trap 'rm -rf "$folder"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  fetch "$folder/swiftlm.tar.gz"
  found=$(hash_of "$folder/swiftlm.tar.gz")
  [ "$found" = "$SHA256" ] || fail $BAD_HASH "$URL has the SHA-256 $found, but $SHA256 was \
published; nothing was installed"
  tar -xzf "$folder/swiftlm.tar.gz" -C "$folder"
  # In a pipe, standard input is this script: questions go to the terminal, if there is one.
  if [ ! -t 0 ] && [ -t 1 ] && (: </dev/tty) 2>/dev/null; then
    sh "$folder/swiftlm-$VERSION/install.sh" "$@" </dev/tty
  elif [ ! -t 0 ]; then
    sh "$folder/swiftlm-$VERSION/install.sh" "$@" </dev/null
  else
    sh "$folder/swiftlm-$VERSION/install.sh" "$@"
  fi
}

fetch() {
  if command -v curl >/dev/null 2>&1; then
    curl -LsSf -o "$1" "$URL" || fail 1 "cannot fetch $URL"
  elif command -v wget >/dev/null 2>&1; then
    wget -q -O "$1" "$URL" || fail 1 "cannot fetch $URL"
  else
    fail $NO_TOOL "neither curl nor wget is here"
  fi
}

hash_of() {
  if command -v sha256sum >/dev/null 2>&1; then
    sha256sum "$1" | cut -d ' ' -f 1
  elif command -v shasum >/dev/null 2>&1; then
    shasum -a 256 "$1" | cut -d ' ' -f 1
  else
    openssl dgst -sha256 "$1" | sed 's/.*= //'
  fi
}

main "$@"
