#!/bin/sh
# Installs swiftlm for this user from a checkout: an environment of its own, a service, a small
# model, one real answer. Runs again without harm; needs no root; adds nothing to a shell file.
#
# Layout: APP/versions/RELEASE/venv, and APP/current, a link that is switched by rename. A release
# is the version and a digest of what goes into it, so an unchanged checkout is recognised.
# Everything runs inside main(), called on the last line: half a script does nothing.
set -eu

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
  --prefix DIR       keep everything below DIR instead of the usual places
  --python PROGRAM   the Python (>= 3.11) to build on
  --rollback         go back to the release before this one
  --uninstall        remove program, service, caches, logs, and what `swiftlmctl connect` and
                     tab completion wrote; keep models and configuration
  --purge            with --uninstall: models and configuration too
  --yes              do not ask
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
    --prefix) PREFIX=$(absolute "$2") ;;
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
    '') fail $USAGE "--prefix needs a folder" ;;
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
  SOURCE=$(cd "$(dirname "$0")" && pwd)
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
  usual=$APP
  PREFIX=${PREFIX:-${SWIFTLM_HOME:-}}
  OWN_PLACE=no
  if [ -n "$PREFIX" ] && [ "$PREFIX" != "$usual" ]; then
    OWN_PLACE=yes APP=$PREFIX STATE=$PREFIX/state CACHE=$PREFIX/cache LOGS=$PREFIX/logs
    SWIFTLM_HOME=$PREFIX
    export SWIFTLM_HOME
  fi
  CURRENT=$APP/current BIN=$HOME/.local/bin
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
    /Library/Frameworks/Python.framework/Versions/3.12/bin/python3 \
    /Library/Frameworks/Python.framework/Versions/3.13/bin/python3; do
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
  PREVIOUS=$(release_of "$CURRENT") CHANGED=no
  WISHED=$(wished)
  build
  write_config
  if [ "$PREVIOUS" != "$RELEASE" ]; then
    if is_upgrade; then stop_old; fi
    switch_to "$RELEASE"
    created "$CURRENT -> versions/$RELEASE/venv"
  fi
  link_programs
  register
  bring_up
  finish
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
  (umask 077 && mkdir -p "$APP/versions" "$STATE" "$CACHE" "$LOGS") ||
    fail $CANNOT_WRITE "cannot make the folders of $APP"
  [ -w "$APP" ] || fail $CANNOT_WRITE "cannot write into $APP"
}

# One installation at a time. A folder is made by one process only; a dead owner's is taken over.
hold_lock() {
  OURS=$APP/.installing
  if ! mkdir "$OURS" 2>/dev/null; then
    owner=$(cat "$OURS/pid" 2>/dev/null || :)
    if [ -n "$owner" ] && kill -0 "$owner" 2>/dev/null; then
      fail $BUSY "another installation (process $owner) is at work"
    fi
    mkdir -p "$OURS" || fail $CANNOT_WRITE "cannot write into $APP"
  fi
  say $$ >"$OURS/pid"
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

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

ctl() { "$CURRENT/bin/python3" -I -X utf8 -m swiftlmctl "$@"; }

build() {
  if [ -f "$HOME_OF_RELEASE/complete" ]; then
    say "swiftlm $VERSION is already built in $VENV"
    return
  fi
  # The environment is made where it will stay: its programs carry its path.
  rm -rf "$HOME_OF_RELEASE"
  mkdir -p "$HOME_OF_RELEASE" || fail $CANNOT_WRITE "cannot write into $APP/versions"
  BUILD_LOG=$LOGS/install.log
  : >"$BUILD_LOG" || fail $CANNOT_WRITE "cannot write $BUILD_LOG"
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
  : >"$HOME_OF_RELEASE/complete"
  created "$VENV"
}

pip() {
  "$VENV/bin/python3" -I -m pip --disable-pip-version-check --no-input "$@" >>"$BUILD_LOG" 2>&1
}

# The build tool is needed once and stays out of the environment.
build_wheel() {
  TOOLS=$HOME_OF_RELEASE/build
  pip install --require-hashes --target "$TOOLS" -r "$SOURCE/locks/build.txt" ||
    build_failed "the build tool"
  PYTHONPATH=$TOOLS pip wheel --no-deps --no-build-isolation --wheel-dir "$TOOLS" "$SOURCE" ||
    build_failed "the wheel"
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
  config_text >"$config.new" || fail $CANNOT_WRITE "cannot write $config"
  chmod 600 "$config.new"
  mv "$config.new" "$config"
  created "$config"
}

config_text() {
  say "# swiftlm's configuration. \`swiftlmctl config show\` lists every option and its meaning;"
  say "# \`swiftlmctl config set KEY VALUE\` changes this file and keeps its comments."
  say
  say '[models]'
  say "default = \"$MODEL\""
  [ -n "${HF_HOME:-}" ] || return 0
  # Taken from the installing shell: the service knows no shell.
  say
  say '[hub]'
  say "home = \"$(printf '%s' "$HF_HOME" | sed 's/[\\"]/\\&/g')\""
}

