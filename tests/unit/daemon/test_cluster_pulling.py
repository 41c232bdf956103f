"""The transfers to other hosts, and who stops them."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swiftlm_engine.brain.plan.share import Share, Split
from swiftlm_engine.cluster.link import Link, LinkLost
from swiftlmd.cluster import pulling
from swiftlmd.hosts.fetching import Wish
from swiftlmd.hosts.registry import Host
from swiftlmd.hosts.transfer import follow_fetch, tell_fetch
from swiftlmd.store.jobs import Report
from swiftlmd.store.types import PullProgress, Stage


async def test_who_leaves_twice_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()  # the host says nothing until the test ends

    def progress(errand: pulling.Errand, secret_file: Path) -> Iterator[PullProgress]:
        silent.wait(5)
        yield PullProgress(Stage.QUEUED)

    monkeypatch.setattr(pulling, "_progress", progress)
    wish = Wish("org/a", "c", "f", Share(Split.PIPELINE, range(1)))

    async def follow() -> None:
        async for _ in pulling.run([pulling.Errand(Host("b", 1), wish)], Path("secret")):
            pass

    task = asyncio.create_task(follow())
    try:
        await asyncio.sleep(0.05)
        began = time.monotonic()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        await asyncio.wait({task}, timeout=1)
        assert task.cancelled()
        assert time.monotonic() - began < 2
    finally:
        silent.set()


WISH = Wish("org/model", "c0ffee", "print", Share(Split.PIPELINE, range(2, 4)))


@pytest.mark.parametrize("far_is_newer", [False, True])
def test_a_host_of_another_version_may_say_more_or_less(far_is_newer: bool) -> None:
    near, far = socket.socketpair()
    with Link(near) as leader, Link(far) as host:
        more = {"checked_bytes": 4} if far_is_newer else {}
        host.send({"stage": "download", "done_bytes": 3, "total_bytes": 9, **more})
        host.send({"stage": "done"})
        assert [p.done_bytes for p in follow_fetch(leader, WISH)] == [3, 0]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"stage": "sleeping"},
        {"stage": None},
        {"stage": "download", "done_bytes": "many"},
        {"stage": "download", "total_bytes": [1]},
        {"stage": "download", "total_bytes": float("inf")},
    ],
)
def test_what_a_host_says_wrongly_ends_its_visit_by_name(answer: dict[str, object]) -> None:
    near, far = socket.socketpair()
    with Link(near) as leader, Link(far) as host:
        host.send(answer)
        with pytest.raises(LinkLost, match="sent no progress"):
            next(follow_fetch(leader, WISH))


@pytest.mark.parametrize(
    "share",
    [None, [], {"split": "tensor", "layers": [0, float("inf")], "parts": 2}, {"split": "both"}],
)
async def test_a_wish_that_is_none_ends_the_visit_by_name(share: object) -> None:
    near, far = socket.socketpair()
    with Link(near), Link(far) as host, pytest.raises(LinkLost, match="asked for no share"):
        await tell_fetch(host, {"do": "fetch", "share": share, "repo": "a/b"}, _never)


async def _never(wish: Wish, report: Report) -> None:
    raise AssertionError("fetched without a wish")
