"""Emitter: what readers found becomes events, with indices, ids and the white space that is markup.

A call is shown when its name is known, and its arguments as they come, if the request streams
them; otherwise when it is complete. A call that turns out unreadable is shown as text, unless
part of it is out already; one that was cut off is shown not at all.
"""

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from swiftlm_engine.text.events import (
    ContentDelta,
    ReasoningDelta,
    TextEvent,
    ToolCallDelta,
    ToolCallStart,
)
from swiftlm_engine.text.markers import unmarked
from swiftlm_engine.text.replay import RawCalls
from swiftlm_engine.text.stops import StopMatcher
from swiftlm_engine.text.tools.json_stream import completion


def openai_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class EmitterOptions:
    stream_arguments: bool = True
    parallel_calls: bool = True
    trim_before_calls: bool = False  # the family's templates put white space before a call
    reasoning_tags: tuple[str, str] | None = None  # show thoughts in the content, between these
    known_tools: Collection[str] = ()
    new_id: Callable[[], str] = openai_call_id
    stop: Collection[str] = ()  # strings that end the answer where the content shows them


@dataclass(slots=True)
class _Call:
    name: str
    id: str  # ours
    written_id: str | None  # the model's
    index: int | None = None  # once shown
    fragments: list[str] = field(default_factory=list)  # of its arguments