created() {
  CHANGED=yes
  say "created $1"
}

# A rename, so that there is a `current` at every moment. mv would move into the old link's folder.
switch_to() {
  "$PYTHON" -I - "$APP" "$1" <<'PYTHON' || fail $CANNOT_WRITE "cannot switch $CURRENT"
import os, sys

app, release = sys.argv[1:]
for link, target in (("previous", None), ("current", f"versions/{release}/venv")):
    path = os.path.join(app, link)
    if target is None:
        try:
            target = os.readlink(os.path.join(app, "current"))
        except FileNotFoundError:
            continue
    if os.path.lexists(path + ".new"):
        os.unlink(path + ".new")
    os.symlink(target, path + ".new")
    os.replace(path + ".new", path)
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
    wrapper "$1" >"$link" && chmod 755 "$link"
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

stop_old() {
  say "stopping $PREVIOUS"
  ctl stop >/dev/null 2>&1 || note "the old daemon did not stop; going on"
}

register() {
  [ "$HEADLESS" = no ] || go_headless
  ctl service install --no-start && return
  if is_upgrade; then restore; fi
  fail $NO_SERVICE "the service could not be registered (see above)"
}

go_headless() {
  if [ "$SYSTEM" = Darwin ]; then
    note "without a screen session the service runs while you are logged in over SSH; \
docs/service.md says how to have it always"
  elif loginctl enable-linger 2>/dev/null; then
    say "systemd keeps your services without a login (loginctl disable-linger undoes it)"
  else
    note "no linger here: the service ends with your last login"
  fi
}

bring_up() {
  if [ "$START" = no ]; then
    say "installed; \`swiftlmctl start\` starts it"
    exit $NOT_STARTED
  fi
  if [ "$WISHED" = stay ]; then
    say "installed; the service was switched off and stays off (\`swiftlmctl start\` starts it)"
    exit $NOT_STARTED
  fi
  if ! ctl start --wait $READY_S; then
    if has_session; then unhealthy "it does not get ready"; fi
    note "nobody is logged in here whose session could run it"
    exit $NOT_STARTED
  fi
  fetch_model
  if is_upgrade && ! ctl run --max-tokens 1 hello >/dev/null; then
    unhealthy "it gives no answer"
  fi
}

has_session() {
  [ "$SYSTEM" = Darwin ] || return 0
  launchctl print "gui/$(id -u)" >/dev/null 2>&1 || launchctl print "user/$(id -u)" >/dev/null 2>&1
}

fetch_model() {
  case $(ctl models list --json 2>/dev/null || :) in
    '[]') ;;
    *) return 0 ;;
  esac
  ctl pull "$MODEL" || fail 1 "swiftlm runs, but $MODEL could not be fetched; \
try \`swiftlmctl pull $MODEL\` later"
}

unhealthy() {
  if ! is_upgrade; then
    fail $UNHEALTHY "swiftlm is installed, but $1; \`$CURRENT/bin/swiftlmctl doctor\` looks further"
  fi
  restore
  fail $UNHEALTHY "$RELEASE: $1; $PREVIOUS is back"
}

# Back to the release that ran before this installation.
restore() {
  ctl stop >/dev/null 2>&1 || :
  switch_to "$PREVIOUS"
  ctl service install --no-start >/dev/null || note "the old service could not be registered"
  ctl start --wait $READY_S || note "the old daemon does not start either"
}

