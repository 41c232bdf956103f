"""The running daemon: its parts, built once and handed to each other, and its life in three verbs.

`start` listens, `live` waits to be told to stop, `finish` lets requests end, then engines, then
the sockets. Nothing here decides about models or requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from swiftlm_engine.brain.facts import ModelFacts
from swiftlm_engine.brain.plan import Plan
from swiftlm_engine.brain.prefix_folders import PrefixFolders
from swiftlm_proto import messages as m
from swiftlm_proto.paths import Paths
from swiftlmd.admin.doctor import Doctor
from swiftlmd.admin.service import AdminService
from swiftlmd.admin.socket import OwnerOnlyServer
from swiftlmd.calibration import CalibrationAdmin, CalibrationStore, Calibrator
from swiftlmd.clock import BackgroundClock, Clock, SystemClock
from swiftlmd.cluster.service import ClusterService
from swiftlmd.config.http import api_keys, http_options
from swiftlmd.config.live import Changes, LiveConfiguration
from swiftlmd.config.load import ConfigError
from swiftlmd.config.settings import Settings
from swiftlmd.engines.engine import EngineLauncher
from swiftlmd.engines.signs import ProcessObserver
from swiftlmd.hosts.checks import Examiner
from swiftlmd.hosts.survey import Survey
from swiftlmd.http.app import make_app, make_runner
from swiftlmd.http.certificates import own_names
from swiftlmd.http.chats.store import ChatStore
from swiftlmd.http.context import CONTEXT, GUARD
from swiftlmd.http.lan_port import LanPort
from swiftlmd.http.limits import Exchanges
from swiftlmd.http.metrics import Metrics
from swiftlmd.http.security import Guard
from swiftlmd.http.sessions import Sessions
from swiftlmd.lifecycle import logs
from swiftlmd.lifecycle.background_tasks import (
    list_what_was_late,
    prove_health,
    restart_on_error,
    restore_when_calm,
    shorten_logs,
    test_after_waking,
    watch_folders,
)
from swiftlmd.lifecycle.disk_watch import DiskWatch
from swiftlmd.lifecycle.instance import Instance
from swiftlmd.lifecycle.power import SleepGuard, WakeWatch, find_assertion, seconds_with_sleep
from swiftlmd.lifecycle.start_limiter import StartLimiter
from swiftlmd.lifecycle.supervisor import Notifier, Supervisor
from swiftlmd.memory import Governor, Level, RatioStore, Watch, system_device, system_readings
from swiftlmd.memory.machine import Machine, has_cuda_mlx, wired_without_owner
from swiftlmd.memory.thermal import system_thermal
from swiftlmd.planning.disk_speeds import DiskSpeeds
from swiftlmd.planning.planner import ModelPlanner, prefix_disk_bytes, prefix_root
from swiftlmd.residency.memory_report import PriceCheck, memory_report
from swiftlmd.residency.preload import Preload
from swiftlmd.residency.reclaim import EngineReclaimer
from swiftlmd.residency.residency import Residency
from swiftlmd.serving.admission import Admission
from swiftlmd.serving.service import DaemonInfo, Service
from swiftlmd.store import ModelStore
from swiftlmd.store.kept_prefixes import KeptPrefixes
from swiftlmd.store.options import from_settings
from swiftlmd.store.service import Basis, StoreService

log = logging.getLogger(__name__)

_CLOSE_S = 2.0
_QUIET_S, _EMPTY_S = 5.0, 60.0  # between looks with a model that nobody uses, and without one
_ASKED_S = 10.0


@dataclass(frozen=True, slots=True)
class StartupContext:
    """What the process was started with; all of it is settled before the daemon is built."""

    paths: Paths
    configuration: LiveConfiguration
    instance: Instance
    supervisor: Supervisor
    environ: Mapping[str, str]
    engine_command: list[str]
    breaker: StartLimiter
    http: socket.socket
    admin: socket.socket


class Daemon:
    """Made inside a running event loop; `run` once."""

    def __init__(self, given: StartupContext, clock: Clock | None = None) -> None:
        self._given = given
        self._configuration = given.configuration
        self._clock = clock or SystemClock()
        self._background = BackgroundClock(self._clock, self._quiet_s)
        self._asked_at = -math.inf  # for warnings, by `status` or `/health`
        self._notifier = Notifier(given.environ)
        self._stop_asked = asyncio.Event()
        self.wants_restart = False  # once `run` has returned
        self._patience_s: float | None = None  # None = from the settings
        self._drain_limit: asyncio.Timeout | None = None
        self._woken = asyncio.Event()
        self._counting = self._settings()  # what was taken over last
        self._guard: Guard | None = None  # of the port, once it listens
        self._lan: LanPort | None = None
        self._sessions = Sessions()
        self._metrics = Metrics()
        self._exchanges: Exchanges | None = None  # over the port, once it listens
        readings = system_readings()
        device = system_device(cuda=has_cuda_mlx())
        self._machine = Machine(
            device, readings, lambda: self._watch.last, self._settings, system_thermal()
        )
        self._governor = Governor(
            self._machine.measure_budget(), granted=lambda: self._residency.held_bytes()
        )
        self._store_options = from_settings(self._settings(), given.environ, Path.home())
        self._store = ModelStore(given.paths, self._store_options)
        self._prefixes = PrefixFolders(prefix_root(given.paths))
        self._kept_prefixes = KeptPrefixes(
            self._prefixes, self._model_names, lambda: prefix_disk_bytes(self._settings())
        )
        calibrations = CalibrationStore(given.paths.state / "calibration")
        self._ratios = RatioStore(given.paths.state / "memory-ratios.json")
        disks = DiskSpeeds(given.paths.state / "disk-speeds.json")
        self._disk = DiskWatch((given.paths.state, given.paths.cache, given.paths.logs))
        self._survey = Survey(Examiner(given.paths, self._machine))
        limits = self._machine.limits
        self._planner = ModelPlanner(
            given.paths, limits, disks, calibrations, self._survey, self._store.find
        )
        self._residency = Residency(
            clock=self._clock,
            store=self._store,
            planner=self._planner,
            launcher=EngineLauncher(given.paths, given.engine_command, given.environ),
            footprint=lambda pid: asyncio.to_thread(readings.footprint_bytes, pid),
            settings=self._settings,
            memory_is_short=lambda: self._watch.level is Level.HARD,
            observe=ProcessObserver(),
            became_ready=self._engine_reported,
            begins=self._background.wake,
        )
        self._reclaimer = EngineReclaimer(self._residency)
        self._watch = Watch(
            self._governor, readings, self._reclaimer, self._background, self._residency.pids
        )
        self._calibrator = Calibrator(
            residency=self._residency,
            store=calibrations,
            limits=self._machine.limits,
            clock=self._background,
            settings=self._settings,
            quiet=lambda: not len(self._service.requests) and self._is_calm(),
        )
        self._service = Service(
            clock=self._clock,
            about=DaemonInfo(
                given.instance,
                given.supervisor.value,
                given.configuration.path,
                given.paths.logs,
                self._warnings,
            ),
            settings=self._settings,
            residency=self._residency,
            store=self._store,
            machine=self._machine,
            admission=Admission(self._watch),
            observe=self._calibrator.observe,
            begins=self._background.wake,
        )
        self._preloads = Preload(self._residency, self._service.named)

    async def run(self) -> None:
        """From the first request to the last; returns when everything is released."""
        async with AsyncExitStack() as sockets:
            runner = await self._start(sockets)
            async with asyncio.TaskGroup() as group:
                chores = [group.create_task(chore) for chore in self._chores(runner)]
                try:
                    async with self._residency:
                        await self._live()
                        await self._drain()
                finally:
                    for chore in chores:
                        chore.cancel()
                    await self._background.close()
        await self._store.close()
        self._given.breaker.clear()

    def ask_to_stop(self, patience_s: float | None = None, restart: bool = False) -> None:
        """Ends `run`. Asked a second time, it no longer waits for requests."""
        self.wants_restart = restart
        if self._drain_limit is not None and not self._drain_limit.expired():
            self._drain_limit.reschedule(asyncio.get_running_loop().time())
        if not self._stop_asked.is_set():
            self._patience_s = patience_s
            self._stop_asked.set()

    def reload(self) -> None:
        """Takes over config.toml as it is now; a broken one changes nothing."""
        try:
            changes = self._configuration.reload()
        except ConfigError as error:
            log.error("configuration not reloaded: %s", error)
            return
        self._took_over(changes)

    def _took_over(self, changes: Changes) -> None:
        before, settings = self._counting, self._settings()
        self._counting = settings
        self._residency.take_over(before, settings)
        logs.set_level(settings.log_level)
        logs.set_access(settings.log_access)
        if self._guard is not None:
            self._guard.let_in(api_keys(settings))
            self._guard.answer_to(settings.http_allowed_hosts, settings.http_allowed_origins)
        self._kept_prefixes.look_again()
        self._store.reach(from_settings(settings, self._given.environ, Path.home()))
        self._governor.set_budget(self._machine.measure_budget())
        log.info(
            "configuration reloaded now=%s after_restart=%s",
            ",".join(changes.now) or "-",
            ",".join(changes.after_restart) or "-",
        )

    async def _start(self, sockets: AsyncExitStack) -> web.AppRunner:
        """Listens on both sockets; they are released, connections first, when the stack closes."""
        given = self._given
        admin, store = self._administration(), self._store_service()
        server = OwnerOnlyServer([admin, store, self._cluster()])
        sockets.push_async_callback(_close, server)
        self._lan = lan = LanPort(self._settings(), given.paths.state / "tls")
        options = http_options(self._settings(), lan.authority, own_names().hosts)
        app = make_app(
            self._service,
            options,
            self._metrics,
            admin=admin,
            store=store,
            sessions=self._sessions,
            chats=ChatStore(given.paths.state / "chats" / "chats.sqlite3"),
        )
        self._guard = app[GUARD]
        self._exchanges = app[CONTEXT].exchanges
        runner = make_runner(app)
        await runner.setup()
        sockets.push_async_callback(runner.cleanup)
        await sockets.enter_async_context(lan.listening(runner, options))
        await web.SockSite(runner, given.http).start()
        await server.serve_on(given.admin)  # last: who is answered here may count on the rest
        self._listen_to_signals()
        self._store.resume()
        instance = given.instance
        log.info(
            "ready version=%s http=%s pid=%d instance=%s",
            instance.version,
            instance.http,
            instance.pid,
            instance.instance_id,
        )
        self._notifier.ready(f"ready on {instance.http}")
        return runner

    async def _live(self) -> None:
        await self._stop_asked.wait()

    async def _drain(self) -> None:
        """Running requests get time to finish; new ones are refused."""
        self._notifier.stopping()
        self._service.draining = True
        patience_s = self._patience_s
        if patience_s is None:
            patience_s = self._settings().service_drain
        log.info("stopping in_flight=%d patience_s=%g", len(self._service.requests), patience_s)
        try:
            async with asyncio.timeout(patience_s) as self._drain_limit:
                await self._all_answered()
        except TimeoutError:
            log.warning("ending requests that did not finish n=%d", len(self._service.requests))
        finally:
            self._drain_limit = None

    async def _all_answered(self) -> None:
        """No request is worked on, and no client still reads its answer."""
        exchanges = self._exchanges
        while True:
            await self._service.requests.idle.wait()
            if exchanges is None or exchanges.idle.is_set():
                return
            await exchanges.idle.wait()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_to_stop)
        # A closed terminal ends a daemon in its foreground; a service reads its file again.
        in_terminal = self._given.supervisor is Supervisor.NONE and os.isatty(0)
        loop.add_signal_handler(signal.SIGHUP, self.ask_to_stop if in_terminal else self.reload)

    def _administration(self) -> AdminService:
        return AdminService(
            service=self._service,
            store=self._store,
            planner=self._planner,
            configuration=self._configuration,
            log_folder=self._given.paths.logs,
            memory=lambda: memory_report(
                self._residency, self._machine, self._ratios, self._watch.level.name.lower()
            ),
            doctor=Doctor(
                self._given.paths,
                self._given.environ,
                self._settings,
                lambda: self._machine.status([]),
                self._warnings,
                self._store_options.hub_cache,
            ),
            shut_down=self.ask_to_stop,
            took_over=self._took_over,
            calibration=CalibrationAdmin(self._calibrator),
            sessions=self._sessions,
            metrics=self._metrics,
            prefixes=self._prefixes,
        )

    def _store_service(self) -> StoreService:
        async def basis() -> Basis:
            held = self._residency.held_bytes()
            limits = await asyncio.to_thread(
                self._machine.limits, committed_bytes=0, returning_bytes=held
            )
            settings = self._settings()

            def plan(name: str, source: Path | ModelFacts, *, here: bool) -> Plan:
                return self._planner.weigh(source, settings.for_model(name), limits, here=here)

            return Basis(plan)

        return StoreService(self._store, basis, self._service.list_models)

    def _cluster(self) -> ClusterService:
        return ClusterService(
            configuration=self._configuration,
            store=self._store,
            named=self._service.named,
            residency=self._residency,
            survey=self._survey,
            took_over=self._took_over,
        )

    def _chores(self, runner: web.AppRunner) -> Iterator[Coroutine[None, None, None]]:
        clock = self._background

        def woken(_: float) -> None:
            if runner.server is not None:
                runner.server.pre_shutdown()  # closes idle connections, and only those
            self._woken.set()

        guard = SleepGuard(
            clock,
            find_assertion(),
            wanted=lambda: self._settings().power_prevent_sleep,
            busy=lambda: len(self._service.requests) > 0,
        )
        given, restore = self._given, self._reclaimer.restore
        for name, chore in (
            ("memory", self._watch.run),
            ("price check", PriceCheck(self._residency, self._ratios, clock).run),
            ("calibration", self._calibrator.run),
            ("sleep guard", guard.run),
            ("wake watch", WakeWatch(clock, seconds_with_sleep, woken).run),
            ("self-test", partial(test_after_waking, self._residency, self._woken, clock)),
            ("health", partial(prove_health, given.breaker, given.paths.fatal_file, clock)),
            ("calm", partial(restore_when_calm, self._may_restore, restore, clock)),
            ("preload", self._preload),
            ("kept prefixes", self._kept_prefixes.run),
            (
                "folders",
                partial(
                    watch_folders, self._store.look_for_folders, self._store.warnings_asked, clock
                ),
            ),
            (
                "late folders",
                partial(
                    list_what_was_late,
                    lambda: self._service.reads_models,
                    self._service.list_models,
                    clock,
                ),
            ),
            ("disk watch", partial(self._disk.run, clock)),
            ("log care", partial(shorten_logs, given.paths.logs, clock)),
        ):
            yield restart_on_error(name, chore, clock)

    async def _model_names(self) -> list[str]:
        return [model.name for model in await self._store.list()]

    async def _preload(self) -> None:
        await self._service.list_models()  # status shows what lies here, from the start
        settings = self._settings()
        await self._preloads.run((*settings.models_preload, *settings.models_pinned))

    def _quiet_s(self) -> float:
        """How long background tasks pause at least: a wake-up keeps the processor from sleeping."""
        if len(self._service.requests) or not self._is_calm():
            return 0.0
        if self._clock.now() < self._asked_at + _ASKED_S:
            return 0.0  # status is being watched
        is_empty = all(resident.failed for resident in self._residency.residents)
        return _EMPTY_S if is_empty else _QUIET_S

    def _warnings(self) -> list[str]:
        self._asked_at = self._clock.now()
        self._background.wake()
        found = []
        if problem := self._configuration.problem():
            found.append(
                f"{problem}; the settings of before are in force, and no restart would work: "
                f"mend it with `swiftlmctl config edit`"
            )
        if waiting := self._configuration.waiting_for_restart:
            keys = ", ".join(waiting)
            found.append(f"changed, and holds after `swiftlmctl restart`: {keys}")
        engines = len(self._residency.pids()) - 1
        if wired := wired_without_owner(self._watch.last, engines):
            found.append(wired)
        found += self._machine.warnings()
        found += self._disk.warnings()
        found += self._store.warnings()
        found += self._service.names.warnings()
        found += self._preloads.warnings()
        found += self._residency.warnings()
        if self._lan is not None and self._lan.problem:
            found.append(self._lan.problem)
        if not self._is_calm():
            found.append(f"memory is short ({self._watch.level.name.lower()} limit)")
        return found

    def _engine_reported(self, loaded: m.LoadedModel) -> None:
        if self._machine.engine_reported(loaded.device_info):
            self._governor.set_budget(self._machine.measure_budget())

    def _may_restore(self) -> bool:
        return self._governor.may_restore(self._clock.now())

    def _is_calm(self) -> bool:
        return self._watch.level is Level.CALM

    def _settings(self) -> Settings:
        return self._configuration.settings


async def _close(server: OwnerOnlyServer) -> None:
    if not server.serving:
        return
    server.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await server.wait_closed()
