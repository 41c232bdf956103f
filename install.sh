#!/bin/sh
# Installs swiftlm for this user from a checkout: an environment of its own, a service, a small
# model, one real answer. Runs again without harm; needs no root; adds nothing to a shell file.
#
# Layout: APP/versions/RELEASE/venv, and APP/current, a link that is switched by rename. A release
# is the version and a digest of what goes into it, so an unchanged checkout is recognised.
# Everything runs inside main(), called on the last line: half a script does nothing.
set -eu
# What a user's shell may carry, and what would send cd and pip elsewhere.
unset CDPATH PIP_TARGET PIP_PREFIX PIP_ROOT
PIP_USER=0
export PIP_USER

MODEL=smollm2-135m LABEL=io.github.swiftlm.swiftlmd
# A first start can be held up by the malware scan of a new program tree.
READY_S=90
NOT_STARTED=10 USAGE=64 BAD_HASH=65 NO_PYTHON=66 NO_SYSTEM=69 UNHEALTHY=70 NO_SERVICE=71
CANNOT_WRITE=73 BUSY=75 IS_ROOT=77

usage() {
  cat <<'TEXT'
Usage: sh install.sh [options]

  --no-start         register the service, do not start it
  --headless         for a machine without a screen session (docs/service.md)
  --vision           with what models need to read images (docs/vision.md); later releases keep it
  --prefix DIR       keep everything below DIR instead of the usual places; below DIR/swiftlm
                     if DIR holds other files
  --python PROGRAM   the Python (>= 3.11) to build on
  --rollback         go back to the release before this one; again: forward to this one
  --uninstall        remove program, service, caches, logs, state (the list of added folders,
                     measurements, the certificate authority), and what `swiftlmctl connect`
                     and tab completion wrote; keep models and configuration
  --purge            with --uninstall: models and configuration too
  --yes              do not ask; --uninstall without a terminal needs it
  --dry-run          say what would be done, change nothing
  --version          print what this checkout would install
  --help             this text

Exit codes: 0 done, 10 installed but not started, 64 usage, 65 a download has the wrong checksum,
66 no usable Python, 69 unsupported system, 70 unhealthy (an upgrade is rolled back), 71 the
service could not be registered, 73 cannot write, 75 another installation is running, 77 root;
1 anything else.
TEXT
}

say() { printf '%s\n' "$*"; }
note() { printf 'note: %s\n' "$*"; }

fail() {
  code=$1
  shift
  printf 'install.sh: %s\n' "$*" >&2
  exit "$code"
}

main() {
  parse "$@"
  refuse_root
  find_system "$@"
  find_source
  find_places
  case $ACTION in
    version) say "$VERSION" ;;
    uninstall) uninstall ;;
    rollback) roll_back_on_request ;;
    install) install ;;
  esac
}

parse() {
  ACTION=install START=yes HEADLESS=no VISION=no PREFIX='' PYTHON='' PURGE=no YES=no DRY_RUN=no
  while [ $# -gt 0 ]; do
    option=$1 value=''
    shift
    case $option in
      --prefix | --python)
        [ $# -gt 0 ] || fail $USAGE "$option needs a value"
        value=$1
        shift
        ;;
      --prefix=* | --python=*) value=${option#*=} option=${option%%=*} ;;
    esac
    take_option "$option" "$value"
  done
  [ "$PURGE" = no ] || [ "$ACTION" = uninstall ] || fail $USAGE "--purge goes with --uninstall"
}

take_option() {
  case $1 in
    --no-start) START=no ;;
    --headless) HEADLESS=yes ;;
    --vision) VISION=yes ;;
    --prefix)
      PREFIX=$2
      [ -n "$PREFIX" ] || fail $USAGE "--prefix needs a folder"
      ;;
    --python) PYTHON=$2 ;;
    --rollback) ACTION=rollback ;;
    --uninstall) ACTION=uninstall ;;
    --purge) PURGE=yes ;;
    --yes | -y) YES=yes ;;
    --dry-run) DRY_RUN=yes ;;
    --version) ACTION=version ;;
    --help | -h)
      usage
      exit 0
      ;;
    *) fail $USAGE "unknown option $1; see --help" ;;
  esac
}

