"""What streaming did, counted at the one place that reads, and whether the numbers agree.

The reader alone adds reads and bytes; layers alone add hits, misses and what was read ahead. They
meet in `problems()`: a counter that was forgotten somewhere shows there as a contradiction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class LayerCounters:
    record_bytes: int
    calls: int = 0
    tokens: int = 0
    wanted: int = 0  # distinct experts, summed over calls
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    sweeps: int = 0
    swept: int = 0  # misses that a sweep read through the banks
    ahead: int = 0  # records read before they were asked for; what is used of them is a hit
    ahead_used: int = 0


@dataclass(slots=True)
class StreamCounters:
    layers: dict[str, LayerCounters] = field(default_factory=dict)
    reads: int = 0
    bytes: int = 0
    failed_bytes: int = 0  # of `bytes`, those of reads that then failed
    read_errors: int = 0
    read_wall_s: float = 0.0
    read_busy_s: float = 0.0  # summed over threads
    syncs: int = 0
    sync_s: float = 0.0

    def problems(self) -> list[str]:
        """Contradictions; empty when the counters can be believed. Between steps only."""
        found = []
        expected = self.failed_bytes
        for path, layer in self.layers.items():
            expected += (layer.misses + layer.ahead) * layer.record_bytes
            if layer.hits + layer.misses != layer.wanted:
                found.append(
                    f"{path}: {layer.hits} hits + {layer.misses} misses, {layer.wanted} wanted"
                )
            if layer.tokens and not (layer.misses or layer.ahead):
                found.append(f"{path}: {layer.tokens} tokens from cold slots without a read")
        # A step that fails asks for some layers only, and every fault ends one step at most.
        steps = max((layer.calls for layer in self.layers.values()), default=0) - self.read_errors
        for path, layer in self.layers.items():
            if steps > 0 and not layer.calls:
                found.append(f"{path}: never asked for in {steps} steps of the layers beside it")
        if expected != self.bytes:
            found.append(f"{self.bytes} bytes read, misses say {expected}")
        return found

    def to_json(self) -> dict[str, Any]:  # plain JSON
        layers = self.layers.values()
        hits, misses = sum(c.hits for c in layers), sum(c.misses for c in layers)
        problems = self.problems()
        return {
            "reads": self.reads,
            "bytes": self.bytes,
            "failed_bytes": self.failed_bytes,
            "read_errors": self.read_errors,
            "read_wall_s": round(self.read_wall_s, 6),
            "read_busy_s": round(self.read_busy_s, 6),
            "gb_per_s": round(self.bytes / self.read_wall_s / 1e9, 3) if self.read_wall_s else 0.0,
            "syncs": self.syncs,
            "sync_s": round(self.sync_s, 6),
            "hits": hits,
            "misses": misses,
            "hit_rate": round(hits / (hits + misses), 4) if hits + misses else 0.0,
            "evictions": sum(c.evictions for c in layers),
            "sweeps": sum(c.sweeps for c in layers),
            "sweep_bytes": sum(c.swept * c.record_bytes for c in layers),
            "prefetched": sum(c.ahead for c in layers),
            "prefetch_used": sum(c.ahead_used for c in layers),
            "prefetch_wasted": sum(c.ahead - c.ahead_used for c in layers),
            "degraded": bool(problems),
            "problems": problems,
            "layers": {
                path: {"hits": c.hits, "misses": c.misses, "evictions": c.evictions}
                for path, c in self.layers.items()
            },
        }
