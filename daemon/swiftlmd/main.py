"""swiftlmd: `serve` settles configuration, lock and sockets, then runs the daemon.

Ends with 0 when it shall stay down, with another code of `DaemonExit` when a restart can help.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import faulthandler
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import uvloop

from swiftlm_proto.exit_codes import DaemonExit
from swiftlm_proto.paths import Paths, locate, settle_home
from swiftlm_proto.version import version
from swiftlmd.admin.self_check import self_check
from swiftlmd.admin.socket import NotOurs, SocketInUse, bound_socket, private_folder
from swiftlmd.cluster import join as join_command
from swiftlmd.config import command as config_command
from swiftlmd.config.edit import hash_keys
from swiftlmd.config.http import http_options
from swiftlmd.config.live import LiveConfiguration
from swiftlmd.config.load import ConfigError, Configuration, load
from swiftlmd.config.migrate import migrate
from swiftlmd.config.settings import OPTIONS, Option
from swiftlmd.config.values import expected, shown
from swiftlmd.daemon import Daemon, StartupContext
from swiftlmd.engines.process import MAX_LOG_BYTES, engine_command, remove_stale_sockets, shorten
from swiftlmd.lifecycle import logs
from swiftlmd.lifecycle.activation import inherited_socket
from swiftlmd.lifecycle.instance import (
    AlreadyRunning,
    NoAddress,
    PortBusy,
    address,
    bind_port,
    sole_instance,
    this_instance,
)
from swiftlmd.lifecycle.start_limiter import StartLimiter
from swiftlmd.lifecycle.supervisor import Supervisor, find_supervisor, leave_with, record_fatal

log = logging.getLogger(__name__)

_OPEN_FILES = 16_384
_FEWEST_FILES = 256  # an engine, its files and a few clients


class TooFewFiles(OSError):
    """The system allows too few open files to serve anything."""


def main() -> None:
    settle_home(os.environ)
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.command == "selfcheck":
        return self_check(locate())
    if arguments.command == "config":
        return config_command.run(arguments, locate().config_file, os.environ)
    if arguments.command == "join":
        return join_command.run(arguments, locate())
    flags = {key: text for key in OPTIONS if (text := getattr(arguments, key)) is not None}
    return serve(locate(), flags, engine_command())


def serve(paths: Paths, flags: Mapping[str, str], command: list[str]) -> int:
    """Runs the daemon, its engines by `command`; returns the exit code."""
    os.umask(0o077)
    faulthandler.enable()
    supervisor = find_supervisor(os.environ)
    try:
        shorten(paths.logs / "launchd.log", MAX_LOG_BYTES)
        kept = migrate(paths.config_file)
        if kept is not None:
            print(f"swiftlmd: config.toml was brought up to date; the old one is {kept}")
        hash_keys(paths.config_file)
        configuration = load(paths.config_file, os.environ, flags)
        return _serve(paths, configuration, flags, supervisor, command)
    except AlreadyRunning as error:
        print(f"swiftlmd: {error}", file=sys.stderr)
        return DaemonExit.STAY_DOWN
    except (ConfigError, PortBusy, NoAddress, SocketInUse, NotOurs, OSError) as error:
        print(f"swiftlmd: {error}", file=sys.stderr)
        return leave_with(_exit_code(error), str(error), supervisor, paths.fatal_file)


def _serve(
    paths: Paths,
    configuration: Configuration,
    flags: Mapping[str, str],
    supervisor: Supervisor,
    command: list[str],
) -> int:
    """Settles who may run and where, then runs; raises what keeps it from that."""
    _raise_file_limit()
    settings = configuration.settings
    options = http_options(settings)  # raises while nothing is taken yet
    https = address(options.host, options.tls_port) if options.tls_port else ""
    instance = this_instance(version(), address(options.plain_host, options.port), https)
    breaker = StartLimiter(paths.state / "starts.json", time.time)
    with ExitStack() as stack:
        stack.enter_context(sole_instance(paths.lock_file, instance))
        stack.enter_context(logs.logging_to(paths.logs, settings.log_level, os.environ))
        logs.set_access(settings.log_access)
        stack.enter_context(_failures_logged())
        if supervisor is Supervisor.LAUNCHD and _gives_up(breaker, paths):
            return DaemonExit.STAY_DOWN
        stack.enter_context(_failures_counted(breaker))
        http = stack.enter_context(bind_port(options.plain_host, options.port))
        admin = _admin_socket(stack, paths)
        engine_sockets = paths.engine_socket(0).parent
        private_folder(engine_sockets)
        remove_stale_sockets(engine_sockets)
        given = StartupContext(
            paths=paths,
            configuration=LiveConfiguration(configuration, os.environ, flags),
            instance=instance,
            supervisor=supervisor,
            environ=os.environ,
            engine_command=command,
            breaker=breaker,
            http=http,
            admin=admin,
        )
        code = uvloop.run(_run(given))
        log.info("stopped")
    return code


def _gives_up(breaker: StartLimiter, paths: Paths) -> bool:
    """launchd itself would start a crashing daemon for ever."""
    why = breaker.last_failure
    if breaker.start():
        return False
    reason = "it was started 5 times in 10 minutes and never ran for a minute"
    reason += f"; the last time: {why}" if why else ""
    log.error("staying down: %s", reason)
    record_fatal(paths.fatal_file, DaemonExit.CRASH, reason)
    return True


def _admin_socket(stack: ExitStack, paths: Paths) -> socket.socket:
    """The supervisor's, where it holds one for us; else our own."""
    inherited = inherited_socket(os.environ)
    if inherited is not None:
        return stack.enter_context(inherited)
    return stack.enter_context(bound_socket(paths.admin_socket))


