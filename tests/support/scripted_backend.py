"""A `Backend` that plays a script instead of a model, and a real server around it.

The script of a request is chosen by the last user text (see `SCRIPTS`); a test may put its own
under any text. What the dialects asked for is kept in `requests`.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import betterproto2
from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import Kind, ModelNotFound, ServiceError
from swiftlmd.http.app import make_app, make_runner
from swiftlmd.http.chats.store import ChatStore
from swiftlmd.http.sessions import Sessions

MODEL = "scripted-1"
EMBEDDER = "scripted-embed"
EMBEDDING_WIDTH = 8

Reason = m.FinishedReason


@dataclass(frozen=True, slots=True)
class Script:
    """What one choice says: deltas in order, then how it ends."""

    deltas: tuple[m.Delta, ...] = ()
    reason: Reason = Reason.STOP
    fault: m.Fault | None = None
    stop_sequence: str = ""
    prompt_tokens: int = 12
    cached_tokens: int = 4
    reasoning_tokens: int = 0
    # Awaited before the delta of that number; a test holds a request there.
    before: Callable[[int], asyncio.Future[None] | None] | None = None
    progress: tuple[m.Progress, ...] = ()


def text(*pieces: str, **changes: object) -> Script:
    return replace(Script(tuple(m.Delta(content=piece) for piece in pieces)), **changes)


def tool_call(name: str, *arguments: str, index: int = 0, call_id: str = "call_1") -> list[m.Delta]:
    first = m.ToolCallDelta(index=index, id=call_id, name=name, arguments="")
    rest = [m.ToolCallDelta(index=index, arguments=piece) for piece in arguments]
    return [m.Delta(tool_calls=[delta]) for delta in (first, *rest)]


def calls(*deltas: m.Delta, **changes: object) -> Script:
    return replace(Script(tuple(deltas), reason=Reason.TOOL_CALLS), **changes)


def logprob(piece: str, value: float = -0.25, top: int = 2) -> m.TokenLogprob:
    others = [
        m.TokenLogprob(token_id=i, token=f"t{i}".encode(), logprob=value - i) for i in range(top)
    ]
    return m.TokenLogprob(token_id=7, token=piece.encode(), logprob=value, top=others)


@dataclass(slots=True)
class ScriptedBackend:
    scripts: dict[str, Script] = field(default_factory=dict)
    default: Script = field(default_factory=lambda: text("Hello", ", ", "world", "!"))
    models: list[m.ModelStatus] = field(default_factory=lambda: [_model(MODEL), _model(EMBEDDER)])
    requests: list[m.GenerateRequest] = field(default_factory=list)
    routes: list[tuple[str, str]] = field(default_factory=list)
    tokenized: list[m.TokenizeRequest] = field(default_factory=list)
    embedded: list[m.EmbedRequest] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    running: int = 0
    aborted: int = 0
    refusal: ServiceError | None = None
    state: str = "ready"
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def named(self, model: str) -> str:
        name = self.aliases.get(model, model) or MODEL
        known = [model.model for model in self.models]
        if name not in known:
            raise ModelNotFound(name, known)
        return name

    async def list_models(self) -> list[m.ModelStatus]:
        return self.models

    async def generate(
        self, model: str, request: m.GenerateRequest, *, route: str, client: str = ""
    ) -> AsyncGenerator[m.SequenceEvent, None]:
        self.requests.append(request)
        self.routes.append((route, client))
        if self.refusal is not None:
            raise self.refusal
        self.running += 1
        self.changed.set()
        done = False
        try:
            script = self.script_of(request)
            for index in range(max(1, request.n)):
                async for event in _play(script, request.request_id, index):
                    yield event
            done = True
        finally:
            self.running -= 1
            self.aborted += not done
            self.changed.set()

    def script_of(self, request: m.GenerateRequest) -> Script:
        return self.scripts.get(prompt_text(request), self.default)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def tokenize(self, model: str, request: m.TokenizeRequest) -> m.TokenizeReply:
        self.tokenized.append(request)
        if request.chat is not None:
            rendered = "".join(f"<{x.role}>{parts_text(x)}" for x in request.chat.messages)
        else:
            rendered = request.text or ""
        ids = list(rendered.encode())
        return m.TokenizeReply(ids=ids, text=rendered)

    async def detokenize(self, model: str, request: m.DetokenizeRequest) -> m.DetokenizeReply:
        if any(i > 255 for i in request.ids):
            fault = m.Fault(kind=Kind.INVALID, message="no such token", param="tokens")
            return m.DetokenizeReply(fault=fault)
        return m.DetokenizeReply(text=bytes(request.ids).decode("utf-8", "replace"))

    async def embed(
        self, model: str, request: m.EmbedRequest, *, request_id: str = "", client: str = ""
    ) -> m.EmbedReply:
        self.embedded.append(request)
        width = request.dimensions or EMBEDDING_WIDTH
        vectors = []
        for number, _ in enumerate(request.inputs):
            values = struct.pack(f"<{width}f", *[number + i / 8 for i in range(width)])
            vectors.append(m.Embedding(values=values))
        return m.EmbedReply(embeddings=vectors, prompt_tokens=3 * len(vectors))

    async def status(self) -> m.DaemonStatus:
        return m.DaemonStatus(
            protocol=1,
            version="0.0-test",
            pid=4242,
            instance_id="test",
            started_at=1_700_000_000.0,
            uptime_s=5.0,
            state=self.state,
            models=self.models,
            machine=m.MachineStatus(device="cpu", memory_bytes=1 << 34, budget_bytes=1 << 33),
            in_flight=self.running,
            default_model=MODEL,
            aliases=self.aliases,
        )


def prompt_text(request: m.GenerateRequest) -> str:
    """The text that picks the script: the last message's text, or the prompt."""
    name, value = betterproto2.which_one_of(request, "prompt")
    if name == "chat":
        return parts_text(request.chat.messages[-1])
    return value if isinstance(value, str) else ""


