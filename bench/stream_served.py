"""Streaming as clients meet it: a served model by memory and speed, resident and streamed.

`cells` runs SwiftLM's four (vanilla, SSD, turbo, SSD + turbo) on a tiny mixture of experts; `large`
serves a checkpoint of 17 GB in a control group of 6 GB and compares what it takes with its plan.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.servers import Server, ours
from bench.table import Report

CELLS = {
    "vanilla": {"engine_kv": "fp16", "engine_stream_experts": "off"},
    "SSD": {"engine_kv": "fp16", "engine_stream_experts": "on"},
    "turbo": {"engine_kv": "k4v3", "engine_stream_experts": "off"},
    "SSD + turbo": {"engine_kv": "k4v3", "engine_stream_experts": "on"},
}
PROMPT = "a tale of a fox, a dog and a river. " * 10
GROUP = Path("/sys/fs/cgroup/memory/swiftlm-bench")  # version 1; elsewhere the run is not capped
LOAD_S, ANSWER_S = 1800.0, 3000.0
AT_REST = ("weights", "experts", "process")  # as the daemon compares them


@dataclass(frozen=True, slots=True)
class Served:
    """One answer, and what the engine held meanwhile."""

    tokens_s: float
    first_s: float
    num_tokens: int
    peak_bytes: int  # the engine process, as the kernel counts it
    kv_bytes: int
    status: dict[str, Any]  # of the model, as `/api` gives it

    @property
    def counters(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status["stats"].get("stream") or {}
        return found


def cells(folder: Path, tokens: int = 24, slots: int = 8) -> Report:
    columns = ["cell", "engine memory", "KV cache", "tokens/s", "first token", "read"]
    report = Report("streaming: four cells", columns)
    for name, settings in CELLS.items():
        streams = settings["engine_stream_experts"] == "on"
        more: dict[str, object] = {"engine_expert_slots": slots if streams else 0}
        with ours(
            folder, **settings, **more, engine_prefix_disk="0", engine_context=2048
        ) as server:
            served = serve(server, PROMPT, tokens)
        assert bool(served.counters) is streams
        report.add(
            name,
            f"{served.peak_bytes / 1e6:.0f} MB",
            f"{served.kv_bytes / 1e6:.2f} MB",
            f"{served.tokens_s:.2f}",
            f"{served.first_s:.2f} s",
            f"{served.counters.get('bytes', 0) / 1e6:.0f} MB",
        )
    return report


def large(folder: Path, budget_gb: float = 6.0, tokens: int = 5) -> Report:
    report = Report("streaming: larger than memory", ["what", "value"])
    swapped = _swapped_pages()
    with _capped(int(budget_gb * 1e9)) as capped:
        budget = "auto" if capped else f"{budget_gb}GB"
        # Exact KV: the self-test of a compressed one takes a large model minutes on a CPU.
        settings = {"engine_memory_budget": budget, "engine_context": 512, "engine_kv": "fp16"}
        more = {"engine_prefix_disk": "0", "engine_prefix_cache": "0", "engine_stall": "never"}
        with ours(folder, **settings, **more) as server:
            served = serve(server, "once", tokens)
    plan, stats = json.loads(served.status["plan"]), served.status["stats"]
    priced = sum(term["bytes"] for term in plan["terms"] if term["kind"] in AT_REST)
    moving = sum(int(stats.get(n, 0)) for n in ("pool_bytes", "kv_bytes", "prefix_cache_bytes"))
    measured = int(stats["footprint_bytes"]) - moving
    counters = served.counters
    for what, value in (
        ("plan", plan["summary"]),
        ("limit", f"{budget_gb} GB, {'a control group' if capped else 'the plan alone'}"),
        ("weights, slots and process", f"priced {priced / 1e9:.3f} GB, measured "
         f"{measured / 1e9:.3f} GB: {measured / priced:.3f}"),
        ("peak of the process", f"{served.peak_bytes / 1e9:.3f} GB of "
         f"{plan['needed_bytes'] / 1e9:.3f} GB planned"),
        ("tokens", f"{served.num_tokens} at {served.tokens_s:.3f} tokens/s, the first after "
         f"{served.first_s:.0f} s"),
        ("read", f"{counters['bytes'] / 1e9:.1f} GB at {counters['gb_per_s']} GB/s, "
         f"{counters['hit_rate']:.0%} hits"),
        ("counters", "agree" if not counters["degraded"] else str(counters["problems"])),
        ("pages swapped out and in", _swapped_pages() - swapped),
    ):  # fmt: skip
        report.add(what, value)
    return report


def serve(server: Server, prompt: str, tokens: int) -> Served:
    """One answer on a loaded model; memory is watched while it is made."""
    base = server.url.removesuffix("/v1")
    _wait_loaded(base)
    pid = int(_model(base)["pid"])
    body = {"model": server.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True}  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        asked: Future[dict[str, Any]] = pool.submit(_answer, server, body)
        kv_bytes = 0
        while not asked.done():
            stats = _model(base).get("stats", {})
            kv_bytes = max(kv_bytes, int(stats.get("kv_bytes", 0)))
            time.sleep(0.2)
    answer = asked.result()
    time.sleep(2.0)  # the daemon asks its engines about once a second
    return Served(
        tokens_s=answer["timings"]["predicted_per_second"],
        first_s=answer["timings"]["first_token_s"],
        num_tokens=answer["usage"]["completion_tokens"],
        peak_bytes=_peak_bytes(pid),
        kv_bytes=kv_bytes,
        status=_model(base),
    )


def _answer(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{server.url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def _wait_loaded(base: str) -> None:
    deadline = time.monotonic() + LOAD_S
    while time.monotonic() < deadline:
        model = _model(base)
        if model.get("state") == "ready":
            return
        if model.get("error"):
            raise RuntimeError(model["error"])
        time.sleep(0.2)
    raise TimeoutError(f"the model was not loaded within {LOAD_S:g} s")


def _model(base: str) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{base}/api/status", b"{}", {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        models: list[dict[str, Any]] = json.load(reply)["models"]
    return next((model for model in models if model["model"] == "bench"), {})


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def _swapped_pages() -> int:
    lines = Path("/proc/vmstat").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("pswpin", "pswpout")))


@contextlib.contextmanager
def _capped(limit_bytes: int) -> Iterator[bool]:
    """Processes started inside share a memory limit, where control groups can be made."""
    try:
        GROUP.mkdir()
        (GROUP / "memory.limit_in_bytes").write_text(str(limit_bytes))
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        print(f"no control group ({error}): the run is not capped")
        yield False
        return
    try:
        yield True
    finally:
        (GROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):
            GROUP.rmdir()
