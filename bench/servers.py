"""Servers under measurement: ours in a throwaway home, and mlx-lm's, on the same model folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.models import ROOT, rooms_of

START_S = 120.0


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    url: str  # ends in /v1
    model: str
    process: subprocess.Popen[bytes]
    home: Path | None = None


@contextlib.contextmanager
def ours(
    folder: Path, home: Path | None = None, root: Path = ROOT, **settings: object
) -> Iterator[Server]:
    """`settings` are options as environment names them: engine_kv="k4v3". With `home` a server
    comes back to what an earlier one left there. `root`: the checkout whose code runs."""
    place = home or Path(tempfile.mkdtemp(prefix="sb", dir="/tmp"))
    model = place / "models" / "bench"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        model.symlink_to(folder)
    port = free_port()
    options = {"http_port": port, "models_default": "bench", "models_preload": "bench", **settings}
    rooms = os.pathsep.join([rooms_of(root), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "SWIFTLM_HOME": str(place), "PYTHONPATH": rooms}
    environ |= {f"SWIFTLM_{key.upper()}": str(value) for key, value in options.items()}
    command = [sys.executable, "-m", "swiftlmd", "serve"]
    with running(command, environ, place / "bench-output") as process:
        base = f"http://127.0.0.1:{port}"
        wait_for(f"{base}/ready", process)
        yield Server("swiftlm", f"{base}/v1", "bench", process, place)
    if home is None:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def mlx_lm_server(folder: Path) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(folder)]
    command += ["--port", str(port), "--log-level", "ERROR"]
    output = Path(tempfile.gettempdir()) / f"mlx-lm-server-{port}"
    with running(command, dict(os.environ), output) as process:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        yield Server("mlx_lm.server", f"http://127.0.0.1:{port}/v1", str(folder), process)


@contextlib.contextmanager
def running(
    command: list[str], environ: dict[str, str], output: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as sink:
        process = subprocess.Popen(command, env=environ, stdout=sink, stderr=sink)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} left with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer within {START_S} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
