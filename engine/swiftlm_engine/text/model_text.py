"""Everything one model needs to turn requests into tokens and tokens into events."""

from collections.abc import Mapping
from typing import Any

from .detokenizer import TokenTexts
from .messages import Chat
from .output import OutputOptions, OutputParser
from .template import ChatTemplate, RenderedPrompt


class ModelText:
    """Made once per loaded model; `render` and `output` per sequence."""

    def __init__(
        self,
        tokenizer: Any,  # of transformers, bare or wrapped by mlx-lm
        model_type: str = "",
        template_defaults: Mapping[str, object] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, template_defaults)
        self.texts = TokenTexts(tokenizer)

    def render(self, chat: Chat) -> RenderedPrompt:
        """Raises TemplateRefused."""
        return self.template.render(chat)

    def output(self, options: OutputOptions, prompt: RenderedPrompt | None = None) -> OutputParser:
        """The parser of one sequence; `prompt` is None where the client sent plain text."""
        kept = [s for s in self.texts.special_texts if any(s in stop for stop in options.stop)]
        texts = TokenTexts(self._tokenizer, kept=kept) if kept else self.texts
        return OutputParser(texts, options)
