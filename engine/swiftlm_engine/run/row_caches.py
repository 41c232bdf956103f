"""The KV caches of the rows that decode together.

Exact KV is kept row by row (`unpadded_cache.py`), compressed KV is so by itself, recurrent states
have one size: what rows hold is what was priced, and a join copies nothing. Rows that begin with
the same tokens of one buffer share it (`kv/prefixed_cache.py`). mlx-lm's padded caches are left for
two cases, and never for rows of unequal length: the CPU back end, where a batch of operations costs
more than a little padding, and models that compute with the keys they get back. Where the rows of
such a model differ too much, and for kinds that cannot be merged, rows decode one after another.

Row i of every cache is the i-th row that was added and not yet removed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    RotatingKVCache,
)

from swiftlm_engine.brain.kv_extents import Extent, SharedBytes
from swiftlm_engine.kv.draft_rows import DraftRows
from swiftlm_engine.kv.prefixed_cache import PrefixedCache, common_tokens
from swiftlm_engine.kv.shared_cache import STEP_TOKENS, SharedKVCache, Sharing, held_nbytes
from swiftlm_engine.run.unpadded_cache import UnpaddedCache

Caches = list[Any]  # one mlx-lm cache per layer

MAX_PADDING = 1.1  # rows x longest, as a multiple of what the rows hold

log = logging.getLogger(__name__)


class _Handed(Enum):
    """What the model's attention gets in place of arrays."""

    ROWS = "keys row by row"
    PARTS = "keys in parts"
    PREFIX = "keys that rows have in common, and their tails"