absolute() {
  case $1 in
    /*) printf '%s' "$1" ;;
    *) printf '%s/%s' "$(pwd)" "$1" ;;
  esac
}

# --- where are we ---------------------------------------------------------------------------------

refuse_root() {
  # Root in a Linux container is an ordinary user of its own; sudo never is.
  [ -z "${SUDO_USER:-}" ] || fail $IS_ROOT "run this as yourself, without sudo"
  if [ "$(uname -s)" = Darwin ] && [ "$(id -u)" = 0 ]; then
    fail $IS_ROOT "root has no session to run a user's service in; run this as yourself"
  fi
}

find_system() {
  SYSTEM=$(uname -s) MACHINE=$(uname -m)
  case $SYSTEM in
    Darwin) find_mac "$@" ;;
    Linux) find_linux ;;
    *) fail $NO_SYSTEM "swiftlm runs on macOS and Linux, not on $SYSTEM" ;;
  esac
}

find_mac() {
  # Under Rosetta uname lies; both questions, since one of them has been seen to fail.
  if [ "$(sysctl -n sysctl.proc_translated 2>/dev/null || :)" = 1 ] ||
    { [ "$MACHINE" = x86_64 ] && [ "$(sysctl -n hw.optional.arm64 2>/dev/null || :)" = 1 ]; }; then
    [ -z "${SWIFTLM_REEXEC:-}" ] || fail $NO_SYSTEM "this shell stays under Rosetta; open a native one"
    note "this shell runs under Rosetta; starting again natively"
    SWIFTLM_REEXEC=1 exec arch -arm64 /bin/sh "$0" "$@"
  fi
  [ "$MACHINE" = arm64 ] || fail $NO_SYSTEM "MLX needs Apple silicon; this Mac is $MACHINE"
  release=$(sw_vers -productVersion)
  [ "${release%%.*}" -ge 14 ] || fail $NO_SYSTEM "MLX needs macOS 14; this is $release"
  KIND=macos
}

find_linux() {
  case $MACHINE in
    x86_64 | aarch64) ;;
    *) fail $NO_SYSTEM "MLX has no build for Linux on $MACHINE" ;;
  esac
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || :)
  driver=${driver%%.*}
  case $driver in
    '' | *[!0-9]*) KIND=linux-cpu ;;
    *)
      if [ "$driver" -ge 580 ]; then
        KIND=linux-cuda13
      elif [ "$driver" -ge 550 ]; then
        KIND=linux-cuda12
      else
        KIND=linux-cpu
        note "NVIDIA driver $driver is older than 550; installing for the CPU"
      fi
      ;;
  esac
}

find_source() {
  SOURCE=$(cd -- "$(dirname -- "$0")" && pwd)
  if [ ! -f "$SOURCE/pyproject.toml" ] || [ ! -d "$SOURCE/locks" ]; then
    fail $USAGE "run this from a checkout: git clone ..., then sh install.sh"
  fi
  VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$SOURCE/pyproject.toml" | head -n 1)
  LOCK=$SOURCE/locks/$KIND.txt
}

# The same places as proto/swiftlm_proto/paths.py.
find_places() {
  if [ "$SYSTEM" = Darwin ]; then
    APP="$HOME/Library/Application Support/swiftlm" STATE=$APP/state
    CACHE=$HOME/Library/Caches/swiftlm LOGS=$HOME/Library/Logs/swiftlm
  else
    APP=${XDG_DATA_HOME:-$HOME/.local/share}/swiftlm
    STATE=${XDG_STATE_HOME:-$HOME/.local/state}/swiftlm LOGS=$STATE/logs
    CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/swiftlm
  fi
  USUAL=$APP CURRENT=$APP/current BIN=$HOME/.local/bin
  PLIST=$HOME/Library/LaunchAgents/$LABEL.plist
  UNIT=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/swiftlmd.service
  PREFIX=${PREFIX:-${SWIFTLM_HOME:-}} OWN_PLACE=no
  if [ -n "$PREFIX" ]; then
    PREFIX=$(tidy "$(absolute "$PREFIX")")
    [ "$PREFIX" = "$USUAL" ] || find_own_place
  elif [ "$ACTION" = uninstall ] || [ "$ACTION" = rollback ]; then
    find_registered_place
  fi
}

# As pathlib reads it: a slash too many makes no other place.
tidy() {
  printf '%s' "$1" | sed -e 's|//*|/|g' -e ':again' -e 's|/\./|/|' -e 't again' \
    -e 's|/\.$||' -e 's|\(.\)/$|\1|'
}

# DIR itself when it is ours, new or empty; else DIR/swiftlm. Others keep files in ~/.local.
find_own_place() {
  for place in "$PREFIX" "$PREFIX/swiftlm"; do
    if [ "$place" = "$USUAL" ]; then return; fi
    if holds_ours "$place" || { [ "$ACTION" = install ] && is_free "$place"; }; then
      take_place "$place"
      return
    fi
  done
  if [ "$ACTION" = install ]; then
    fail $CANNOT_WRITE "$PREFIX and $PREFIX/swiftlm hold other files; name a new or empty folder"
  fi
  fail 1 "nothing of swiftlm is installed in $PREFIX; nothing was changed"
}

take_place() {
  OWN_PLACE=yes APP=$1 STATE=$1/state CACHE=$1/cache LOGS=$1/logs CURRENT=$1/current
  SWIFTLM_HOME=$1
  export SWIFTLM_HOME
}

# make_folders leaves a mark; installations from before the mark have this link.
holds_ours() {
  [ -f "$1/.swiftlm" ] || case $(readlink "$1/current" 2>/dev/null || :) in
    versions/*/venv) return 0 ;;
    *) return 1 ;;
  esac
}

is_free() {
  [ ! -d "$1" ] || [ -z "$(ls -A "$1" 2>/dev/null)" ]
}

# Nothing in the usual place: a --prefix of the installation is known to its programs and service.
find_registered_place() {
  [ ! -e "$APP/versions" ] && [ ! -L "$CURRENT" ] || return 0
  for place in "$(place_of_wrapper)" "$(place_of_plist)" "$(place_of_unit)"; do
    if [ -n "$place" ] && [ "$place" != "$USUAL" ] && holds_ours "$place"; then
      say "the installation is in $place"
      take_place "$place"
      return
    fi
  done
}

place_of_wrapper() {
  [ ! -f "$BIN/swiftlmctl" ] || sed -n "s/^SWIFTLM_HOME='\(.*\)' exec .*/\1/p" "$BIN/swiftlmctl" |
    sed "s/'\\\\''/'/g"
}

place_of_plist() {
  [ ! -f "$PLIST" ] || sed -n -e '/<key>SWIFTLM_HOME</{' -e n \
    -e 's|.*<string>\(.*\)</string>.*|\1|p' -e '}' "$PLIST" |
    sed -e 's/&lt;/</g' -e 's/&gt;/>/g' -e 's/&amp;/\&/g'
}

place_of_unit() {
  [ ! -f "$UNIT" ] ||
    sed -n 's/^Environment="\{0,1\}SWIFTLM_HOME=\(.*[^"]\)"\{0,1\}$/\1/p' "$UNIT" |
    sed -e 's/%%/%/g' -e 's/\$\$/$/g'
}

# --- Python ---------------------------------------------------------------------------------------

