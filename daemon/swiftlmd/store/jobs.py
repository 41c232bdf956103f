"""Pulls under way: one per wish, any number of followers, ended by the last who leaves.

Each job has one task that owns it; followers read the newest report and the end from it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from swiftlmd.store.errors import PullCancelled, disk_failed
from swiftlmd.store.records import Wanted
from swiftlmd.store.types import PullProgress, Stage

Report = Callable[[PullProgress], None]
Work = Callable[[Report], Awaitable[str]]  # gives the name of the model that it made


class Job:
    """One pull. Followers never slow it down: they see the newest report, not every one."""

    def __init__(self, name: str, work: Work) -> None:
        self.name = name
        self.latest = PullProgress(Stage.QUEUED)
        self.followers = 0
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._run(work), name=f"pull {name}")
        self.task.add_done_callback(lambda _: self._changed.set())

    async def _run(self, work: Work) -> None:
        try:
            model = await work(self._announce)
        except OSError as error:
            raise disk_failed(f"'{self.name}' could not be made", error) from error
        self._announce(dataclasses.replace(self.latest, stage=Stage.DONE, model=model))

    def _announce(self, report: PullProgress) -> None:
        self.latest = report
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self) -> AsyncGenerator[PullProgress, None]:
        """Reports until the end; raises what ended the job."""
        seen: PullProgress | None = None
        while True:
            if self.latest is not seen:
                seen = self.latest
                yield seen
            elif self.task.done():
                break
            else:
                await self._changed.wait()  # also set at the task's very end
        if self.task.cancelled():
            raise PullCancelled(self.name)
        self.task.result()


class Jobs:
    """The table of pulls. Lives on the event loop; no locks."""

    def __init__(self) -> None:
        self._jobs: dict[Wanted, Job] = {}

    def running(self) -> list[Job]:
        return list(self._jobs.values())

    async def follow(self, wanted: Wanted, work: Work) -> AsyncGenerator[PullProgress, None]:
        """Start the pull, or join the one that runs; it stops when nobody follows it any more."""
        while (job := self._jobs.get(wanted)) is not None and job.task.cancelling():
            await asyncio.wait({job.task})  # its last follower has just left
        if job is None:
            job = self._jobs[wanted] = Job(wanted.name, work)
            job.task.add_done_callback(lambda _: self._jobs.pop(wanted, None))
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
        """Stop what is under way for a model, for all its followers; False when nothing is."""
        jobs = [job for job in self.running() if job.name == name]
        for job in jobs:
            await _stop(job)
        return bool(jobs)

    async def close(self) -> None:
        for job in self.running():
            await _stop(job)


async def _stop(job: Job) -> None:
    """Returns when the child is dead, so that not one more byte arrives after it."""
    job.task.cancel()
    await asyncio.wait({job.task})
    if not job.task.cancelled():
        job.task.exception()  # seen: its followers were told, or there are none
