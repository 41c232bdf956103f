"""The KV caches of the rows that decode together.

Exact KV is kept row by row (`unpadded_cache.py`), compressed KV is so by itself, recurrent states
have one size: what rows hold is what was priced, and a join copies nothing. mlx-lm's padded caches
are left for two cases, and never for rows of unequal length: the CPU back end, where a batch of
operations costs more than a little padding, and models that compute with the keys they get back.
Where the rows of such a model differ too much, and for kinds that cannot be merged, rows decode
one after another.

Row i of every cache is the i-th row that was added and not yet removed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    RotatingKVCache,
)

from swiftlm_engine.run.unpadded_cache import UnpaddedCache

Caches = list[Any]  # one mlx-lm cache per layer

MAX_PADDING = 1.1  # rows x longest, as a multiple of what the rows hold

log = logging.getLogger(__name__)


class RowCaches:
    """Owned by the thread that evaluates; every method runs there."""

    def __init__(self, unpadded: bool = False, prefers_padding: bool = True) -> None:
        """`unpadded`: the model's attention is routed, so exact KV may be kept row by row.
        `prefers_padding`: rows of nearly one length are padded even then."""
        self._num_rows = 0
        self._merged: Caches = []  # merged, or one row's own
        self._separate: list[Caches] = []  # one list per row, for caches that are not merged
        self._can_unpad = unpadded
        self._prefers_padding = prefers_padding
        self._is_padded = False  # how exact KV of the present rows is merged
        self._is_tried = False

    @property
    def only(self) -> Caches:
        """Those of a row that is alone."""
        return self._separate[0] if self._separate else self._merged

    def all(self) -> list[Caches]:
        """Per layer the cache of all rows, or a list per row where they are not merged."""
        return [self._merged, *self._separate]

    def add(self, caches: Caches) -> None:
        self.extend([caches])

    def extend(self, rows: list[Caches]) -> None:
        """Adds several rows. Padded ones that are there already are copied."""
        mergeable = all(hasattr(c, "merge") for row in rows for c in row)
        if mergeable and not self._separate and self._choose_padding(rows):
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
            removed = [[c.extract(at) for c in self._merged] for at in ats]
            mx.eval([c.state for caches in removed for c in caches if not c.empty()])
            self._keep_rows(keep)
        self._num_rows = len(keep)
        return removed

    def clear(self) -> None:
        self._num_rows, self._merged, self._separate = 0, [], []

    def forward(self, model: Any, inputs: mx.array) -> mx.array:
        """Logits (B, V) after the inputs (B,); lazy."""
        if self._num_rows > 1 and not (self._is_padded or self._separate):
            self._try(model, inputs)
        if not self._separate:
            return model(inputs[:, None], cache=self._merged)[:, -1, :]
        return mx.concatenate(
            [
                model(inputs[i : i + 1, None], cache=caches)[:, -1, :]
                for i, caches in enumerate(self._separate)
            ]
        )

    # -- joining and leaving

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
            self._merged = [c.extract(keep[0]) for c in self._merged]
        else:
            for cache in self._merged:
                cache.filter(mx.array(keep))
        # Cut the graph: the caches must not keep the removed row's arrays alive.
        mx.eval([c.state for c in self._merged if not c.empty()])

    def _split_up(self) -> None:
        """From merged caches to one list per row, which decode one by one."""
        if not self._separate and self._num_rows:
            self._separate, self._merged = self._parted(), []

    def _parted(self) -> list[Caches]:
        if self._num_rows == 1:
            return [self._merged]
        rows = [[c.extract(i) for c in self._merged] for i in range(self._num_rows)]
        mx.eval([c.state for row in rows for c in row if not c.empty()])
        return rows

    # -- padded or not

    def _choose_padding(self, rows: list[Caches]) -> bool:
        """How exact KV is merged from here on; False where the rows cannot be merged so."""
        fits = self._padding_fits(rows)
        padded = fits and self._prefers_padding if self._can_unpad else True
        if self._num_rows <= 1:
            self._is_padded = padded
        elif self._is_padded and not padded:
            self._is_padded = False
            parted, self._merged, self._num_rows = self._parted(), [], 0
            self._join(parted)
            self._num_rows = len(parted)
        return fits or self._can_unpad

    def _padding_fits(self, rows: list[Caches]) -> bool:
        present = _padded_nbytes(self._merged)
        held = [present / self._num_rows] * self._num_rows if self._num_rows else []
        held += [_padded_nbytes(row) for row in rows]
        return max(held) * len(held) <= MAX_PADDING * sum(held)

    # -- whether a model can do without padding

    def _try(self, model: Any, inputs: mx.array) -> None:
        """Builds one step on copies, which nobody computes; where it fails, rows are padded."""
        if self._is_tried:
            return
        self._is_tried = True
        try:
            model(inputs[:, None], cache=copy.deepcopy(self._merged))
        except Exception as error:  # whatever a model does with what it does not know
            log.debug("no rows without padding", exc_info=error)
            log.info("this model's rows are padded to the longest of a batch")
            rows = self._parted()
            self._can_unpad = False
            self.clear()
            self.extend(rows)


_PADDED_KINDS = (KVCache, RotatingKVCache, BatchKVCache, BatchRotatingKVCache, UnpaddedCache)


def _padded_nbytes(caches: Sequence[Any]) -> float:
    """What mlx-lm would pad, or has padded, of these."""
    lists = sum(_padded_nbytes(c.caches) for c in caches if isinstance(c, CacheList))
    return lists + sum(c.nbytes for c in caches if isinstance(c, _PADDED_KINDS))
