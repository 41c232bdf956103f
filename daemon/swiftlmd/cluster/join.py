"""`swiftlmd join`: this machine lends itself to the group of another, until it is stopped.

It listens where it is told and nowhere else; beyond loopback only with the group's secret at hand.
With `--stdio` it listens nowhere: ssh started it for one visit, and carries that.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from swiftlm_engine.brain.facts import ModelFilesError, read_model
from swiftlm_engine.cluster.link import LinkLost, read_secret
from swiftlm_proto.exit_codes import DaemonExit
from swiftlm_proto.paths import Paths
from swiftlm_proto.version import version
from swiftlmd.cluster.agent import Agent, Lent
from swiftlmd.cluster.stdio import own_pipes
from swiftlmd.config.load import ConfigError, load
from swiftlmd.config.settings import Settings
from swiftlmd.engines.environment import engine_environment
from swiftlmd.engines.group_secret import secret_file
from swiftlmd.engines.process import engine_command
from swiftlmd.faults import ServiceError
from swiftlmd.hosts.fetching import Shares
from swiftlmd.hosts.registry import DEFAULT_PORT, with_port
from swiftlmd.hosts.report import HostReport, mlx_version, own_report
from swiftlmd.lifecycle.instance import PortBusy, bind_port, port_holder
from swiftlmd.memory import machine_limits, system_device, system_readings
from swiftlmd.memory.machine import has_cuda_mlx
from swiftlmd.store.local_models import LocalModels
from swiftlmd.store.options import from_settings
from swiftlmd.store.records import Records

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        help="address of this machine at which the group's leader reaches it (%(default)s)",
    )
    parser.add_argument(
        "--stdio", action="store_true", help="one visit over stdin and stdout, for ssh"
    )


def run(arguments: argparse.Namespace, paths: Paths) -> int:
    os.umask(0o077)
    level = logging.WARNING if arguments.stdio else logging.INFO
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    secret = secret_file(paths)
    if not secret.exists():
        return _refused(f"the group's secret is not here; copy it from its leader to {secret}")
    try:
        read_secret(secret)
        settings = load(paths.config_file, os.environ, {}).settings
        agent = Agent(lent(paths, settings, os.environ))
        if arguments.stdio:
            return _receive_one(agent)
        listener = _listening(with_port(arguments.listen))
    except (LinkLost, ServiceError, ConfigError, OSError) as error:
        return _refused(str(error))
    listener.setblocking(True)
    log.info(
        "lent to a group version=%s mlx=%s listen=%s", version(), mlx_version(), arguments.listen
    )
    _serve(listener, agent)
    return DaemonExit.STAY_DOWN


def _listening(address: str) -> socket.socket:
    """Raises OSError with what to change."""
    host, _, port = address.rpartition(":")
    try:
        return bind_port(host.strip("[]"), int(port))
    except PortBusy as error:
        holder = port_holder(int(port))
        message = f"{address} is taken by {holder}; stop it, or give another port to --listen"
        raise OSError(message) from error
    except OSError as error:
        why = error.strerror or error
        message = f"cannot listen at {address}: {why}; give an address of this machine to --listen"
        raise OSError(message) from error


def lent(paths: Paths, settings: Settings, environ: Mapping[str, str]) -> Lent:
    """What this installation has to lend."""
    readings, device = system_readings(), system_device(cuda=has_cuda_mlx())
    options = from_settings(settings, environ, Path.home())
    shelf = LocalModels(paths.models, options, Records(paths.state / "store"))
    shares = Shares(paths.cache / "shares", options)

    def report() -> HostReport:
        return own_report(machine_limits(readings.read(()), device))

    return Lent(
        secret_file=secret_file(paths),
        logs=paths.logs,
        report=report,
        models=lambda: fingerprints([*shares.folders(), *_whole(shelf)]),
        fetch=shares.fetch,
        engine_command=engine_command(),
        engine_environment=engine_environment(environ, settings.engine_environment),
    )


def fingerprints(folders: Iterable[Path]) -> dict[str, Path]:
    """Models by what tells them from others; of two folders of one the later."""
    found = {}
    for folder in folders:
        try:
            found[read_model(folder).fingerprint] = folder
        except (ModelFilesError, OSError) as error:
            log.warning("model in %s cannot be lent: %s", folder, error)
    return found


def _whole(shelf: LocalModels) -> list[Path]:
    return [model.path for model in shelf.models() if model.ready]


def _receive_one(agent: Agent) -> int:
    """A rank ends with it, by `--parent`."""
    leader = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    with own_pipes() as connection:
        agent.receive(connection, leader)
    return DaemonExit.STAY_DOWN


def _serve(listener: socket.socket, agent: Agent) -> None:
    """Until SIGTERM or SIGINT; ranks end with this process, by `--parent`."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    threading.Thread(target=agent.serve, args=(listener,), daemon=True).start()
    stopped.wait()
    listener.close()


def _refused(reason: str) -> int:
    print(f"swiftlmd: {reason}", file=sys.stderr)
    return DaemonExit.BAD_CONFIG
