#!/bin/sh
# Fetches the page's few libraries, pinned, with their licences, into daemon/swiftlmd/web/vendor.
# They are committed: an installation fetches nothing. Run again after raising a version.
set -eu

cd "$(dirname "$0")/.."
target=daemon/swiftlmd/web/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# NAME VERSION SHA256 FILE-IN-PACKAGE LICENCE-IN-PACKAGE TARGET
vendor() {
    archive="$work/$1.tgz"
    curl -fsSL "https://registry.npmjs.org/$1/-/$1-$2.tgz" -o "$archive"
    echo "$3  $archive" | sha256sum -c --quiet
    mkdir -p "$work/$1"
    tar -xzf "$archive" -C "$work/$1"
    # Source maps are not vendored; a reference to one would be a failing request.
    [ -z "$4" ] || sed '/^\/\/# sourceMappingURL=/d' "$work/$1/package/$4" >"$target/$6.js"
    cp "$work/$1/package/$5" "$target/$6.LICENSE"
}

mkdir -p "$target"
vendor htm 3.1.1 2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90 preact/standalone.module.js LICENSE htm-preact
vendor preact 10.24.3 d8f5d1d6bb058659079b26044ff532a77eb7060b9ae001faef80257891151880 "" LICENSE preact
vendor marked 18.2.1 d66c5213fc203466186060105b01f51896764ba64b3797d2620d02e28e34b8ca lib/marked.esm.js LICENSE marked
vendor dompurify 3.5.0 faa5f2bfe2814384b83d6edb4ed66812fbfdb2a654b4d59edd4b12304058ec20 dist/purify.es.mjs LICENSE purify

# For the tests alone: the page is examined with it and never ships it.
target=tests/web/vendor
mkdir -p "$target"
vendor axe-core 4.10.3 0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292 axe.min.js LICENSE axe.min
