"""Which tokens a group's ranks know without being told, against a follower that draws its own."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from swiftlm_engine.ranks import SingleProcess
from swiftlm_engine.run.decode_batch import DecodeBatch, Row
from swiftlm_engine.sampling.row import RowSampling
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.schedule.sequence import Sequence
from swiftlm_engine.split.placeholder_cache import absent

VOCABULARY = 64


def follow(ids: mx.array) -> mx.array:
    """The one likely token after each."""
    return (ids * 5 + 3) % VOCABULARY


def model(ids: mx.array, cache: object) -> mx.array:
    return (follow(ids)[..., None] == mx.arange(VOCABULARY)).astype(mx.float32) * 9


class Follower(SingleProcess):
    """Checks that it has drawn whatever it is expected to know; `known` says of each step if so."""

    def __init__(self) -> None:
        self.known: list[bool] = []
        self._drawn: list[int] | None = None

    def decode(self, inputs: mx.array, *, known: bool, greedy: bool) -> mx.array:
        self.known.append(known)
        if known:
            assert inputs.tolist() == self._drawn
        self._drawn = follow(inputs).tolist() if greedy else None
        return inputs


@pytest.fixture
def follower() -> Follower:
    return Follower()


@pytest.fixture
def batch(follower: Follower) -> DecodeBatch:
    return DecodeBatch(model, mx.default_stream(mx.default_device()), ranks=follower)


def add(batch: DecodeBatch, name: str, token: int, **sampling: float) -> Row:
    settings = SamplingSettings(**{"temperature": 0.0} | sampling)
    prompt = [1, token]
    row = Row(Sequence(name, 0, prompt, 100, 0.0), RowSampling(settings, prompt, VOCABULARY))
    batch.add([row], [[absent(KVCache())]])
    return row


def steps(batch: DecodeBatch, follower: Follower, count: int) -> list[bool]:
    """Takes so many that compute; one only reads, where nobody has a token yet."""
    follower.known.clear()
    while len(follower.known) < count:
        batch.step()
    return follower.known


def test_greedy_rows_are_told_once_after_rows_came_or_left(batch, follower):
    first = add(batch, "a", 4)
    assert steps(batch, follower, 3) == [False, True, True]
    add(batch, "b", 9)
    assert steps(batch, follower, 3) == [False, True, True]
    batch.remove([first])
    assert steps(batch, follower, 2) == [False, True]


def test_a_token_that_was_put_in_the_place_of_a_drawn_one_is_told(batch, follower):
    row = add(batch, "a", 4)
    steps(batch, follower, 2)
    row.forced_ids = [7]
    assert steps(batch, follower, 2) == [False, True]
    assert 7 in row.sequence.output_ids


@pytest.mark.parametrize(
    "sampling", [{"temperature": 1.0}, {"repetition_penalty": 9.0}, {"presence_penalty": 2.0}]
)
def test_one_row_that_depends_on_more_than_logits_makes_all_be_told(batch, follower, sampling):
    add(batch, "a", 4)
    other = add(batch, "b", 9, **sampling)
    assert steps(batch, follower, 3) == [False] * 3
    batch.remove([other])
    assert steps(batch, follower, 2) == [False, True]


def test_rows_are_told_while_they_may_not_end(batch, follower):
    row = add(batch, "a", 4)
    row.min_tokens, row.banned_ids = 2, mx.array([follow(mx.array(4)).item()])
    assert steps(batch, follower, 5) == [False, False, False, True, True]


def test_whether_a_step_is_greedy_is_asked_once(batch, follower, monkeypatch):
    asked = []
    is_greedy = DecodeBatch._is_greedy
    monkeypatch.setattr(DecodeBatch, "_is_greedy", lambda b: asked.append(b) or is_greedy(b))
    add(batch, "a", 4)
    assert steps(batch, follower, 3) == [False, True, True]
    assert len(asked) == 3
