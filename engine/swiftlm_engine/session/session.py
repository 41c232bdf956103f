"""A loaded model with everything that serves it. Owned by the MLX thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from swiftlm_engine.brain.facts import ModelFacts as FolderFacts
from swiftlm_engine.expansion.weights import ExpandedWeights
from swiftlm_engine.grammar.constraint import ConstraintCompiler
from swiftlm_engine.load.device import DeviceFacts
from swiftlm_engine.prefix.cache import PrefixCache
from swiftlm_engine.prefix.pace import Pace
from swiftlm_engine.prompt.prepare import Preparer
from swiftlm_engine.run.embedder import Embedder
from swiftlm_engine.run.malloc_trim import MallocTrim
from swiftlm_engine.run.runner import Runner
from swiftlm_engine.run.step_loop import StepLoop
from swiftlm_engine.session.calibration import Subject
from swiftlm_engine.session.run_when_idle import RunWhenIdle
from swiftlm_engine.streaming.policy_choice import StreamWatcher
from swiftlm_engine.streaming.report import StreamingReport
from swiftlm_engine.text.model_text import ModelText

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModelInfo:
    """What clients and `status` are told about the loaded model."""

    model: str
    model_type: str
    context: int
    vocab_size: int
    weight_bytes: int
    dtype: str
    device: str
    blas: str
    kv: str
    parallel: int
    prefill_chunk: int
    fingerprint: str
    notes: tuple[str, ...] = ()
    weights_note: str = ""
    kv_report: dict[str, object] = field(default_factory=dict)
    vision: bool = False
    reasoning: bool = False  # its template knows thoughts
    tool_format: str = ""  # of the calls that its template asks for; empty: it knows no tools
    device_facts: DeviceFacts = field(default_factory=DeviceFacts)


@dataclass(slots=True)
class Session:
    engine: StepLoop
    preparer: Preparer
    facts: LoadedModelInfo
    text: ModelText
    runner: Runner
    prefix: PrefixCache
    pace: Pace
    embedder: Embedder
    compiler: ConstraintCompiler
    subject: Subject
    folder: FolderFacts
    first_pause: RunWhenIdle
    streaming: StreamingReport | None = None
    watcher: StreamWatcher | None = None
    expanded: ExpandedWeights | None = None
    heap: MallocTrim = field(default_factory=MallocTrim)
    _failures: set[str] = field(default_factory=set)

    @property
    def has_work(self) -> bool:
        return self.engine.has_work

    def step(self) -> None:
        self.engine.step()
        self.pace.between_steps()

    def idle(self) -> bool:
        """What pauses are for; True while some of it wants to go on soon. A full disk, or a folder
        that is gone, is no reason to end an engine: it is logged, once per error.
        """
        self.engine.scheduler.check_integrity()
        steps = self.engine.counters.steps
        self.heap.idle(steps)
        self.first_pause.idle(steps)
        # All of them, whatever the first one says.
        watches = self._kept_house(self.watcher.idle) if self.watcher is not None else False
        return self._kept_house(self.pace.idle) or watches

    def _kept_house(self, work: Callable[[], bool]) -> bool:
        try:
            return work()
        except OSError as error:
            if str(error) not in self._failures:
                self._failures.add(str(error))
                log.warning("work of a pause failed, the engine goes on: %s", error)
            return False
