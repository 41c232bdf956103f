"""A backend under test: whatever it computes and holds is compared with plain arithmetic.

Three questions, of the calls that are judged, each with its own answer: how far attention is from
that over exact KV (what the format costs), how far it is from plain attention over the very same
compressed storage (what the kernels get wrong), and whether the storage still is what was taken in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx

from swiftlm_engine.turboquant.attention import plain_attention
from swiftlm_engine.turboquant.backend import Backend
from swiftlm_engine.turboquant.codec import Pages
from swiftlm_engine.turboquant.formats import PAGE_TOKENS, SINK_TOKENS
from swiftlm_engine.turboquant.sequence import MAX_FRESH, SequenceKV

# Of one page in one head, relative to its tokens: three bits are at 0.2, a lost page is at 1.
_TORN = 0.8
# Attention of one head in one call may be off by this. The kernels keep their tables in 16 bits;
# those of a prompt expand keys in the model's own type, where rounding may cost a sharp head more.
_SINGLES = 4  # one of so many decoded tokens is judged
_OFF_FLOAT32, _OFF_DECODING, _OFF_PROMPT = 0.005, 0.03, 0.1


@dataclass(slots=True, eq=False)
class _ProbedLayer:
    """Sums over all calls of one layer, lazy."""

    missed: mx.array = field(default_factory=lambda: mx.array(0.0))
    size: mx.array = field(default_factory=lambda: mx.array(0.0))
    worst_path: mx.array = field(default_factory=lambda: mx.array(0.0))
    worst_page: mx.array = field(default_factory=lambda: mx.array(0.0))
    zone_differs: mx.array = field(default_factory=lambda: mx.array(False))
    lost_count: bool = False  # its number of tokens is not what it was fed
    judged: bool = True

    def arrays(self) -> list[mx.array]:
        return [self.missed, self.size, self.worst_path, self.worst_page, self.zone_differs]

    def format_error(self) -> float:
        """Zero where nothing was judged."""
        if not self.judged:
            return 0.0
        return float(mx.sqrt(self.missed / self.size).item())

    def path_error(self) -> float:
        """As a share of what is allowed; infinite where the storage is damaged, or for what is not
        a number."""
        page = float(self.worst_page.item())
        if self.lost_count or self.zone_differs.item() or not page <= _TORN:
            return math.inf
        path = float(self.worst_path.item())
        return path if math.isfinite(path) else math.inf


@dataclass(slots=True, eq=False)
class _Followed:
    """One storage, all tokens that it was fed, and the layer that it belongs to."""

    kv: SequenceKV  # held, so that no other object gets its id
    layer: _ProbedLayer
    keys: mx.array | None = None  # (H, N, d)
    values: mx.array | None = None
    skipped: int = 0  # decoded tokens since the last judged call
    judged_pages: int = -1  # pages that it had then

    def take(self, count: int) -> None:
        """The newest tokens, without a look at the exact zone: a kernel may be the one to write
        them there. What was trimmed is dropped first."""
        kv = self.kv
        if kv.fresh is not None:
            keys, values = (x.reshape(x.shape[-3:])[:, -count:] for x in kv.fresh)
        else:
            newest = slice(kv.num_exact - count, kv.num_exact)
            keys, values = kv.zone[0][:, newest], kv.zone[1][:, newest]
        before = kv.num_tokens - count
        if self.keys is None or self.values is None:
            self.keys, self.values = keys, values
            self.layer.lost_count |= before != 0
        else:
            self.layer.lost_count |= before > self.keys.shape[1]
            if before < self.keys.shape[1]:  # some were taken back
                self.judged_pages = -1
            self.keys = mx.concatenate([self.keys[:, :before], keys], axis=1)
            self.values = mx.concatenate([self.values[:, :before], values], axis=1)

    def judge(self, queries: mx.array, out: mx.array, scale: float) -> None:
        layer, kv = self.layer, self.kv
        if layer.lost_count or self.keys is None or self.values is None:
            return
        if not layer.judged or not self._is_due(queries.shape[-2]):
            return
        held = _expanded(kv)
        exact = plain_attention(queries, self.keys, self.values, scale).astype(mx.float32)
        plain = plain_attention(queries.astype(mx.float32), *held, scale)
        got = out.astype(mx.float32)
        layer.missed = layer.missed + mx.sum((got - exact) ** 2)
        layer.size = layer.size + mx.sum(exact * exact)
        off = mx.max(_relative(got, plain)) / _allowed(queries)
        layer.worst_path = mx.maximum(layer.worst_path, off)
        stop = SINK_TOKENS + kv.num_pages * PAGE_TOKENS if kv.num_pages else 0
        for mine, theirs in zip((self.keys, self.values), held, strict=True):
            zone = _differs(mine[:, stop:], theirs[:, stop:])
            zone = mx.logical_or(zone, _differs(mine[:, :SINK_TOKENS], theirs[:, :SINK_TOKENS]))
            layer.zone_differs = mx.logical_or(layer.zone_differs, zone)
            if kv.num_pages:
                pages = _pages(mine[:, SINK_TOKENS:stop]), _pages(theirs[:, SINK_TOKENS:stop])
                layer.worst_page = mx.maximum(layer.worst_page, mx.max(_relative(*pages[::-1])))

    def _is_due(self, count: int) -> bool:
        """Every call but most of the single tokens, which differ from one another by little: the
        first ones behind a flush and behind a draft that was taken back, and one of a few."""
        self.skipped += 1
        if count == 1 and self.kv.num_pages == self.judged_pages and self.skipped < _SINGLES:
            return False
        self.skipped, self.judged_pages = 0, self.kv.num_pages
        return True


class Probe:
    """`inner` with a judge behind every call. Follows each storage from its first token on."""

    def __init__(self, inner: Backend, judged: Callable[[int], bool] = lambda layer: True) -> None:
        """`judged`: whether the compressed layer with this number is."""
        self._is_judged = judged
        self.key_order = inner.key_order
        self._inner = inner
        self._layers: list[_ProbedLayer] = []
        self._followed: dict[int, _Followed] = {}

    def encode(self, kv: SequenceKV, count: int) -> Pages:
        return self._inner.encode(kv, count)

    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        followed = self._followed.get(id(kv)) or self._new(kv)
        followed.take(queries.shape[-2])
        out = self._inner.attend(kv, queries, scale)
        followed.judge(queries, out, scale)
        return out

    def follow_fork(self, fork: SequenceKV, origin: SequenceKV) -> None:
        """`fork` holds what `origin` holds now."""
        known = self._followed[id(origin)]
        self._followed[id(fork)] = _Followed(fork, known.layer, known.keys, known.values)

    def expect(self, kv: SequenceKV, num_tokens: int) -> None:
        """Says how many tokens it must hold now."""
        self._followed[id(kv)].layer.lost_count |= kv.num_tokens != num_tokens

    def pending(self) -> list[mx.array]:
        return [array for layer in self._layers for array in layer.arrays()]

    def format_errors(self) -> list[float]:
        """Per layer in the order of the first call: that is the order of the layers."""
        return [layer.format_error() for layer in self._layers]

    def path_errors(self) -> list[float]:
        """The same, of what the format cannot be blamed for."""
        return [layer.path_error() for layer in self._layers]

    def _new(self, kv: SequenceKV) -> _Followed:
        layer = _ProbedLayer(judged=self._is_judged(len(self._layers)))
        self._layers.append(layer)
        found = self._followed[id(kv)] = _Followed(kv, layer)
        return found


def _allowed(queries: mx.array) -> float:
    if queries.dtype == mx.float32:
        return _OFF_FLOAT32
    return _OFF_DECODING if queries.shape[-2] <= MAX_FRESH else _OFF_PROMPT


def _expanded(kv: SequenceKV) -> tuple[mx.array, mx.array]:
    """All that it holds, as (H, N, d) float32: keys with a large mean need the bits."""
    zone = kv.settled()[:, :, : kv.num_exact].astype(mx.float32)
    if not kv.num_pages:
        return zone[0], zone[1]
    keys, values = (
        mx.concatenate([exact[:, :SINK_TOKENS], pages, exact[:, SINK_TOKENS:]], axis=1)
        for exact, pages in zip(zone, kv.expand(), strict=True)
    )
    return keys, values


def _relative(got: mx.array, wanted: mx.array) -> mx.array:
    """Per head (and page), over what is left of (..., T, d)."""
    missed = mx.sum((got.astype(mx.float32) - wanted.astype(mx.float32)) ** 2, axis=(-2, -1))
    size = mx.sum(wanted.astype(mx.float32) ** 2, axis=(-2, -1))
    return mx.sqrt(missed / (size + 1e-20))


def _differs(mine: mx.array, theirs: mx.array) -> mx.array:
    if mine.shape != theirs.shape:
        return mx.array(True)
    return mx.any(mine != theirs)


def _pages(tokens: mx.array) -> mx.array:
    """(H, pages * 64, d) -> (H, pages, 64, d)."""
    heads, count, dim = tokens.shape
    return tokens.reshape(heads, count // PAGE_TOKENS, PAGE_TOKENS, dim)
