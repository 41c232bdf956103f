"""A second host on this machine: `swiftlmd join` in a home of its own, on a port of loopback."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from live_daemon import free_port

from swiftlm_proto.paths import Paths, under

_TESTS = Path(__file__).parent
_ROOMS = [str(_TESTS.parents[1] / room) for room in ("proto", "daemon", "engine", "ctl")]


@dataclass(slots=True)
class JoinedHost:
    root: Path
    port: int = field(default_factory=free_port)
    versions: Mapping[str, str] = field(default_factory=dict)  # of distributions, in place of ours
    environ: dict[str, str] = field(default_factory=dict)
    child: asyncio.subprocess.Process | None = None

    @property
    def paths(self) -> Paths:
        return under(self.root)

    @property
    def agent(self) -> str:
        return f"127.0.0.1:{self.port}"

    def take_secret(self, secret: bytes) -> None:
        path = self.paths.state / "cluster-secret"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(secret)
        path.chmod(0o600)

    async def start(self) -> None:
        """Returns when it listens; raises AssertionError with what it said when it will not."""
        output = (self.root / "output").open("ab")
        with output:
            self.child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "swiftlmd", "join", "--listen", self.agent,
                env={
                    "PATH": "/usr/bin:/bin",
                    "HOME": str(self.root),
                    "SWIFTLM_HOME": str(self.root),
                    "PYTHONPATH": os.pathsep.join([*self._foreign_versions(), *_ROOMS]),
                    **self.environ,
                },
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )  # fmt: skip
        while not self._listens():
            if self.child.returncode is not None:
                raise AssertionError(self.said())
            await asyncio.sleep(0.05)

    def said(self) -> str:
        return (self.root / "output").read_text()

    async def kill(self) -> None:
        assert self.child is not None
        if self.child.returncode is None:
            self.child.kill()
        await self.child.wait()

    def _foreign_versions(self) -> list[str]:
        """A folder that says another version is installed, as `importlib.metadata` finds it."""
        folder = self.root / "installed"
        for name, version in self.versions.items():
            about = folder / f"{name}-{version}.dist-info"
            about.mkdir(parents=True)
            (about / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
        return [str(folder)] if self.versions else []

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@asynccontextmanager
async def other_host(**versions: str) -> AsyncIterator[JoinedHost]:
    """Not started yet."""
    root = Path(tempfile.mkdtemp(prefix="sh", dir="/tmp"))
    host = JoinedHost(root, versions=versions)
    try:
        yield host
    finally:
        if host.child is not None:
            await host.kill()
        shutil.rmtree(root, ignore_errors=True)
