"""A visit over this process's own input and output, as ssh hands them to what it starts."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PIECE = 1 << 18


@contextmanager
def own_pipes() -> Iterator[socket.socket]:
    """Both as one socket. Whatever else prints in the block goes to stderr: output is the visit's.

    Returns when all that was sent is written.
    """
    taken = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    ours, theirs = socket.socketpair()
    threading.Thread(target=_take_in, args=(taken[0], theirs), daemon=True).start()
    giving = threading.Thread(target=_give_out, args=(theirs, taken[1]), daemon=True)
    giving.start()
    try:
        yield ours
    finally:
        ours.close()
        giving.join()


def _take_in(source: int, target: socket.socket) -> None:
    try:
        while piece := os.read(source, _PIECE):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)  # the leader is gone
    except OSError:
        return  # the visit is over


def _give_out(source: socket.socket, target: int) -> None:
    try:
        while piece := source.recv(_PIECE):
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(target, rest) :]
    except OSError:
        return  # the leader is gone
    finally:
        os.close(target)
