"""What an engine's stream counters say, for `/metrics` and `/health`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any  # JSON values

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from swiftlm_proto import messages as m

# name of the metric, name in the counters, help
_COUNTERS = (
    ("reads", "reads", "System calls that read experts or layers."),
    ("bytes", "bytes", "Bytes read from disk, sweeps and prefetch included."),
    ("failed_bytes", "failed_bytes", "Bytes of reads that then failed."),
    ("read_errors", "read_errors", "Reads that failed."),
    ("read_wall_seconds", "read_wall_s", "Time in which something was being read."),
    ("read_busy_seconds", "read_busy_s", "Time of reading, summed over threads."),
    ("syncs", "syncs", "Waits for a router's choice."),
    ("sync_seconds", "sync_s", "Time of those waits, with the compute that they complete."),
    ("sweeps", "sweeps", "Layers of a prompt's chunk that read past the slots."),
    ("sweep_bytes", "sweep_bytes", "Bytes read by sweeps."),
    ("prefetched", "prefetched", "Records read before they were asked for."),
    ("prefetch_used", "prefetch_used", "Of those, used."),
    ("prefetch_wasted", "prefetch_wasted", "Of those, not used yet or never."),
)
_GAUGES = (
    ("slots", "slots", "Experts held per streamed layer."),
    ("streamed_layers", "streamed_layers", "Layers that read from disk."),
    ("resident_layers", "resident_layers", "Layers that are whole in memory."),
    ("record_bytes", "record_bytes", "Bytes of one read's record."),
    ("degraded", "degraded", "1 if the counters contradict each other."),
)
_LAYER_COUNTERS = (
    ("hits", "Records that were in memory when wanted."),
    ("misses", "Records that had to be read."),
    ("evictions", "Records that made room."),
)
_SHOWN = (
    "mode", "slots", "num_experts", "experts_per_token", "streamed_layers", "resident_layers",
    "nocache", "reads", "bytes", "gb_per_s", "read_errors", "hit_rate", "misses", "evictions",
    "prefetched", "prefetch_used", "degraded", "problems",
)  # fmt: skip


def counters(model: m.ModelStatus) -> m.StreamCounters | None:
    """None where nothing is streamed."""
    return model.stats.stream if model.stats else None


def degraded(model: m.ModelStatus) -> bool:
    found = counters(model)
    return found is not None and found.degraded


def summary(model: m.ModelStatus) -> dict[str, Any] | None:
    """For `/health`: without the rows of layers."""
    found = counters(model)
    return None if found is None else {name: getattr(found, name) for name in _SHOWN}


def collect(models: Iterable[m.ModelStatus]) -> Iterable[Metric]:
    rows = [(model.model, found) for model in models if (found := counters(model))]
    for metric, name, text in _COUNTERS:
        counter = CounterMetricFamily(f"swiftlm_stream_{metric}", text, labels=["model"])
        for model, found in rows:
            counter.add_metric([model], float(getattr(found, name)))
        yield counter
    for metric, name, text in _GAUGES:
        gauge = GaugeMetricFamily(f"swiftlm_stream_{metric}", text, labels=["model"])
        for model, found in rows:
            gauge.add_metric([model], float(getattr(found, name)))
        yield gauge
    for name, text in _LAYER_COUNTERS:
        counter = CounterMetricFamily(f"swiftlm_stream_{name}", text, labels=["model", "layer"])
        for model, found in rows:
            for layer, counts in found.layers.items():
                counter.add_metric([model, layer], getattr(counts, name))
        yield counter