find_python() {
  if [ -n "$PYTHON" ]; then
    reason=$(why_not "$PYTHON")
    [ -z "$reason" ] || fail $NO_PYTHON "$PYTHON: $reason"
    PYTHON=$(base_of "$PYTHON")
    return
  fi
  if takes_python "$(uv_python)"; then return; fi
  for candidate in python3.12 python3.13 python3.11 python3.14 python3 \
    /opt/homebrew/bin/python3.12 /opt/homebrew/bin/python3.13 /opt/homebrew/bin/python3.11 \
    /opt/homebrew/bin/python3.14 \
    /Library/Frameworks/Python.framework/Versions/3.12/bin/python3 \
    /Library/Frameworks/Python.framework/Versions/3.13/bin/python3 \
    /Library/Frameworks/Python.framework/Versions/3.11/bin/python3 \
    /Library/Frameworks/Python.framework/Versions/3.14/bin/python3; do
    found=$(command -v "$candidate" 2>/dev/null) || continue
    # On a Mac without developer tools this one opens a dialog; with them it is 3.9.
    if [ "$SYSTEM" = Darwin ] && [ "$found" = /usr/bin/python3 ]; then continue; fi
    if takes_python "$found"; then return; fi
  done
  python_from_uv || fail $NO_PYTHON "no Python >= 3.11 with ssl and venv here; the short way is uv: \
https://docs.astral.sh/uv, then run this again (or name one with --python)"
}

takes_python() {
  [ -n "$1" ] && [ -z "$(why_not "$1")" ] || return 1
  PYTHON=$(base_of "$1")
}

uv_python() {
  # Only Pythons that uv manages: nothing else deletes them, and none opens a dialog.
  command -v uv >/dev/null 2>&1 || return 0
  uv python find --python-preference only-managed '>=3.11,<3.15' 2>/dev/null || :
}

python_from_uv() {
  command -v uv >/dev/null 2>&1 || return 1
  [ "$DRY_RUN" = no ] || return 1
  say "fetching Python 3.12 with uv"
  uv python install 3.12 >/dev/null 2>&1 || return 1
  takes_python "$(uv_python)"
}

# Prints why this Python will not do; nothing when it will.
why_not() {
  "$1" -I - "$KIND" 2>/dev/null <<'PYTHON' || say "it does not run"
import os, platform, sys

if sys.version_info < (3, 11):
    print("it is Python", platform.python_version(), "and 3.11 is needed")
elif sys.argv[1] == "macos" and platform.machine() != "arm64":
    print("it is built for", platform.machine(), "and would not find MLX")
elif os.path.exists(os.path.join(sys.base_prefix, "conda-meta")):
    print("it belongs to conda, whose libraries get in the way")
else:
    try:
        import ensurepip, ssl, venv
    except ImportError as error:
        print("it lacks", error.name)
PYTHON
}

# Behind a virtual environment or a shim: they come and go, the Python behind them stays.
base_of() {
  "$1" -I -c 'import os, sys
base = os.path.join(sys.base_prefix, "bin", "python%d.%d" % sys.version_info[:2])
print(base if os.path.exists(base) else sys.executable)'
}

# --- installing -----------------------------------------------------------------------------------

install() {
  find_python
  name_release
  if [ "$DRY_RUN" = yes ]; then
    describe
    return
  fi
  make_folders
  hold_lock
  find_releases
  CHANGED=no REBUILT=no
  WISHED=$(wished)
  build
  write_config
  if [ "$ON" != "$RELEASE" ]; then
    [ -z "$ON" ] || stop_old
    keep_config_of "$ON"
    switch_to "$RELEASE" "$PREVIOUS"
    created "$CURRENT -> versions/$RELEASE/venv"
    [ -z "$ON" ] || stop_stray
  elif [ "$REBUILT" = yes ]; then
    ctl stop >/dev/null 2>&1 || ctl stop --force >/dev/null 2>&1 || :
  fi
  link_programs
  register
  bring_up
  keep_from_backups
  finish
}

# ON is switched on; PREVIOUS is where an upgrade goes back to: ON, unless ON itself was on trial
# when an installation was killed. WAS is what `previous` leads to.
find_releases() {
  ON=$(release_of "$CURRENT") WAS=$(release_of "$APP/previous")
  PREVIOUS=$ON
  if [ -n "$ON" ] && ! is_good "$ON" && is_good "$WAS"; then PREVIOUS=$WAS; fi
}

# A release is on trial from its switch until it has answered.
is_good() {
  [ -n "$1" ] && [ -f "$APP/versions/$1/complete" ] && [ ! -f "$APP/versions/$1/on-trial" ]
}

# Whether the release that is switched on reads images.
has_vision() {
  for package in "$CURRENT"/lib/python3*/site-packages/mlx_vlm; do
    [ ! -d "$package" ] || return 0
  done
  return 1
}

name_release() {
  ! has_vision || VISION=yes
  set -- "$SOURCE" "$LOCK"
  [ "$VISION" = no ] || set -- "$@" "$SOURCE/locks/vision.txt"
  digest=$("$PYTHON" -I - "$@" <<'PYTHON'
import hashlib, pathlib, sys

source, *locks = map(pathlib.Path, sys.argv[1:])
rooms = ("proto/swiftlm_proto", "engine/swiftlm_engine", "daemon/swiftlmd", "ctl/swiftlmctl")
files = [source / "pyproject.toml", *locks]
for room in rooms:
    files += (f for f in (source / room).rglob("*") if f.is_file() and "__pycache__" not in f.parts)
total = hashlib.sha256(sys.version.encode())
for file in sorted(files):
    total.update(str(file.relative_to(source)).encode() + b"\0" + file.read_bytes())
print(total.hexdigest()[:8])
PYTHON
  ) || fail 1 "the checkout cannot be read"
  RELEASE=$VERSION-$digest
  HOME_OF_RELEASE=$APP/versions/$RELEASE
  VENV=$HOME_OF_RELEASE/venv
}

describe() {
  say "would install swiftlm $VERSION ($KIND) on $PYTHON"
  say "  environment  $VENV"
  say "  current      $CURRENT"
  say "  config       $APP/config.toml"
  say "  programs     $BIN/swiftlmctl, $BIN/swiftlmd"
  say "  logs         $LOGS"
  say "  service      $LABEL (launchd), swiftlmd.service (systemd), or a detached process"
  say "  model        $MODEL"
}

