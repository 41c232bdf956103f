"""The admin socket that a supervisor opened for us, where it was asked to (opt-in).

systemd hands it over as a file descriptor from 3 upwards, launchd on request. Clients that connect
while the daemon restarts then wait in the queue instead of being refused.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from collections.abc import Callable, MutableMapping

NAME = "control"
_FIRST = 3

# The file descriptors that launchd keeps under a name; OSError when it keeps none.
Ask = Callable[[str], list[int]]


def inherited_socket(
    environ: MutableMapping[str, str], *, ask_launchd: Ask | None = None
) -> socket.socket | None:
    """The listening admin socket from systemd or launchd; None when there is none.

    The file behind it is the supervisor's: whoever closes the socket leaves the file.
    """
    number = _from_systemd(environ)
    if number is None:
        number = _from_launchd(environ, ask_launchd or _ask_libsystem)
    if number is None:
        return None
    try:
        os.set_inheritable(number, False)  # engines must not keep it open
        found = socket.socket(fileno=number)
    except OSError:
        return None  # the variables are somebody else's: we open the socket ourselves
    found.setblocking(False)
    return found


def _from_systemd(environ: MutableMapping[str, str]) -> int | None:
    """Takes the variables out, so that no child believes that they are meant for it."""
    pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdecimal():
        return None
    numbered = enumerate(names[: int(count)], start=_FIRST)
    return next((number for number, name in numbered if name == NAME), None)


def _from_launchd(environ: MutableMapping[str, str], ask: Ask) -> int | None:
    if not environ.get("XPC_SERVICE_NAME", "").endswith("swiftlmd"):
        return None
    try:
        numbers = ask(NAME)
    except OSError as error:
        # No such name in our job, or not its process: we open the socket ourselves.
        if error.errno in (errno.ENOENT, errno.ESRCH, errno.ENOSYS):
            return None
        raise
    return numbers[0] if numbers else None


def _ask_libsystem(name: str) -> list[int]:
    """launch_activate_socket(3). The array is ours to free."""
    if sys.platform != "darwin":
        raise OSError(errno.ENOSYS, "not macOS")
    library = ctypes.CDLL(None)
    found, count = ctypes.POINTER(ctypes.c_int)(), ctypes.c_size_t()
    code = library.launch_activate_socket(name.encode(), ctypes.byref(found), ctypes.byref(count))
    if code:
        raise OSError(code, os.strerror(code))
    try:
        return [found[i] for i in range(count.value)]
    finally:
        library.free(found)
