"""One loaded model in one engine process, from launch to the last word on how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from swiftlm_proto import messages as m
from swiftlm_proto.paths import Paths
from swiftlmd.config.settings import Settings
from swiftlmd.engines.client import EngineClient
from swiftlmd.engines.environment import engine_environment
from swiftlmd.engines.group import group_arguments
from swiftlmd.engines.placement import Placement
from swiftlmd.engines.process import EngineDied, EngineProcess, ProcessEnd, plain, spawn
from swiftlmd.faults import Kind, ServiceError, from_fault

log = logging.getLogger(__name__)

_LISTEN_TIMEOUT_S = 120.0  # the first start after an upgrade compiles every module
_LEAVE_S = 5.0
_KILLED_S = 30.0

OnProgress = Callable[[m.LoadEvent], None]


class Engine:
    """A loaded model. `run` must be awaited by its owner; it returns when the process is gone."""

    def __init__(self, process: EngineProcess, client: EngineClient, loaded: m.LoadedModel) -> None:
        self._process = process
        self.client = client
        self.loaded = loaded
        self.stats = m.EngineStats()
        self._farewell: m.Fault | None = None  # what requests are told when we end the engine

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """True from the moment its requests are told that it is gone; `run` returns soon after."""
        return self.client.closed

    async def run(self) -> ProcessEnd:
        """Serves requests until the process is gone; each one under way then ends in an error."""
        try:
            async with asyncio.TaskGroup() as tasks:
                pump = tasks.create_task(self._pump())
                end = await self._process.wait()
                self.client.close(self._farewell or death_fault(self.loaded.model, end))
                pump.cancel()
        finally:
            if self._process.alive:  # our owner was cancelled
                self._process.kill("the daemon is stopping")
            self.client.close(m.Fault(kind=Kind.SHUTTING_DOWN, message="the daemon is stopping"))
        return end

    async def stop(self, deadline_s: float, reason: m.Fault) -> ProcessEnd:
        """Ends every request with `reason`, then the process; gone when this returns."""
        self._farewell = reason
        try:
            await self.client.shutdown(deadline_s)
        except ServiceError as error:
            if error.kind is Kind.DEADLINE:  # it hears nothing, so it will not end by itself
                deadline_s = 0.0
        return await self._process.stop(deadline_s)

    def kill(self, reason: str) -> None:
        """Ends the process at once; `run` then returns, and requests are told the reason."""
        message = f"the engine of model '{self.loaded.model}' was ended: {reason}"
        self._farewell = self._farewell or m.Fault(kind=Kind.INTERNAL, message=message)
        self._process.kill(reason)

    async def _pump(self) -> None:
        try:
            await self.client.pump()
        except ServiceError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._process.wait()
            if self._process.alive:
                self.kill("it broke its stream")


class EngineLauncher:
    """Starts engine processes of one installation."""

    def __init__(self, paths: Paths, command: list[str], environ: Mapping[str, str]) -> None:
        self._paths = paths
        self._command = command
        self._environ = environ
        self._numbers = itertools.count(1)

    async def launch(
        self, placement: Placement, settings: Settings, on_progress: OnProgress
    ) -> Engine:
        """Starts a process and loads the model in it; raises ServiceError, leaving nothing."""
        # What the operator set, in the daemon's environment or in the file, wins over the plan.
        planned = {k: v for k, v in placement.environment.items() if k not in self._environ}
        added = planned | dict(settings.engine_environment)
        process = await spawn(
            [
                *self._command,
                *("--log-level", settings.log_level),
                *group_arguments(settings, self._paths, placement.request.model, placement.group),
            ],
            self._paths.engine_socket(next(self._numbers)),
            engine_environment(self._environ, added),
            log_path(self._paths, placement.request.model),
        )
        client: EngineClient | None = None
        try:
            await process.wait_listening(_LISTEN_TIMEOUT_S)
            client = EngineClient(process.socket_path)
            timeout_s = settings.models_load_timeout
            loaded = await _load(process, client, placement.request, on_progress, timeout_s)
            return Engine(process, client, loaded)
        except BaseException:  # also when cancelled: no process without an owner
            if client is not None:
                client.close(m.Fault(kind=Kind.INTERNAL, message="the load failed"))
            process.kill("its load was given up")
            await _gone(process)
            raise


async def _gone(process: EngineProcess) -> None:
    """Until a killed process is reaped; whoever waits for its load does not wait for ever."""
    reaped = asyncio.ensure_future(process.wait())
    done, _ = await asyncio.wait({reaped}, timeout=_KILLED_S)
    if not done:
        log.error("engine process survives SIGKILL after its load pid=%d", process.pid)


def log_path(paths: Paths, model: str) -> Path:
    """Where the output of a model's engine goes."""
    return paths.logs / f"engine-{plain(model)}.log"


def death_fault(model: str, end: ProcessEnd) -> m.Fault:
    """What a client is told whose engine died."""
    message = f"the engine of model '{model}' stopped (pid {end.pid}): {end}"
    return m.Fault(kind=Kind.INTERNAL, message=message, retry_after_s=1)


async def _load(
    process: EngineProcess,
    client: EngineClient,
    request: m.LoadRequest,
    on_progress: OnProgress,
    timeout_s: float,
) -> m.LoadedModel:
    try:
        async with asyncio.timeout(timeout_s):
            return await _follow(client.load(request), on_progress)
    except TimeoutError:
        message = f"loading '{request.model}' took longer than {timeout_s:g} s"
        raise ServiceError(Kind.DEADLINE, message) from None
    except ServiceError as error:
        if error.kind is not Kind.INTERNAL:
            raise
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                end = await process.wait()
                message = f"the engine stopped while loading '{request.model}': {end}"
                raise EngineDied(message) from error
        raise


async def _follow(events: AsyncIterator[m.LoadEvent], on_progress: OnProgress) -> m.LoadedModel:
    async for event in events:
        on_progress(event)
        if event.stage is m.LoadEventStage.READY and event.model is not None:
            return event.model
        if event.stage is m.LoadEventStage.FAILED:
            raise from_fault(event.fault or m.Fault(kind=Kind.INTERNAL, message="the load failed"))
    raise ServiceError(Kind.INTERNAL, "the engine closed the load stream without a result")
