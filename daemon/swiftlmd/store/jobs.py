"""Jobs of the store: one per wish, any number of followers, ended by the last who leaves.

Each job has one task that owns it; followers read the newest report and the end from it. A target
is what a job writes (a model's folder, a repository of the cache): it has one holder at a time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from swiftlmd.store.errors import NameInUse, PullCancelled, disk_failed
from swiftlmd.store.records import Wanted
from swiftlmd.store.types import PullProgress, Stage

Report = Callable[[PullProgress], None]
Work = Callable[[Report], Awaitable[str]]  # gives the name of the model that it made


class Verb(StrEnum):
    """What a job does; two verbs on the same words are two jobs."""

    PULL = "pull"
    REPAIR = "repair"
    IMPORT = "import"
    CONVERT = "convert"
    PACK = "pack"


@dataclass(frozen=True, slots=True)
class Goal:
    """What somebody wants done. Equal goals share one job."""

    wanted: Wanted
    verb: Verb = Verb.PULL
    target: str = ""  # what it writes; empty: not known before it runs, see `Jobs.claim`


def folder_target(name: str) -> str:
    """A folder of the models folder; disks that ignore case make one of two spellings."""
    return f"models/{name.casefold()}"


def hub_target(repo: str) -> str:
    """A repository of the hub's cache."""
    return f"hub/{repo.casefold()}"


class Job:
    """One goal at work. Followers never slow it down: they see the newest report, not every one."""

    def __init__(self, goal: Goal, work: Work) -> None:
        self.goal = goal
        self.name = goal.wanted.name
        self.latest = PullProgress(Stage.QUEUED)
        self.followers = 0
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._run(work), name=f"{goal.verb} {self.name}")
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
    """The table of jobs and of the targets they hold. Lives on the event loop; no locks."""

    def __init__(self) -> None:
        self._jobs: dict[Goal, Job] = {}
        self._holders: dict[str, asyncio.Future[Any]] = {}

    def running(self) -> list[Job]:
        return list(self._jobs.values())

    async def follow(
        self, wanted: Wanted | Goal, work: Work, *, waits: bool = True
    ) -> AsyncGenerator[PullProgress, None]:
        """Start the job, or join the one that runs; it stops when nobody follows it any more.

        A job whose target another one holds waits for it; with `waits` False it raises NameInUse.
        """
        goal = wanted if isinstance(wanted, Goal) else Goal(wanted)
        while (job := self._jobs.get(goal)) is not None and job.task.cancelling():
            await asyncio.wait({job.task})  # its last follower has just left
        if job is None:
            if not waits and goal.target in self._holders:
                raise NameInUse(goal.wanted.name)
            job = self._start(goal, work)
        job.followers += 1
        try:
            async with aclosing(job.follow()) as reports:
                async for report in reports:
                    yield report
        finally:
            job.followers -= 1
            if job.followers == 0:
                await _stop(job)

    def claim(self, goal: Goal, name: str) -> None:
        """For a job that learns its folder's name as it runs; raises NameInUse if it is held."""
        task = self._jobs[goal].task
        if self._holders.setdefault(folder_target(name), task) is not task:
            raise NameInUse(name)

    @asynccontextmanager
    async def alone(self, target: str) -> AsyncIterator[None]:
        """Ends the jobs that hold or await a target, and keeps others off until the block ends."""
        done = asyncio.get_running_loop().create_future()
        await self._stop_all(lambda job: self._writes(job, target))
        while (other := self._holders.setdefault(target, done)) is not done:
            await self._stop_all(lambda job: self._writes(job, target))
            await asyncio.wait({other})
        try:
            yield
        finally:
            del self._holders[target]
            done.set_result(None)

    async def cancel(self, name: str) -> bool:
        """Stop what is under way for a model, for all its followers; False when nothing is."""
        target = folder_target(name)
        return await self._stop_all(lambda job: job.name == name or self._writes(job, target))

    async def close(self) -> None:
        await self._stop_all(lambda job: True)

    def _start(self, goal: Goal, work: Work) -> Job:
        async def alone(report: Report) -> str:
            if goal.target:
                await self._hold(goal.target, job.task)
            return await work(report)

        def ended(task: asyncio.Task[None]) -> None:
            self._jobs.pop(goal, None)
            for target in [t for t, holder in self._holders.items() if holder is task]:
                del self._holders[target]

        job = self._jobs[goal] = Job(goal, alone)
        job.task.add_done_callback(ended)
        return job

    async def _hold(self, target: str, holder: asyncio.Future[Any]) -> None:
        while (other := self._holders.setdefault(target, holder)) is not holder:
            await asyncio.wait({other})

    def _writes(self, job: Job, target: str) -> bool:
        return job.goal.target == target or self._holders.get(target) is job.task

    async def _stop_all(self, chosen: Callable[[Job], bool]) -> bool:
        jobs = [job for job in self.running() if chosen(job)]
        for job in jobs:
            await _stop(job)
        return bool(jobs)


async def _stop(job: Job) -> None:
    """Returns when the child is dead, so that not one more byte arrives after it."""
    job.task.cancel()
    await asyncio.wait({job.task})
    if not job.task.cancelled():
        job.task.exception()  # seen: its followers were told, or there are none
