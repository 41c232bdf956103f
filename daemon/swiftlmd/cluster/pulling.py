"""Has the other hosts of a group fetch their shares of a model, and tells how far they all are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.brain.plan import Way
from swiftlm_engine.brain.plan.share import Share, Split
from swiftlm_engine.cluster.link import LinkLost, read_secret
from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError
from swiftlmd.hosts.fetching import Wish
from swiftlmd.hosts.registry import Host
from swiftlmd.hosts.visit import visiting
from swiftlmd.store.errors import PullFailed
from swiftlmd.store.types import ModelSource, PullProgress, Stage, StoredModel

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Errand:
    host: Host
    wish: Wish


def errands(model: StoredModel, fingerprint: str, hosts: Sequence[Host], way: Way) -> list[Errand]:
    """One for each rank on another machine. Raises PullFailed for what no hub can give."""
    if model.source is not ModelSource.HUB:
        raise PullFailed(
            f"'{model.name}' did not come from the hub; copy {model.path} to each host, in its "
            "models folder",
            code="not_from_hub",
            status=422,
        )
    return [
        Errand(host, Wish(model.name, model.revision, fingerprint, rank.share))
        for host, rank in zip(hosts, way.ranks, strict=True)
        if not host.here
    ]


async def run(asked: Sequence[Errand], secret_file: Path) -> AsyncGenerator[m.OperationEvent, None]:
    """All at once. Raises PullFailed with the first host that fails; the others stop, too.

    Whoever closes it stops the transfers; what arrived stays on the hosts.
    """
    latest = {errand.host.name: PullProgress(Stage.QUEUED) for errand in asked}
    stopped = threading.Event()

    def work(errand: Errand) -> None:
        for progress in _progress(errand, secret_file):
            latest[errand.host.name] = progress
            if stopped.is_set():
                return

    loop = asyncio.get_running_loop()
    # Threads of its own: they may be busy for hours.
    pool = ThreadPoolExecutor(max(1, len(asked)))
    pending = {loop.run_in_executor(pool, work, errand) for errand in asked}
    try:
        while pending:
            yield _event(latest)
            done, pending = await asyncio.wait(pending, timeout=_LOOK_S)
            for task in done:
                task.result()
    finally:
        stopped.set()
        try:
            if pending:
                await asyncio.wait(pending)
        finally:  # cancelled once more: the loop waits for no thread
            pool.shutdown(wait=False)
    held = "; ".join(f"{errand.host.name} holds {_words(errand.wish.share)}" for errand in asked)
    yield m.OperationEvent("done", 1.0, held, done=True)


def _progress(errand: Errand, secret_file: Path) -> Iterator[PullProgress]:
    """Blocking, for as long as the host takes."""
    name = errand.host.name
    try:
        with visiting(errand.host.way, read_secret(secret_file)) as visit:
            yield from visit.fetch(errand.wish)
    except LinkLost as error:
        again = f"`swiftlmctl cluster pull {errand.wish.repo}` goes on from there"
        raise PullFailed(f"host '{name}': it {error}; {again}") from error
    except ServiceError as error:
        raise PullFailed(f"host '{name}': {error.message}") from error


def _event(latest: Mapping[str, PullProgress]) -> m.OperationEvent:
    done = sum(progress.done_bytes for progress in latest.values())
    total = sum(progress.total_bytes for progress in latest.values())
    return m.OperationEvent(
        stage="fetch",
        fraction=done / total if total else 0.0,
        detail=", ".join(f"{name}: {progress.stage}" for name, progress in latest.items()),
        done_bytes=done,
        total_bytes=total,
        bytes_per_s=sum(progress.bytes_per_s for progress in latest.values()),
        eta_s=max((progress.eta_s for progress in latest.values()), default=0.0),
    )


def _words(share: Share) -> str:
    if share.split is Split.TENSOR:
        return "all files"
    return f"layers {share.layers.start} to {share.layers.stop - 1}"
