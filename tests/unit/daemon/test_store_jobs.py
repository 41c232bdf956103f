"""Pulls under way: who joins one, who ends it, and how it fails."""

from __future__ import annotations

import asyncio
import errno

import pytest
from fakes import settle

from swiftlmd.faults import ServiceError
from swiftlmd.store.jobs import Jobs, Report
from swiftlmd.store.records import Wanted

WANTED = Wanted("org/name", "", ())


async def test_a_pull_begins_anew_while_the_last_one_of_its_name_is_still_ending() -> None:
    jobs, dying, begun = Jobs(), asyncio.Event(), 0

    async def work(report: Report) -> str:
        nonlocal begun
        begun += 1
        if begun == 1:
            try:
                await asyncio.Event().wait()
            finally:
                await dying.wait()  # as a child takes its time to die
        return "org/name"

    async def follow() -> list[str]:
        return [report.model async for report in jobs.follow(WANTED, work)]

    first = asyncio.create_task(follow())
    await settle()
    first.cancel()
    await settle()
    second = asyncio.create_task(follow())
    await settle()
    dying.set()
    assert (await second)[-1] == "org/name"
    assert begun == 2


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "disk_full"), (errno.EACCES, "disk")])
async def test_a_disk_that_refuses_ends_a_pull_in_a_fault(number: int, code: str) -> None:
    async def work(report: Report) -> str:
        raise OSError(number, "the reason", "/some/where")

    with pytest.raises(ServiceError, match=r"the reason \(/some/where\)") as caught:
        async for _ in Jobs().follow(WANTED, work):
            pass
    assert caught.value.code.startswith(code)