class RowCaches:
    """Owned by the thread that evaluates; every method runs there."""

    def __init__(
        self, unpadded: bool = False, prefers_padding: bool = True, alike: bool = False
    ) -> None:
        """`unpadded`: the model's attention is routed, so exact KV may be kept row by row.
        `prefers_padding`: rows of nearly one length are padded even then (the CPU back end).
        `alike`: a lone row goes the way of several, so that its result has the same bits."""
        self._num_rows = 0
        self._merged: Caches = []  # merged, or one row's own
        self._separate: list[Caches] = []  # one list per row, for caches that are not merged
        self._can_unpad = unpadded
        self._prefers_padding = prefers_padding
        self._alike = alike
        self._is_padded = False  # how exact KV of the present rows is merged
        self._common = 0  # first tokens that the present rows share
        self._sharing: Sharing | None = None  # of the rows' caches, where they have it
        self._tried: set[_Handed] = set()

    @property
    def only(self) -> Caches:
        """Those of a row that is alone."""
        return self._separate[0] if self._separate else self._merged

    def all(self) -> list[Caches]:
        """Per layer the cache of all rows, or a list per row where they are not merged."""
        return [self._merged, *self._separate]

    @property
    def nbytes(self) -> int:
        """What rows share counts once."""
        return held_nbytes(cache for caches in self.all() for cache in caches)

    def claims(self) -> list[list[Claim]]:
        """Of each row the bytes that it holds of each extent."""
        if self._separate:
            return [claims_of(caches) for caches in self._separate]
        rows: list[list[Claim]] = [[] for _ in range(self._num_rows)]
        for cache in self._merged:
            for row, claims in zip(rows, _row_claims(cache, self._num_rows), strict=True):
                row += claims
        return rows

    def add(self, caches: Caches) -> None:
        self.extend([caches])

    def extend(self, rows: list[Caches]) -> None:
        """Adds several rows. Padded ones that are there already are copied."""
        for cache in (c for row in rows for c in row if isinstance(c, SharedKVCache)):
            self._sharing, cache.in_parts = cache.sharing, self._takes_parts
        mergeable = all(hasattr(c, "merge") for row in rows for c in row)
        if mergeable and not self._separate and self._choose(rows):
            self._join(rows)
        else:
            self._split_up()
            self._separate += rows
        self._num_rows += len(rows)

    def remove(self, at: int) -> Caches:
        return self.remove_all([at])[0]

    def remove_all(self, ats: list[int]) -> list[Caches]:
        """The rows' caches, for single use again."""
        keep = [i for i in range(self._num_rows) if i not in ats]
        if self._separate:
            removed = [self._separate[at] for at in ats]
            self._separate = [self._separate[i] for i in keep]
        elif self._num_rows == 1:
            removed, self._merged = [self._merged], []
        else:
            removed = [[self._extract(c, at) for c in self._merged] for at in ats]
            mx.eval([c.state for caches in removed for c in caches if not c.empty()])
            self._keep_rows(keep)
        self._num_rows = len(keep)
        return removed

    def clear(self) -> None:
        self._num_rows, self._merged, self._separate = 0, [], []
        self._common = 0

    def forward(self, model: Any, inputs: mx.array) -> mx.array:
        """Logits (B, V) after the inputs (B,); lazy."""
        if self._separate or (self._num_rows == 1 and not self._takes_parts and not self._alike):
            self._gather_lone_rows()
        for handed in self._handed() - self._tried:
            self._try(model, inputs, handed)
        if not self._separate:
            return model(inputs[:, None], cache=self._fed(self._merged))[:, -1, :]
        return mx.concatenate(
            [
                model(inputs[i : i + 1, None], cache=caches)[:, -1, :]
                for i, caches in enumerate(self._separate)
            ]
        )

    def _fed(self, merged: Caches) -> Caches:
        """What the model gets: of a lone row its caches, or rows of which there is one."""
        if self._alike and self._num_rows == 1 and self._can_unpad:
            return [_as_rows(cache) for cache in merged]
        return merged

    @property
    def takes_drafts(self) -> bool:
        """Whether several tokens of each of several rows can go through in one step: exact KV of
        every token, row by row, which the model was seen to take."""
        return (
            self._num_rows > 1
            and not self._separate
            and _Handed.ROWS in self._tried
            and all(
                isinstance(merged, UnpaddedCache)
                and all(isinstance(row, SharedKVCache) for row in merged.rows)
                for merged in self._merged
            )
        )

    def forward_drafts(self, model: Any, inputs: mx.array, counts: list[int]) -> mx.array:
        """Logits (sum of counts, V) after inputs that are so many tokens of each row; lazy. Behind
        it the rows hold all of them: see `take_back`."""
        layers = [DraftRows(list(merged.rows), counts) for merged in self._merged]
        logits: mx.array = model(inputs[:, None], cache=layers)
        return logits[:, -1, :]

    def take_back(self, counts: list[int]) -> None:
        """After `forward_drafts`."""
        for merged in self._merged:
            merged.take_back(counts)

    # -- joining and leaving

    @property
    def _takes_parts(self) -> bool:
        """On the CPU back end plain operations over several buffers are as fast as over one. On a
        GPU they take many times as long; there a kernel reads the buffers of several rows, and a
        lone row is copied into one."""
        return self._can_unpad and self._prefers_padding

    def _gather_lone_rows(self) -> None:
        for caches in self._separate or [self._merged]:
            for cache in caches:
                if isinstance(cache, SharedKVCache):
                    cache.gather()

    def _join(self, rows: list[Caches]) -> None:
        if self._num_rows > 1:
            for merged, *singles in zip(self._merged, *rows, strict=True):
                merged.extend(self._merge(singles))
            return
        present = [self._merged] if self._num_rows else []
        if len(present) + len(rows) == 1:
            self._merged = rows[0]
        else:
            self._merged = [self._merge(list(one)) for one in zip(*present, *rows, strict=True)]

    def _merge(self, layer: list[Any]) -> Any:
        kind = type(layer[0])
        if kind is SharedKVCache and self._common:
            tails = [row.tokens_from(self._common) for row in layer]
            return PrefixedCache(layer[0], self._common, self._merge(tails))
        if UnpaddedCache.holds(kind) and not self._is_padded:
            return UnpaddedCache(layer)
        if kind is CacheList:
            parts = zip(*(row.caches for row in layer), strict=True)
            return CacheList(*(self._merge(list(part)) for part in parts))
        return kind.merge(layer)

    def _keep_rows(self, keep: list[int]) -> None:
        if not keep:
            self._merged = []
        elif len(keep) == 1:
            self._merged = [self._extract(c, keep[0]) for c in self._merged]
        else:
            for cache in self._merged:
                cache.filter(mx.array(keep))
        # Cut the graph: the caches must not keep the removed row's arrays alive.
        mx.eval([c.state for c in self._merged if not c.empty()])

    def _extract(self, merged: Any, at: int) -> Any:
        if isinstance(merged, BatchKVCache) and merged.empty():
            row = KVCache()
        else:
            row = merged.extract(at)
        if type(row) is KVCache and self._sharing is not None:
            row = SharedKVCache.of(row, self._sharing)
        if isinstance(row, SharedKVCache):
            row.in_parts = self._takes_parts
        return row

    def _split_up(self) -> None:
        """From merged caches to one list per row, which decode one by one."""
        if not self._separate and self._num_rows:
            self._separate, self._merged, self._common = self._parted(), [], 0

    def _parted(self) -> list[Caches]:
        if self._separate:
            return self._separate
        if self._num_rows == 1:
            return [self._merged]
        rows = [[self._extract(c, i) for c in self._merged] for i in range(self._num_rows)]
        mx.eval([c.state for row in rows for c in row if not c.empty()])
        return rows

    # -- how rows are merged

    def _choose(self, rows: list[Caches]) -> bool:
        """How exact KV is merged from here on; False where the rows cannot be merged so."""
        common = self._common_with(rows) if self._takes_parts else 0
        sizes = self._sizes_with(rows, common)
        if sizes.prefixed > MAX_PADDING * sizes.held:
            common, sizes.common = 0, 0.0  # they share more than their first tokens
        fits = sizes.fit_padded
        pads = self._prefers_padding and not self._alike  # a mask changes a row's last bits
        padded = fits and pads if self._can_unpad else True
        if self._num_rows <= 1:
            self._common, self._is_padded = common, padded
        elif common != self._common or (self._is_padded and not padded):
            parted, self._merged, self._num_rows = self._parted(), [], 0
            self._common, self._is_padded = common, padded
            self._join(parted)
            self._num_rows = len(parted)
        return fits or self._can_unpad

    def _common_with(self, rows: list[Caches]) -> int:
        """First tokens that these and the present rows hold in the same buffers."""
        if self._num_rows + len(rows) < 2:
            return 0
        layers: Iterable[tuple[list[Any], list[Any]]] = (
            (_singles(merged), new)
            for merged, *new in zip(self._merged or [None] * len(rows[0]), *rows, strict=True)
        )
        shared = [
            common_tokens([*present, *new])
            for present, new in layers
            if isinstance(new[0], SharedKVCache)
        ]
        return min(shared, default=0)

    def _sizes_with(self, rows: list[Caches], common: int) -> _RowSizes:
        sizes = _RowSizes([0.0] * self._num_rows)
        for cache in self._merged if self._num_rows else ():
            sizes.add_layer(_sizes(cache, self._num_rows, common))
        for row in rows:
            one = _RowSizes([0.0])
            for cache in row:
                one.add_layer(_sizes(cache, 1, common))
            sizes = _beside([sizes, one])
        return sizes

    # -- whether a model can do without arrays

    def _handed(self) -> set[_Handed]:
        if self._separate or not self._can_unpad:
            return set()
        if self._num_rows > 1 and self._common:
            return {_Handed.PREFIX}
        rows = [c for merged in self._merged for c in _singles(merged)]
        shared = (c for c in rows if isinstance(c, SharedKVCache) and c.in_parts)
        parts = {_Handed.PARTS} if any(len(c.table.holds) > 1 for c in shared) else set()
        unpadded = self._alike or (self._num_rows > 1 and not self._is_padded)
        return parts | ({_Handed.ROWS} if unpadded else set())

    def _try(self, model: Any, inputs: mx.array, handed: _Handed) -> None:
        """Builds one step on copies, which nobody computes; where it fails, rows are padded."""
        self._tried.add(handed)
        if not self._can_unpad:
            return
        if self._sharing is not None and handed is not _Handed.ROWS:
            self._sharing.takes_parts = True
        try:
            model(inputs[:, None], cache=self._fed(copy.deepcopy(self._merged)))
        except Exception as error:  # whatever a model does with what it does not know
            log.debug("%s not taken", handed.value, exc_info=error)
            log.info("this model's rows are padded to the longest of a batch")
            self._go_without()

    def _go_without(self) -> None:
        rows = self._parted()
        self._can_unpad = False
        if self._sharing is not None:
            self._sharing.switch_off()
        for cache in (c for row in rows for c in row if isinstance(c, SharedKVCache)):
            cache.gather()
        self.clear()
        self.extend(rows)


