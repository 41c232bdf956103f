"""`/metrics`, `/health` and `status` tell what a model reads from disk, and when that cannot be."""

from __future__ import annotations

import json

import aiohttp
from scripted_backend import MODEL, ScriptedBackend, serve

from swiftlm_proto import messages as m
from swiftlmctl.views import status_table

COUNTERS = {
    "mode": "experts", "slots": 8, "num_experts": 64, "experts_per_token": 4,
    "streamed_layers": 3, "resident_layers": 1, "record_bytes": 1000, "nocache": False,
    "reads": 90, "bytes": 12000, "failed_bytes": 0, "read_errors": 1, "read_wall_s": 0.5,
    "read_busy_s": 2.0, "gb_per_s": 1.25, "syncs": 30, "sync_s": 0.06, "hits": 24, "misses": 12,
    "hit_rate": 0.6667, "evictions": 4, "sweeps": 1, "sweep_bytes": 3000, "prefetched": 5,
    "prefetch_used": 3, "prefetch_wasted": 2, "degraded": False, "problems": [],
    "layers": {"model.layers.0.mlp": {"hits": 7, "misses": 5, "evictions": 2}},
}  # fmt: skip


def backend(**changes: object) -> ScriptedBackend:
    scripted = ScriptedBackend()
    for model in scripted.models:
        if model.model == MODEL:
            found = m.StreamCounters.from_dict(COUNTERS | changes)
            model.stats = m.EngineStats(stream=found)
    return scripted


async def get(path: str, scripted: ScriptedBackend) -> tuple[int, str]:
    async with (
        serve(scripted) as server,
        aiohttp.ClientSession(server.url) as http,
        http.get(path) as reply,
    ):
        return reply.status, await reply.text()


async def test_metrics_have_every_stream_counter_and_those_of_layers():
    _, text = await get("/metrics", backend())
    model = f'{{model="{MODEL}"}}'
    lines = text.splitlines()
    for line in (
        f"swiftlm_stream_reads_total{model} 90.0",
        f"swiftlm_stream_bytes_total{model} 12000.0",
        f"swiftlm_stream_read_wall_seconds_total{model} 0.5",
        f"swiftlm_stream_read_busy_seconds_total{model} 2.0",
        f"swiftlm_stream_sync_seconds_total{model} 0.06",
        f"swiftlm_stream_sweep_bytes_total{model} 3000.0",
        f"swiftlm_stream_prefetch_used_total{model} 3.0",
        f"swiftlm_stream_prefetch_wasted_total{model} 2.0",
        f"swiftlm_stream_read_errors_total{model} 1.0",
        f"swiftlm_stream_degraded{model} 0.0",
    ):
        assert line in lines, line
    for name, value in (("hits", 7), ("misses", 5), ("evictions", 2)):
        assert any(
            found.startswith(f"swiftlm_stream_{name}_total{{")
            and 'layer="model.layers.0.mlp"' in found
            and found.endswith(f" {value}.0")
            for found in lines
        ), name


async def test_a_model_that_streams_nothing_has_no_stream_metrics():
    _, text = await get("/metrics", ScriptedBackend())
    assert "swiftlm_stream_bytes_total{" not in text


async def test_health_says_what_streams():
    status, text = await get("/health", backend())
    body = json.loads(text)
    assert (status, body["status"]) == (200, "ok")
    found = next(model for model in body["models"] if model["model"] == MODEL)["streaming"]
    assert found["slots"] == 8
    assert found["experts_per_token"] == 4
    assert found["gb_per_s"] == 1.25
    assert "layers" not in found


async def test_counters_that_contradict_each_other_degrade_health():
    problem = "12000 bytes read, misses say 13000"
    status, text = await get("/health", backend(degraded=True, problems=[problem]))
    body = json.loads(text)
    assert (status, body["status"]) == (200, "degraded")
    assert problem in text


def test_status_tells_how_much_is_in_memory_and_what_was_read():
    (model,) = (x for x in backend(degraded=True, problems=["odd"]).models if x.model == MODEL)
    text = "\n".join(status_table.lines(m.DaemonStatus(models=[model])))
    assert "8 of 64 experts in memory, 1 layers whole" in text
    assert "90 reads" in text
    assert "1.25 GB/s" in text
    assert "67% hits, 4 evictions" in text
    assert "2.00 ms per wait" in text
    assert "3 of 5 prefetched used" in text
    assert "degraded: odd" in text
