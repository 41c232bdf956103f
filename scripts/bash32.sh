#!/bin/sh
# Builds the bash of a Mac (3.2.48; Apple ships 3.2.57) into .cache/bash32, for `make test-shells`.
# From bash's own history; needs git, make and a C compiler.
set -eu
COMMIT=f1be666c7d78939ad775078d290bec2758fa29a2
folder=.cache/bash32
[ ! -x "$folder/bash" ] || exit 0
rm -rf "$folder" && mkdir -p "$folder" && cd "$folder"
git init -q .
git fetch -q --depth 1 https://git.savannah.gnu.org/git/bash.git "$COMMIT" ||
  git fetch -q --depth 1 https://github.com/bminor/bash "$COMMIT"
git checkout -q FETCH_HEAD
# The generated parser in that tree is older than its grammar by one argument.
sed 's/expand_prompt_string (result, Q_DOUBLE_QUOTES);/expand_prompt_string (result, Q_DOUBLE_QUOTES, 0);/' \
  y.tab.c >y.tab.new
mv y.tab.new y.tab.c
CFLAGS='-O1 -std=gnu89 -w -fcommon' ./configure --without-bash-malloc --disable-nls >configure.log 2>&1
touch y.tab.c y.tab.h # after the grammar, or make asks for bison
make >make.log 2>&1
./bash --version | head -n 1
