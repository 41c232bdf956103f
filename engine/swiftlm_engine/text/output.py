"""Output: one sequence's token ids to events: detokenise, cut at stop strings, split, parse.

`push` never raises on what a model writes. After `stopped` the caller pushes nothing more and
calls `finish` once; its reason comes back corrected in `finish_reason`.
"""

from dataclasses import dataclass

from .detokenizer import TokenTexts
from .events import ContentDelta, FinishReason, TextEvent
from .marks import unmarked
from .stops import StopMatcher


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What one request asks of its text."""

    stop: tuple[str, ...] = ()


class OutputParser:
    def __init__(self, texts: TokenTexts, options: OutputOptions) -> None:
        self._detokenizer = texts.start()
        self._stops = StopMatcher(options.stop)
        self.finish_reason: FinishReason | None = None

    @property
    def stopped(self) -> bool:
        """A stop string was met: the sequence is complete."""
        return self._stops.matched is not None

    @property
    def stop_sequence(self) -> str | None:
        return self._stops.matched

    def push(self, token_id: int) -> list[TextEvent]:
        return self._events(self._stops.push(self._detokenizer.push(token_id)))

    def finish(self, reason: FinishReason) -> list[TextEvent]:
        self.finish_reason = FinishReason.STOP if self.stopped else reason
        text = self._stops.push(self._detokenizer.flush())
        return self._events(text + self._stops.flush())

    def _events(self, text: str) -> list[TextEvent]:
        return [ContentDelta(unmarked(text))] if text else []