@contextmanager
def _failures_logged() -> Iterator[None]:
    """What ends the daemon is in its log, not only on a stderr that nobody reads."""
    try:
        yield
    except (PortBusy, NoAddress, SocketInUse, NotOurs) as error:
        log.error("%s", error)
        raise
    except BaseException:
        log.critical("the daemon failed", exc_info=True)
        raise


@contextmanager
def _failures_counted(breaker: StartLimiter) -> Iterator[None]:
    """What may pass, such as a busy port, is tried for as long as it takes."""
    try:
        yield
    except Exception as error:
        if _exit_code(error) is DaemonExit.TEMPORARY:
            breaker.take_back()
        else:
            breaker.failed(str(error) or type(error).__name__)
        raise


async def _run(given: StartupContext) -> DaemonExit:
    daemon = Daemon(given)
    await daemon.run()
    return DaemonExit.RESTART if daemon.wants_restart else DaemonExit.STAY_DOWN


def _exit_code(error: Exception) -> DaemonExit:
    if isinstance(error, ConfigError):
        return DaemonExit.BAD_CONFIG
    if isinstance(error, PortBusy | NoAddress | SocketInUse):
        return DaemonExit.TEMPORARY
    if isinstance(error, NotOurs | PermissionError | NotADirectoryError | TooFewFiles):
        return DaemonExit.NOT_PERMITTED
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EROFS:
        return DaemonExit.NOT_PERMITTED
    return DaemonExit.TEMPORARY if code == errno.ENOSPC else DaemonExit.CRASH


def _raise_file_limit() -> None:
    """launchd gives 256 open files, too few for idle clients beside engines. Raises TooFewFiles."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _FEWEST_FILES:
        raise TooFewFiles(
            f"only {hard} open files are allowed to a process here (the hard limit), and swiftlmd "
            f"needs {_FEWEST_FILES}; raise the limit (`ulimit -Hn`, or LimitNOFILE in the unit)"
        )
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="swiftlmd", description="The swiftlm daemon.")
    parser.add_argument("--version", action="version", version=version())
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("selfcheck", help="see whether this installation can run, and exit")
    config_command.add_arguments(
        commands.add_parser("config", help="show or change the configuration")
    )
    join_command.add_arguments(
        commands.add_parser("join", help="lend this machine to the group that another leads")
    )
    serving = commands.add_parser(
        "serve",
        help="run in the foreground",
        usage="swiftlmd serve [--TABLE-NAME VALUE ...]",
        description="Each option may also stand in config.toml, or in the environment as "
        "SWIFTLM_TABLE_NAME. A list is written A,B; a table NAME=VALUE,NAME=VALUE.",
    )
    for option in OPTIONS.values():
        serving.add_argument(
            option.flag, dest=option.key, metavar="VALUE", help=_help(option).replace("%", "%%")
        )
    return parser


def _help(option: Option) -> str:
    default = "none" if option.secret else shown(option, option.default) or "empty"
    return f"{option.help} Takes {expected(option)}; default: {default}."
