"""Draws of the sampler at the edges of its settings."""

from __future__ import annotations

from collections import Counter

import mlx.core as mx
import pytest

from swiftlm_engine.sampling.row import RowSampling
from swiftlm_engine.sampling.sampler import sample
from swiftlm_engine.sampling.settings import SamplingSettings

pytestmark = pytest.mark.usefixtures("on_the_cpu")

END, NEWLINE = 0, 3


def draws(probabilities: list[float], settings: dict, count: int = 300, **more) -> Counter[int]:
    logits = mx.log(mx.array([probabilities] * count))
    rows = [
        RowSampling(SamplingSettings(**settings, seed=seed), [1], len(probabilities), **more)
        for seed in range(count)
    ]
    return Counter(sample(logits, mx.zeros((count,), mx.int32), rows).tolist())


@pytest.mark.parametrize("spared", [END, NEWLINE])
def test_xtc_never_drops_ends_and_newlines(spared):
    probabilities = [0.02, 0.25, 0.03, 0.0001]
    probabilities[spared] = 0.70
    xtc = {"xtc_probability": 1.0, "xtc_threshold": 0.1}
    drawn = draws(probabilities, xtc, spared_ids=(END, NEWLINE, 999))
    assert 150 < drawn[spared] < 260
    assert draws(probabilities, xtc)[spared] == 0  # as any other word


def test_xtc_still_drops_likely_words_beside_spared_ones():
    xtc = {"xtc_probability": 1.0, "xtc_threshold": 0.1}
    drawn = draws([0.3, 0.4, 0.2, 0.1], xtc, spared_ids=(END,))
    assert drawn[1] == 0
    assert drawn[END]
    assert drawn[2]


@pytest.mark.parametrize("temperature", [0.0, 1e-46, 1e-45, 1e-39, 1e-38, 1e-37, 1e-20, 1e-6, 1e-5])
def test_temperature_next_to_zero_draws_the_most_likely_token(temperature):
    assert draws([0.1, 0.2, 0.65, 0.05], {"temperature": temperature}, 20) == {2: 20}
    together = {"temperature": temperature, "top_p": 0.9, "min_p": 0.01}
    assert draws([0.1, 0.2, 0.65, 0.05], together, 20) == {2: 20}