make_folders() {
  if [ "$OWN_PLACE" = yes ]; then mark_place; fi
  (umask 077 && mkdir -p "$APP/versions" "$STATE" "$CACHE" "$LOGS") ||
    fail $CANNOT_WRITE "cannot make the folders of $APP"
  [ -w "$APP" ] || fail $CANNOT_WRITE "cannot write into $APP"
  keep_from_backups
}

# Models and releases are tens of GB that come again from where they came.
keep_from_backups() {
  [ "$SYSTEM" = Darwin ] || return 0
  for folder in "$APP/versions" "$APP/models"; do
    [ ! -d "$folder" ] || tmutil addexclusion "$folder" >/dev/null 2>&1 || :
  done
}

# The mark comes before all else: without it a later run would not know the folder again.
mark_place() {
  [ ! -f "$APP/.swiftlm" ] || return 0
  made=yes
  [ ! -d "$APP" ] || made=no
  (umask 077 && mkdir -p "$APP") || fail $CANNOT_WRITE "cannot make the folder $APP"
  { say "swiftlm keeps its files here; made by install.sh: $made" >"$APP/.swiftlm.new" &&
    mv "$APP/.swiftlm.new" "$APP/.swiftlm"; } || fail $CANNOT_WRITE "cannot write into $APP"
}

# One installation at a time. A folder is made by one process only; a dead owner's is taken over.
hold_lock() {
  OURS=$APP/.installing
  if ! mkdir "$OURS" 2>/dev/null; then
    [ -d "$OURS" ] || fail $CANNOT_WRITE "cannot write into $APP"
    take_over_lock
  fi
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  { birth_of $$ >"$OURS/birth" && printf '%s\n' $$ >"$OURS/pid"; } 2>/dev/null ||
    fail $CANNOT_WRITE "cannot write into $APP"
}

# Its owner may be about to write its number: it gets two seconds.
take_over_lock() {
  tries=0
  while [ ! -s "$OURS/pid" ] && [ -d "$OURS" ] && [ $tries -lt 2 ]; do
    sleep 1
    tries=$((tries + 1))
  done
  owner=$(cat "$OURS/pid" 2>/dev/null || :)
  if [ -n "$owner" ] && kill -0 "$owner" 2>/dev/null; then
    birth=$(cat "$OURS/birth" 2>/dev/null || :)
    # Without it, or without ps, nobody knows whether the number was given out again.
    if [ -z "$birth" ] || [ "$birth" = "$(birth_of "$owner")" ]; then
      fail $BUSY "another installation (process $owner) is at work; if it is none, remove $OURS"
    fi
  fi
  # Only one of several heirs can move the folder away.
  mv "$OURS" "$OURS.$$" 2>/dev/null || :
  rm -rf "$OURS.$$"
  mkdir "$OURS" 2>/dev/null || fail $BUSY "another installation has just begun in $APP"
}

birth_of() { LC_ALL=C ps -o lstart= -p "$1" 2>/dev/null || :; }

clean_up() {
  rm -rf "$OURS"
  if [ -n "${HOME_OF_RELEASE:-}" ] && [ ! -f "$HOME_OF_RELEASE/complete" ]; then
    rm -rf "$HOME_OF_RELEASE"
  fi
}

# The release that a link leads to; nothing for none.
release_of() {
  target=$(readlink "$1" 2>/dev/null || :)
  target=${target#versions/}
  printf '%s' "${target%/venv}"
}

# What was asked of the service so far: a service that was switched off stays off.
wished() {
  before=$(ctl service status 2>/dev/null || :)
  case $before in
    *'phase: stopped'*) ;;
    *)
      say start
      return
      ;;
  esac
  case $before in
    *'manager: none'* | *'enabled: yes'*) say start ;;
    *) say stay ;;
  esac
}

is_upgrade() { [ -n "$PREVIOUS" ] && [ "$PREVIOUS" != "$RELEASE" ]; }

ctl() { ctl_of "$CURRENT" "$@"; }

ctl_of() {
  environment=$1
  shift
  "$environment/bin/python3" -I -X utf8 -m swiftlmctl "$@"
}

service_pid() { ctl_of "$1" service status 2>/dev/null | sed -n 's/^pid: //p'; }

build() {
  if [ -f "$HOME_OF_RELEASE/complete" ]; then
    if is_whole; then
      say "swiftlm $VERSION is already built in $VENV"
      return
    fi
    say "what is in $VENV does not work any more; building it again"
    REBUILT=yes
  fi
  # The environment is made where it will stay: its programs carry its path.
  rm -rf "$HOME_OF_RELEASE"
  mkdir -p "$HOME_OF_RELEASE" || fail $CANNOT_WRITE "cannot write into $APP/versions"
  BUILD_LOG=$LOGS/install.log
  true >"$BUILD_LOG" || fail $CANNOT_WRITE "cannot write $BUILD_LOG"
  say "building swiftlm $VERSION ($KIND) on $PYTHON; this takes a few minutes"
  "$PYTHON" -I -m venv "$VENV" >>"$BUILD_LOG" 2>&1 || build_failed "the environment"
  # The short step that can fail comes before the long one.
  build_wheel
  say "fetching and installing the dependencies; $BUILD_LOG shows each of them"
  pip install --require-hashes -r "$LOCK" || build_failed "the dependencies"
  if [ "$VISION" = yes ]; then
    pip install --require-hashes --no-deps -r "$SOURCE/locks/vision.txt" ||
      build_failed "the packages for images"
  fi
  pip install --no-deps --no-index "$TOOLS"/swiftlm-*.whl || build_failed "swiftlm"
  rm -rf "$TOOLS"
  say "checking what was built"
  self_check
  printf '%s\n' "$VENV" >"$HOME_OF_RELEASE/complete" ||
    fail $CANNOT_WRITE "cannot write $HOME_OF_RELEASE/complete"
  created "$VENV"
}

