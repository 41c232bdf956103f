"""A pull from the hub, seen from the daemon: a child process that reports, and its failures."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from swiftlmd.store import child
from swiftlmd.store.errors import PullFailed
from swiftlmd.store.fetch.request import Request
from swiftlmd.store.jobs import Report
from swiftlmd.store.meter import Meter
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.types import PullProgress, Stage

log = logging.getLogger(__name__)

_GRACE_S = 30.0  # the child gives up by itself; this is for one that hangs
_QUESTION_S = 120.0
_CONNECT_S = 1.5  # somebody waits for the answer to a question
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_STATUS = {
    "gated": 403,
    "bad_token": 401,
    "forbidden": 403,
    "absent": 404,
    "no_revision": 404,
    "no_weights": 422,
    "unsafe_name": 422,
    "unreachable": 503,
    "offline": 503,
    "hub_busy": 503,
    "disk_full": 507,
}


@dataclass(frozen=True, slots=True)
class Fetched:
    """What arrived: the last thing a fetch says."""

    path: Path
    commit: str
    licence: str
    files: tuple[str, ...]
    size_bytes: int
    repo: str = ""  # as the hub spells it; empty: as it was asked for


@dataclass(frozen=True, slots=True)
class Listed:
    """What the hub has of it, known before the first byte is fetched."""

    commit: str
    files: tuple[str, ...]
    digests: tuple[str, ...]


def accept_all(listed: Listed) -> None:
    return


async def fetch(
    request: Request,
    options: StoreOptions,
    report: Report,
    check: Callable[[Listed], None] = accept_all,
) -> Fetched:
    """Raises PullFailed. Cancelling it kills the transfer; the bytes stay.

    `check` may refuse by raising what the hub lists.
    """
    if options.hub_offline:
        raise _offline(f"'{request.repo}' is not on this machine")
    reading = _HubReading(request.repo, report, check)
    try:
        async with asyncio.timeout(options.patience_s + _GRACE_S) as watch:
            reading.on_growth = lambda: watch.reschedule(
                asyncio.get_running_loop().time() + options.patience_s + _GRACE_S
            )
            await child.run(
                "-m",
                "swiftlmd.store.fetch",
                on_report=reading.take,
                environ=_environment(options),
                stdin=request.to_json(),
            )
    except TimeoutError as error:
        raise PullFailed(
            f"'{request.repo}' stopped arriving; pull it again to go on", code="stalled"
        ) from error
    except child.ChildFailed as failed:
        raise reading.failure(failed) from failed
    assert reading.fetched is not None, "the child ended well without its last line"
    return reading.fetched


async def ask(
    verb: str, request: Mapping[str, object], options: StoreOptions, take: child.OnReport
) -> None:
    """A short question to the hub (`search`, `outline`) in a process of its own."""
    if options.hub_offline:
        raise _offline("the hub cannot be asked")
    await _reach(options)
    errors: list[child.Report] = []

    def sort(line: child.Report) -> None:
        (errors.append if line.get("stage") == "error" else take)(line)

    try:
        async with asyncio.timeout(_QUESTION_S):
            await child.run(
                "-m",
                f"swiftlmd.store.fetch.{verb}",
                on_report=sort,
                environ=_environment(options),
                stdin=json.dumps(request).encode(),
            )
    except TimeoutError as error:
        raise PullFailed(f"{options.endpoint} took too long to answer", code="stalled") from error
    except child.ChildFailed as failed:
        raise _told(errors) or _broke_off(f"the {verb}", failed) from failed


def request_for(
    repo: str, revision: str, include: tuple[str, ...], options: StoreOptions, *, recheck: bool
) -> Request:
    return Request(
        repo=repo,
        revision=revision,
        include=include,
        cache=str(options.hub_cache),
        recheck=recheck,
        parallel=options.parallel,
        patience_s=options.patience_s,
        spare_bytes=options.spare_bytes,
    )


class _HubReading:
    """Turns the child's lines into reports; remembers what the end needs."""

    def __init__(self, repo: str, report: Report, check: Callable[[Listed], None]) -> None:
        self.fetched: Fetched | None = None
        self.on_growth: Callable[[], None] = lambda: None
        self._repo = repo
        self._report = report
        self._check = check
        self._licence = ""
        self._files: tuple[str, ...] = ()
        self._digests: tuple[str, ...] = ()
        self._total = 0
        self._grown = -1
        self._meter = Meter(Stage.DOWNLOAD, 0, time.monotonic)
        self._error: PullFailed | None = None

    def take(self, line: child.Report) -> None:
        match line.get("stage"):
            case "resolve":
                self._report(PullProgress(Stage.RESOLVE, detail=self._repo))
            case "files":
                self._files += tuple(f["name"] for f in line["files"])
                self._digests += tuple(f["digest"] for f in line["files"])
                if line["more"]:
                    return
                self._check(Listed(line["commit"], self._files, self._digests))
                self._licence, self._total = line["licence"], line["total_bytes"]
                self._meter = Meter(Stage.DOWNLOAD, self._total, time.monotonic)
                self.on_growth()
            case "download":
                # What was here is read again first: a slow disk takes hours over that, too.
                if (moved := line["done_bytes"] + line["checked_bytes"]) > self._grown:
                    self._grown = moved
                    self.on_growth()
                self._report(self._meter.report(line["done_bytes"], line["detail"]))
            case "verify":
                self.on_growth()
                progress = (self._total, self._total)
                self._report(PullProgress(Stage.VERIFY, *progress, detail=line["detail"]))
            case "done":
                path, commit = Path(line["path"]), line["commit"]
                self.fetched = Fetched(
                    path, commit, self._licence, self._files, self._total, line["repo"]
                )
            case "error":
                self._error = _told([line])

    def failure(self, failed: child.ChildFailed) -> PullFailed:
        return self._error or _broke_off(f"the download of '{self._repo}'", failed)


