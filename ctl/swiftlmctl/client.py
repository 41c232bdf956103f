"""The one connection to swiftlmd: opens the admin socket, greets, translates what goes wrong.

Every verb that needs the daemon does `call(verb)` with an async function of one argument. The
greeting compares protocol and version, so that no verb reads a message it would misunderstand.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.paths import Paths, locate
from swiftlm_proto.version import version
from swiftlmctl.errors import CtlError
from swiftlmctl.output import warn

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

T = TypeVar("T")

GREETING_TIMEOUT_S = 10.0
# How long a verb waits for a daemon that its supervisor says is starting.
STARTING_WAIT_S = 5.0
_POLL_S = 0.05
_CALLABLE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


@dataclass(frozen=True, slots=True)
class Daemon:
    """An open, greeted connection; `status` is the daemon's answer to the greeting."""

    admin: m.AdminStub
    store: m.StoreStub
    cluster: m.ClusterStub
    status: m.DaemonStatus
    paths: Paths

    @property
    def url(self) -> str:
        """Where a client on this machine calls; every address is not one that can be called."""
        host, _, port = self.status.http_address.rpartition(":")
        return f"http://{_CALLABLE.get(host, host)}:{port}"


def call(
    verb: Callable[[Daemon], Awaitable[T]],
    *,
    wait_s: float | None = None,
    any_protocol: bool = False,
) -> T:
    """Runs `verb` against the daemon; raises `CtlError` with the hint when it is not there.

    `wait_s` is how long a daemon may take to appear; None = as its supervisor says.
    """
    paths = locate()
    _await_listener(paths, wait_s)

    async def session() -> T:
        async with _connected(paths, any_protocol) as daemon:
            return await verb(daemon)

    return asyncio.run(session())


def is_running(paths: Paths | None = None) -> bool:
    """Whether somebody listens on the admin socket; says nothing about who."""
    return _probe(paths or locate()) == 0


def _probe(paths: Paths) -> int:
    """The error number of a connection to the admin socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(str(paths.admin_socket))


def _await_listener(paths: Paths, wait_s: float | None) -> None:
    """Returns when a connection is worth trying; comes before the slow imports."""
    deadline: float | None = None
    while _probe(paths) in (errno.ENOENT, errno.ECONNREFUSED):
        if deadline is None:
            allowed = _starting_wait_s(paths) if wait_s is None else wait_s
            deadline = time.monotonic() + allowed
        if time.monotonic() >= deadline:
            from swiftlmctl.service.not_running import explain

            raise explain(paths)
        time.sleep(_POLL_S)


@contextlib.asynccontextmanager
async def _connected(paths: Paths, any_protocol: bool) -> AsyncIterator[Daemon]:
    from grpclib.client import Channel

    from swiftlm_proto import messages as m

    channel = Channel(path=str(paths.admin_socket))
    try:
        with translated(paths):
            admin = m.AdminStub(channel)
            hello = m.StatusRequest(client_protocol=m.PROTOCOL, client_version=version())
            status = await admin.status(hello, timeout=GREETING_TIMEOUT_S)
            _check_versions(status, any_protocol)
            yield Daemon(admin, m.StoreStub(channel), m.ClusterStub(channel), status, paths)
    finally:
        channel.close()


def _starting_wait_s(paths: Paths) -> float:
    from swiftlmctl.service import choose

    return STARTING_WAIT_S if choose(paths).state().may_answer_soon else 0.0


def _check_versions(status: m.DaemonStatus, any_protocol: bool) -> None:
    from swiftlm_proto import messages as m

    if status.protocol != m.PROTOCOL and not any_protocol:
        raise CtlError(
            f"the daemon ({status.version}) speaks protocol {status.protocol}, "
            f"this swiftlmctl ({version()}) speaks {m.PROTOCOL}",
            hint="use the swiftlmctl that was installed with it, or `swiftlmctl restart` "
            "to run the installed version",
            code=CtlExit.VERSION_MISMATCH,
        )
    if status.version != version():
        warn(
            f"the daemon runs {status.version}, this is swiftlmctl {version()}; "
            "`swiftlmctl restart` runs the installed version"
        )


@contextlib.contextmanager
def translated(paths: Paths) -> Iterator[None]:
    """Turns what the transport raises into one `CtlError`."""
    from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError) as e:
        from swiftlmctl.service.not_running import explain

        raise explain(paths) from e
    except PermissionError as e:
        raise CtlError(
            f"not allowed to open {paths.admin_socket}",
            hint="only the user who runs swiftlmd may administer it",
            code=CtlExit.DENIED,
        ) from e
    except TimeoutError as e:
        raise CtlError(
            "swiftlmd did not answer in time",
            hint="`swiftlmctl logs -n 50` shows what it is doing",
            code=CtlExit.TIMEOUT,
        ) from e
    except GRPCError as e:
        raise _from_grpc(e) from e
    except (StreamTerminatedError, ProtocolError, ConnectionError, OSError) as e:
        raise CtlError(
            f"swiftlmd closed the connection ({e or type(e).__name__})",
            hint="`swiftlmctl status`, then `swiftlmctl logs -n 50`",
        ) from e


def _from_grpc(error: Exception) -> CtlError:
    from grpclib import GRPCError, Status

    assert isinstance(error, GRPCError)
    message = error.message or error.status.name.lower().replace("_", " ")
    if error.status is Status.UNIMPLEMENTED:
        return CtlError(
            "the running daemon does not know this verb",
            hint="`swiftlmctl restart` runs the installed version",
            code=CtlExit.VERSION_MISMATCH,
        )
    if error.status in (Status.UNKNOWN, Status.INTERNAL):
        return CtlError(
            f"swiftlmd failed at this: {message}",
            hint="a fault of ours; `swiftlmctl logs --level error -n 5` has the details",
        )
    codes = {
        Status.PERMISSION_DENIED: CtlExit.DENIED,
        Status.UNAUTHENTICATED: CtlExit.DENIED,
        Status.DEADLINE_EXCEEDED: CtlExit.TIMEOUT,
    }
    return CtlError(message, code=codes.get(error.status, CtlExit.FAILED))


def check(fault: m.Fault | None) -> None:
    """Raises what the daemon refused; its message already says what to do next."""
    if fault is not None:
        raise CtlError(fault.message or fault.kind.name.lower())
