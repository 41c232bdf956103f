"""The whole answer of a request that is not streamed, put together from the same events."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from swiftlm_proto import messages as m
from swiftlmd.http.generation import Generation


@dataclass(frozen=True, slots=True)
class Block:
    """A part of an answer, in its place: its text is what one dialect shows as a block."""

    kind: str  # thinking, text or tool_use
    text: str = ""
    call: m.ToolCall | None = None


@dataclass(slots=True)
class Choice:
    content: str = ""
    reasoning: str = ""
    tool_calls: list[m.ToolCall] = field(default_factory=list)
    logprobs: list[m.TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished: m.Finished = field(default_factory=m.Finished)
    blocks: list[Block] = field(default_factory=list)


async def collect(generation: Generation) -> list[Choice]:
    """Runs the generation to its end; raises `ServiceError` for a fault."""
    choices = [_Pieces() for _ in range(generation.num_choices)]
    async with aclosing(generation.events()) as events:
        async for event in events:
            pieces = choices[event.index]
            if event.delta is not None:
                pieces.add(event.delta)
            elif event.finished is not None:
                pieces.choice.finished = event.finished
    return [pieces.whole() for pieces in choices]


class _Pieces:
    """A choice while it grows; text is joined once, at the end."""

    def __init__(self) -> None:
        self.choice = Choice()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._arguments: list[list[str]] = []
        self._order: list[tuple[str, int, list[str]]] = []  # kind, index of a call, texts

    def add(self, delta: m.Delta) -> None:
        self._content.append(delta.content)
        self._reasoning.append(delta.reasoning)
        self.choice.logprobs += delta.logprobs
        self.choice.token_ids += delta.token_ids
        if delta.reasoning:
            self._place("thinking").append(delta.reasoning)
        if delta.content:
            self._place("text").append(delta.content)
        for call in delta.tool_calls:
            self._add_call(call)
            self._place("tool_use", call.index)

    def _place(self, kind: str, index: int = 0) -> list[str]:
        """The texts of the last block, or of a new one where that is another."""
        if not self._order or self._order[-1][:2] != (kind, index):
            self._order.append((kind, index, []))
        return self._order[-1][2]

    def whole(self) -> Choice:
        choice = self.choice
        choice.content = "".join(self._content)
        choice.reasoning = "".join(self._reasoning)
        for call, arguments in zip(choice.tool_calls, self._arguments, strict=True):
            call.arguments = "".join(arguments)
        choice.blocks = [
            Block(kind, "".join(texts), choice.tool_calls[index] if kind == "tool_use" else None)
            for kind, index, texts in self._order
        ]
        return choice

    def _add_call(self, delta: m.ToolCallDelta) -> None:
        calls = self.choice.tool_calls
        while len(calls) <= delta.index:
            calls.append(m.ToolCall())
            self._arguments.append([])
        call = calls[delta.index]
        call.id = call.id or delta.id
        call.name = call.name or delta.name
        self._arguments[delta.index].append(delta.arguments)