def _told(errors: Sequence[child.Report]) -> PullFailed | None:
    """The child's own explanation, if it gave one."""
    for line in errors:
        status = _STATUS.get(line["reason"], 502)
        return PullFailed(line["message"], code=line["reason"], status=status)
    return None


def _broke_off(what: str, failed: child.ChildFailed) -> PullFailed:
    log.error("%s ended with status %s: %s", what, failed.code, failed.complaint)
    return PullFailed(f"{what} broke off (status {failed.code})")


async def _reach(options: StoreOptions) -> None:
    """Raises at once where the hub does not answer a connection; by a proxy it may anyhow."""
    if any(options.environ.get(name) or options.environ.get(name.upper()) for name in _PROXIES):
        return
    address = urlsplit(options.endpoint)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        async with asyncio.timeout(_CONNECT_S):
            await _connect_any(address.hostname or "", port)
    except OSError as error:  # TimeoutError is one
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise PullFailed(
            f"{options.endpoint} cannot be reached ({why}); connect and try again, or list the "
            "catalogue with `swiftlmctl models search` without a word",
            code="unreachable",
            status=_STATUS["unreachable"],
        ) from error


async def _connect_any(host: str, port: int) -> None:
    """To whichever address of `host` answers first: uvloop knows no happy eyeballs. Raises OSError
    where none does."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = {str(address[0]) for *_, address in found}
    tries = [asyncio.create_task(asyncio.open_connection(one, port)) for one in addresses]
    refusal: OSError = ConnectionError("no address")
    try:
        for attempt in asyncio.as_completed(tries):
            try:
                _, writer = await attempt
            except OSError as error:
                refusal = error
                continue
            writer.close()
            return
        raise refusal
    finally:
        for task in tries:
            task.cancel()


def _offline(what: str) -> PullFailed:
    return PullFailed(
        f"{what} and hub.offline (or HF_HUB_OFFLINE) is set; unset it to fetch models",
        code="offline",
        status=_STATUS["offline"],
    )


def _environment(options: StoreOptions) -> dict[str, str]:
    """The cache is passed by name; progress bars and telemetry are off; xet cannot resume."""
    return {
        **options.environ,
        "HF_ENDPOINT": options.endpoint,
        "HF_HUB_OFFLINE": "0",  # decided above
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    }
