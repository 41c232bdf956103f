"""Conversations with one model: a chat and its images to tokens, and the parser of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swiftlm_engine.messages import EngineFault, FaultKind, GenerateJob, ToolChoice
from swiftlm_engine.prompt.prepare import ImageReading, Images, Prepared, Rendered
from swiftlm_engine.text.chat import Chat
from swiftlm_engine.text.model_text import ModelText
from swiftlm_engine.text.output_parser import OutputOptions, OutputParser, ToolMode
from swiftlm_engine.text.template import ImageTexts, RenderedPrompt, TemplateRefused
from swiftlm_engine.vision.loading import ImageSupport
from swiftlm_engine.vision.prompt import place


@dataclass(frozen=True, slots=True)
class Conversation:
    text: ModelText
    images: ImageSupport

    def read_images(self, chat: Chat) -> ImageReading:
        """Pauses after each picture. Raises `EngineFault` naming the image at fault."""
        if self.images.reader is None:
            raise EngineFault(FaultKind.UNSUPPORTED, self.images.refusal, param="messages")
        return self.images.reader.prepare(chat)

    def render(self, job: GenerateJob, chat: Chat, images: Images) -> Rendered:
        """`images`: those of the chat, in order. Raises `EngineFault` naming what is at fault."""
        if images:
            return self._render_with_images(chat, images)
        prompt = self._rendered(chat)
        warnings = self.text.thinking_warnings(chat)
        return Rendered(list(prompt.token_ids), prompt.boundaries, prompt, warnings=warnings)

    def parser(self, prepared: Prepared) -> OutputParser:
        job = prepared.job
        tools = job.prompt.tools if isinstance(job.prompt, Chat) else ()
        options = OutputOptions(
            stop=job.stop,
            tools=tools,
            tool_mode=_TOOL_MODES[job.tool_choice],
            parallel_tool_calls=job.parallel_tool_calls,
            raw=job.raw_text,
            thinking_budget=self._thinking_budget(job),
            is_constrained=job.grammar is not None,
        )
        return self.text.output(options, prepared.prompt.chat, self._before(prepared))

    def _thinking_budget(self, job: GenerateJob) -> int | None:
        if job.thinking_budget is not None or not isinstance(job.prompt, Chat):
            return job.thinking_budget
        return self.text.thinking_budget(job.prompt)

    def _before(self, prepared: Prepared) -> Sequence[int]:
        """The text that the answer goes on with: a fresh turn starts a text of its own."""
        prompt = prepared.job.prompt
        if not isinstance(prompt, Chat) or prompt.continue_final_message:
            return prepared.prompt.token_ids
        # What a grammar allowed is shown as it stands, its first space too.
        return self.text.texts.word_ids if prepared.constraints[:1] not in ((), (None,)) else ()

    def _render_with_images(self, chat: Chat, prepared: Images) -> Rendered:
        assert self.images.reader is not None
        family = self.images.reader.family
        texts = ImageTexts(family.mark, tuple(image.text for image in prepared))
        prompt = self._rendered(chat, texts)
        images = place(prompt.token_ids, family.image_token_id, prepared)
        if images is None or images.touch(len(prompt.token_ids) - 1, len(prompt.token_ids)):
            raise EngineFault(
                FaultKind.INVALID,
                "the text holds tokens that stand for images in this model; take them out",
                param="messages",
            )
        return Rendered(list(prompt.token_ids), prompt.boundaries, prompt, images)

    def _rendered(self, chat: Chat, images: ImageTexts | None = None) -> RenderedPrompt:
        try:
            return self.text.render(chat, images)
        except TemplateRefused as error:
            raise EngineFault(FaultKind.INVALID, str(error), param="messages") from error


_TOOL_MODES = {
    ToolChoice.NONE: ToolMode.OFF,
    ToolChoice.AUTO: ToolMode.AUTO,
    ToolChoice.REQUIRED: ToolMode.FORCED,
    ToolChoice.NAMED: ToolMode.FORCED,
}
