"""Keeps a follower's ring connections open for a moment after its process died.

MLX crashes a rank whose neighbour's connection ends under a step (SIGSEGV), and then nobody is left
to say which rank was lost. While a second process holds the same sockets the neighbours only wait,
and the leader hears of the death on its control connection, which this process does not hold: it
names the rank and ends in order.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys

HOLD_S = 2.0  # the leader needs milliseconds, a busy machine more

# Its standard input ends with the follower, however that ends. A host that shuts down asks both to
# end at once, and this one must be the later.
_PROGRAM = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdin.buffer.read()
time.sleep({HOLD_S})
"""


def open_sockets() -> set[int]:
    """File descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/dev/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
        except OSError:  # the listing's own
            continue
    return found


def keep_open(sockets: set[int]) -> subprocess.Popen[bytes]:
    """Starts the keeper, which ends `HOLD_S` after this process."""
    reading, _writing = os.pipe()  # this end is never closed but by the end of this process
    try:
        # Its output is nobody's: through ssh, an open one would keep the session alive.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=tuple(sockets),
        )
    finally:
        os.close(reading)
