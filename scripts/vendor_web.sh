#!/bin/sh
# Fetches the page's few libraries, pinned, with their licences, into daemon/swiftlmd/web/vendor.
# They are committed: an installation fetches nothing. Run again after raising a version.
# `--old` changes nothing: it lists those of which the registry has a newer version.
set -eu

cd "$(dirname "$0")/.."
target=daemon/swiftlmd/web/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "${1:-}" = "--old" ]; then
    sed -n 's/^vendor \([^ ]*\) \([^ ]*\) .*/\1 \2/p' "$0" | while read -r name version; do
        newest=$(curl -fsSL "https://registry.npmjs.org/$name/latest" |
            grep -o '"version": *"[0-9][^"]*"' | head -n 1 | cut -d '"' -f 4)
        [ "$newest" = "$version" ] || echo "$name $version, newest $newest"
    done
    exit 0
fi

# NAME VERSION SHA256 FILE-IN-PACKAGE LICENCE-IN-PACKAGE TARGET
vendor() {
    archive="$work/package.tgz"
    curl -fsSL "https://registry.npmjs.org/$1/-/${1##*/}-$2.tgz" -o "$archive"
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
vendor dompurify 3.5.0 faa5f2bfe2814384b83d6edb4ed66812fbfdb2a654b4d59edd4b12304058ec20 dist/purify.min.js LICENSE purify
echo "export default globalThis.DOMPurify;" >>"$target/purify.js"

# The icons that the page uses, as one module: name -> what is inside the svg element.
icons="activity arrow-down arrow-up boxes brain check chevron-down chevron-left chevron-right copy
cpu database download ellipsis eye file-text gauge git-branch globe hard-drive image info key-round
layers lightbulb list message-square monitor moon palette panel-left paperclip pause pencil pin
pin-off play plus rotate-ccw scroll-text search settings sliders-horizontal smartphone sparkles
square square-pen step-forward sun trash-2 triangle-alert upload volume-2 wifi wrench x zap code-xml languages"
vendor lucide-static 1.62.0 386f9080c440d6f5049cefe3456ae8357f7a0c7f76e59670cd1cb83bc7050a44 "" LICENSE lucide
{
    echo "// Lucide 1.62.0 (ISC), made by scripts/vendor_web.sh."
    echo "export default {"
    for icon in $icons; do
        inside=$(sed -n '/^  </p' "$work/lucide-static/package/icons/$icon.svg" | sed 's/^ *//; s| />|/>|' | tr -d '\n')
        echo "\"$icon\": '$inside',"
    done
    echo "};"
} >"$target/lucide.js"

# Drawn when an answer needs them: mathematics, and the colours of code.
vendor temml 0.13.5 bca5b76dd26d1d6c81f8d817f6cc8bf0f0a1a7787512e281d5c22b986f8ae582 dist/temml.min.js LICENSE temml
echo "export default temml;" >>"$target/temml.js"
vendor @highlightjs/cdn-assets 11.12.0 b8a006d30f45afe783072569f3d69c5b60c0e7b9ca28cd474e12f2584e2a3bd9 es/highlight.min.js LICENSE highlight

# For the tests alone: the page is examined with it and never ships it.
target=tests/web/vendor
mkdir -p "$target"
vendor axe-core 4.10.3 0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292 axe.min.js LICENSE axe.min
