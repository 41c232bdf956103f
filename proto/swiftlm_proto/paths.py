"""Where the files and sockets of one installation lie; daemon, CLI and installer ask here.

`SWIFTLM_HOME` moves everything under one folder (tests, several installations); the launchd job
sets it. Without it: `~/Library/...` on macOS, the XDG folders elsewhere.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

HTTP_PORT = 5413

# sun_path holds 104 bytes on macOS and 108 on Linux, each with the closing NUL.
MAX_SOCKET_PATH_BYTES = 103


@dataclass(frozen=True, slots=True)
class Paths:
    """One installation's places. Nothing is created here."""

    app: Path  # versions, current, config; kept over upgrades
    state: Path  # records, fatal.json, calibration
    cache: Path  # may be purged: prefix cache, converted models
    logs: Path
    runtime: Path  # sockets and locks

    @property
    def config_file(self) -> Path:
        return self.app / "config.toml"

    @property
    def lock_file(self) -> Path:
        return self.state / "lock"

    @property
    def fatal_file(self) -> Path:
        return self.state / "fatal.json"

    @property
    def models(self) -> Path:
        return self.app / "models"

    @property
    def admin_socket(self) -> Path:
        return _short(self.runtime / "ctl.sock")

    def engine_socket(self, number: int) -> Path:
        """The private socket of the engine process with this number (unique in one daemon)."""
        return _short(self.runtime / f"engine-{os.getpid()}-{number}.sock")


def locate(environ: dict[str, str] | None = None, platform: str = sys.platform) -> Paths:
    """The installation that this process belongs to."""
    env = dict(os.environ) if environ is None else environ
    default = _default(env, platform)
    root = env.get("SWIFTLM_HOME")
    # The launchd job names the default place too, and must find its logs where the CLI looks.
    return under(Path(root)) if root and Path(root) != default.app else default


def settle_home(environ: MutableMapping[str, str]) -> None:
    """Gives an empty or absent HOME the user's own: with an empty one, Python and the programs
    that we start would write into the root of the disk."""
    if not environ.get("HOME"):
        environ["HOME"] = _home_of_user()


def _home_of_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a user without an entry, as in a container
        return "/nonexistent"


def _default(env: dict[str, str], platform: str) -> Paths:
    home = Path(env.get("HOME") or _home_of_user())
    if platform == "darwin":
        library = home / "Library"
        app = library / "Application Support" / "swiftlm"
        return Paths(
            app, app / "state", library / "Caches" / "swiftlm", library / "Logs" / "swiftlm", app
        )
    app = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share") / "swiftlm"
    state = Path(env.get("XDG_STATE_HOME") or home / ".local" / "state") / "swiftlm"
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "swiftlm"
    return Paths(app, state, cache, state / "logs", app)


def under(root: Path) -> Paths:
    """Everything below one folder."""
    return Paths(root, root / "state", root / "cache", root / "logs", root)


def _short(path: Path) -> Path:
    """`path`, or a short stand-in in /tmp when it would not fit into a socket address.

    The stand-in's folder is the user's own (0700, checked by whoever binds); client and server
    compute the same name from the same path.
    """
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    import hashlib

    digest = hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:8]
    return Path(f"/tmp/swiftlm-{os.getuid()}-{digest}") / path.name
