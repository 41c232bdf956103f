"""What one request has cost, counted as its events pass: right at any moment, exact at the end.

The engine tells its own counts with a choice's last event. A choice that ends without one (its
client left, its engine died) has the prompt that was started and one token for each delta.
"""

from __future__ import annotations

from swiftlm_proto import messages as m
from swiftlmd.http.errors import fault_of

OK = "ok"

_Choice = tuple[str, int]  # the engine request, and which choice of it


class Tally:
    """`note` every event; `usage` may be asked at any time."""

    def __init__(self) -> None:
        self._prompts: dict[str, m.Usage] = {}  # by engine request: its choices share the prompt
        self._completions: dict[_Choice, m.Usage] = {}
        self._fault = ""

    def note(self, event: m.SequenceEvent) -> None:
        if event.delta is not None:
            self._of((event.request_id, event.index)).completion_tokens += 1
        elif event.started is not None:
            self._prompts[event.request_id] = m.Usage(
                prompt_tokens=event.started.prompt_tokens,
                cached_tokens=event.started.cached_tokens,
            )
        elif event.finished is not None:
            fault = fault_of(event.finished)
            self._fault = self._fault or (fault.code if fault is not None else "")
            if event.finished.usage is not None:
                self._prompts[event.request_id] = event.finished.usage
                self._completions[event.request_id, event.index] = event.finished.usage

    def usage(self) -> m.Usage:
        prompts, completions = self._prompts.values(), self._completions.values()
        return m.Usage(
            prompt_tokens=sum(part.prompt_tokens for part in prompts),
            cached_tokens=sum(part.cached_tokens for part in prompts),
            completion_tokens=sum(part.completion_tokens for part in completions),
            reasoning_tokens=sum(part.reasoning_tokens for part in completions),
        )

    def outcome(self) -> str:
        """By the ends that were noted: the first fault, or that all went well."""
        return self._fault or OK

    def _of(self, choice: _Choice) -> m.Usage:
        return self._completions.setdefault(choice, m.Usage())
