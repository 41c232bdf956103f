"""MLX's back ends that reach other processes: every rank's address, then one group of ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

JOIN_S = 60.0  # MLX itself tries to reach a neighbour for half a minute


def launch_directly() -> None:
    """Call before MLX computes anything in this process; of no effect but on CUDA.

    There MLX records operations as graphs. NCCL's sums make each a graph inside the graph, which
    cannot be updated: two a layer, instantiated anew for every token.
    """
    os.environ.setdefault("MLX_USE_CUDA_GRAPHS", "0")


class ReservedPort:
    """A free port of this machine that nobody else is given, until MLX shall bind it itself."""

    def __init__(self, host: str) -> None:
        self._probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._probe.bind((host, 0))
        except OSError:
            self._probe.close()
            raise
        self.address = f"{host}:{self._probe.getsockname()[1]}"

    def release(self) -> None:
        """When all ranks of the machine have theirs; may be called twice."""
        self._probe.close()


def free_address(host: str) -> str:
    """A port that was free a moment ago."""
    reserved = ReservedPort(host)
    reserved.release()
    return reserved.address


def join_ring(addresses: list[str], rank: int, backend: str = "ring") -> Any:
    """MLX's group; waits for the others, and ends the process where one does not come (SIGALRM).

    MLX takes its settings from the environment only.
    """
    with _ending_process(JOIN_S):
        return _join(addresses, rank, backend)


@contextmanager
def _ending_process(after_s: float) -> Iterator[None]:
    """MLX waits for ever for who does not come, and keeps the interpreter's lock meanwhile: no
    thread of this process would notice anything any more."""
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _join(addresses: list[str], rank: int, backend: str) -> Any:
    os.environ["MLX_RANK"] = str(rank)
    if backend == "nccl":  # the first rank's address introduces the others
        host, _, port = addresses[0].rpartition(":")
        size = str(len(addresses))
        os.environ |= {"NCCL_HOST_IP": host, "NCCL_PORT": port, "MLX_WORLD_SIZE": size}
        return mx.distributed.init(strict=True, backend=backend)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([[address] for address in addresses], file)
        file.flush()
        os.environ["MLX_HOSTFILE"] = file.name
        return mx.distributed.init(strict=True, backend=backend)
