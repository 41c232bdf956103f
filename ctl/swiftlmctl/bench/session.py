"""What a benchmark asks of the daemon besides answers: loads, memory, the length of a text."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl import client
from swiftlmctl.bench.coherence import complaint
from swiftlmctl.bench.endpoint import Endpoint, EndpointReply
from swiftlmctl.bench.figures import Figure
from swiftlmctl.errors import CtlError

_REPORT_S = 1.5


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes: MLX's own count now and at its highest, and what the kernel counts."""

    active: int
    peak: int
    footprint: int
    kv: int
    read: int = 0  # from disk since the load, of what is streamed


@dataclass(frozen=True, slots=True)
class Session:
    """The live daemon and one of its models."""

    endpoint: Endpoint
    runs: int

    def load(self, *, kv: str | None = None, stream: str | None = None) -> m.LoadedModel:
        """Loads the model, otherwise as configured; raises CtlError where the plan refuses."""
        wanted = m.LoadOptions(kv=kv, stream_experts=stream)
        request = m.LoadModelRequest(model=self.endpoint.model, options=wanted)

        async def verb(daemon: client.Daemon) -> m.LoadedModel:
            return await _loaded(daemon.admin.load(request))

        return client.call(verb)

    def load_anew(self, *, kv: str | None = None, stream: str | None = None) -> m.LoadedModel:
        """In a process of its own, whatever was there before."""
        self.unload()
        return self.load(kv=kv, stream=stream)

    @contextlib.contextmanager
    def given_back(self) -> Iterator[None]:
        """The next request after it loads the model as it is configured."""
        try:
            yield
        finally:
            with contextlib.suppress(CtlError):
                self.unload()

    def pid(self) -> int:
        """The engine process; another one holds another configuration."""
        return find_model(self.endpoint.model).pid

    def read_from_disk(self) -> str:
        """What of the loaded model comes from the disk as it is needed, in the plan's words."""
        plan = json.loads(find_model(self.endpoint.model).plan or "{}")
        return str((plan.get("streaming") or {}).get("note") or "")

    def unload(self) -> None:
        request = m.UnloadModelRequest(model=self.endpoint.model, force=True)

        async def verb(daemon: client.Daemon) -> None:
            client.check((await daemon.admin.unload(request)).fault)

        client.call(verb)

    def clear_cache(self) -> None:
        async def verb(daemon: client.Daemon) -> None:
            request = m.CacheControlRequest(model=self.endpoint.model, clear=True)
            await daemon.admin.cache_control(request)

        client.call(verb)

    def memory(self) -> MemoryUse:
        time.sleep(_REPORT_S)  # the engine reports once a second
        status = find_model(self.endpoint.model)
        stats = status.stats or m.EngineStats()
        return MemoryUse(
            stats.active_bytes,
            stats.peak_bytes,
            status.footprint_bytes,
            stats.kv_bytes,
            stats.stream.bytes if stats.stream else 0,
        )

    def count_tokens(self, text: str) -> int:
        path_free = Endpoint(self.endpoint.url.removesuffix("/v1"), "", self.endpoint.key)
        body = {"model": self.endpoint.model, "content": text}
        return len(path_free.post("/tokenize", body)["tokens"])

    def repeated(self, ask: Callable[[int], EndpointReply]) -> list[EndpointReply]:
        """`ask(run)` for each run, after one that does not count."""
        ask(-1)
        return [ask(run) for run in range(self.runs)]


def find_model(name: str) -> m.ModelStatus:
    """The model's row in the status; an empty one when it is not known."""
    return next((row for row in models() if row.model == name), m.ModelStatus(model=name))


def models() -> list[m.ModelStatus]:
    async def verb(daemon: client.Daemon) -> list[m.ModelStatus]:
        return list((await daemon.admin.list_models(m.ListModelsRequest())).models)

    return client.call(verb)


def objection(replies: Sequence[EndpointReply]) -> str:
    """Why these answers have no speed, of whatever kind; empty when they have one."""
    for reply in replies:
        if wrong := "" if reply.tool_calls else complaint(reply.text):
            return f"no speed: {wrong}"
    return ""


def refusal(error: CtlError) -> str:
    """The cell for a model or configuration that was refused; without a daemon there is none."""
    if error.code is CtlExit.NOT_RUNNING:
        raise error
    return f"refused: {error}"


def speed(replies: Sequence[EndpointReply]) -> Figure | str:
    """Decode speed, or why there is none: nonsense at full speed is no result."""
    if any(reply.num_tokens < 2 for reply in replies):
        return objection(replies) or "no speed: one token"
    rates = (reply.decode_tokens_per_s for reply in replies)
    return objection(replies) or Figure(tuple(rates), "tok/s")


def seconds(values: Iterable[float]) -> Figure:
    return Figure(tuple(values), "s")


def tell(text: str) -> None:
    """Progress, on the error stream: `--json` stays clean."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


async def _loaded(events: AsyncIterator[m.OperationEvent]) -> m.LoadedModel:
    last = m.OperationEvent()
    async for event in events:
        client.check(event.fault)
        last = event
    return (last.model and last.model.loaded) or m.LoadedModel()
