"""Everything one model needs to turn requests into tokens and tokens into events."""

from collections.abc import Mapping
from typing import Any

from swiftlm_engine.text.answer_format import AnswerFormat
from swiftlm_engine.text.detokenizer import TokenTexts, bare, special_tokens
from swiftlm_engine.text.messages import Chat
from swiftlm_engine.text.output import OutputOptions, OutputParser
from swiftlm_engine.text.template import ChatTemplate, RenderedPrompt

TAIL = 400  # characters of the prompt that tell what the template has opened


class ModelText:
    """Made once per loaded model; `render` and `output` per sequence."""

    def __init__(
        self, tokenizer: Any, template_defaults: Mapping[str, object] | None = None
    ) -> None:
        # Any: a tokenizer of transformers, bare or wrapped by mlx-lm.
        self._tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, template_defaults)
        inner = bare(tokenizer)
        special = special_tokens(inner)
        declared = getattr(inner, "init_kwargs", {}).get("tool_parser_type")
        self.format = AnswerFormat(
            self.template.source, set(special.values()), inner.get_vocab().keys(), declared
        )
        self.texts = TokenTexts(tokenizer, self.format.controls)

    def render(self, chat: Chat) -> RenderedPrompt:
        """Raises TemplateRefused."""
        return self.template.render(chat)

    def output(self, options: OutputOptions, prompt: RenderedPrompt | None = None) -> OutputParser:
        """The parser of one sequence; `prompt` is None where the client sent plain text."""
        if prompt is None:
            return OutputParser(self._texts_for(options.stop), options)
        tail = prompt.text[-TAIL:]
        return OutputParser(self._texts_for(options.stop), options, self.format, tail)

    def _texts_for(self, stop: tuple[str, ...]) -> TokenTexts:
        """A special token that a client names as a stop string must be seen as text."""
        kept = [s for s in self.texts.special_texts if any(s in text for text in stop)]
        if not kept:
            return self.texts
        return TokenTexts(self._tokenizer, self.format.controls, kept)
