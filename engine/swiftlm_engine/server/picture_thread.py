"""Pictures of requests, decoded on a thread of their own, one picture of each request in turn.

Dozens of large ones take a minute: text must not wait for it, nor one picture for dozens.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from swiftlm_engine.prompt.prepare import ImageReading, Images


class NotWanted(Exception):
    """The request was aborted while its pictures were read."""


class PictureThread:
    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="pictures")

    def read(self, reading: ImageReading, wanted: Callable[[], bool]) -> Future[Images]:
        """`wanted` is asked before each picture. The future fails with what `reading` raises, or
        with `NotWanted`; its callbacks run on this thread."""
        future: Future[Images] = Future()
        self._executor.submit(self._turn, reading, wanted, future)
        return future

    def _turn(
        self, reading: ImageReading, wanted: Callable[[], bool], future: Future[Images]
    ) -> None:
        try:
            if not wanted():
                raise NotWanted
            next(reading)
            self._executor.submit(self._turn, reading, wanted, future)  # behind the others
        except StopIteration as end:
            future.set_result(end.value)
        except BaseException as error:  # the future is this task's root
            future.set_exception(error)
