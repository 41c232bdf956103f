"""The engine process: `python -m swiftlm_engine --socket PATH --parent PID`.

With `--group FILE` it is rank 0 of a group and starts the others; with `--join HOST:PORT` it is one
of those, and opens no socket.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from grpclib.server import Server

from swiftlm_engine.isolation.file_limit import bear_few_files
from swiftlm_engine.server.parent_watch import exit_with_parent
from swiftlm_proto.exit_codes import EngineExit
from swiftlm_proto.version import version

# The step loop gives the interpreter's lock away whenever MLX computes. To get it back it must not
# wait for Python's usual 5 ms, in which a GPU runs a whole step, while the other thread sends.
_SWITCH_S = 0.0005


def main() -> None:
    arguments = _arguments()
    bear_few_files()
    faulthandler.enable()
    sys.setswitchinterval(_SWITCH_S)
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if arguments.parent:
        exit_with_parent(arguments.parent)
    if arguments.join or arguments.group:
        from swiftlm_engine.cluster.ring import launch_directly  # imports MLX

        launch_directly()
    if arguments.join:
        _follow(arguments)
    code = asyncio.run(_serve(arguments.socket, arguments.group))
    logging.shutdown()
    # Not sys.exit: tearing MLX down while its thread may still evaluate can hang or abort.
    os._exit(code)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="swiftlm_engine", description=__doc__)
    role = parser.add_mutually_exclusive_group(required=True)
    role.add_argument("--socket", help="Unix socket to serve on")
    role.add_argument("--join", help="HOST:PORT of the leader to follow")
    parser.add_argument("--group", type=Path, help="lead the ranks that this file names")
    parser.add_argument("--rank", type=int, default=0, help="as which to follow")
    parser.add_argument("--secret-file", type=Path, help="the group's secret")
    parser.add_argument("--folder", type=Path, help="the model's, if not where the leader has it")
    parser.add_argument("--parent", type=int, default=0, help="exit when this process is gone")
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log-level", default="info", choices=levels)
    return parser.parse_args()


def _follow(arguments: argparse.Namespace) -> None:
    """Does not return: the process ends with its leader."""
    from swiftlm_engine.cluster.follower import Invitation, follow  # imports MLX
    from swiftlm_engine.cluster.link import LinkLost

    def end(reason: str) -> NoReturn:
        logging.warning("rank %d ends: %s", arguments.rank, reason)
        logging.shutdown()
        os._exit(EngineExit.RANK_LOST)

    invitation = Invitation(arguments.join, arguments.rank, arguments.secret_file, arguments.folder)
    try:
        follow(invitation, version(), end)
    except LinkLost as error:
        end(str(error))
    except Exception as error:
        logging.exception("rank %d failed", arguments.rank)
        end(repr(error))


async def _serve(path: str, group_file: Path | None) -> EngineExit:
    from swiftlm_engine.cluster.group import GroupRefused, read_group
    from swiftlm_engine.server.service import EngineService  # imports MLX

    try:
        group = read_group(group_file) if group_file is not None else None
    except GroupRefused as error:
        logging.error("%s", error)
        return EngineExit.LOOP_DIED
    service = EngineService(group)
    server = Server([service])
    listener = _bind(path)
    await server.start(sock=listener)
    loop = asyncio.get_running_loop()
    stops: set[asyncio.Task[None]] = set()
    loop.add_signal_handler(signal.SIGTERM, lambda: stops.add(loop.create_task(service.stop(10.0))))
    # Ctrl-C in a terminal goes to the whole group; the daemon decides when its engines end.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        return await service.ended
    finally:
        server.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 1.0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _bind(path: str) -> socket.socket:
    """A listening socket that only this user can open. The daemon chose a fresh name."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(old)
    listener.listen(16)
    return listener


if __name__ == "__main__":
    main()
