"""What is to be run as a service: the command line, the folders and the few variables it gets."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swiftlm_proto.paths import Paths
from swiftlm_proto.visible import has_control, visible
from swiftlmctl.errors import CtlError

# Never to be renamed: launchd keeps orphaned records under an old label.
LABEL = "io.github.swiftlm.swiftlmd"
UNIT = "swiftlmd.service"
SOCKET_UNIT = "swiftlmd.socket"
# Whoever writes to stderr before or outside our own logging ends up here.
STDERR_LOG = "launchd.log"

# Places that the installing shell knows and a supervisor does not.
_PLACES = ("SWIFTLM_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "HF_HOME")


@dataclass(frozen=True, slots=True)
class Job:
    arguments: tuple[str, ...]
    app: Path
    log: Path
    places: Mapping[str, str] = field(default_factory=dict)
    control_socket: Path | None = None  # socket activation, opt-in


def job_for(
    paths: Paths,
    environ: Mapping[str, str],
    *,
    prefix: Path = Path(sys.prefix),
    socket_activation: bool = False,
) -> Job:
    """The daemon of the installation at `paths`, run by the interpreter of `prefix`."""
    places = {name: environ[name] for name in _PLACES if environ.get(name)}
    for text in (str(paths.app), str(paths.logs), str(prefix), *places.values()):
        _check(text)
    return Job(
        # -I keeps PYTHON* and the user's site packages out, and with them -X by environment.
        arguments=(str(interpreter(paths, prefix)), "-I", "-X", "utf8", "-m", "swiftlmd", "serve"),
        app=paths.app,
        log=paths.logs / STDERR_LOG,
        places=places,
        control_socket=paths.admin_socket if socket_activation else None,
    )


def _check(text: str) -> None:
    """No plist and no unit holds such a name, and none may be changed by it."""
    if has_control(text):
        raise CtlError(
            f"the path {visible(text)!r} has a control character, which no service can hold",
            hint="rename the folder, or set SWIFTLM_HOME to another",
        )


def interpreter(paths: Paths, prefix: Path) -> Path:
    """`current/bin/python3` when this is the current version, so that an upgrade needs no new job.

    Never resolved further: the symlink in bin/ is what makes it this environment's Python.
    """
    current = paths.app / "current"
    root = current if current.exists() and current.resolve() == prefix.resolve() else prefix
    return root / "bin" / "python3"
