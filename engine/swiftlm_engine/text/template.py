"""Template: a conversation to the token ids of its prompt, by the model's own chat template.

Messages a template refuses are said otherwise (turns.py) before the caller hears about it. What
a template drops without a word counts as refused too: every system and user text, and what
tools were asked and answered, must be found in the prompt.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from swiftlm_engine.brain.tokens import common_prefix
from swiftlm_engine.text.boundaries import (
    ELSE,
    Boundaries,
    Encoded,
    Position,
)
from swiftlm_engine.text.call_spelling import spelling_of
from swiftlm_engine.text.chat import Chat, Message, TextPart, ToolCall, ToolSpec
from swiftlm_engine.text.detokenizer import bare
from swiftlm_engine.text.encoder import Encoder
from swiftlm_engine.text.isolated_template import IsolatedTemplates
from swiftlm_engine.text.jinja import TEMPLATE_ERRORS, Renderer
from swiftlm_engine.text.plain_tools import (
    PYTHON_CALL_START,
    explain_tools,
    spell_calls,
    spell_own_calls,
    spell_python_calls,
)
from swiftlm_engine.text.reasoning import opened_by
from swiftlm_engine.text.replay import (
    FindBlock,
    RawCallMemory,
    Recollection,
    Splice,
    apply,
    moved,
    splices,
    with_thoughts,
    with_written_ids,
)
from swiftlm_engine.text.thinking import ThinkingSwitches
from swiftlm_engine.text.turns import (
    Turns,
    calls_of,
    is_system,
    readable_arguments,
    variants,
    with_tool_names,
)

MAX_TRIED_ENDS = 32  # to find the message at fault: each is drawn again
_PROBE_WORD = "zanzibar"
PROBE_CALL = ToolCall("call12345", "look", f'{{"at": "{_PROBE_WORD}"}}')
# A call and its result, to see what a template makes of one.
PROBE = (
    Message("user", (TextPart("Look."),)),
    Message("assistant", (TextPart(""),), tool_calls=(PROBE_CALL,)),
    Message("tool", (TextPart("Done."),), name="look", tool_call_id=PROBE_CALL.id),
)


class TemplateRefused(ValueError):
    """The chat template cannot render this conversation; the caller must change it."""

    def __init__(self, reason: str, message_index: int | None = None) -> None:
        where = "" if message_index is None else f"messages[{message_index}]: "
        super().__init__(f"{where}{reason}")
        self.message_index = message_index


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    token_ids: tuple[int, ...]
    # Ascending token counts at which another prompt may part from this one: after the system
    # message, the tools, each turn, and before what opens the answer.
    boundaries: tuple[int, ...]
    thinking_preopened: bool
    text: str
    opening: str = ""  # what the prompt has written of the answer


@dataclass(frozen=True, slots=True)
class ImageTexts:
    """What stands for the images of a conversation: the n-th `mark` that the template writes
    becomes the n-th text."""

    mark: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """What it takes to put calls back as they were written."""

    memory: RawCallMemory
    finder: Callable[[Sequence[ToolSpec]], FindBlock]
    counts_calls: Callable[[], bool] = lambda: False  # the family's ids carry name and number
    family: Callable[[], str] = lambda: ""

    def of(self, chat: Chat) -> Recollection:
        return Recollection(self.memory, chat.cache_salt, self.finder(chat.tools))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One way to say a conversation that the template took."""

    chat: Chat
    turns: Turns
    as_parts: bool
    text: str


