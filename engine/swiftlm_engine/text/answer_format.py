"""Answer format: how one model writes thoughts, content and calls, found out once at load.

Nobody configures it: the chat template and the vocabulary give it away.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swiftlm_engine.brain.thoughts import knows_thoughts
from swiftlm_engine.text.blocks import block_finder, find_harmony_block
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.emitter import Emitter
from swiftlm_engine.text.harmony import (
    HarmonyMarkers,
    HarmonyReader,
    harmony_destination,
    muse_destination,
)
from swiftlm_engine.text.markers import marked
from swiftlm_engine.text.reader import AnswerReader, TextReader
from swiftlm_engine.text.reasoning import TAGS, ThinkTags, Thoughts, opened_by
from swiftlm_engine.text.replay import FindBlock
from swiftlm_engine.text.tools.families import (
    HERMES,
    CallContext,
    Starts,
    ToolFamily,
    bare_any,
    choose_family,
)

HARMONY_TOKENS = (
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|constrain|>",
)
MUSE_TOKENS = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
XTML_MARKUP = (
    "<|open|>response<|sep|>",
    "<|close|>response<|sep|>",
    "<|close|>message<|sep|>",
    "<|end_of_msg|>",
)
COHERE_MARKUP = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
SOLAR_MARKUP = ("<|begin|>assistant", "<|content|>", "<|end|>")


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """How one answer is to be read."""

    calls: CallContext | None  # None: no tools, or none allowed
    prompt_tail: str = ""
    forced: bool = False  # the request asks for a call: bare JSON may be one


class AnswerFormat:
    def __init__(
        self,
        template: str,
        special: Collection[str],
        vocabulary: Collection[str],
        mlx_lm_name: str | None = None,
        knows_tools: bool = True,
    ) -> None:
        # A template without tools has them explained in Hermes's form (plain_tools.py).
        self._plain_tools = not knows_tools
        self.family = choose_family(template, vocabulary, mlx_lm_name)
        self.harmony = all(t in vocabulary for t in HARMONY_TOKENS[:3]) and (
            "<|constrain|>" in vocabulary or "<|channel|>analysis" in template
        )
        self.controls = frozenset(t for t in self._wanted() if t in special)
        self._pattern = _pattern(self.controls)
        self.tags = tuple(ThinkTags(self.mark(t.opener), self.mark(t.closer)) for t in TAGS)
        always = self.harmony or self.family.name in ("muse", "kimi_k3")
        self._reasons = always or knows_thoughts(template)

    @property
    def name(self) -> str:
        return "harmony" if self.harmony else self.family.name

    @property
    def call_family(self) -> str:
        """The family whose calls the model was asked to write."""
        return HERMES.name if self._plain_tools else self.family.name

    @property
    def reasons(self) -> bool:
        """The template knows thoughts."""
        return self._reasons

    @property
    def markup(self) -> frozenset[str]:
        """Texts that no client sees, as they stand for something."""
        tags = [t for pair in TAGS for t in (pair.opener, pair.closer)] if self.reasons else []
        return frozenset((*self.family.controls, *tags, *self.controls))

    def mark(self, text: str) -> str:
        """The text with its control tokens marked as the detokeniser marks them."""
        return self._pattern.sub(lambda m: marked(m[0]), text) if self._pattern else text

    def opened(self, prompt_tail: str) -> ThinkTags | None:
        """The thoughts that the end of a prompt has opened."""
        if self.harmony:
            return None
        return opened_by(self.mark(prompt_tail), self.tags)

    def reader(self, emitter: Emitter, reading: ParserChoice) -> TextReader:
        tail = self.mark(reading.prompt_tail)
        if self.harmony:
            known = reading.calls.known if reading.calls else None
            header = _open_header(tail, self.mark("<|start|>assistant"))
            return HarmonyReader(
                emitter, self._harmony_markers(), harmony_destination(known), header
            )
        if self.family.name == "muse":
            body = self._answer(emitter, reading, None)
            header = _open_header(tail, self.mark("<|start|>assistant"))
            return HarmonyReader(emitter, self._muse_markers(), muse_destination, header, body)
        inside = self.opened(reading.prompt_tail)
        closed = inside is None and _closed_by(tail, self.tags)
        if closed:
            emitter.end_reasoning()
        interrupts = _markup(self.family) + (self.family.interrupts if reading.calls else ())
        thoughts = Thoughts(self.tags, inside, tuple(map(self.mark, interrupts)))
        return self._answer(emitter, reading, thoughts)

    def _answer(
        self, emitter: Emitter, reading: ParserChoice, thoughts: Thoughts | None
    ) -> TextReader:
        calls = reading.calls
        dropped = tuple(map(self.mark, _markup(self.family)))
        if calls is None:
            return AnswerReader(emitter, thoughts, {}, dropped=dropped)
        bare = self.family.bare(calls)
        if reading.forced:
            bare = bare_any(calls) | bare
        return AnswerReader(emitter, thoughts, self._starts(calls), bare, dropped)

    def _starts(self, calls: CallContext) -> Starts:
        return (HERMES.starts(calls) if self._plain_tools else {}) | self.family.starts(calls)

    def finder(self, tools: Sequence[ToolSpec]) -> FindBlock:
        """Finds the calls that a rendered prompt of this model spells."""
        if self.harmony:
            return find_harmony_block
        return block_finder(lambda calls: self._starts(calls) | self.family.bare(calls), tools)

    def _harmony_markers(self) -> HarmonyMarkers:
        mark = self.mark
        starts, ends = ("<|start|>", "<|channel|>"), ("<|end|>", "<|call|>", "<|return|>")
        return HarmonyMarkers(mark("<|message|>"), tuple(map(mark, starts)), tuple(map(mark, ends)))

    def _muse_markers(self) -> HarmonyMarkers:
        mark = self.mark
        ends = (mark("<|eom|>"), mark("<|eot|>"))
        return HarmonyMarkers(mark("<|message|>"), (mark("<|start|>"),), ends)

    def _wanted(self) -> Collection[str]:
        """Every token that a reader of this format looks for."""
        if self.harmony:
            return HARMONY_TOKENS
        tags = [t for pair in TAGS for t in (pair.opener, pair.closer)]
        channel = ["<|channel>", "<channel|>"]
        muse = MUSE_TOKENS if self.family.name == "muse" else ()
        return {*self.family.controls, *tags, *channel, *muse, *_markup(self.family)}


def _markup(family: ToolFamily) -> tuple[str, ...]:
    """What a family writes around an answer, to no one."""
    known = {"kimi_k3": XTML_MARKUP, "cohere": COHERE_MARKUP, "solar_open": SOLAR_MARKUP}
    known["minimax_m3"] = ("</mm:think>",)  # it says so where it has not thought
    return known.get(family.name, ())


def _pattern(controls: Collection[str]) -> re.Pattern[str] | None:
    longest_first = sorted(controls, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _open_header(tail: str, start: str) -> str:
    """What the prompt has written of the message that the model goes on with."""
    _, found, header = tail.rpartition(start)
    return header if found else ""


def _closed_by(tail: str, tags: Collection[ThinkTags]) -> bool:
    stripped = tail.rstrip()
    return any(stripped.endswith(pair.closer) for pair in tags)
