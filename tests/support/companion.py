"""What tests of the companion share: a richer scripted daemon, and what they do over and over."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace

from fake_admin import READY, FakeAdmin
from scripted_backend import MODEL

from swiftlm_proto import messages as m

GB = 10**9


async def ask(page, question):
    await page.get_by_label("Message").fill(question)
    await page.keyboard.press("Enter")


async def until(page, expression):
    """Until the page says so. Playwright's own `wait_for_function` asks again by `eval`, which the
    policy of the page forbids."""
    async with asyncio.timeout(30):
        while not await page.evaluate(expression):
            await page.wait_for_timeout(100)


async def shot(page, name):
    """Pictures for the documentation, when a folder for them is named."""
    if folder := os.environ.get("COMPANION_PICTURES"):
        await page.screenshot(path=f"{folder}/{name}.png")


class Machine(FakeAdmin):
    """A machine with one model loaded and one on disk that fits only with compressed KV."""

    def __init__(self) -> None:
        super().__init__()
        stats = m.EngineStats(running=1, decode_tokens_per_s=61.5, prefix_cache_hits=7)
        stats.stream = m.StreamCounters(bytes=4 * GB, hits=90, misses=10)
        self.cached = m.ModelStatus(
            "qwen3-14b",
            m.ModelStatusState.CACHED,
            size_bytes=8 * GB,
            quantization="4 bits",
            tools=True,
            licence="apache-2.0",
        )
        loaded = replace(READY, model=MODEL, context=8192, quantization="8 bits", stats=stats)
        self.daemon.models = [loaded, self.cached]
        self.daemon.machine = replace(
            self.daemon.machine, pressure="normal", thermal="nominal", measured_bytes=2 * GB
        )
        self.loading: asyncio.Event | None = None  # holds a load in its middle
        self.refusal = ""
        self.keys: dict[str, str] = {}
        self.pulls: asyncio.Queue[m.PullRequest] = asyncio.Queue()

    async def load(self, message: m.LoadModelRequest) -> AsyncIterator[m.OperationEvent]:
        self.asked.append(message)
        if self.refusal:
            fault = m.Fault(kind=m.FaultKind.NOT_ENOUGH_MEMORY, message=self.refusal)
            yield m.OperationEvent(fault=fault)
            return
        yield m.OperationEvent(stage="weights", fraction=0.4)
        if self.loading is not None:
            await self.loading.wait()
        yield m.OperationEvent(stage="ready", fraction=1.0, done=True)

    async def pull(self, message: m.PullRequest) -> AsyncIterator[m.OperationEvent]:
        self.pulls.put_nowait(message)
        yield m.OperationEvent(stage="fetching", fraction=0.3)
        yield m.OperationEvent(stage="done", fraction=1.0, done=True)

    async def pin(self, message: m.PinModelRequest) -> m.PinModelReply:
        self.daemon.models[0].pinned = message.pinned
        return m.PinModelReply()

    async def plan(self, message: m.PlanModelRequest) -> m.PlanModelReply:
        self.asked.append(message)
        options = message.options or m.LoadOptions()
        return m.PlanModelReply(plan=json.dumps(plan(options.kv or "fp16", options.context)))

    def let_the_network_in(self, *names: str) -> None:
        self.keys = dict.fromkeys(names, "k")
        self.config["http.host"] = m.ConfigEntry("http.host", "0.0.0.0", "file", "Address.")
        self.config["http.tls"] = m.ConfigEntry("http.tls", "off", "default", "Encryption.")
        self.daemon.http_address = "0.0.0.0:5413"

    async def list_keys(self, message: m.ListKeysRequest) -> m.ListKeysReply:
        return m.ListKeysReply(names=list(self.keys))

    async def add_key(self, message: m.AddKeyRequest) -> m.AddKeyReply:
        self.keys[message.name] = f"sk-of-{message.name}"
        return m.AddKeyReply(name=message.name, key=self.keys[message.name])

    async def remove_key(self, message: m.RemoveKeyRequest) -> m.RemoveKeyReply:
        del self.keys[message.name]
        return m.RemoveKeyReply()

    async def memory(self, message: m.MemoryRequest) -> m.MemoryReply:
        return m.MemoryReply(ledger=json.dumps(LEDGER))

    async def logs(self, message: m.LogsRequest) -> AsyncIterator[m.LogLine]:
        for line in ("info ready version=1 http=127.0.0.1:5413", f"info model ready name={MODEL}"):
            yield m.LogLine(line=f"2026-05-04T09:00:00Z {line}")


def plan(kv: str, context: int | None) -> dict[str, object]:
    """As the planner words it: 9.5 GB of 8 unless the KV cache is compressed."""
    fits = kv == "turbo"
    kv_bytes = int(2.2 * GB) // (4 if fits else 1)
    needed = int(7.3 * GB) + kv_bytes
    refusal = (
        f"needs {needed / GB:.1f} GB, 8.0 GB available (budget), {needed / GB - 8:.1f} GB short"
    )
    return {
        "strategy": "resident" if fits else "refused",
        "summary": f"resident, needs {needed / GB:.1f} GB of 8.0 GB (budget)"
        if fits
        else f"{refusal}; smallest change that fits: --kv turbo",
        "context": context or 8192,
        "max_context": 40960,
        "kv": kv,
        "terms": [
            {"kind": "weights", "bytes": int(7.0 * GB), "source": "exact", "note": "4 bits"},
            {"kind": "kv", "bytes": kv_bytes, "source": "exact", "note": f"8192 tokens, {kv}"},
            {"kind": "scratch", "bytes": int(0.3 * GB), "source": "formula", "note": "chunk 512"},
        ],
        "needed_bytes": needed,
        "available_bytes": 8 * GB,
        "fixes": [] if fits else ["--kv turbo", "unload scripted-1"],
        "speed": {"decode_tokens_s": [18.0, 26.0], "measured": False},
    }


LEDGER = {
    "available_bytes": 9 * GB,
    "budget_bytes": 8 * GB,
    "priced_bytes": int(2.4 * GB),
    "measured_bytes": int(2.2 * GB),
    "daemon_bytes": int(0.09 * GB),
    "swap_used_bytes": 0,
    "pressure": "normal",
    "models": [
        {
            "model": MODEL,
            "terms": [
                {"kind": "weights", "priced_bytes": GB, "measured_bytes": GB},
                {"kind": "kv", "priced_bytes": GB, "measured_bytes": int(0.6 * GB)},
                {"kind": "prefix cache", "priced_bytes": int(0.3 * GB), "measured_bytes": None},
                {"kind": "process", "priced_bytes": int(0.2 * GB), "measured_bytes": None},
            ],
        }
    ],
}