def parts_text(message: m.Message) -> str:
    return "".join(part.text or "" for part in message.parts)


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    backend: ScriptedBackend
    app: web.Application

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@asynccontextmanager
async def serve(
    backend: ScriptedBackend | None = None,
    options: HttpOptions | None = None,
    admin: m.AdminBase | None = None,
    store: m.StoreBase | None = None,
    sessions: Sessions | None = None,
    clock: Callable[[], float] = time.time,
    port: int = 0,
    chats: ChatStore | None = None,
) -> AsyncIterator[Server]:
    """A real aiohttp server on a free loopback port, or on that of an earlier one."""
    backend = backend or ScriptedBackend()
    options = options or HttpOptions(port=0)
    app = make_app(
        backend,
        options,
        clock=clock,
        admin=admin,
        store=store,
        sessions=sessions or Sessions(),
        chats=chats,
    )
    runner = make_runner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        port = runner.addresses[0][1]
        yield Server(f"http://127.0.0.1:{port}", backend, app)
    finally:
        await runner.cleanup()


async def _play(script: Script, request_id: str, index: int) -> AsyncIterator[m.SequenceEvent]:
    def event(**kind: object) -> m.SequenceEvent:
        return m.SequenceEvent(request_id=request_id, index=index, **kind)

    for progress in script.progress:
        yield event(progress=progress)
    for number, delta in enumerate(script.deltas):
        if script.before is not None and (gate := script.before(number)) is not None:
            await gate
        if number == 0:
            yield event(
                started=m.Started(
                    prompt_tokens=script.prompt_tokens, cached_tokens=script.cached_tokens
                )
            )
        yield event(delta=delta)
    yield event(finished=_finished(script))


def _finished(script: Script) -> m.Finished:
    return m.Finished(
        reason=Reason.ERROR if script.fault else script.reason,
        fault=script.fault,
        stop_sequence=script.stop_sequence,
        usage=m.Usage(
            prompt_tokens=script.prompt_tokens,
            completion_tokens=len(script.deltas),
            cached_tokens=script.cached_tokens,
            reasoning_tokens=script.reasoning_tokens,
        ),
        timings=m.Timings(prefill_s=0.25, decode_tokens_per_s=50.0),
    )


def _model(name: str) -> m.ModelStatus:
    loaded = m.LoadedModel(model=name, context=4096, vocab_size=1000, tool_format="json")
    return m.ModelStatus(
        model=name,
        state=m.ModelStatusState.READY,
        loaded=loaded,
        size_bytes=1000,
        stats=m.EngineStats(running=1),
        context=4096,
    )
