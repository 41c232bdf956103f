"""Output: one sequence's token ids to events: detokenise, cut at stop strings, split, parse.

`push` never raises on what a model writes. After `stopped` the caller pushes nothing more and
calls `finish` once; its reason comes back corrected in `finish_reason`.
"""

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from swiftlm_engine.text.answer_format import AnswerFormat, ParserChoice
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.detokenizer import TokenTexts
from swiftlm_engine.text.emitter import Emitter, EmitterOptions, openai_call_id
from swiftlm_engine.text.events import TextEvent, TextFinish
from swiftlm_engine.text.reader import PlainReader, TextReader
from swiftlm_engine.text.replay import RawCalls
from swiftlm_engine.text.stops import StopMatcher
from swiftlm_engine.text.tools.families import call_context

# A model closes its calls with a tag or two. They are read, as they go back into later prompts.
MAX_CLOSING_TOKENS = 24


class ToolMode(Enum):
    OFF = auto()  # calls are text
    AUTO = auto()
    FORCED = auto()  # tool_choice required or named


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What one request asks of its text."""

    stop: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    tool_mode: ToolMode = ToolMode.AUTO
    parallel_tool_calls: bool = True
    stream_arguments: bool = True  # False: a call is shown when it is complete
    split_reasoning: bool = True  # False: thoughts stay in the content, between tags
    raw: bool = False  # everything is content
    thinking_budget: int | None = None  # tokens
    is_constrained: bool = False  # a grammar holds for the content


class OutputParser:
    """Without a format everything is content. `prompt_tail` is the end of the prompt's text,
    `before` the last tokens of the prompt where the answer goes on with its text."""

    def __init__(
        self,
        texts: TokenTexts,
        options: OutputOptions,
        answer_format: AnswerFormat | None = None,
        prompt_tail: str = "",
        before: Sequence[int] = (),
    ) -> None:
        self._options = options
        self._detokenizer = texts.start(before) if before else texts.start()
        markup = answer_format.markup if answer_format is not None else frozenset()
        named = [s for s in options.stop if any(t and t in s for t in markup | texts.special_texts)]
        self._markup_stops = StopMatcher(named)  # in the text as the model writes it
        said = tuple(s for s in options.stop if s not in named)
        self._emitter = Emitter(_emitter_options(options, answer_format, said))
        self._reader = self._make_reader(answer_format, prompt_tail)
        self.finish_reason: TextFinish | None = None
        self.reasoning_tokens = 0
        self._closing_tokens = 0  # since the one call that was asked for

    @property
    def stopped(self) -> bool:
        """A stop string was met, or the one call that was asked for is there and closed."""
        closing = self._closing_tokens > MAX_CLOSING_TOKENS
        return self.stop_sequence is not None or self._emitter.over or closing

    @property
    def stop_sequence(self) -> str | None:
        return self._markup_stops.matched or self._emitter.stops.matched

    @property
    def unshown(self) -> str:
        """The end of the text so far that a stop string keeps back, or has cut off."""
        return self._emitter.stops.unshown + self._markup_stops.unshown

    @property
    def in_reasoning(self) -> bool:
        return self._reader.in_reasoning

    @property
    def should_close_thinking(self) -> bool:
        """The budget is spent: the caller feeds the model the end of its thoughts."""
        budget = self._options.thinking_budget
        return budget is not None and self.in_reasoning and self.reasoning_tokens >= budget

    @property
    def raw_calls(self) -> list[RawCalls]:
        """The calls as written, to be put back into later prompts."""
        return self._emitter.raw_calls

    def push(self, token_id: int) -> list[TextEvent]:
        if self.stopped:
            return []
        self._reader.push(self._markup_stops.push(self._detokenizer.push(token_id)))
        self._closing_tokens += self._emitter.complete
        # The token that closes the thoughts does not count as one of them.
        self.reasoning_tokens += self._reader.in_reasoning
        return self._emitter.take()

    def finish(self, reason: TextFinish) -> list[TextEvent]:
        if not self.stopped:
            half = self._detokenizer.flush(cut=reason is TextFinish.LENGTH)
            text = self._markup_stops.push(half)
            self._reader.push(text + self._markup_stops.flush())
        cut = reason is TextFinish.LENGTH and not self.stopped
        self._emitter.interrupted = cut or self.stopped
        self._reader.finish(cut)
        cut = cut and self.stop_sequence is None  # it may come to light with what was held
        self.finish_reason = self._finish_reason(cut)
        return self._emitter.take()

    def unanswered(self) -> list[TextEvent]:
        """After `finish`, of an answer that was not broken off: one that never left its thoughts
        repeats them as its content, as many clients show nothing else."""
        if not self._options.is_constrained:
            self._emitter.repeat_thoughts()
        return self._emitter.take()

    def _finish_reason(self, cut: bool) -> TextFinish:
        if cut:
            return TextFinish.LENGTH
        return TextFinish.TOOL_CALLS if self._emitter.completed_ids else TextFinish.STOP

    def _make_reader(self, answer_format: AnswerFormat | None, prompt_tail: str) -> TextReader:
        options = self._options
        if answer_format is None or options.raw:
            return PlainReader(self._emitter)
        calls = None
        if options.tools and options.tool_mode is not ToolMode.OFF:
            calls = call_context(self._emitter, answer_format.mark, options.tools)
        forced = options.tool_mode is ToolMode.FORCED
        return answer_format.reader(self._emitter, ParserChoice(calls, prompt_tail, forced))


def _emitter_options(
    options: OutputOptions, answer_format: AnswerFormat | None, stop: tuple[str, ...]
) -> EmitterOptions:
    family = answer_format.family if answer_format else None
    reads_calls = bool(options.tools) and options.tool_mode is not ToolMode.OFF
    return EmitterOptions(
        stream_arguments=options.stream_arguments,
        parallel_calls=options.parallel_tool_calls,
        trim_before_calls=reads_calls and family is not None and family.trims,
        reasoning_tags=None if options.split_reasoning else ("<think>", "</think>"),
        known_tools=frozenset(tool.name for tool in options.tools),
        new_id=_short_id if family is not None and family.short_ids else openai_call_id,
        stop=stop,
    )


def _short_id() -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