class ChatTemplate:
    """One model's template. `tokenizer` is a Hugging Face one, bare or wrapped by mlx-lm."""

    def __init__(
        self,
        tokenizer: Any,  # transformers and mlx-lm are untyped here
        defaults: Mapping[str, object] | None = None,
        replay: Replay | None = None,
        templates: IsolatedTemplates | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self._tokenizer = bare(tokenizer)
        self._renderer = Renderer(tokenizer, defaults, templates)
        self._encoder = encoder or Encoder(tokenizer)
        self._replay = replay
        self._boundaries = Boundaries()

    @property
    def exists(self) -> bool:
        return self._renderer.exists

    @property
    def source(self) -> str:
        """The Jinja text, all variants of it; empty for a renderer in Python."""
        return self._renderer.source

    @property
    def knows_tools(self) -> bool:
        return not self._renderer.is_jinja or re.search(r"\btools\b", self.source) is not None

    @property
    def thinking(self) -> ThinkingSwitches | None:
        """How it is told to think; None for a renderer in Python, which cannot be looked into."""
        return self._renderer.thinking if self.exists and self._renderer.is_jinja else None

    def render(self, chat: Chat, images: ImageTexts | None = None) -> RenderedPrompt:
        """Raises TemplateRefused when no way to say the conversation renders."""
        if not self.exists:
            raise TemplateRefused("this model has no chat template; send a plain prompt instead")
        if not chat.messages:
            raise TemplateRefused("messages is empty")
        past = self._replay.of(chat) if self._replay is not None else None
        if past is not None:
            chat = replace(chat, messages=with_thoughts(chat.messages, past))
        drawn = self._first_faithful(chat if past is None else self._with_prompt_ids(chat, past))
        positions = self._boundaries.find(drawn.text, drawn.turns, _Draw(self._renderer, drawn))
        calls = list(calls_of(chat.messages))
        changes = splices(drawn.text, calls, past) if past is not None else []
        if images is not None:
            changes = sorted([*changes, *_marks(drawn.text, images)], key=lambda c: c.start)
        encoded = self._encoder.with_ends(apply(drawn.text, changes))
        opening = self._opening(drawn, positions)
        return RenderedPrompt(
            encoded.token_ids,
            _token_counts(encoded, positions, changes),
            opened_by(opening) is not None,
            encoded.text,
            opening,
        )

    def _first_faithful(self, chat: Chat) -> _Drawn:
        unfaithful: _Drawn | None = None
        error: Exception | None = None
        for said, turns, as_parts in self._ways(chat):
            try:
                text = self._renderer.draw(said, turns, as_parts, answer=True)
            except TEMPLATE_ERRORS as e:
                error = error or e
                continue
            drawn = _Drawn(said, turns, as_parts, text)
            if _is_faithful(text, turns):
                return drawn
            unfaithful = unfaithful or drawn
        if unfaithful is not None:
            return unfaithful
        reason = f"the chat template refuses this conversation: {error}"
        raise TemplateRefused(reason, self._refused_index(chat)) from error

    def _opening(self, drawn: _Drawn, positions: Sequence[Position]) -> str:
        """What the prompt has written of the answer."""
        start = max((p.at for p in positions if p.is_turn), default=len(drawn.text))
        if start < len(drawn.text):
            return drawn.text[start:]
        # The template does not tell a turn's end from the start of an answer; what stays the same
        # when the last turn says something else is not the turn's text.
        other = replace(drawn.turns[-1], parts=ELSE.parts)
        try:
            text = self._renderer.draw(
                drawn.chat, (*drawn.turns[:-1], other), drawn.as_parts, answer=True
            )
        except TEMPLATE_ERRORS:
            return ""
        if drawn.chat.continue_final_message:
            return drawn.text[common_prefix(drawn.text, text) :]
        shared = common_prefix(drawn.text[::-1], text[::-1])
        return drawn.text[len(drawn.text) - shared :]

    def _ways(self, chat: Chat) -> Iterator[tuple[Chat, Turns, bool]]:
        given = self._known_roles(with_tool_names(readable_arguments(chat.messages)))
        if not self.knows_tools and (chat.tools or any(_uses_tools(given))):
            given = spell_calls(explain_tools(given, chat.tools) if chat.tools else given)
            chat = replace(chat, tools=())
        elif any(calls_of(given)) and self._forgets_calls:
            given = self._spell(given)
        images = next((i for i, m in enumerate(chat.messages) if m.has_images), None)
        if images is not None and "image" not in self.source:
            raise TemplateRefused("this model's chat template has no place for images", images)
        for as_parts in (False, True) if images is None else (True,):
            for turns in variants(given, self._spell):
                yield chat, turns, as_parts
            if self._spell is not spell_calls:
                yield chat, spell_calls(given), as_parts

    @cached_property
    def _forgets_calls(self) -> bool:
        """The template lists tools, and yet writes nothing of a call."""
        probe = Chat(PROBE)
        for as_parts in (False, True):
            with contextlib.suppress(*TEMPLATE_ERRORS):
                return _PROBE_WORD not in self._renderer.draw(probe, PROBE, as_parts, answer=True)
        return False

    @cached_property
    def _spell(self) -> Callable[[Turns], Turns]:
        """How calls are put into words where the template drops them."""
        if not self.knows_tools:
            return spell_calls
        if self._has_token(PYTHON_CALL_START):
            return spell_python_calls
        own = spelling_of(self._replay.family()) if self._replay is not None else None
        return partial(spell_own_calls, own) if own is not None else spell_calls

    def _has_token(self, text: str) -> bool:
        """Without its vocabulary, which takes a fifth of a second to list: a request waits."""
        token_id = self._tokenizer.convert_tokens_to_ids(text)
        return token_id is not None and token_id != self._tokenizer.unk_token_id

    def _known_roles(self, turns: Turns) -> Turns:
        if "developer" in self.source:
            return turns
        return tuple(replace(t, role="system") if t.role == "developer" else t for t in turns)

    def _refused_index(self, chat: Chat) -> int | None:
        """The first message without which the rest before it renders."""
        last = len(chat.messages) - 1
        for end in range(last, max(0, last - MAX_TRIED_ENDS), -1):
            beginning = replace(chat, messages=chat.messages[:end])
            for said, turns, as_parts in self._ways(beginning):
                try:
                    self._renderer.draw(said, turns, as_parts, answer=True)
                except TEMPLATE_ERRORS:
                    continue
                return end
        return 0 if last <= MAX_TRIED_ENDS else None

    def _with_prompt_ids(self, chat: Chat, past: Recollection) -> Chat:
        counts = self._replay is not None and self._replay.counts_calls()
        return replace(chat, messages=with_written_ids(chat.messages, past, counts))


@dataclass(frozen=True, slots=True)
class _Draw:
    """Draws parts of one chat the way the whole was drawn."""

    renderer: Renderer
    drawn: _Drawn

    def __call__(self, turns: Turns, tools: bool = True) -> str | None:
        """None where the template refuses such a part of a conversation."""
        chat = self.drawn.chat if tools else replace(self.drawn.chat, tools=())
        try:
            return self.renderer.draw(chat, turns, self.drawn.as_parts, answer=False)
        except TEMPLATE_ERRORS:
            return None

    @property
    def goes_on(self) -> bool:
        return self.drawn.chat.continue_final_message

    @property
    def key(self) -> str:
        """What the text depends on besides the turns."""
        chat = self.drawn.chat
        thinking = (chat.enable_thinking, chat.reasoning_effort, chat.thinking_budget)
        return repr((chat.tools, thinking, chat.template_kwargs))


def _marks(text: str, images: ImageTexts) -> list[Splice]:
    """Raises TemplateRefused where the marks are not those of the images alone."""
    found = [match.span() for match in re.finditer(re.escape(images.mark), text)]
    if len(found) != len(images.texts):
        raise TemplateRefused(
            f"the prompt has {len(found)} places for {len(images.texts)} images; "
            f"take '{images.mark}' out of the text"
        )
    spans = zip(found, images.texts, strict=True)
    return [Splice(start, end, new) for (start, end), new in spans]


def _token_counts(
    encoded: Encoded, positions: Sequence[Position], changes: Sequence[Splice]
) -> tuple[int, ...]:
    places = (moved(position.at, changes) for position in positions)
    counts = {encoded.tokens_before(place) for place in places if place is not None}
    return tuple(sorted(n for n in counts if 0 < n < len(encoded.token_ids)))


def _uses_tools(turns: Turns) -> Iterator[bool]:
    return (turn.role == "tool" or bool(turn.tool_calls) for turn in turns)


def _is_faithful(text: str, turns: Turns) -> bool:
    """Whether the prompt says what was said. Templates reformat what concerns tools, so of that
    only its longest word must be there."""
    for turn in turns:
        if (turn.role == "user" or is_system(turn)) and turn.text.strip() not in text:
            return False
        if turn.role == "tool" and not _has_word_of(turn.text, text):
            return False
        if not all(_has_word_of(call.arguments, text) for call in turn.tool_calls):
            return False
    return True


def _has_word_of(said: str, text: str) -> bool:
    words = re.findall(r"[A-Za-z0-9]{4,}", said)
    return not words or max(words, key=len) in text
