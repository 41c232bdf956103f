"""Whether a request may start while memory is short; costs nothing while it is not.

The engine keeps its own KV budget; this holds the price of a request against what the kernel
says of the whole machine, and reclaims before it refuses.
"""

from __future__ import annotations

from typing import Protocol

from swiftlm_proto import messages as m
from swiftlmd.engines.placement import PriceRequest
from swiftlmd.faults import Kind, MemoryFull, ServiceError
from swiftlmd.memory import Answer, Level, PressureVerdict

_CHARACTERS_PER_TOKEN = 4
_USUAL_ANSWER = 256  # tokens; many clients name no limit, and few answers reach one
_RETRY_AFTER_S = 5


class MemoryWatch(Protocol):
    @property
    def level(self) -> Level: ...

    async def admit(self, num_bytes: int) -> PressureVerdict: ...


class Admission:
    """Asked once per request, when its model is ready."""

    def __init__(self, watch: MemoryWatch) -> None:
        self._watch = watch

    async def admit(self, request: m.GenerateRequest, model: str, price: PriceRequest) -> None:
        """Raises ServiceError when there is no room, also after reclaiming."""
        if self._watch.level is Level.CALM:
            return
        answer = request.max_tokens or _USUAL_ANSWER
        needed = price(prompt_tokens(request), min(answer, _USUAL_ANSWER)) * max(1, request.n)
        await self._admit(needed, model)

    async def admit_texts(self, request: m.EmbedRequest, model: str, price: PriceRequest) -> None:
        """As `admit`. They are embedded one by one: the longest decides."""
        if self._watch.level is Level.CALM:
            return
        await self._admit(price(max(map(_text_tokens, request.inputs), default=1), 0), model)

    async def _admit(self, needed: int, model: str) -> None:
        verdict = await self._watch.admit(needed)
        if verdict.answer is Answer.REFUSE:
            message = f"no memory for this request to '{model}': {verdict.reason}"
            if verdict.never:
                raise ServiceError(Kind.NOT_ENOUGH_MEMORY, f"{message}; shorten the prompt")
            raise MemoryFull(f"{message}; try again later", retry_after_s=_RETRY_AFTER_S)


def prompt_tokens(request: m.GenerateRequest) -> int:
    """About how long the prompt is; only the engine counts tokens."""
    if request.token_ids is not None:
        return len(request.token_ids.ids)
    characters = len(request.text or "")
    if request.infill is not None:
        characters = len(request.infill.prefix) + len(request.infill.suffix)
    if request.chat is not None:
        chat = request.chat
        texts = (len(part.text or "") for msg in chat.messages for part in msg.parts)
        characters = sum(texts) + sum(len(tool.parameters) for tool in chat.tools)
    return max(1, characters // _CHARACTERS_PER_TOKEN)


def _text_tokens(one: m.EmbedInput) -> int:
    if one.token_ids is not None:
        return len(one.token_ids.ids)
    return max(1, len(one.text or "") // _CHARACTERS_PER_TOKEN)
