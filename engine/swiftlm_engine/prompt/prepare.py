"""From a job to sequences that can be scheduled: tokens, limits, parsers, grammars.

Runs on threads of its own, not on the engine thread: a long prompt takes a tenth of a second to
tokenise, and decoding clients must not wait for it. One request at a time has its turn, except
while it waits for a process (`isolation/`). Touches no array.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from swiftlm_engine.messages import EngineFault, FaultKind, GenerateJob, Infill, Prompt
from swiftlm_engine.sampling.row import TokenConstraint
from swiftlm_engine.sampling.settings import BadSampling, SamplingSettings
from swiftlm_engine.text.chat import Chat, TextPart
from swiftlm_engine.text.encoder import Encoder, TokenizerBroken, TooManyTokens
from swiftlm_engine.text.isolated_template import TemplateBroken
from swiftlm_engine.text.template import RenderedPrompt
from swiftlm_engine.vision.prompt import PreparedImage, PromptImages

Images = tuple[PreparedImage, ...]
ImageReading = Generator[None, None, Images]
RenderChat = Callable[[GenerateJob, Chat, Images], "Rendered"]
Constrain = Callable[[GenerateJob, RenderedPrompt | None], "Constrained"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as tokens. `boundaries` are positions where a checkpoint is worth storing.

    `chat` is what the template made, where the prompt was a conversation.
    """

    token_ids: list[int]
    boundaries: tuple[int, ...] = ()
    chat: RenderedPrompt | None = None
    images: PromptImages | None = None
    warnings: tuple[str, ...] = ()  # what was asked for and cannot be, for the client

    @property
    def thinking_open(self) -> bool:
        return self.chat is not None and self.chat.thinking_preopened


