"""A daemon that answers the admin socket from a script, in a thread of its own.

What it was asked is in `asked`; what it answers can be put into its fields before the call.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from grpclib.server import Server

from swiftlm_proto import messages as m

READY = m.ModelStatus(
    model="smollm2-135m",
    state=m.ModelStatusState.READY,
    pid=4242,
    size_bytes=101_000_000,
    footprint_bytes=250_000_000,
    loaded=m.LoadedModel(model="smollm2-135m", context=8192, kv="fp16", device="cpu", load_s=0.5),
    stats=m.EngineStats(running=1, decode_tokens_per_s=61.5),
)


class FakeFits(m.StoreBase):
    """Has no verdict on any model that is here, and one to offer."""

    async def fit(self, message: m.FitModelsRequest) -> m.FitModelsReply:
        return m.FitModelsReply()

    async def search(self, message: m.SearchModelsRequest) -> m.SearchModelsReply:
        fit = m.ModelFit("fits", context=40_000, decode_low=20.0, decode_high=40.0)
        offered = m.OfferedModel("org/one", size_bytes=4_000_000_000, tools=True, fit=fit)
        offered.best_for = ["largest", "fastest", "agents"]
        return m.SearchModelsReply(models=[offered])


class FakeAdmin(m.AdminBase):
    def __init__(self) -> None:
        self.asked: list[object] = []
        self.daemon = m.DaemonStatus(
            protocol=m.PROTOCOL,
            version="0.0.0+checkout",
            pid=os.getpid(),
            state="ready",
            http_address="127.0.0.1:5413",
            default_model="smollm2-135m",
            models=[READY],
            machine=m.MachineStatus(
                device="cpu",
                memory_bytes=16_000_000_000,
                available_bytes=9_000_000_000,
                budget_bytes=8_000_000_000,
                used_bytes=2_000_000_000,
            ),
        )
        self.events: list[m.OperationEvent] = []
        self.answer: list[m.SequenceEvent] = []
        self.config = {"http.port": m.ConfigEntry("http.port", "5413", "default", "Port.")}
        self.reloaded: list[m.ConfigEntry] = []  # what config.toml changes when it is read again
        self.fault: m.Fault | None = None
        self.key_names: list[str] = []

    async def status(self, message: m.StatusRequest) -> m.DaemonStatus:
        self.asked.append(message)
        # What a daemon has said does not change afterwards, whatever a test does to its fields.
        return replace(self.daemon, models=[replace(one) for one in self.daemon.models])

    async def watch_status(self, message: m.WatchStatusRequest) -> AsyncIterator[m.DaemonStatus]:
        for _ in range(3):
            yield self.daemon

    async def load(self, message: m.LoadModelRequest) -> AsyncIterator[m.OperationEvent]:
        self.asked.append(message)
        for event in self.events:
            yield event

    async def pull(self, message: m.PullRequest) -> AsyncIterator[m.OperationEvent]:
        self.asked.append(message)
        for event in self.events:
            yield event

    async def unload(self, message: m.UnloadModelRequest) -> m.UnloadModelReply:
        self.asked.append(message)
        return m.UnloadModelReply(was_loaded=True, freed_bytes=250_000_000, fault=self.fault)

    async def pin(self, message: m.PinModelRequest) -> m.PinModelReply:
        self.asked.append(message)
        return m.PinModelReply(fault=self.fault)

    async def list_models(self, message: m.ListModelsRequest) -> m.ListModelsReply:
        return m.ListModelsReply(models=self.daemon.models)

    async def remove_model(self, message: m.RemoveModelRequest) -> m.RemoveModelReply:
        self.asked.append(message)
        return m.RemoveModelReply(freed_bytes=101_000_000, paths=["/models/smollm2-135m"])

    async def list_keys(self, message: m.ListKeysRequest) -> m.ListKeysReply:
        return m.ListKeysReply(names=self.key_names)

    async def add_key(self, message: m.AddKeyRequest) -> m.AddKeyReply:
        self.asked.append(message)
        self.key_names.append(message.name)
        return m.AddKeyReply(name=message.name, key="sk-" + "k" * 43)

    async def get_config(self, message: m.GetConfigRequest) -> m.ConfigReply:
        found = [e for key, e in self.config.items() if message.key in ("", key)]
        return m.ConfigReply(entries=found, path="/app/config.toml")

    async def set_config(self, message: m.SetConfigRequest) -> m.ConfigReply:
        self.asked.append(message)
        if message.key not in self.config:
            fault = m.Fault(message=f"unknown option '{message.key}'; did you mean 'http.port'?")
            return m.ConfigReply(fault=fault)
        changed = replace(
            self.config[message.key], value=message.value, origin="file", needs_restart=True
        )
        self.config[message.key] = changed
        return m.ConfigReply(entries=[changed])

    async def reload_config(self, message: m.ReloadConfigRequest) -> m.ConfigReply:
        return m.ConfigReply(entries=self.reloaded, fault=self.fault)

    async def generate(self, message: m.AdminGenerateRequest) -> AsyncIterator[m.SequenceEvent]:
        self.asked.append(message)
        for event in self.answer:
            yield event

    async def requests(self, message: m.RequestsRequest) -> m.RequestsReply:
        state = m.RequestState("r1", "decode", 12, 12, 3, 1.5, 8)
        return m.RequestsReply([m.ActiveRequest("r1", "smollm2-135m", "chat", state, "127.0.0.1")])

    async def cancel(self, message: m.CancelRequest) -> m.CancelReply:
        return m.CancelReply(found=message.request_id == "r1")

    async def cache_control(self, message: m.CacheControlRequest) -> m.CacheControlReply:
        self.asked.append(message)
        books = m.PrefixStats(num_hits=3, nbytes=1_500_000)
        return m.CacheControlReply(stats={"smollm2-135m": books})

    async def plan(self, message: m.PlanModelRequest) -> m.PlanModelReply:
        self.asked.append(message)
        return m.PlanModelReply(plan='{"verdict": "resident", "weights_bytes": 101000000}')


def said(*pieces: str) -> list[m.SequenceEvent]:
    """The events of an answer with these pieces of text."""
    deltas = [m.SequenceEvent(delta=m.Delta(content=piece)) for piece in pieces]
    end = m.Finished(
        reason=m.FinishedReason.STOP,
        usage=m.Usage(prompt_tokens=9, completion_tokens=len(pieces)),
        timings=m.Timings(decode_tokens_per_s=50.0),
    )
    return [*deltas, m.SequenceEvent(finished=end)]


class Listening:
    """`with Listening(admin, path):` serves it there."""

    def __init__(self, admin: m.AdminBase, path: Path) -> None:
        self._admin = admin
        self._path = path
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._started.wait(10)

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._path.unlink(missing_ok=True)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = Server([self._admin, FakeFits()])
        await server.start(path=str(self._path))
        self._started.set()
        await self._stop.wait()
        server.close()
        await server.wait_closed()
