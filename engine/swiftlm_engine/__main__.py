"""The engine process: `python -m swiftlm_engine --socket PATH --parent PID`."""

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

from grpclib.server import Server

from swiftlm_engine.parent import exit_with_parent
from swiftlm_proto.exit_codes import EngineExit


def main() -> None:
    arguments = _arguments()
    faulthandler.enable()
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if arguments.parent:
        exit_with_parent(arguments.parent)
    code = asyncio.run(_serve(arguments.socket))
    logging.shutdown()
    # Not sys.exit: tearing MLX down while its thread may still evaluate can hang or abort.
    os._exit(code)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="swiftlm_engine", description=__doc__)
    parser.add_argument("--socket", required=True, help="Unix socket to serve on")
    parser.add_argument("--parent", type=int, default=0, help="exit when this process is gone")
    parser.add_argument("--log-level", default="info")
    return parser.parse_args()


async def _serve(path: str) -> EngineExit:
    from swiftlm_engine.server.service import EngineService  # imports MLX

    service = EngineService()
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
