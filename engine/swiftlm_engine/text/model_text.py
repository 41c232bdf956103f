"""Everything one model needs to turn requests into tokens and tokens into events."""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from swiftlm_engine.text.answer_format import AnswerFormat
from swiftlm_engine.text.chat import Chat, ToolSpec
from swiftlm_engine.text.detokenizer import TokenTexts, bare, special_tokens
from swiftlm_engine.text.encoder import Encoder
from swiftlm_engine.text.isolated_template import IsolatedTemplates
from swiftlm_engine.text.output_parser import OutputOptions, OutputParser
from swiftlm_engine.text.replay import RawCallMemory
from swiftlm_engine.text.template import (
    PROBE,
    PROBE_CALL,
    ChatTemplate,
    ImageTexts,
    RenderedPrompt,
    Replay,
    TemplateRefused,
)


def _is_probe(name: str, arguments: str) -> bool:
    with suppress(ValueError):
        return name == PROBE_CALL.name and json.loads(arguments) == json.loads(PROBE_CALL.arguments)
    return False


log = logging.getLogger(__name__)


class ModelText:
    """Made once per loaded model; `render` and `output` per sequence."""

    def __init__(
        self,
        tokenizer: Any,
        template_defaults: Mapping[str, object] | None = None,
        templates: IsolatedTemplates | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        # Any: a tokenizer of transformers, bare or wrapped by mlx-lm.
        self._tokenizer = tokenizer
        self.encoder = encoder or Encoder(tokenizer)
        self.memory = RawCallMemory()
        replay = Replay(
            self.memory,
            lambda tools: self.format.finder(tools),
            lambda: self.format.family.counted_ids,
            lambda: self.format.name,
        )
        self.template = ChatTemplate(tokenizer, template_defaults, replay, templates, self.encoder)
        inner = bare(tokenizer)
        self.format = AnswerFormat(
            self.template.source,
            set(special_tokens(inner).values()),
            inner.get_vocab().keys(),
            getattr(inner, "init_kwargs", {}).get("tool_parser_type"),
            self.template.knows_tools,
        )
        self._warned: set[str] = set()
        self.texts = TokenTexts(tokenizer, self.format.controls)

    @cached_property
    def tool_format(self) -> str:
        """How the model writes calls; empty where its template takes no tools, or writes calls
        that the reader of no family reads."""
        if not self.template.knows_tools:
            return ""
        try:
            prompt = self.render(Chat(PROBE, (ToolSpec(PROBE_CALL.name),)))
        except TemplateRefused:
            return ""
        find, at = self.format.finder((ToolSpec(PROBE_CALL.name),)), 0
        while (block := find(prompt.text, at)) is not None:
            if any(_is_probe(*call) for call in block.calls):
                return self.format.name
            at = max(block.end, at + 1)
        return ""

    def render(self, chat: Chat, images: ImageTexts | None = None) -> RenderedPrompt:
        """Raises TemplateRefused."""
        return self.template.render(chat, images)

    def thinking_budget(self, chat: Chat) -> int | None:
        """Tokens of thoughts that stand in for what the template has no word for."""
        thinking = self.template.thinking
        if thinking is None or not self.format.reasons:
            return None
        return thinking.implied_budget(chat.thinks, chat.reasoning_effort)

    def thinking_warnings(self, chat: Chat) -> tuple[str, ...]:
        """What was asked of its thoughts and cannot be; the log has each once."""
        wants = chat.thinks or (chat.thinks is None and chat.reasoning_effort is not None)
        if wants and not self.format.reasons:
            text = "thinking was asked for, and this model has none"
        elif chat.thinks is False and self.thinking_budget(chat) == 0 and not self._can_close:
            text = "this model cannot be kept from thinking"
        else:
            return ()
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)
        return (text,)

    @property
    def _can_close(self) -> bool:
        """What ends its thoughts is known, so that a budget can end them."""
        return self.format.name != "muse"

    def output(
        self,
        options: OutputOptions,
        prompt: RenderedPrompt | None = None,
        before: Sequence[int] = (),
    ) -> OutputParser:
        """The parser of one sequence; `prompt` is None where the client sent plain text.

        `before` are the tokens of the prompt where the answer goes on with its text."""
        texts = self._texts_for(options.stop)
        if prompt is None:
            return OutputParser(texts, options, before=before)
        return OutputParser(texts, options, self.format, prompt.opening, before)

    def remember(self, parser: OutputParser, cache_salt: str = "") -> None:
        """Call it when an answer is complete: its calls go into later prompts as written."""
        self.memory.remember(parser.raw_calls, cache_salt)

    def _texts_for(self, stop: tuple[str, ...]) -> TokenTexts:
        """A special token that a client names as a stop string must be seen as text."""
        kept = [s for s in self.texts.special_texts if any(s in text for text in stop)]
        if not kept:
            return self.texts
        return TokenTexts(self._tokenizer, self.format.controls, kept)