class Constrained(Protocol):
    """A constraint for each choice, and what of the schemas they do not enforce."""

    @property
    def rows(self) -> tuple[TokenConstraint | None, ...]: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that passed every check, ready to be scheduled."""

    job: GenerateJob
    sampling: SamplingSettings
    prompt: Rendered
    max_tokens: int
    constraints: tuple[TokenConstraint | None, ...]  # one for each choice
    echo_text: str = ""


@dataclass(frozen=True, slots=True)
class Preparer:
    """Checks and tokenises jobs for one model, one at a time, but for `read_images`: pictures have
    a thread of their own, and who sends none does not wait for them."""

    model: str
    tokenizer: Any
    encoder: Encoder
    render_chat: RenderChat
    constrain: Constrain
    context: int
    vocab_size: int
    max_choices: int
    read_chat_images: Callable[[Chat], ImageReading] | None = None  # None: of text alone

    def read_images(self, job: GenerateJob) -> ImageReading | None:
        """Decodes the job's pictures, with a pause after each; None where it has none."""
        chat = job.prompt
        if self.read_chat_images is None or not isinstance(chat, Chat):
            return None
        has_any = any(message.has_images for message in chat.messages)
        return self.read_chat_images(chat) if has_any else None

    def prepare(self, job: GenerateJob, images: Images | None = None) -> Prepared:
        """Of a job with pictures they are read here unless given. Raises `EngineFault` naming the
        field at fault."""
        sampling = self._check_sampling(job)
        if not 1 <= job.n <= self.max_choices:
            raise _invalid("n", f"n is {job.n}; this model serves 1 to {self.max_choices} choices")
        self._check_ids(job.stop_token_ids, "stop_token_ids")
        self._check_size(job)
        prompt = self.tokenise(job, images)
        # A tokenizer may know more tokens than the model; MLX reads past the end without a word.
        self._check_ids(prompt.token_ids, "prompt")
        room = self.context - len(prompt.token_ids)
        if room <= 0:
            raise self._too_long(job, f"{len(prompt.token_ids)} tokens")
        max_tokens = room if job.max_tokens is None else min(job.max_tokens, room)
        if max_tokens < 1 and not job.echo:  # an echo says something without a new token
            raise _invalid("max_tokens", f"max_tokens is {max_tokens}; it must be at least 1")
        echo = self._echo(job, prompt) if job.echo else ""
        made = self.constrain(job, prompt.chat)
        prompt = replace(prompt, warnings=(*prompt.warnings, *made.warnings))
        return Prepared(job, sampling, prompt, max_tokens, made.rows, echo)

    def _echo(self, job: GenerateJob, prompt: Rendered) -> str:
        """The prompt as it was sent: what a tokenizer adds to it is not the client's."""
        if isinstance(job.prompt, str):
            return job.prompt
        return str(self.tokenizer.decode(prompt.token_ids))

    def _check_sampling(self, job: GenerateJob) -> SamplingSettings:
        try:
            return job.sampling.check(self.vocab_size)
        except BadSampling as error:
            raise _invalid(error.param, str(error)) from error

    def _check_size(self, job: GenerateJob) -> None:
        """What no tokenizer could make fit is not tokenised."""
        if isinstance(job.prompt, tuple) and len(job.prompt) >= self.context:
            raise self._too_long(job, f"{len(job.prompt)} tokens")
        size = _num_chars(job.prompt)
        try:
            self.encoder.check_size(size)
        except TooManyTokens:
            raise self._too_long(job, f"{size:,} characters, which are more tokens") from None

    def _too_long(self, job: GenerateJob, what: str) -> EngineFault:
        return EngineFault(
            FaultKind.CONTEXT_TOO_LONG,
            f"this model's maximum context length is {self.context} tokens; your prompt has "
            f"{what}. Shorten it, or load the model with a larger context",
            param="messages" if isinstance(job.prompt, Chat) else "prompt",
        )

    def tokenise(self, job: GenerateJob, images: Images | None = None) -> Rendered:
        """The prompt, whether or not there is room for it."""
        try:
            return self._tokenised(job, images)
        except TooManyTokens as error:
            raise self._too_long(job, f"{error.count} tokens") from None
        except TokenizerBroken as error:
            raise self._broken("tokenizer", error) from error
        except TemplateBroken as error:
            raise self._broken("chat template", error) from error

    def _broken(self, what: str, error: Exception) -> EngineFault:
        message = (
            f"the {what} of model '{self.model}' is broken: with this prompt it {error}. "
            "Use another model, or mend its folder"
        )
        return EngineFault(FaultKind.MODEL_BROKEN, message)

    def _tokenised(self, job: GenerateJob, images: Images | None) -> Rendered:
        match job.prompt:
            case Chat() as chat:
                return self.render_chat(job, chat, self._images(job) if images is None else images)
            case str() as text:
                return Rendered(self._not_empty(self.encoder.ids(text)))
            case Infill() as infill:
                return Rendered(self._infill(infill))
            case ids:
                return Rendered(self._not_empty(list(ids)))

    def _images(self, job: GenerateJob) -> Images:
        reading = self.read_images(job)
        while reading is not None:
            try:
                next(reading)
            except StopIteration as end:
                return tuple(end.value)
        return ()

    def _not_empty(self, ids: list[int]) -> list[int]:
        if ids:
            return ids
        # An empty prompt means "anything": start from the token that starts a text.
        start = self.tokenizer.bos_token_id
        if start is None:
            start = self.tokenizer.eos_token_id
        if start is None:
            raise _invalid("prompt", "the prompt is empty and this model has no start token")
        return [start]

    def _text_start(self) -> list[int]:
        """What this tokenizer puts before every text."""
        start = self.tokenizer.bos_token_id
        return [start] if start is not None and self.encoder.ids("a")[:1] == [start] else []

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise _invalid(
                    param,
                    f"token {token_id} is outside this model's vocabulary of {self.vocab_size}",
                )

    def _infill(self, infill: Infill) -> list[int]:
        for prefix, suffix, middle in FILL_IN_THE_MIDDLE:
            ids = [self.tokenizer.convert_tokens_to_ids(t) for t in (prefix, suffix, middle)]
            if all(i is not None and i != self.tokenizer.unk_token_id for i in ids):
                before = self.encoder.ids(infill.prefix, special=False)
                after = self.encoder.ids(infill.suffix, special=False)
                return [*self._text_start(), ids[0], *before, ids[1], *after, ids[2]]
        raise EngineFault(
            FaultKind.UNSUPPORTED,
            "this model has no fill-in-the-middle tokens, so `suffix` cannot be honoured",
            param="suffix",
        )


# Prefix, suffix and middle markers by family: Qwen-Coder, StarCoder/SmolLM, CodeGemma, DeepSeek.
FILL_IN_THE_MIDDLE = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    ("<PRE>", "<SUF>", "<MID>"),
)


def _num_chars(prompt: Prompt) -> int:
    """Of what a template writes in any case: thoughts and earlier answers it may leave out."""
    match prompt:
        case Chat() as chat:
            said = (turn for turn in chat.messages if turn.role != "assistant")
            return sum(
                len(part.text) for m in said for part in m.parts if isinstance(part, TextPart)
            )
        case str() as text:
            return len(text)
        case Infill() as infill:
            return len(infill.prefix) + len(infill.suffix)
    return 0


def _invalid(param: str, message: str) -> EngineFault:
    return EngineFault(FaultKind.INVALID, message, param=param)
