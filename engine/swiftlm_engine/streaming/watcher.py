"""Looks at a streamed model whenever its engine has nothing to do."""

from __future__ import annotations

import logging
from pathlib import Path

from swiftlm_engine.streaming.policy_choice import PolicyLearner
from swiftlm_engine.streaming.report import StreamingReport, StreamMode

log = logging.getLogger(__name__)


class StreamWatcher:
    """Says once that counters contradict each other, and learns the slot policy. The engine
    thread's."""

    def __init__(self, report: StreamingReport, policy_path: Path | None) -> None:
        self._streamer = report.streamer
        self._seen: list[str] = []
        self._learner = None
        if policy_path is not None and report.mode is StreamMode.EXPERTS and self._streamer.slotted:
            self._learner = PolicyLearner(self._streamer, policy_path)

    def idle(self) -> None:
        self._streamer.settle()
        problems = self._streamer.counters.problems()
        if problems and problems != self._seen:
            log.error("streaming counters contradict each other: %s", "; ".join(problems))
        self._seen = problems
        if self._learner is not None:
            self._learner.idle()
