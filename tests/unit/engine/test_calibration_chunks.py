"""The chunk that a calibration chooses, of a model whose passes take what a fake clock says."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from swiftlm_engine.brain.calibration import Record
from swiftlm_engine.messages import EngineFault
from swiftlm_engine.session.calibration import FULL, QUICK, Effort, Subject, measure

VOCAB, LARGEST = 8, 2048


@dataclass
class Passes:
    """A model that does nothing but take its time and note the tokens of each pass."""

    fixed_s: float
    tokens_s: float
    now: float = 0.0

    def __post_init__(self) -> None:
        self.sizes: list[int] = []
        self.deepest = 0  # tokens in any cache

    def __call__(self, ids: mx.array, cache: list[KVCache]) -> mx.array:
        size = ids.shape[1]
        self.sizes.append(size)
        self.now += self.fixed_s + size / self.tokens_s
        for one in cache:
            one.update_and_fetch(
                mx.zeros((*ids.shape[:1], 1, size, 1)), mx.zeros((*ids.shape[:1], 1, size, 1))
            )
            self.deepest = max(self.deepest, deepest([one]))
        return mx.zeros((*ids.shape, VOCAB))


def deepest(caches: list[KVCache]) -> int:
    """Tokens that the fullest row holds."""
    offsets = [mx.array(getattr(cache, "offset", 0)).max().item() for cache in caches]
    return int(max(offsets, default=0))


def calibrated(model: Passes, context: int = 8192, effort: Effort = QUICK) -> Record:
    subject = Subject(
        model=model,
        make_caches=lambda: [KVCache()],
        stream=mx.default_stream(mx.default_device()),
        vocab_size=VOCAB,
        context=context,
        chunk=LARGEST,
        slice_s=0.25,
        max_width=1,
        kv_threshold=lambda: 4096,
    )
    turns = measure(subject, effort, lambda: model.now)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize(("fixed_s", "tokens_s"), [(1.5, 2000.0), (0.3, 20_000.0)])
def test_where_a_pass_has_a_large_fixed_part_the_large_chunk_is_chosen(fixed_s, tokens_s):
    model = Passes(fixed_s, tokens_s)
    record = calibrated(model)
    assert record.choices.prefill_chunk == LARGEST
    assert max(row.chunk for row in record.prefill) == LARGEST


def test_without_a_fixed_part_chunks_are_measured_that_fit_into_a_slice():
    record = calibrated(Passes(0.0, 800.0))
    assert max(row.chunk for row in record.prefill) * 1 / 800 <= 0.5


@pytest.mark.parametrize(
    ("context", "effort"),
    [(8, QUICK), (9, FULL), (16, QUICK), (64, FULL), (256, QUICK), (1024, QUICK)],
)
def test_no_cache_ever_holds_more_tokens_than_the_context(context, effort):
    model = Passes(0.0005, 50_000.0)
    record = calibrated(model, context, effort)
    assert 0 < model.deepest <= context
    assert max(row.depth for row in record.decode) < context
    assert all(row.chunk <= context for row in record.prefill)


def test_a_context_too_short_to_be_measured_is_refused_by_name():
    with pytest.raises(EngineFault, match=r"context of 7 tokens.*--context 8"):
        calibrated(Passes(0.0, 800.0), 7)
