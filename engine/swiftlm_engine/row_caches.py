"""The KV caches of the rows that decode together: merged where their kinds can be, else side by
side.

Row i of every cache is the i-th row that was added and not yet removed.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

Caches = list[Any]  # one mlx-lm cache per layer


class RowCaches:
    """Owned by the thread that evaluates; every method runs there."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._merged: Caches = []  # merged, or one row's own
        self._separate: list[Caches] = []  # one list per row, for caches that cannot be merged
        self._mergeable = True

    @property
    def only(self) -> Caches:
        """Those of a row that is alone."""
        return self._separate[0] if self._separate else self._merged

    def all(self) -> list[Caches]:
        """Per layer the cache of all rows, or a list per row where they cannot be merged."""
        return [self._merged, *self._separate]

    def add(self, caches: Caches) -> None:
        self._mergeable = self._mergeable and all(hasattr(c, "merge") for c in caches)
        if not self._mergeable:
            self._split_up()
            self._separate.append(caches)
        elif not self._num_rows:
            self._merged = caches
        else:
            self._join(caches)
        self._num_rows += 1

    def remove(self, at: int) -> Caches:
        """The row's caches, for single use again."""
        if self._separate:
            caches = self._separate.pop(at)
        elif self._num_rows == 1:
            caches, self._merged = self._merged, []
        else:
            caches = [c.extract(at) for c in self._merged]
            mx.eval([c.state for c in caches if not c.empty()])
            self._keep_rows([i for i in range(self._num_rows) if i != at])
        self._num_rows -= 1
        return caches

    def clear(self) -> None:
        self._num_rows, self._merged, self._separate = 0, [], []

    def forward(self, model: Any, inputs: mx.array) -> mx.array:
        """Logits (B, V) after the inputs (B,); lazy."""
        if not self._separate:
            return model(inputs[:, None], cache=self._merged)[:, -1, :]
        return mx.concatenate(
            [
                model(inputs[i : i + 1, None], cache=caches)[:, -1, :]
                for i, caches in enumerate(self._separate)
            ]
        )

    def _join(self, caches: Caches) -> None:
        if self._num_rows == 1:
            both = zip(self._merged, caches, strict=True)
            self._merged = [type(a).merge([a, b]) for a, b in both]
        else:
            for merged, single in zip(self._merged, caches, strict=True):
                merged.extend(type(single).merge([single]))

    def _keep_rows(self, keep: list[int]) -> None:
        if len(keep) == 1:
            self._merged = [c.extract(keep[0]) for c in self._merged]
        else:
            for cache in self._merged:
                cache.filter(mx.array(keep))
        # Cut the graph: the caches must not keep the removed row's arrays alive.
        mx.eval([c.state for c in self._merged if not c.empty()])

    def _split_up(self) -> None:
        """From merged caches to one list per row; kinds without merge decode one by one."""
        if self._separate or not self._num_rows:
            return
        if self._num_rows == 1:
            self._separate = [self._merged]
        else:
            self._separate = [[c.extract(i) for c in self._merged] for i in range(self._num_rows)]
        self._merged = []
