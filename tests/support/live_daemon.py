"""A daemon process under test, in a home of its own, with scripted engines."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from grpclib.client import Channel
from hollow_models import make_hollow_model

from swiftlm_proto import messages as m
from swiftlm_proto.paths import Paths, under

_TESTS = Path(__file__).parent
_ROOMS = [str(_TESTS.parents[1] / room) for room in ("proto", "daemon", "engine", "ctl")]


_PROBE = aiohttp.ClientTimeout(total=2.0)


@dataclass(slots=True)
class Home:
    """A throwaway installation. Its path is short: a socket's address has 103 bytes."""

    root: Path
    port: int
    environ: dict[str, str] = field(default_factory=dict)
    paths: Paths = field(init=False)

    def __post_init__(self) -> None:
        self.paths = under(self.root)

    @property
    def loads(self) -> list[str]:
        """One name per load that an engine was asked for."""
        return [path.name.rsplit(".", 1)[0] for path in (self.root / "loads").iterdir()]

    def log(self) -> str:
        return (self.paths.logs / "swiftlmd.log").read_text()


@asynccontextmanager
async def home(*models: str) -> AsyncIterator[Home]:
    """A home with hollow models of these names."""
    root = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
    try:
        (root / "loads").mkdir()
        for name in models:
            make_hollow_model(root / "models" / name)
        yield Home(root, free_port())
    finally:
        shutil.rmtree(root, ignore_errors=True)


class LiveDaemon:
    """One `swiftlmd serve`."""

    def __init__(self, home: Home, child: asyncio.subprocess.Process) -> None:
        self.home = home
        self.child = child
        self.url = f"http://127.0.0.1:{home.port}"
        self.http = aiohttp.ClientSession(self.url)
        self._channel = Channel(path=str(home.paths.admin_socket))
        self.admin = m.AdminStub(self._channel)
        self.cluster = m.ClusterStub(self._channel)

    @property
    def pid(self) -> int:
        return self.child.pid

    async def ready(self, timeout_s: float = 30.0) -> None:
        """Until `/ready` says so; what the daemon said is in the error when it never does."""
        started_at, last = time.monotonic(), "nothing"
        while time.monotonic() - started_at < timeout_s:
            if self.child.returncode is not None:
                raise AssertionError(f"the daemon left with {self.child.returncode}{self._said()}")
            try:
                async with self.http.get("/ready", timeout=_PROBE) as reply:
                    if reply.status == 200:
                        return
                    last = await reply.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                last = repr(error)
            await asyncio.sleep(0.02)
        raise AssertionError(f"not ready after {timeout_s:g} s: {last}{self._said()}")

    def _said(self) -> str:
        output = (self.home.root / "output").read_text()
        log = self.home.log() if (self.home.paths.logs / "swiftlmd.log").exists() else ""
        return f"; output: {output[-2000:]}; log: {log[-2000:]}"

    def signal(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    async def exit_code(self, timeout_s: float = 30.0) -> int:
        async with asyncio.timeout(timeout_s):
            return await self.child.wait()

    async def model(self, name: str = "tiny") -> m.ModelStatus | None:
        """The model's row of the status, if it is loaded or on its way."""
        status = await self.admin.status(m.StatusRequest())
        cached = m.ModelStatusState.CACHED
        rows = (row for row in status.models if row.state is not cached)
        return next((row for row in rows if row.model == name), None)

    async def engine_pid(self, name: str = "tiny") -> int:
        model = await self.model(name)
        return model.pid if model else 0

    async def chat(self, model: str = "tiny", **fields: Any) -> tuple[int, dict[str, Any]]:
        async with self.http.post("/v1/chat/completions", json=_body(model, fields)) as reply:
            return reply.status, await reply.json()

    async def stream(self, model: str = "tiny", **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a streamed answer; `{"done": True}` stands for [DONE]."""
        body = _body(model, fields) | {"stream": True}
        async with self.http.post("/v1/chat/completions", json=body) as reply:
            assert reply.status == 200, await reply.text()
            async for line in reply.content:
                if line.startswith(b"data: [DONE]"):
                    yield {"done": True}
                elif line.startswith(b"data: "):
                    yield json.loads(line[6:])

    async def close(self) -> None:
        await self.http.close()
        self._channel.close()
        if self.child.returncode is None:
            self.child.kill()
        await self.child.wait()


@asynccontextmanager
async def daemon(
    home: Home,
    script: dict[str, Any] | None = None,
    *,
    real: bool = False,
    cwd: Path | None = None,
    **settings: Any,
) -> AsyncIterator[LiveDaemon]:
    """A daemon that is ready; killed at the end if it still runs. `real`: its engines are too."""
    live = await start(home, script, real=real, cwd=cwd, **settings)
    try:
        await live.ready()
        yield live
    finally:
        await live.close()


async def start(
    home: Home,
    script: dict[str, Any] | None = None,
    *,
    real: bool = False,
    cwd: Path | None = None,
    **settings: Any,
) -> LiveDaemon:
    """A daemon on its way up. A setting `http__port=1` stands for `http.port=1`."""
    flags = {"http.port": str(home.port)}
    flags |= {key.replace("__", "."): str(value) for key, value in settings.items()}
    if real:
        named = (f"--{key.replace('.', '-').replace('_', '-')}={v}" for key, v in flags.items())
        program = ["-m", "swiftlmd", "serve", *named]
    else:
        words = (f"{key}={value}" for key, value in flags.items())
        program = [str(_TESTS / "daemon_with_fake_engine.py"), *words]
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home.root),
        "SWIFTLM_HOME": str(home.root),
        "PYTHONPATH": os.pathsep.join([*_ROOMS, str(_TESTS)]),
        "FAKE_ENGINE": json.dumps(script or {}),
        "FAKE_ENGINE_DIR": str(home.root / "loads"),
        **home.environ,
    }
    with (home.root / "output").open("ab") as output:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *program,
            env=environ,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    return LiveDaemon(home, child)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def eventually(condition: Any, timeout_s: float = 10.0) -> None:
    """Until `condition()` (a function, perhaps a coroutine function) is true."""
    async with asyncio.timeout(timeout_s):
        while True:
            result = condition()
            if await result if asyncio.iscoroutine(result) else result:
                return
            await asyncio.sleep(0.02)


def _body(model: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "a secret wish"}], **fields}
