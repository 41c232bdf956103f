"""Whether a row's result depends on the rows beside it: decided, and tried, once per load.

`engine.exact`: `on` computes a lone row the way it computes several, whatever that costs; `auto`
does so unless a lone row's step takes more than a quarter longer; `off` computes each width in the
fastest way known. What is in force is not what was asked but what the test below found.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from swiftlm_engine.linear import install
from swiftlm_engine.linear.products import RowByRow, row_products
from swiftlm_engine.run.row_caches import Caches, RowCaches

WIDTHS = (2, 4, 8)
MAX_COST = 1.25  # of a lone row's step, for `auto`
_STEPS, _ROUNDS = 8, 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Exactness:
    """`alike`: rows go one way at every width. `note`: what the test found, for `status`."""

    alike: bool = False
    note: str = ""


def settle(
    model: Any,
    make_caches: Callable[[], Caches],
    asked: str,
    vocab_size: int,
    dtype: mx.Dtype,
    max_rows: int,
) -> Exactness:
    """Installs the row products where the GPU has them. Evaluates, on the MLX thread.

    A model that this cannot be tried on is served as MLX computes it.
    """
    try:
        return _settled(model, make_caches, asked, vocab_size, dtype, max_rows)
    except Exception as error:  # whatever a model does with caches that it did not make
        log.warning("rows are computed as MLX does: exactness cannot be tried", exc_info=error)
        install.remove(model)
        return Exactness(note=f"rows: not exact, since the test failed: {error}")


def _settled(
    model: Any,
    make_caches: Callable[[], Caches],
    asked: str,
    vocab_size: int,
    dtype: mx.Dtype,
    max_rows: int,
) -> Exactness:
    kernels = row_products()
    if kernels is None:
        return _without(model, make_caches, asked, vocab_size)
    plain_ms = _lone_ms(model, make_caches, alike=False)
    num_layers = install.install(model, kernels)
    if not num_layers:
        return Exactness(note="rows: no layer of this model has a row product")
    install.warm(model, dtype, max_rows)
    if asked == "off":
        install.keep_faster(model, dtype)
        return Exactness(note="rows: may depend on their neighbours in the last bits (exact off)")
    cost = _lone_ms(model, make_caches, alike=True) / plain_ms
    if asked != "on" and cost > MAX_COST:
        install.keep_faster(model, dtype)
        note = f"rows: not exact, which would cost a lone row {cost:.2f} x (exact on forces it)"
        return Exactness(note=note)
    differing = differing_widths(model, make_caches, vocab_size, alike=True)
    log.info("exact rows in %d layers at %.2f x of a lone step", num_layers, cost)
    return Exactness(True, _found(differing))


def _without(
    model: Any, make_caches: Callable[[], Caches], asked: str, vocab_size: int
) -> Exactness:
    """A back end without our kernels: who asks gets each row by itself, which costs its width."""
    if asked != "on":
        return Exactness()
    install.install(model, RowByRow())
    note = _found(differing_widths(model, make_caches, vocab_size, alike=True))
    return Exactness(True, f"{note}; weights are read once for each row")


def _found(differing: list[int]) -> str:
    if not differing:
        return f"rows: the same bits at widths 1, {', '.join(map(str, WIDTHS))} (tested at load)"
    return f"rows: not exact at width {', '.join(map(str, differing))} (tested at load)"


def differing_widths(
    model: Any, make_caches: Callable[[], Caches], vocab_size: int, alike: bool
) -> list[int]:
    """Of `WIDTHS` those at which some row's logits are not those of the row alone, bit by bit."""
    rows = [_prefilled(model, make_caches, row, vocab_size) for row in range(max(WIDTHS))]
    inputs = mx.arange(len(rows)) % vocab_size
    alone = [_logits(model, [row], inputs[i : i + 1], alike) for i, row in enumerate(rows)]
    differing = []
    for width in WIDTHS:
        together = _logits(model, rows[:width], inputs[:width], alike)
        if not mx.array_equal(together, mx.concatenate(alone[:width])):
            differing.append(width)
    return differing


def _prefilled(model: Any, make_caches: Callable[[], Caches], row: int, vocab_size: int) -> Caches:
    """Token by token: a pass over several would compile kernels that the test does not need."""
    caches = make_caches()
    for token in range(2 + 3 * row):
        model(mx.array([[(token * (3 + row) + row) % vocab_size]]), cache=caches)
        mx.eval([cache.state for cache in caches])
    return caches


def _batch(rows: list[Caches], alike: bool) -> RowCaches:
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    batch = RowCaches(unpadded=True, prefers_padding=on_cpu, alike=alike)
    batch.extend([copy.deepcopy(row) for row in rows])
    return batch


def _logits(model: Any, rows: list[Caches], inputs: mx.array, alike: bool) -> mx.array:
    found = _batch(rows, alike).forward(model, inputs)
    mx.eval(found)
    return found


def _lone_ms(model: Any, make_caches: Callable[[], Caches], alike: bool) -> float:
    """Of a decode step, the best of a few rounds."""
    caches = make_caches()
    model(mx.array([[1]]), cache=caches)
    best, batch, inputs = float("inf"), _batch([caches], alike), mx.array([1])
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for _ in range(_STEPS):
            inputs = mx.argmax(batch.forward(model, inputs), axis=-1)
        mx.eval(inputs)
        best = min(best, (time.perf_counter() - started) / _STEPS * 1e3)
    return best