roll_back_on_request() {
  earlier=$(release_of "$APP/previous")
  if [ -z "$earlier" ] || [ ! -f "$APP/versions/$earlier/complete" ]; then
    fail 1 "there is no release before this one in $APP/versions"
  fi
  if [ "$DRY_RUN" = yes ]; then
    say "would go back to $earlier"
    return
  fi
  hold_lock
  PYTHON=$APP/versions/$earlier/venv/bin/python3 PREVIOUS=$earlier
  RELEASE=$(release_of "$CURRENT")
  ctl stop || note "the daemon did not stop; going on"
  switch_to "$earlier"
  ctl service install --no-start || fail $NO_SERVICE "the service could not be registered"
  [ "$START" = yes ] || exit $NOT_STARTED
  ctl start --wait $READY_S || fail $UNHEALTHY "$earlier does not get ready"
  say "back to $earlier (was $RELEASE)"
}

finish() {
  remove_old_releases
  [ "$CHANGED" = yes ] || say "nothing had to be changed"
  say
  say "asking $(ctl config get models.default 2>/dev/null || say "$MODEL"): What is the capital of France?"
  ctl run --temperature 0 --max-tokens 40 "What is the capital of France?" ||
    fail 1 "swiftlm runs, but gave no answer; \`swiftlmctl doctor\` looks further"
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
      *)
        rm -rf "$folder"
        say "removed ${folder##*/}"
        ;;
    esac
  done
}

# --- uninstalling ---------------------------------------------------------------------------------

uninstall() {
  list_removals
  [ "$DRY_RUN" = no ] || return 0
  agreed "Remove these?"
  if [ "$PURGE" = yes ]; then
    agreed "Models and configuration too, for good?"
  fi
  if [ -x "$CURRENT/bin/python3" ]; then
    ctl service uninstall || fail $NO_SERVICE "the service could not be removed; nothing else was"
    give_clients_back
  fi
  remove_completion
  remove_links
  rm -rf "$APP/versions" "$APP/current" "$APP/previous" "$APP/.installing" \
    "$APP"/*.sock "$CACHE" "$LOGS" "$STATE"
  if [ "$PURGE" = yes ]; then
    rm -rf "$APP/models" "$APP"/config.toml*
  fi
  rmdir "$APP" 2>/dev/null || :
  [ ! -d "$APP" ] || say "kept: $APP"
  say "swiftlm is uninstalled"
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

# Asks at a terminal. Elsewhere only a purge needs --yes: the rest can be had again.
agreed() {
  [ "$YES" = no ] || return 0
  if [ ! -t 0 ]; then
    [ "$PURGE" = no ] || fail $USAGE "add --yes to purge without a terminal"
    return 0
  fi
  printf '%s [y/N] ' "$1"
  read -r answer
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
    ctl connect "$client" --undo || note "$client still points to this service"
  done
}

# What `swiftlmctl --install-completion` wrote for bash, zsh and fish. In ~/.zshrc it only switched
# completion on, which other programs use: that stays.
completions() {
  is_ours "$BIN/swiftlmctl" || return 0
  for file in "$HOME/.bash_completions/swiftlmctl.sh" "$HOME/.zfunc/_swiftlmctl" \
    "$HOME/.config/fish/completions/swiftlmctl.fish"; do
    [ ! -f "$file" ] || say "$file"
  done
}

remove_completion() {
  completions | while IFS= read -r file; do
    rm -f "$file"
    [ "${file##*.}" != sh ] || forget_in_bashrc "source '$file'"
    rmdir "${file%/*}" 2>/dev/null || :
  done
}

# Written through, not renamed: the file may be a link into a folder of dotfiles.
forget_in_bashrc() {
  bashrc=$HOME/.bashrc
  grep -qxF "$1" "$bashrc" 2>/dev/null || return 0
  grep -vxF "$1" "$bashrc" >"$bashrc.swiftlm" || :
  cat "$bashrc.swiftlm" >"$bashrc" ||
    fail $CANNOT_WRITE "cannot write $bashrc; what was in it is in $bashrc.swiftlm"
  rm -f "$bashrc.swiftlm"
}

remove_links() {
  for program in swiftlmctl swiftlmd; do
    if is_ours "$BIN/$program"; then rm -f "$BIN/$program"; fi
  done
}

main "$@"
