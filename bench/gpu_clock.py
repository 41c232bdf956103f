"""What the GPU benchmarks share: a report, a clock for device time, storage with random codes."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx

from swiftlm_engine.turboquant.backend import Backend
from swiftlm_engine.turboquant.codec import Pages, codec
from swiftlm_engine.turboquant.formats import K4V3, num_pages
from swiftlm_engine.turboquant.sequence import SequenceKV

Graph = Callable[[], mx.array]


@dataclass
class Report:
    device: str
    mlx: str
    rows: list[dict[str, object]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def row(self, part: str, what: str, value: float, unit: str, target: str = "") -> None:
        row = {"part": part, "what": what, "value": value, "unit": unit, "note": target}
        self.rows.append(row)
        print(f"{part:8s} {what:44s} {value:10.4g} {unit:8s} {target}", flush=True)

    def in_turns(
        self, part: str, names: tuple[str, str], pairs: list[tuple[float, float]], target: float
    ) -> None:
        """Medians of (peer, ours) pairs measured in turns, and of their ratios."""
        ratios = sorted(exact / turbo for exact, turbo in pairs)
        for name, times in zip(names, zip(*pairs, strict=True), strict=True):
            spread = f"{min(times):.1f}..{max(times):.1f}"
            self.row(part, name, statistics.median(times), "us", spread)
        spread = f"{ratios[0]:.2f}..{ratios[-1]:.2f}, target {target}"
        self.row(part, f"{names[1]}, ratio", statistics.median(ratios), "x", spread)


class Clock:
    """Device time of a graph: wall time behind about 20 ms of queued work, minus that work."""

    def __init__(self) -> None:
        self._ballast = mx.random.normal((1 << 29,)).astype(mx.float16)
        mx.eval(self._ballast)

    def device_us(self, graph: Graph, repeats: int = 7) -> float:
        mx.eval(graph())
        mx.eval(graph())
        return self._behind(graph, repeats) - self._behind(None, repeats)

    def _behind(self, graph: Graph | None, repeats: int) -> float:
        walls = []
        for _ in range(repeats):
            queued = self._ballast
            for _ in range(24):
                queued = queued + 1
            mx.synchronize()
            start = time.perf_counter()
            mx.async_eval(queued)
            mx.eval([] if graph is None else [graph()])  # prefill starts work while it builds
            mx.synchronize()
            walls.append((time.perf_counter() - start) * 1e6)
        return statistics.median(walls)


def random_kv(heads: int, dim: int, length: int, backend: Backend) -> SequenceKV:
    """Storage of `length` tokens with random codes: times do not depend on the codes."""
    order = backend.key_order(K4V3, dim)
    kv = SequenceKV(codec(K4V3, dim, order))
    kv.num_pages = num_pages(length)
    kv.num_exact = length - kv.num_pages * 64
    pages = kv.num_pages
    kv.pages = Pages(
        random_words(heads, pages, dim // 8, 64),
        mx.random.uniform(0.5, 1.5, (heads, pages, 1, 64)).astype(mx.float16),
        random_words(heads, pages, 8, 3 * dim // 4),
        mx.random.uniform(0.5, 1.5, (heads, pages, 64)).astype(mx.float16),
    )
    kv.means = mx.random.normal((heads, kv.num_segments, dim)).astype(mx.float16) * 0.1
    kv.equaliser = mx.random.uniform(0.7, 1.4, (heads, dim)).astype(mx.float16)
    kv.zone = exact_zone(heads, 144, dim)
    mx.eval(kv.arrays())
    return kv


def exact_zone(heads: int, tokens: int, dim: int) -> mx.array:
    return mx.random.normal((2, heads, tokens, dim)).astype(mx.float16)


def random_words(*shape: int) -> mx.array:
    high = mx.random.randint(0, 1 << 16, shape).astype(mx.uint32) << 16
    return high | mx.random.randint(0, 1 << 16, shape).astype(mx.uint32)
