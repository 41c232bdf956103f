"""Pulls under way: one per model, any number of followers, ended by the last who leaves.

Each job has one task that owns it; followers read the latest report and the end from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from swiftlmd.store.entries import PullProgress, Stage
from swiftlmd.store.errors import PullCancelled

Steps = Callable[[], AsyncGenerator[PullProgress, None]]


class Job:
    """One pull. Followers never slow it down: they see the newest report, not every one."""

    def __init__(self, name: str, steps: Steps) -> None:
        self.name = name
        self.latest = PullProgress(Stage.QUEUED)
        self.followers = 0
        self._changed = asyncio.Condition()
        self.task = asyncio.create_task(self._run(steps), name=f"pull {name}")
        self._version = 0

    async def _run(self, steps: Steps) -> None:
        try:
            async with aclosing(steps()) as reports:
                async for report in reports:
                    await self._announce(report)
        finally:
            await self._announce(self.latest)

    async def _announce(self, report: PullProgress) -> None:
        async with self._changed:
            self.latest = report
            self._version += 1
            self._changed.notify_all()

    async def follow(self) -> AsyncGenerator[PullProgress, None]:
        """Reports until the end; raises what ended the job."""
        seen = -1
        while not self.task.done():
            if self._version != seen:
                seen = self._version
                yield self.latest
                continue
            await self._next(seen)
        if self._version != seen:
            yield self.latest
        if self.task.cancelled():
            raise PullCancelled(self.name)
        self.task.result()

    async def _next(self, seen: int) -> None:
        """Until there is a newer report or the task has ended, whichever is first."""

        async def newer() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: self._version != seen)

        waiter = asyncio.create_task(newer())
        try:
            await asyncio.wait({waiter, self.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()


class Jobs:
    """The table of pulls. Lives on the event loop; no locks."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def running(self) -> list[Job]:
        return list(self._jobs.values())

    async def follow(self, name: str, steps: Steps) -> AsyncGenerator[PullProgress, None]:
        """Start the pull, or join the one that runs; it stops when nobody follows it any more."""
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = Job(name, steps)
            job.task.add_done_callback(lambda _: self._jobs.pop(name, None))
        job.followers += 1
        try:
            async with aclosing(job.follow()) as reports:
                async for report in reports:
                    yield report
        finally:
            job.followers -= 1
            if job.followers == 0:
                await _stop(job)

    async def cancel(self, name: str) -> bool:
        """Stop the pull for all its followers; False when there is none."""
        job = self._jobs.get(name)
        if job is None:
            return False
        await _stop(job)
        return True

    async def close(self) -> None:
        for job in self.running():
            await _stop(job)


async def _stop(job: Job) -> None:
    """Returns when the child is dead, so that not one more byte arrives after it."""
    job.task.cancel()
    await asyncio.wait({job.task})
    if not job.task.cancelled():
        job.task.exception()  # seen: its followers were told, or there are none
