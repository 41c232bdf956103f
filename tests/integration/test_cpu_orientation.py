"""Products of one row: whatever orientation is chosen, every bit is that of the usual product."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest

from swiftlm_engine.expansion import orientation
from swiftlm_engine.expansion.blas import BlasSpeed, measure
from swiftlm_engine.expansion.orientation import orient, some_rows

pytestmark = pytest.mark.usefixtures("on_the_cpu")

SHAPES = ((576, 576), (192, 576), (1536, 576), (576, 1536), (33, 70), (2048, 64))


class Model(nn.Module):
    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.layers = [nn.Linear(columns, rows, bias=bias) for rows, columns in SHAPES]
        self.embed_tokens = nn.Embedding(512, 96)

    def products(self, rows: int) -> list[mx.array]:
        found = [layer(some_rows(rows, layer.weight.shape[-1])[None]) for layer in self.layers]
        return [*found, self.embed_tokens.as_linear(some_rows(rows, 96)[None])]


def same(left: list[mx.array], right: list[mx.array]) -> bool:
    return all(mx.array_equal(a, b).item() for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("bias", [False, True])
def test_no_bit_changes_whatever_is_chosen(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orientation, "_MUCH_FASTER", float("inf"))  # whatever is exact may be taken
    model = Model(bias=bias)
    before = {rows: model.products(rows) for rows in (1, 2, 5)}
    orient(model)
    for rows, expected in before.items():
        assert same(model.products(rows), expected)


def test_the_faster_orientation_is_taken_for_all_modules_of_its_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Among those that give the same bits: here a clock decides which is fast."""
    monkeypatch.setattr(
        orientation, "fastest_s", lambda calls: [1.0 / (i + 1) for i, _ in enumerate(calls)]
    )
    model = nn.Module()
    model.layers = [nn.Linear(64, 2048, bias=False) for _ in range(3)]
    turned = orient(model)
    assert turned in (0, 3)
    assert len({type(layer) for layer in model.layers}) == 1
    assert orient(model) == 0  # those that are turned are not measured again


def test_packed_and_sixteen_bit_modules_are_left_alone() -> None:
    half = nn.Linear(64, 64, bias=False)
    half.weight = half.weight.astype(mx.bfloat16)
    model = nn.Module()
    model.layers = [half, nn.QuantizedLinear(64, 64, bias=False)]
    orient(model)
    assert [type(layer) for layer in model.layers] == [nn.Linear, nn.QuantizedLinear]


def test_a_blas_that_takes_sixteen_rows_one_by_one_is_slow() -> None:
    assert BlasSpeed("reference", 0.8e-3, 12e-3).slow
    assert BlasSpeed("BLIS", 0.06e-3, 2.5e-3).slow
    assert not BlasSpeed("OpenBLAS", 0.06e-3, 0.26e-3).slow
    assert 0 < measure().one_row_s < measure().sixteen_rows_s * 4
