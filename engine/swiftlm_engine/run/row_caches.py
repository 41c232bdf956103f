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
        self.extend([caches])

    def extend(self, rows: list[Caches]) -> None:
        """Adds several rows for the price of one: joining copies what is there already."""
        self._mergeable = self._mergeable and all(hasattr(c, "merge") for row in rows for c in row)
        if not self._mergeable:
            self._split_up()
            self._separate += rows
        elif self._num_rows + len(rows) == 1:
            self._merged = rows[0]
        else:
            self._join(rows)
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
        if not self._separate:
            return model(inputs[:, None], cache=self._merged)[:, -1, :]
        return mx.concatenate(
            [
                model(inputs[i : i + 1, None], cache=caches)[:, -1, :]
                for i, caches in enumerate(self._separate)
            ]
        )

    def _join(self, rows: list[Caches]) -> None:
        if self._num_rows > 1:
            for merged, *singles in zip(self._merged, *rows, strict=True):
                merged.extend(type(singles[0]).merge(singles))
            return
        alone = [self._merged] if self._num_rows else []
        layers = zip(*alone, *rows, strict=True)
        self._merged = [type(layer[0]).merge(list(layer)) for layer in layers]

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
        """From merged caches to one list per row; kinds without merge decode one by one."""
        if self._separate or not self._num_rows:
            return
        if self._num_rows == 1:
            self._separate = [self._merged]
        else:
            self._separate = [[c.extract(i) for c in self._merged] for i in range(self._num_rows)]
        self._merged = []