def _as_rows(lone: Any) -> Any:
    kind = type(lone)
    if kind is CacheList:
        return CacheList(*map(_as_rows, lone.caches))
    return UnpaddedCache([lone]) if UnpaddedCache.holds(kind) and not lone.empty() else lone


Claim = tuple[Extent[Any], int]


@dataclass(slots=True)
class _RowSizes:
    """Bytes of exact KV by row; `claims` are those in extents, of which rows share some.

    `spare` is what each row's buffer has room for beyond them: it grows by whole steps, and is
    priced so.
    """

    rows: list[float]
    claims: list[Claim] = field(default_factory=list)
    common: float = 0.0  # of the first tokens that all rows have
    spare: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spare = self.spare or [0.0] * len(self.rows)

    def add_layer(self, layer: _RowSizes) -> None:
        self.rows = [a + b for a, b in zip(self.rows, layer.rows, strict=True)]
        self.spare = [a + b for a, b in zip(self.spare, layer.spare, strict=True)]
        self.claims += layer.claims
        self.common += layer.common

    @property
    def held(self) -> float:
        """What rows share counts once."""
        shared = SharedBytes()
        for extent, nbytes in self.claims:
            shared.add(extent, nbytes)
        return sum(self.rows) - shared.surplus

    @property
    def prefixed(self) -> float:
        """Where the common tokens are shared, and nothing else is."""
        return sum(self.rows) - self.common * (len(self.rows) - 1)

    @property
    def fit_padded(self) -> bool:
        """Whether rows padded behind the common tokens take little more than what they hold, by
        their tokens or by the steps in which their buffers grow: short rows of any length."""
        stepped = [size + spare for size, spare in zip(self.rows, self.spare, strict=True)]
        in_steps = self.held + sum(self.spare)
        by_tokens = self._padded(self.rows) <= MAX_PADDING * self.held
        return by_tokens or self._padded(stepped) <= MAX_PADDING * in_steps

    def _padded(self, rows: list[float]) -> float:
        return self.common + (max(rows) - self.common) * len(rows)