class Emitter:
    def __init__(self, options: EmitterOptions) -> None:
        self._options = options
        self.stops = StopMatcher(options.stop)
        self._events: list[TextEvent] = []
        self._call: _Call | None = None
        self._shown_calls = 0
        self._held_space = ""  # white space of the content that a call would swallow
        self._held_lines = ""  # line breaks at the end of the thoughts so far
        self._reasoning: list[str] = []  # shown as such
        self._has_text = False  # content that is more than white space was shown
        self._thought = False
        self._answer_starts = False  # line breaks here belong to the markup before
        self._said = False  # content since the thoughts or the last block of calls
        self._lead: str | None = None  # white space between content and the block's first call
        self._block_ids: list[str] = []
        self._written_ids: list[str | None] = []  # of the same calls
        self.interrupted = False  # the answer was ended by us: at a limit, a stop string, a call
        self._more_calls = False  # a call began after the one that was asked for
        self.completed_ids: list[str] = []
        self.raw_calls: list[RawCalls] = []  # to be remembered once the answer is complete

    @property
    def complete(self) -> bool:
        """One call was asked for and it is there."""
        return not self._options.parallel_calls and bool(self.completed_ids)

    @property
    def _is_silent(self) -> bool:
        """Nothing is shown any more."""
        return self.complete or self.stops.matched is not None

    @property
    def over(self) -> bool:
        """The one call is there, and so is what the model writes behind it."""
        return self.complete and (self._more_calls or not self._block_ids)

    def take(self) -> list[TextEvent]:
        events, self._events = self._events, []
        return events

    # -- text

    def content(self, text: str) -> None:
        if self._answer_starts:
            text = text.lstrip("\r\n")
        if not text or self.complete:
            return
        self._answer_starts = False
        if self._options.trim_before_calls:
            kept = text.rstrip()
            if not kept:  # what is held already is not looked at again: it may be long
                self._held_space += text
                return
            kept, self._held_space = self._held_space + kept, text[len(kept) :]
            text = kept
        self._say(text)

    def reasoning(self, text: str) -> None:
        if not self._thought:
            text = text.lstrip("\r\n")
        kept = text.rstrip("\r\n")
        if not kept:
            self._held_lines += text
            return
        kept, self._held_lines = self._held_lines + kept, text[len(kept) :]
        tags = self._options.reasoning_tags
        if tags is None:
            self._content_pauses()
            if self._is_silent:
                return
            apart = "\n" if self._reasoning and not self._thought else ""  # thoughts come again
            self._reasoning.append(apart + unmarked(kept))
            self._events.append(ReasoningDelta(self._reasoning[-1]))
        else:
            self._say(kept if self._thought else f"{tags[0]}\n{kept}")
        self._thought = True

    def end_reasoning(self) -> None:
        if self._options.reasoning_tags is not None and self._thought:
            self._say(f"\n{self._options.reasoning_tags[1]}\n\n")
        self._held_lines = ""
        self._thought = False
        self._answer_starts = True
        self._said = False

    def finish(self) -> None:
        """White space held for a call that did not come is content."""
        if not self._shown_calls:
            self._say(self._held_space)
        self._held_space = ""
        self._content_pauses()

    def repeat_thoughts(self) -> None:
        """Of an answer that never left its thoughts: clients that show the content only would
        show nothing."""
        if self._reasoning and not self._has_text and not self._shown_calls and not self._call:
            self._say("".join(self._reasoning))

    def _say(self, text: str) -> None:
        if text:
            self._said = True
            self._has_text = self._has_text or not text.isspace()
            self._show(self.stops.push(unmarked(text)))

    def _show(self, text: str) -> None:
        if text:
            self._events.append(ContentDelta(text))

    def _content_pauses(self) -> None:
        """Something else is shown now; a stop string does not reach across it."""
        self._show(self.stops.flush())

    # -- calls

    @property
    def call_is_shown(self) -> bool:
        """The call being read is out already, in part."""
        return self._call is not None and self._call.index is not None

    def open_call(self, name: str, call_id: str | None = None) -> None:
        """`call_id` is what the model wrote; clients get an id that no other conversation has."""
        self._more_calls = self._more_calls or self.complete
        self._call = _Call(unmarked(name), self._options.new_id(), call_id)
        known = self._options.known_tools
        if self._options.stream_arguments and (not known or self._call.name in known):
            self._show_call(self._call)

    def arguments(self, fragment: str) -> None:
        if self._call is None or not fragment:
            return
        fragment = unmarked(fragment)
        self._call.fragments.append(fragment)
        if self._call.index is not None and not self._is_silent:
            self._events.append(ToolCallDelta(self._call.index, fragment))

    def close_call(self) -> None:
        call, self._call = self._call, None
        if call is None or self._is_silent:
            return
        if call.index is None:
            self._show_call(call)
            self._events.append(ToolCallDelta(self._shown_calls - 1, "".join(call.fragments)))
        self.completed_ids.append(call.id)
        self._block_ids.append(call.id)
        self._written_ids.append(call.written_id)

    def end_block(self, raw: str, whole: bool = True) -> bool:
        """A run of calls is over; `raw` is the text of it, `whole` unless the model wrote on.

        Whether there were any calls."""
        had_calls = bool(self._block_ids)
        if had_calls:
            ids, thoughts = tuple(self._block_ids), "".join(self._reasoning)
            written = tuple(self._written_ids)
            whole = whole and not self._more_calls
            block = RawCalls(ids, unmarked(raw), self._lead, thoughts, written, whole)
            self.raw_calls.append(block)
        self._block_ids, self._written_ids = [], []
        self._said = False
        return had_calls

    def reject_call(self, raw: str) -> None:
        """The text since the last complete call is no call."""
        if not self.call_is_shown:
            self.content(raw)
        self._leave_call()

    def drop_call(self) -> None:
        """The text ended inside a call."""
        self._leave_call()
        self._held_space = ""

    def _leave_call(self) -> None:
        """A call that is out in part is completed: nobody gets broken JSON."""
        call, self._call = self._call, None
        if call is None or call.index is None or self._is_silent:
            return
        rest = completion("".join(call.fragments))
        if rest is not None:
            if rest:
                self._events.append(ToolCallDelta(call.index, rest))
            self.completed_ids.append(call.id)

    def _show_call(self, call: _Call) -> None:
        if self._is_silent:
            return
        self._content_pauses()
        call.index = self._shown_calls
        self._shown_calls += 1
        if not self._block_ids:
            self._lead = self._held_space if self._said else None
        self._held_space = ""
        self._answer_starts = False
        self._events.append(ToolCallStart(call.index, call.id, call.name))
