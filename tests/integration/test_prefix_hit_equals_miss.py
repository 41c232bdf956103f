"""A hit gives the same greedy text as a cold run, for every cache class. float32 on the CPU, exact.

Timelines of an agent loop: append a turn, edit the last message, repeat, ask for less. Prompts are
longer than the sliding windows and attention chunks of the tiny models, so caches wrap.
"""

import copy
from typing import Any

import mlx.core as mx
import pytest
import tiny_models
from families import EACH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load
from prefix_runner import Runner, runner, tokens

from swiftlm_engine.prefix.snapshot import leaves_of

pytestmark = pytest.mark.usefixtures("on_the_cpu")


@pytest.fixture(scope="module", params=EACH)
def model(request, tmp_path_factory):
    folder = tiny_models.make_model(request.param, tmp_path_factory.mktemp(request.param))
    return load(str(folder))[0]


def test_appended_turn_repeats_nothing_and_gives_the_same_text(model):
    warm, cold = runner(model), Runner(model)
    prompt = tokens(1, 130)
    reply = warm.generate(prompt, boundaries=(40, 129))
    longer = prompt + reply + tokens(2, 20)
    warm.num_prefilled = 0
    assert warm.generate(longer) == cold.generate(longer)
    assert warm.num_prefilled <= 20 + 1


def test_edited_last_message_gives_the_same_text(model):
    warm, cold = runner(model), Runner(model)
    system, first, edited = tokens(1, 80), tokens(2, 50), tokens(3, 50)
    warm.generate(system + first, boundaries=(80,))
    warm.num_prefilled = 0
    assert warm.generate(system + edited) == cold.generate(system + edited)
    assert warm.num_prefilled == 49


def test_repeated_prompt_runs_only_its_last_token(model):
    warm, cold = runner(model), Runner(model)
    prompt = tokens(1, 130)
    warm.generate(prompt)
    warm.num_prefilled = 0
    assert warm.generate(prompt) == cold.generate(prompt)
    assert warm.num_prefilled == 0


def test_shorter_prompt_gives_the_same_text(model):
    warm, cold = runner(model), Runner(model)
    prompt = tokens(1, 130)
    warm.generate(prompt, boundaries=(40, 90))
    for length in (120, 91, 90, 60, 41, 40, 20):
        assert warm.generate(prompt[:length], store=False) == cold.generate(prompt[:length])


def test_thoughts_dropped_from_history_cost_only_what_comes_after_them(model):
    warm, cold = runner(model), Runner(model)
    prompt = tokens(1, 120)
    for turn in range(6):
        warm.num_prefilled = 0
        reply = warm.generate(prompt)  # pauses at the end of the prompt, before the thoughts
        assert reply == cold.generate(prompt)
        assert turn == 0 or warm.num_prefilled <= 6 + 20
        prompt = prompt + reply[-6:] + tokens(turn, 20)  # the first half were thoughts


def test_text_depends_on_the_caches_of_every_class(model):
    """Guards the tests above: a cache that lost its content must show in the text."""
    prompt, stored = tokens(1, 130), make_prompt_cache(model)
    Runner(model)._prefill(prompt[:-1], stored)

    def text(wiped: str) -> list[int]:
        caches, row = copy.deepcopy(stored), prompt[-1:]
        for leaf in leaves_of(caches):
            if type(leaf).__name__ == wiped:
                leaf.state = tree_map(_zeros, leaf.state)
        for _ in range(12):
            logits = model(mx.array([row[-1:]]), cache=caches)[0, -1]
            row = [*row, int(mx.argmax(logits).item())]
        return row

    for name in {type(leaf).__name__ for leaf in leaves_of(stored)}:
        assert text(wiped=name) != text(wiped="")


def _zeros(value: Any) -> Any:
    return value * 0 if isinstance(value, mx.array) else value


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_history_of_prompts_gives_the_text_of_a_cold_run(model, data):
    warm, cold = runner(model), Runner(model)
    pool = tokens(5, 150)
    for _ in range(data.draw(st.integers(2, 4))):
        kept = data.draw(st.integers(0, 150))
        fresh = data.draw(st.integers(1, 60))
        pool = pool[:kept] + tokens(data.draw(st.integers(0, 99)), fresh)
        stops = data.draw(st.lists(st.integers(1, len(pool)), max_size=2))
        if len(pool) > 1:
            pool += warm.generate(pool, tuple(stops))
            assert warm.generate(pool, store=False) == cold.generate(pool)
            warm.cache.check_integrity()
