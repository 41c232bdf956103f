"""The real engine on a tiny model, without processes or sockets: jobs in, texts and events out."""

from __future__ import annotations

import queue
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.messages import Delta, Event, Finished, GenerateJob, Started
from swiftlm_engine.run.mlx_thread import MlxThread
from swiftlm_engine.session.open_session import open_session
from swiftlm_engine.session.session import Session


@dataclass
class Answer:
    """Everything one choice said."""

    content: str = ""
    reasoning: str = ""
    started: Started | None = None
    finished: Finished | None = None
    deltas: list[Delta] = field(default_factory=list)
    num_finished: int = 0

    def take(self, event: Event) -> None:
        match event.news:
            case Started() as news:
                self.started = news
            case Delta() as news:
                self.deltas.append(news)
                self.content += news.content
                self.reasoning += news.reasoning
            case Finished() as news:
                self.finished = news
                self.num_finished += 1


class EngineHarness:
    """One model on its own MLX thread. Use as a context manager."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.died: list[BaseException] = []
        self.mlx = MlxThread(self.died.append)
        self._events: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
        asked = EngineOptions(model="tiny", folder=folder, **options)  # type: ignore[arg-type]
        opening = self.mlx.call(open_session, asked, self._events.put, lambda *_: None)
        try:
            self.session: Session = opening.result(120)
        except BaseException:
            self.mlx.stop(10)
            raise
        self.mlx.call(self.mlx.drive, self.session).result(5)

    def __enter__(self) -> EngineHarness:
        return self

    def __exit__(self, *_: object) -> None:
        self.mlx.post(self.session.prefix.close)
        self.mlx.stop(10)

    def submit(self, *jobs: GenerateJob) -> None:
        for job in jobs:
            prepared = self.session.preparer.prepare(job)
            self.mlx.call(self.session.engine.submit, prepared).result(60)

    def abort(self, request_id: str) -> bool:
        return self.mlx.call(self.session.engine.abort, request_id).result(60)

    def collect(self, num_choices: int, timeout_s: float = 120) -> dict[tuple[str, int], Answer]:
        """Waits until so many choices have finished."""
        answers: dict[tuple[str, int], Answer] = defaultdict(Answer)
        deadline = time.monotonic() + timeout_s
        while sum(a.finished is not None for a in answers.values()) < num_choices:
            if self.died:
                raise self.died[0]
            try:
                events = self._events.get(timeout=0.2)
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"only {dict(answers)}") from None
                continue
            for event in events:
                answers[event.request_id, event.index].take(event)
        self.mlx.call(lambda: None).result(60)  # clients hear of the end first: wait for the rest
        return dict(answers)

    def run(self, *jobs: GenerateJob) -> list[Answer]:
        """Answers of single-choice jobs, in their order."""
        self.submit(*jobs)
        answers = self.collect(sum(job.n for job in jobs))
        return [answers[job.request_id, 0] for job in jobs]
