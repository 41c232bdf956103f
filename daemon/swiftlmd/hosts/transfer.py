"""A fetch as both ends of a visit see it: a message each second, then its end or what failed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator

from swiftlm_engine.brain.plan.share import Share, Split
from swiftlm_engine.cluster.link import Link, LinkLost, Message
from swiftlmd.faults import ServiceError
from swiftlmd.hosts.fetching import Wish
from swiftlmd.store.errors import PullFailed
from swiftlmd.store.jobs import Report
from swiftlmd.store.types import PullProgress, Stage

_EVERY_S = 1.0

Fetch = Callable[[Wish, Report], Awaitable[None]]


def follow_fetch(link: Link, wish: Wish) -> Iterator[PullProgress]:
    """The leader's side, to the end. Raises PullFailed with the host's words, or LinkLost."""
    share = wish.share
    layers = [share.layers.start, share.layers.stop]
    cut = {"split": share.split.value, "layers": layers, "parts": share.parts}
    link.send({"do": "fetch", **dataclasses.asdict(wish), "share": cut})
    while True:
        answer = link.receive()
        if "fault" in answer:
            raise PullFailed(str(answer["fault"]))
        progress = _progress(answer)
        yield progress
        if progress.stage is Stage.DONE:
            return


async def tell_fetch(link: Link, asked: Message, fetch: Fetch) -> None:
    """The host's side. The leader's end stops the transfer; what arrived stays."""
    wish, latest = _wish(asked), PullProgress(Stage.QUEUED)

    def report(progress: PullProgress) -> None:
        nonlocal latest
        latest = progress

    async def work() -> None:
        await fetch(wish, report)

    task = asyncio.create_task(work())
    try:
        while not task.done():
            link.send(dataclasses.asdict(latest))
            await asyncio.wait({task}, timeout=_EVERY_S)
        await task
    except ServiceError as error:
        return link.send({"fault": error.message})
    except OSError as error:
        return link.send({"fault": str(error)})
    finally:
        task.cancel()
        await asyncio.wait({task})
    done = latest.total_bytes
    link.send(dataclasses.asdict(PullProgress(Stage.DONE, done, done)))


def _wish(asked: Message) -> Wish:
    """Raises LinkLost for what is none."""
    try:
        cut = asked["share"]
        share = Share(Split(cut["split"]), range(*map(int, cut["layers"])), int(cut["parts"]))
        repo, commit = str(asked["repo"]), str(asked["commit"])
        return Wish(repo, commit, str(asked["fingerprint"]), share)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LinkLost(f"asked for no share of a model ({error!r})") from error


def _progress(answer: Message) -> PullProgress:
    """What another version adds is left out; raises LinkLost for what is none."""
    try:
        return PullProgress(
            Stage(answer["stage"]),
            done_bytes=int(answer.get("done_bytes", 0)),
            total_bytes=int(answer.get("total_bytes", 0)),
            bytes_per_s=float(answer.get("bytes_per_s", 0.0)),
            eta_s=float(answer.get("eta_s", 0.0)),
            detail=str(answer.get("detail", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LinkLost(f"sent no progress ({error!r})") from error