# Its programs carry its path, and its Python may be gone: neither shows in a file of ours.
is_whole() {
  place=$(cat "$HOME_OF_RELEASE/complete")
  [ -z "$place" ] || [ "$place" = "$VENV" ] || return 1
  if [ -f "$VENV/bin/swiftlmctl" ]; then
    head -n 3 "$VENV/bin/swiftlmctl" | grep -qF "$VENV/bin/" || return 1
  fi
  for check in 'swiftlmd selfcheck' 'swiftlmctl --help'; do
    # shellcheck disable=SC2086 # two words
    "$VENV/bin/python3" -I -X utf8 -m $check >/dev/null 2>&1 || return 1
  done
}

pip() {
  # A Python built with an older SDK takes macOS 26 for 16.0 and would get MLX without the matrix
  # units of an M5; this has it read the version as it is.
  SYSTEM_VERSION_COMPAT=0 "$VENV/bin/python3" -I -m pip --disable-pip-version-check --no-input \
    "$@" >>"$BUILD_LOG" 2>&1
}

# The build tool is needed once and stays out of the environment.
build_wheel() {
  TOOLS=$HOME_OF_RELEASE/build
  pip install --require-hashes --target "$TOOLS" -r "$SOURCE/locks/build.txt" ||
    build_failed "the build tool"
  # A variable before a call of a function stays set after it in bash's posix mode.
  (
    export PYTHONPATH="$TOOLS"
    pip wheel --no-deps --no-build-isolation --wheel-dir "$TOOLS" "$SOURCE"
  ) || build_failed "the wheel"
}

self_check() {
  for check in 'swiftlmd selfcheck' 'swiftlmctl --help'; do
    # shellcheck disable=SC2086 # two words
    "$VENV/bin/python3" -I -X utf8 -m $check >>"$BUILD_LOG" 2>&1 || build_failed "the self-check"
  done
}

build_failed() {
  tail -n 20 "$BUILD_LOG" >&2
  if grep -q 'DO NOT MATCH THE HASHES' "$BUILD_LOG"; then
    fail $BAD_HASH "$1: a download has another checksum than the lock says (whole log: $BUILD_LOG)"
  fi
  if grep -qi -e 'no space left' -e 'read-only file system' -e 'permission denied' "$BUILD_LOG"; then
    fail $CANNOT_WRITE "$1 could not be written (whole log: $BUILD_LOG)"
  fi
  fail 1 "building $1 failed; nothing was changed (whole log: $BUILD_LOG)"
}

write_config() {
  config=$APP/config.toml
  [ ! -e "$config" ] || return 0
  ctl_of "$VENV" setup --step config || fail $CANNOT_WRITE "cannot write $config"
  CHANGED=yes
}

# What a release was configured with, for a way back: an older one refuses newer options.
keep_config_of() {
  [ -n "$1" ] && [ -f "$APP/config.toml" ] || return 0
  kept=$APP/config.toml.$1
  { (umask 077 && cp "$APP/config.toml" "$kept.new") && mv "$kept.new" "$kept"; } ||
    fail $CANNOT_WRITE "cannot write $kept"
}

# The configuration that the release $1 takes; the one it refuses stays beside it, named by $2.
use_config_of() {
  kept=$APP/config.toml.$1
  if [ ! -f "$kept" ] || cmp -s "$kept" "$APP/config.toml" ||
    ctl_of "$APP/versions/$1/venv" config validate >/dev/null 2>&1; then return; fi
  if [ -L "$APP/config.toml" ]; then
    note "$1 refuses $APP/config.toml; what it was configured with is in $kept"
    return
  fi
  { cp -p "$APP/config.toml" "$APP/config.toml.$2" && cp -p "$kept" "$APP/config.toml.new" &&
    mv "$APP/config.toml.new" "$APP/config.toml"; } || fail $CANNOT_WRITE "cannot write $APP"
  note "$1 refuses an option of config.toml; it gets its own of before, yours is in \
$APP/config.toml.$2"
}

created() {
  CHANGED=yes
  say "created $1"
}

# A rename, so that there is a `current` at every moment. mv would move into the old link's folder.
# $1 becomes current, $2 previous (nothing for none).
switch_to() {
  if [ "$1" = "${RELEASE:-}" ]; then
    true >"$APP/versions/$1/on-trial" || fail $CANNOT_WRITE "cannot write into $APP/versions/$1"
  fi
  "$PYTHON" -I - "$APP" "$1" "$2" <<'PYTHON' || fail $CANNOT_WRITE "cannot switch $CURRENT"
import contextlib, os, sys

app, current, previous = sys.argv[1:]
for link, release in (("previous", previous), ("current", current)):
    path = os.path.join(app, link)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path + ".new")
    if release:
        os.symlink(f"versions/{release}/venv", path + ".new")
        os.replace(path + ".new", path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
PYTHON
}

link_programs() {
  mkdir -p "$BIN" 2>/dev/null || :
  if [ ! -w "$BIN" ]; then
    note "$BIN cannot be written; the programs are in $CURRENT/bin"
    return
  fi
  for program in swiftlmctl swiftlmd; do
    link_program "$program"
  done
}

