"""What the streamed layers of a model share: the reader, one read ahead of need, the counters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from swiftlm_engine.streaming.counters import StreamCounters
from swiftlm_engine.streaming.reader import ExpertReader, Job, ReadFault, start_pool
from swiftlm_engine.streaming.trace import Trace
from swiftlm_engine.streaming.warm_start import WarmLayer

log = logging.getLogger(__name__)


class Slotted(WarmLayer, Protocol):
    def resize(self, num_slots: int) -> None: ...


class Streamer:
    """The engine thread's; close it with the model."""

    def __init__(self, reader: ExpertReader, counters: StreamCounters) -> None:
        self.reader = reader
        self.counters = counters
        self.slots = 0  # of each layer in `slotted`
        self.slotted: list[Slotted] = []
        self.trace: Trace | None = None
        self._thread, _ = start_pool(1, "read-ahead")
        self._pending: Future[None] | None = None

    def read(self, jobs: Sequence[Job]) -> None:
        """Reads now. Raises `ReadFault`."""
        self.settle()
        self.reader.read(jobs)

    def read_ahead(self, jobs: Sequence[Job], done: Callable[[bool], None]) -> None:
        """Starts to read; `done` is told on another thread whether the targets are filled.

        A fault is no error yet: who needs the bytes reads again, and fails then. The same where
        there is no thread for it.
        """
        self.settle()
        if self._thread is None:
            done(False)
            return
        self._pending = self._thread.submit(self._read_ahead, jobs, done)

    def settle(self) -> None:
        """Waits until nothing is being read ahead; the counters agree from then on."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def resize(self, num_slots: int) -> None:
        """Between steps: memory under pressure, or room again. A layer at a time."""
        self.settle()
        for layer in self.slotted:
            layer.resize(num_slots)
        self.slots = num_slots

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        self.reader.close()

    def _read_ahead(self, jobs: Sequence[Job], done: Callable[[bool], None]) -> None:
        filled = False
        try:
            self.reader.read(jobs)
            filled = True
        except ReadFault as fault:
            log.warning("read ahead failed: %s", fault)
        except Exception:  # the root of a thread: nobody asked for these bytes yet
            log.exception("read ahead broke")
        finally:
            done(filled)
