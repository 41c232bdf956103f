"""swiftlmd: `serve` builds the parts, hands them over, and runs until it is told to stop.

Ends with 0 when it shall stay down, with another code of `DaemonExit` when a restart can help.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from importlib import metadata
from pathlib import Path

import uvloop
from aiohttp import web

from swiftlm_engine.brain.plan import Accelerator
from swiftlm_proto.exit_codes import DaemonExit
from swiftlm_proto.paths import Paths, locate
from swiftlmd import logs
from swiftlmd.admin import AdminService
from swiftlmd.admin_socket import OwnerOnlyServer, bound_socket
from swiftlmd.clock import SystemClock
from swiftlmd.config.live import LiveConfiguration
from swiftlmd.config.load import ConfigError, load
from swiftlmd.config.settings import OPTIONS, Settings
from swiftlmd.engines.engine import EngineLauncher
from swiftlmd.engines.process import engine_command, remove_stale_sockets
from swiftlmd.http.app import make_app, make_runner
from swiftlmd.http.options import HttpOptions
from swiftlmd.instance import (
    AlreadyRunning,
    Instance,
    PortBusy,
    bind_port,
    sole_instance,
    this_instance,
)
from swiftlmd.machine import Machine, SystemLimits, SystemMemory
from swiftlmd.planning import BrainPlanner
from swiftlmd.residency import Residency
from swiftlmd.service import Service
from swiftlmd.store import ModelStore
from swiftlmd.store.options import from_settings

log = logging.getLogger(__name__)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    flags = {key: text for key in OPTIONS if (text := getattr(arguments, key)) is not None}
    return serve(locate(), flags)


def serve(paths: Paths, flags: dict[str, str]) -> int:
    """Runs the daemon in the foreground; returns its exit code."""
    os.umask(0o077)
    try:
        configuration = load(paths.config_file, os.environ, flags)
    except ConfigError as error:
        print(f"swiftlmd: {error}", file=sys.stderr)
        return DaemonExit.BAD_CONFIG
    settings = configuration.settings
    live = LiveConfiguration(configuration, os.environ, flags)
    instance = this_instance(version(), f"{settings.http_host}:{settings.http_port}")
    with ExitStack() as stack:
        try:
            stack.enter_context(sole_instance(paths.lock_file, instance))
            stack.enter_context(logs.logging_to(paths.logs, settings.log_level, os.environ))
            port = stack.enter_context(bind_port(settings.http_host, settings.http_port))
            admin = stack.enter_context(bound_socket(paths.admin_socket))
        except AlreadyRunning as error:
            print(f"swiftlmd: {error}", file=sys.stderr)
            return DaemonExit.STAY_DOWN
        except PortBusy as error:
            log.error("%s", error)
            print(f"swiftlmd: {error}", file=sys.stderr)
            return DaemonExit.TEMPORARY
        remove_stale_sockets(paths.runtime)
        return uvloop.run(_serve(paths, live, instance, port, admin))


async def _serve(
    paths: Paths,
    live: LiveConfiguration,
    instance: Instance,
    port: socket.socket,
    admin: socket.socket,
) -> int:
    def settings() -> Settings:
        return live.settings

    clock, memory = SystemClock(), SystemMemory()
    store = ModelStore(paths, from_settings(live.settings, os.environ, Path.home()))
    planner = BrainPlanner(paths, SystemLimits(memory, Accelerator.CPU))
    launcher = EngineLauncher(paths, engine_command(), os.environ)
    stopping: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()

    def stop(patience_s: float | None) -> None:
        if not stopping.done():
            stopping.set_result(patience_s)

    async with AsyncExitStack() as stack:
        residency = await stack.enter_async_context(
            Residency(
                clock=clock,
                store=store,
                planner=planner,
                launcher=launcher,
                memory=memory,
                settings=settings,
            )
        )
        service = Service(
            clock=clock,
            instance=instance,
            settings=settings,
            residency=residency,
            store=store,
            machine=Machine(memory),
        )
        administration = AdminService(
            service=service,
            store=store,
            configuration=live,
            shut_down=stop,
            reloaded=lambda: None,
        )
        server = OwnerOnlyServer([administration])
        runner = make_runner(make_app(service, _http_options(live.settings)))
        await runner.setup()
        site = web.SockSite(runner, port)
        await site.start()
        await server.serve_on(admin)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, None)
        log.info("ready http=%s admin=%s pid=%d", instance.http, paths.admin_socket, instance.pid)
        patience_s = await stopping
        await service.drain(live.settings.service_drain if patience_s is None else patience_s)
        await site.stop()
    server.close()
    await server.wait_closed()
    await runner.cleanup()
    await store.close()
    return DaemonExit.STAY_DOWN


def version() -> str:
    try:
        return metadata.version("swiftlm")
    except metadata.PackageNotFoundError:
        return "0.0.0+checkout"


def _http_options(settings: Settings) -> HttpOptions:
    return HttpOptions(
        host=settings.http_host,
        port=settings.http_port,
        api_key_hashes=tuple(
            hashlib.sha256(key.encode()).hexdigest() for key in settings.http_api_keys
        ),
        cors_origins=settings.http_allowed_origins,
        allowed_hosts=settings.http_allowed_hosts,
        max_body_bytes=settings.http_max_body_bytes,
        max_generations=settings.http_max_in_flight,
        comment_s=settings.http_keepalive,
        wedged_after_s=settings.engine_stall,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="swiftlmd", description="The swiftlm daemon.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("serve", help="run in the foreground")
    for option in OPTIONS.values():
        command.add_argument(
            option.flag, dest=option.key, metavar="VALUE", help=option.help.replace("%", "%%")
        )
    return parser