link_program() {
  link=$BIN/$1
  if [ -e "$link" ] || [ -L "$link" ]; then
    if is_ours "$link"; then return; fi
    case $(readlink "$link" 2>/dev/null || :) in
      */swiftlm/current/bin/*) ;;
      *)
        note "$link is somebody else's and stays; ours is $CURRENT/bin/$1"
        return
        ;;
    esac
    rm -f "$link"
  fi
  if [ "$OWN_PLACE" = yes ]; then
    wrapper "$1" >"$link.new" && chmod 755 "$link.new" && mv "$link.new" "$link"
  else
    ln -s "$CURRENT/bin/$1" "$link"
  fi || fail $CANNOT_WRITE "cannot write $link"
  created "$link"
}

# A place of one's own has to be named to the program; a link could not.
wrapper() {
  say '#!/bin/sh'
  say "SWIFTLM_HOME='$(quoted "$APP")' exec '$(quoted "$CURRENT/bin/$1")' \"\$@\""
}

quoted() { printf '%s' "$1" | sed "s/'/'\\\\''/g"; }

is_ours() {
  if [ -L "$1" ]; then
    [ "$OWN_PLACE" = no ] && [ "$(readlink "$1")" = "$CURRENT/bin/${1##*/}" ]
  else
    [ "$OWN_PLACE" = yes ] && [ "$(cat "$1" 2>/dev/null)" = "$(wrapper "${1##*/}")" ]
  fi
}

# --- the service ----------------------------------------------------------------------------------

# Nothing is switched under a daemon that runs: it would go on with half of the new release.
stop_old() {
  say "stopping $ON"
  ctl stop >/dev/null 2>&1 && return
  [ -n "$(service_pid "$VENV")" ] || return 0
  note "the daemon of $ON did not stop in time; killing it"
  ctl_of "$VENV" stop --force >/dev/null 2>&1 || :
  [ -z "$(service_pid "$VENV")" ] ||
    fail $UNHEALTHY "the daemon of $ON does not end; nothing was changed"
}

# A supervisor may have started the old release again just before the switch.
stop_stray() {
  [ -n "$(service_pid "$CURRENT")" ] || return 0
  ctl stop >/dev/null 2>&1 || ctl stop --force >/dev/null 2>&1 || :
  [ -z "$(service_pid "$CURRENT")" ] || unhealthy "the daemon of $ON does not end"
}

register() {
  [ "$HEADLESS" = no ] || go_headless
  ctl service install --no-start && return
  if is_upgrade; then restore || :; fi
  fail $NO_SERVICE "the service could not be registered (see above)"
}

go_headless() {
  if [ "$SYSTEM" = Darwin ]; then
    note "without a screen session the service runs while you are logged in over SSH; \
docs/service.md says how to have it always"
    case $(fdesetup status 2>/dev/null || :) in
      *'FileVault is On'*)
        note "FileVault is on: after a restart nothing answers, SSH neither, until somebody logs in \
at the screen (\`sudo fdesetup authrestart\` restarts once without that)"
        ;;
    esac
  elif loginctl enable-linger 2>/dev/null; then
    say "systemd keeps your services without a login (loginctl disable-linger undoes it)"
  else
    note "no linger here: the service ends with your last login"
  fi
}

bring_up() {
  if [ "$START" = no ]; then
    leave_stopped "installed; \`swiftlmctl start\` starts it"
  fi
  if [ "$WISHED" = stay ]; then
    leave_stopped "installed; the service was switched off and stays off \
(\`swiftlmctl start\` starts it)"
  fi
  if ! ctl start --wait $READY_S; then
    if has_session; then unhealthy "it does not get ready"; fi
    leave_stopped "installed; nobody is logged in here whose session could run it"
  fi
  ctl setup --step model || exit 1
  if is_upgrade && ! ctl run --max-tokens 1 hello >/dev/null; then
    unhealthy "it gives no answer"
  fi
  rm -f "$HOME_OF_RELEASE/on-trial"
}

leave_stopped() {
  rm -f "$HOME_OF_RELEASE/on-trial"
  remove_old_releases
  say "$1"
  exit $NOT_STARTED
}

has_session() {
  [ "$SYSTEM" = Darwin ] || return 0
  launchctl print "gui/$(id -u)" >/dev/null 2>&1 || launchctl print "user/$(id -u)" >/dev/null 2>&1
}

unhealthy() {
  if ! is_upgrade; then
    fail $UNHEALTHY "swiftlm is installed, but $1; \`$CURRENT/bin/swiftlmctl doctor\` looks further"
  fi
  if restore; then fail $UNHEALTHY "$RELEASE: $1; $PREVIOUS is back"; fi
  fail $UNHEALTHY "$RELEASE: $1; $PREVIOUS is switched on again, but does not get ready either"
}

# Back to the release that ran before this installation; `previous` leads where it did.
restore() {
  ctl stop >/dev/null 2>&1 || ctl stop --force >/dev/null 2>&1 || :
  before=$WAS
  [ "$before" != "$PREVIOUS" ] || before=''
  switch_to "$PREVIOUS" "$before"
  use_config_of "$PREVIOUS" "$RELEASE"
  ctl service install --no-start >/dev/null || note "the old service could not be registered"
  ctl start --wait $READY_S
}

roll_back_on_request() {
  ON=$(release_of "$CURRENT")
  earlier=$(release_before)
  [ -n "$earlier" ] || fail 1 "there is no release before ${ON:-this one} in $APP/versions"
  way=back
  [ -z "$(find "$APP/versions/$earlier/complete" -newer "$APP/versions/$ON/complete" \
    2>/dev/null)" ] || way="forward again"
  if [ "$DRY_RUN" = yes ]; then
    say "would go $way to $earlier (now $ON)"
    return
  fi
  hold_lock
  RELEASE='' PREVIOUS=$ON VENV=$APP/versions/$earlier/venv PYTHON=$VENV/bin/python3
  say "going $way to $earlier (now $ON)"
  [ -z "$ON" ] || stop_old
  keep_config_of "$ON"
  switch_to "$earlier" "$ON"
  [ -z "$ON" ] || stop_stray_before_rollback
  use_config_of "$earlier" "$ON"
  ctl service install --no-start || fail $NO_SERVICE "the service could not be registered"
  [ "$START" = yes ] || exit $NOT_STARTED
  ctl start --wait $READY_S || undo_rollback
  say "$way: $earlier serves (was $ON)"
  say "\`sh install.sh --rollback\` goes to $ON again"
}

# The one that `previous` leads to; else another good one, the youngest.
release_before() {
  found=$(release_of "$APP/previous")
  if [ "$found" != "$ON" ] && is_good "$found"; then
    printf '%s' "$found"
    return
  fi
  for folder in "$APP"/versions/*; do
    release=${folder##*/}
    if [ "$release" = "$ON" ] || ! is_good "$release"; then continue; fi
    if [ -z "${best:-}" ] ||
      [ -n "$(find "$folder/complete" -newer "$APP/versions/$best/complete")" ]; then
      best=$release
    fi
  done
  printf '%s' "${best:-}"
}