_PADDED_KINDS = (KVCache, RotatingKVCache, BatchKVCache, BatchRotatingKVCache)


def _sizes(cache: Any, num_rows: int, common: int) -> _RowSizes:
    """Of one layer: what mlx-lm would pad, or has padded. `common`: tokens that rows share."""
    if isinstance(cache, SharedKVCache):
        claims = cache.held_bytes()
        size = sum(nbytes for _, nbytes in claims)
        token = size / (cache.offset or 1)
        return _RowSizes([size], claims, token * common, [token * cache.spare_tokens])
    if isinstance(cache, UnpaddedCache):
        return _beside([_sizes(row, 1, common) for row in cache.rows])
    if isinstance(cache, PrefixedCache):
        shared, tails = _sizes(cache.common, 1, common), _sizes(cache.tails, num_rows, 0)
        rows = [shared.rows[0] + tail for tail in tails.rows]
        return _RowSizes(rows, shared.claims * num_rows, shared.common, tails.spare)
    if isinstance(cache, CacheList):
        total = _RowSizes([0.0] * num_rows)
        for part in cache.caches:
            total.add_layer(_sizes(part, num_rows, 0))
        return total
    if not isinstance(cache, _PADDED_KINDS) or cache.empty():
        return _RowSizes([0.0] * num_rows)
    one = cache.nbytes / num_rows
    capacity = cache.keys.shape[2]
    spare = one * (-capacity % STEP_TOKENS) / capacity
    return _RowSizes([one] * num_rows, spare=[spare] * num_rows)


def claims_of(lone: Iterable[Any]) -> list[Claim]:
    """Of the caches of one sequence."""
    return [claim for cache in lone for claim in _row_claims(cache, 1)[0]]


def _row_claims(cache: Any, num_rows: int) -> list[list[Claim]]:
    if isinstance(cache, UnpaddedCache):
        return [claims_of([row]) for row in cache.rows]
    if isinstance(cache, PrefixedCache):
        return [cache.common.held_bytes()] * num_rows
    if isinstance(cache, CacheList):
        parts = [_row_claims(part, num_rows) for part in cache.caches]
        return [[claim for part in row for claim in part] for row in zip(*parts, strict=True)]
    return [cache.held_bytes()] if isinstance(cache, SharedKVCache) else [[]] * num_rows


def _beside(sizes: list[_RowSizes]) -> _RowSizes:
    """Those of all rows together."""
    rows = [size for one in sizes for size in one.rows]
    spare = [size for one in sizes for size in one.spare]
    claims = [claim for one in sizes for claim in one.claims]
    return _RowSizes(rows, claims, max((one.common for one in sizes), default=0.0), spare)


def _singles(merged: Any) -> list[Any]:
    """The rows of one layer as far as they hold extents of their own."""
    if isinstance(merged, UnpaddedCache):
        return list(merged.rows)
    if isinstance(merged, PrefixedCache):
        return [merged.common]
    return [] if merged is None else [merged]