stop_stray_before_rollback() {
  [ -n "$(service_pid "$CURRENT")" ] || return 0
  ctl stop >/dev/null 2>&1 || ctl stop --force >/dev/null 2>&1 || :
}

undo_rollback() {
  ctl stop >/dev/null 2>&1 || ctl stop --force >/dev/null 2>&1 || :
  switch_to "$ON" "$earlier"
  use_config_of "$ON" "$earlier"
  ctl service install --no-start >/dev/null || note "the service could not be registered"
  if ctl start --wait $READY_S; then
    fail $UNHEALTHY "$earlier does not get ready; $ON is back"
  fi
  fail $UNHEALTHY "neither $earlier nor $ON gets ready; \
\`$CURRENT/bin/swiftlmctl doctor\` looks further"
}

finish() {
  remove_old_releases
  [ "$CHANGED" = yes ] || say "nothing had to be changed"
  ctl setup --step answer || exit 1
  program="'$CURRENT/bin/swiftlmctl'"
  case :$PATH: in
    *:"$BIN":*) program=swiftlmctl ;;
    *) say && say "to have swiftlmctl at hand: export PATH=\"$BIN:\$PATH\"" ;;
  esac
  say
  port=$(ctl config get http.port 2>/dev/null || say 5413)
  say "swiftlm $VERSION serves OpenAI clients at http://127.0.0.1:$port/v1. Next:"
  say "  $program chat"
  say "  $program status --watch"
  say "  $program connect claude-code    (or codex, opencode, zed, ...)"
  [ "$KIND" != macos ] || say "macOS may say once that swiftlm was added to the background items."
}

# The current one and the one before it stay.
remove_old_releases() {
  before=$(release_of "$APP/previous")
  for folder in "$APP"/versions/*; do
    case ${folder##*/} in
      "$RELEASE") ;;
      "$before")
        say "kept $before ($(size_of "$folder")) for \`sh install.sh --rollback\`, \
until the next upgrade"
        ;;
      '*') ;;
      *)
        rm -rf "$folder"
        # The copy of its configuration too, unless something stands in that alone.
        if cmp -s "$APP/config.toml" "$APP/config.toml.${folder##*/}"; then
          rm -f "$APP/config.toml.${folder##*/}"
        fi
        say "removed ${folder##*/}"
        ;;
    esac
  done
}

# --- uninstalling ---------------------------------------------------------------------------------

uninstall() {
  if ! anything_installed; then
    say "nothing of swiftlm is installed in $APP"
    return
  fi
  list_removals
  [ "$DRY_RUN" = no ] || return 0
  agreed "Remove these?"
  if [ "$PURGE" = yes ]; then
    agreed "Models and configuration too, for good?"
  fi
  LEFT=''
  [ ! -d "$APP" ] || hold_lock
  find_ctl
  remove_service
  # First what takes room and nobody misses: a full disk would keep the rest from being written.
  rm -rf "$CACHE" "$LOGS"
  remove_other_releases
  give_clients_back
  remove_completion
  remove_links
  rm -rf "$CURRENT" "$APP/previous" "$APP/versions" "$APP"/*.sock
  remove_state
  remove_place
  if [ -n "$LEFT" ]; then
    fail 1 "swiftlm is uninstalled, but this is left:$LEFT"
  fi
  say "swiftlm is uninstalled"
}

anything_installed() {
  for place in "$APP/versions" "$CURRENT" "$APP/previous" "$STATE" "$CACHE" "$LOGS"; do
    if [ -e "$place" ] || [ -L "$place" ]; then return; fi
  done
  if [ "$PURGE" = yes ] && { [ -e "$APP/models" ] || [ -e "$APP/config.toml" ]; }; then return; fi
  [ -e "$PLIST" ] || [ -e "$UNIT" ] || is_ours "$BIN/swiftlmctl" || is_ours "$BIN/swiftlmd"
}

left() {
  note "$1"
  LEFT="$LEFT
  $1"
}

# swiftlmctl of this installation; where its Python is gone, by another one; else none.
find_ctl() {
  CTL=''
  if runs_ctl "$CURRENT/bin/python3" ''; then return; fi
  for packages in "$CURRENT"/lib/python3*/site-packages \
    "$APP"/versions/*/venv/lib/python3*/site-packages ''; do
    for python in python3.13 python3.12 python3.11 python3.14 python3 \
      /opt/homebrew/bin/python3; do
      if runs_ctl "$python" "$packages${packages:+:}$SOURCE/ctl:$SOURCE/proto"; then return; fi
    done
  done
}

runs_ctl() {
  found=$(command -v "$1" 2>/dev/null) || return 1
  # On a Mac without developer tools this one opens a dialog.
  if [ "$SYSTEM" = Darwin ] && [ "$found" = /usr/bin/python3 ]; then return 1; fi
  CTL=$1 CTL_PATH=$2
  if ctl_here --help >/dev/null 2>&1; then return; fi
  CTL=''
  return 1
}

ctl_here() {
  if [ -z "$CTL_PATH" ]; then
    "$CTL" -I -X utf8 -m swiftlmctl "$@"
  else
    PYTHONPATH=$CTL_PATH "$CTL" -P -X utf8 -m swiftlmctl "$@"
  fi
}

remove_service() {
  if [ -n "$CTL" ]; then
    ctl_here service uninstall ||
      fail $NO_SERVICE "the service could not be removed; nothing else was"
    return
  fi
  note "no Python here runs swiftlmctl; removing the service without it"
  if [ -f "$PLIST" ]; then
    for domain in gui user; do
      leave_domain "$domain/$(id -u)/$LABEL"
    done
    rm -f "$PLIST"
  fi
  if [ -f "$UNIT" ]; then
    systemctl --user disable --now swiftlmd.service >/dev/null 2>&1 || :
    rm -f "$UNIT"
    systemctl --user daemon-reload >/dev/null 2>&1 || :
  fi
  end_daemon
}

# launchd only asks the daemon to end, which may still be starting and have no lock yet.
leave_domain() {
  launchctl bootout "$1" >/dev/null 2>&1 || return 0
  waited=0
  while launchctl print "$1" >/dev/null 2>&1 && [ $waited -lt 50 ]; do
    sleep 1
    waited=$((waited + 1))
  done
}

# The daemon's number stands in its lock, or in the record of who started it.
end_daemon() {
  for file in "$STATE/lock" "$STATE/started.json"; do
    pid=$(sed -n 's/.*"pid": *\([0-9][0-9]*\).*/\1/p' "$file" 2>/dev/null | head -n 1)
    if [ -z "$pid" ] || ! is_daemon "$pid"; then continue; fi
    kill "$pid" 2>/dev/null || :
    waited=0
    # Not by its command line: a process that is ending has none any more.
    while is_running "$pid" && [ $waited -lt 30 ]; do
      sleep 1
      waited=$((waited + 1))
    done
    if is_daemon "$pid"; then kill -9 "$pid" 2>/dev/null || :; fi
  done
}

is_daemon() {
  case $(ps -o stat= -o args= -p "$1" 2>/dev/null || :) in
    Z*) return 1 ;;
    *swiftlmd*) return 0 ;;
    *) return 1 ;;
  esac
}

is_running() {
  case $(ps -o stat= -p "$1" 2>/dev/null || :) in
    Z*l*) return 0 ;;  # its other threads are still ending
    '' | Z*) return 1 ;;
  esac
}

remove_other_releases() {
  on=$(release_of "$CURRENT")
  for folder in "$APP"/versions/*; do
    [ "${folder##*/}" = "$on" ] || rm -rf "$folder"
  done
}

# A client that still points here needs its record for `connect --undo`.
remove_state() {
  if [ -z "$(connected)" ]; then
    rm -rf "$STATE"
    return
  fi
  for path in "$STATE"/* "$STATE"/.[!.]*; do
    [ "$path" = "$STATE/connect" ] || rm -rf "$path"
  done
}

remove_place() {
  if [ "$PURGE" = yes ]; then
    rm -rf "$APP/models" "$APP"/config.toml*
  fi
  rm -rf "$APP/.installing"
  made=yes
  if [ "$OWN_PLACE" = yes ]; then
    made=$(sed -n 's/.*install.sh: //p' "$APP/.swiftlm" 2>/dev/null || :)
    # Models or configuration that stay make it ours still.
    if holds_more_than_the_mark; then made=stays; else rm -f "$APP/.swiftlm"; fi
  fi
  [ "$made" != yes ] || rmdir "$APP" 2>/dev/null || :
  [ ! -d "$APP" ] || [ "$made" = no ] || say "kept: $APP"
}

list_removals() {
  say "to be removed:"
  say "  the service $LABEL (or swiftlmd.service)"
  set -- "$APP/versions" "$CACHE" "$LOGS" "$STATE"
  [ "$PURGE" = no ] || set -- "$@" "$APP/models" "$APP/config.toml"
  for place in "$@"; do
    [ ! -e "$place" ] || say "  $place ($(size_of "$place"))"
  done
  for client in $(connected); do say "  what \`swiftlmctl connect $client\` wrote"; done
  completions | while IFS= read -r file; do say "  $file"; done
  for program in swiftlmctl swiftlmd; do
    if is_ours "$BIN/$program"; then say "  $BIN/$program"; fi
  done
  [ "$PURGE" = yes ] || say "kept: $APP/config.toml, $APP/models"
  say "kept: the Hugging Face cache, which other programs share"
}

holds_more_than_the_mark() {
  for path in "$APP"/* "$APP"/.[!.]*; do
    if [ -e "$path" ] && [ "$path" != "$APP/.swiftlm" ]; then return; fi
  done
  return 1
}

# Asks at a terminal; elsewhere somebody must have said --yes.
agreed() {
  [ "$YES" = no ] || return 0
  [ -t 0 ] || fail $USAGE "without a terminal nobody can be asked; add --yes. Nothing was removed"
  printf '%s [y/N] ' "$1"
  read -r answer || answer=''
  case $answer in
    y | Y | yes) ;;
    *) fail 1 "nothing was removed" ;;
  esac
}

size_of() { du -sh "$1" 2>/dev/null | cut -f 1; }

# The clients that `swiftlmctl connect` set up; what it changed is recorded in the state.
connected() {
  for record in "$STATE"/connect/*.json; do
    [ ! -f "$record" ] || basename "$record" .json
  done
}

give_clients_back() {
  for client in $(connected); do
    if [ -z "$CTL" ] || ! ctl_here connect "$client" --undo; then
      left "$client still points to this service; its record is $STATE/connect/$client.json"
    fi
  done
}

# What `swiftlmctl --install-completion` wrote for bash, zsh and fish.
completions() {
  is_ours "$BIN/swiftlmctl" || return 0
  for file in "$HOME/.bash_completions/swiftlmctl.sh" "$HOME/.zfunc/_swiftlmctl" \
    "$HOME/.config/fish/completions/swiftlmctl.fish"; do
    [ ! -f "$file" ] || say "$file"
  done
  ! grep -aqF "$HOME/.bash_completions/swiftlmctl.sh" "$HOME/.bashrc" 2>/dev/null ||
    say "$HOME/.bashrc (one line)"
}

# Only swiftlmctl changes a shell's files: it takes out our lines and never loses another.
remove_completion() {
  [ -n "$(completions)" ] || return 0
  if [ -z "$CTL" ] || ! ctl_here --uninstall-completion; then
    left "tab completion: $(completions | tr '\n' ' ')"
  fi
}

remove_links() {
  for program in swiftlmctl swiftlmd; do
    if is_ours "$BIN/$program"; then rm -f "$BIN/$program"; fi
  done
}

main "$@"
