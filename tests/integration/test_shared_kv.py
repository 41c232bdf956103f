"""Rows that begin with the same tokens hold them once; what they say does not change.

Invariants: eight rows over one prefix hold at most 1.1 x of one row; a hit copies no keys and
values; the greedy text is that of a cold run, for every family, at batch sizes of 1, 4 and 8.
"""

from __future__ import annotations

import gc
import random
from pathlib import Path

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load
from tiny_models import NAMES, make_model

from swiftlm_engine import turboquant
from swiftlm_engine.brain.kv_extents import Extent
from swiftlm_engine.brain.prefix_index import Kind
from swiftlm_engine.kv.prefixed_cache import PrefixedCache
from swiftlm_engine.kv.shared_cache import SharedKVCache, Sharing, shared_caches
from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.prefix.cache import HitSource, Match, PrefixCache
from swiftlm_engine.prefix.fingerprint import Fingerprint
from swiftlm_engine.prefix.ssd import SsdLimits, SsdTier
from swiftlm_engine.run.row_caches import MAX_PADDING, Caches, RowCaches
from swiftlm_engine.sampling.settings import SamplingSettings

pytestmark = pytest.mark.usefixtures("on_the_cpu")

DISK = SsdLimits(max_bytes=1 << 30, min_free_bytes=0, block_tokens=64)
PREFIX = 300
STEPS = 6
TOLERANCE = 1e-4
GREEDY = SamplingSettings(temperature=0.0)


def loaded(name: str, folder, **overrides):
    model = load(str(make_model(name, folder, **overrides)))[0]
    turboquant.install(model)
    return model


def ids(seed: int, count: int) -> list[int]:
    mx.random.seed(seed)
    return mx.random.randint(7, 250, (count,)).tolist()


class Shared:
    """A model with its prefix cache, as the engine puts them together."""

    def __init__(self, model, min_tokens: int = 64, folder: Path | None = None) -> None:
        self.model = model
        sharing = Sharing(min_tokens)
        self.make = lambda: shared_caches(make_prompt_cache(model), sharing)
        ssd = SsdTier(folder, Fingerprint({"model": "a"}), self.make, DISK) if folder else None
        self.prefix = PrefixCache(self.make, 1 << 30, ssd)

    def prefilled(self, tokens: list[int], store: bool = True, chunk_tokens: int = 96) -> Caches:
        """Caches of all but the last token, from the longest prefix that is known."""
        match = self.prefix.match(tokens)
        hit = isinstance(match, Match)
        caches, done = (match.caches, match.length) if hit else (self.make(), 0)
        for start in range(done, len(tokens) - 1, chunk_tokens):
            chunk = tokens[start : min(start + chunk_tokens, len(tokens) - 1)]
            self.model(mx.array([chunk]), cache=caches)
            mx.eval([c.state for c in caches])
        if store and len(tokens) > 1:
            self.prefix.store(tokens[:-1], caches, Kind.PROMPT)
        return caches

    def decode(self, prompts: list[list[int]], caches: list[Caches]) -> list[list[int]]:
        rows = RowCaches(unpadded=True, prefers_padding=True)
        rows.extend(caches[: max(1, len(caches) - 1)])
        if len(caches) > 1:
            rows.add(caches[-1])
        texts = [list(prompt) for prompt in prompts]
        for _ in range(STEPS):
            logits = rows.forward(self.model, mx.array([text[-1] for text in texts]))
            for text, token in zip(texts, mx.argmax(logits, -1).tolist(), strict=True):
                text.append(token)
        for text, row in zip(texts, rows.remove_all(list(range(len(texts)))), strict=True):
            self.prefix.store(text[:-1], row, Kind.TURN)
        return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def cold(model, prompt: list[int], count: int = STEPS) -> list[int]:
    caches, text = make_prompt_cache(model), list(prompt)
    model(mx.array([prompt[:-1]]), cache=caches)
    for _ in range(count):
        logits = model(mx.array([text[-1:]]), cache=caches)[0, -1]
        text.append(int(mx.argmax(logits).item()))
    return text[len(prompt) :]


# Of each kind one: plain, windows with sinks, recurrent layers.
IN_SHORT = ("llama", "gpt_oss", "lfm2")
EACH = [name if name in IN_SHORT else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", EACH)
def test_rows_of_every_family_over_one_prefix_say_what_a_cold_run_says(name, tmp_path) -> None:
    model = loaded(name, tmp_path)
    shared, prefix = Shared(model), ids(1, PREFIX)
    first = prefix + ids(2, 40)
    shared.prefilled(first)
    every = [prefix + ids(10 + i, 3 + 7 * i) for i in range(8)]
    expected = [cold(model, prompt) for prompt in every]
    for width in (8, 4, 1):
        prompts = every[8 - width :]
        texts = shared.decode(prompts, [shared.prefilled(prompt) for prompt in prompts])
        assert texts == expected[8 - width :], width
    shared.prefix.check_integrity()
    longer = every[3] + expected[3] + ids(5, 20)  # a turn that goes on where a row has ended
    assert shared.decode([longer], [shared.prefilled(longer)]) == [cold(model, longer)]


def test_eight_rows_over_one_prefix_hold_little_more_than_one(tmp_path) -> None:
    model = loaded("llama", tmp_path, num_hidden_layers=1)
    shared, prefix = Shared(model), ids(1, 6000)
    first = shared.prefilled(prefix + ids(2, 5), chunk_tokens=1024)
    one = first[0].nbytes * len(first)
    rows = RowCaches(unpadded=True, prefers_padding=True)
    rows.add(first)
    rows.extend([shared.prefilled(prefix + ids(3 + i, 5)) for i in range(7)])
    for _ in range(STEPS):
        mx.eval(rows.forward(model, mx.arange(8)))
    assert isinstance(rows.all()[0][0], PrefixedCache)
    assert rows.nbytes <= 1.1 * one
    held = rows.nbytes + shared.prefix.nbytes
    assert held <= 2.2 * one  # the same buffers: RAM tier and rows do not add up
    buffers = {id(x.buffer) for x in rows.all()[0][0].extents()}
    assert buffers == {id(first[0].extents()[0].buffer)}


def test_a_hit_copies_nothing_and_a_turn_goes_on_in_place(tmp_path) -> None:
    model = loaded("llama", tmp_path, num_hidden_layers=2)
    shared, prompt = Shared(model), ids(1, 2000)
    [caches] = [shared.prefilled(prompt, chunk_tokens=512)]
    [text] = shared.decode([prompt], [caches])
    buffer = caches[0].extents()[0].buffer
    del caches
    before = mx.get_active_memory()
    match = shared.prefix.match(prompt + text + ids(2, 9))
    mx.eval([c.state for c in match.caches])
    assert mx.get_active_memory() - before < 4096
    assert match.caches[0].extents()[0].buffer is buffer
    model(mx.array([ids(3, 9)]), cache=match.caches)
    mx.eval([c.state for c in match.caches])
    assert [x.buffer for x in match.caches[0].extents()] == [buffer]  # nobody else is behind it


def test_buffers_hold_whole_steps_however_a_prompt_is_cut(tmp_path) -> None:
    model = loaded("llama", tmp_path)
    caches = Shared(model).make()
    for chunk in (300, 300, 7, 512, 1, 130):  # mlx-lm's own would hold 1,375
        model(mx.array([ids(1, chunk)]), cache=caches)
    assert [cache.offset for cache in caches] == [1250] * len(caches)
    assert [x.buffer.capacity for x in caches[0].extents()] == [1280]


def test_two_sequences_that_go_on_from_one_place_do_not_see_each_other(tmp_path) -> None:
    model = loaded("llama", tmp_path)
    shared, prompt = Shared(model), ids(1, 400)
    shared.prefilled(prompt)
    longer = [prompt[:-1] + ids(seed, 30) for seed in (2, 3)]
    caches = [shared.prefilled(one, store=False) for one in longer]
    assert shared.decode(longer, caches) == [cold(model, one) for one in longer]


def test_a_long_row_that_leaves_gives_back_what_the_others_do_not_need(tmp_path) -> None:
    model = loaded("llama", tmp_path, num_hidden_layers=1)
    shared, prefix = Shared(model), ids(1, 1000)
    shared.prefilled(prefix + ids(2, 3000), chunk_tokens=512)
    short = shared.prefilled(prefix + ids(3, 5), store=False)
    assert short[0].nbytes > 3 * 1024 * short[0].nbytes // 4096
    long_bytes = short[0].nbytes
    shared.prefix.resize(1)  # evicts the long one
    assert short[0].nbytes < long_bytes / 2
    text = shared.decode([prefix + ids(3, 5)], [short])
    assert text == [cold(model, prefix + ids(3, 5))]


def test_drafts_that_are_taken_back_leave_shared_tokens_alone(tmp_path) -> None:
    model = loaded("llama", tmp_path)
    shared, prompt = Shared(model), ids(1, 400)
    shared.prefilled(prompt + ids(9, 50))
    caches = shared.prefilled(prompt, store=False)
    for cache in caches:
        cache.in_parts = cache.sharing.takes_parts = True
    model(mx.array([[prompt[-1], 5, 6, 7]]), cache=caches)  # a draft of three
    for cache in caches:
        assert cache.trim(4) == 4
    assert shared.decode([prompt], [caches]) == [cold(model, prompt)]
    again = prompt + ids(9, 50)
    assert shared.decode([again], [shared.prefilled(again)]) == [cold(model, again)]


def test_the_ledger_counts_a_common_prefix_once(tmp_path) -> None:
    model = loaded("llama", tmp_path, num_hidden_layers=1)
    shared, prefix = Shared(model), ids(1, 2000)
    shared.prefilled(prefix + ids(2, 5), chunk_tokens=512)
    one = shared.prefix.nbytes
    for i in range(7):
        shared.prefilled(prefix + ids(3 + i, 5))
    assert shared.prefix.nbytes < 1.05 * one


def watch(batch, held: list[tuple[int, int]]) -> None:
    """Notes after each step how many rows there are, and their bytes."""
    step = batch.step

    def watched():
        found = step()
        held.append((len(batch), batch.caches_nbytes()))
        return found

    batch.step = watched


def test_engine_with_agents_over_one_prompt_holds_it_once(tmp_path) -> None:
    folder = make_model("llama", tmp_path, max_position_embeddings=8192, num_hidden_layers=1)
    options = {"context": 6144, "parallel": 4, "dtype": "float32", "kv": "fp16"}
    system, held = "the quick brown fox " * 1000, []
    asks = [system + f"and question {i} of many" for i in range(4)]
    with EngineHarness(folder, **options, prefix_cache_bytes=0) as engine:
        [expected] = engine.run(GenerateJob("cold", asks[3], GREEDY, 24))
    with EngineHarness(folder, **options, prefix_cache_bytes=1 << 28) as engine:
        runner = engine.session.runner
        watch(runner.batch, held)
        engine.run(GenerateJob("first", asks[0], GREEDY, 24))
        one = max(nbytes for _, nbytes in held)
        held.clear()
        jobs = [GenerateJob(f"w{i}", p, GREEDY, 24) for i, p in enumerate(asks)]
        prepared = [engine.session.preparer.prepare(job) for job in jobs]
        engine.mlx.call(lambda: [engine.session.engine.submit(one) for one in prepared]).result(60)
        found = engine.collect(len(jobs))  # submitted between two steps: they decode together
    assert found["w3", 0].content == expected.content
    assert max(width for width, _ in held) == 4
    assert max(nbytes for _, nbytes in held) <= 1.1 * one


def test_agents_over_one_prompt_are_admitted_by_what_they_hold_together(tmp_path) -> None:
    folder = make_model("llama", tmp_path, max_position_embeddings=8192, num_hidden_layers=1)
    options = {"context": 6144, "parallel": 4, "dtype": "float32", "kv": "fp16"}
    system = "the quick brown fox " * 400
    asks = [system + f"and question {i} of many" for i in range(4)]
    with EngineHarness(folder, **options, prefix_cache_bytes=1 << 28) as engine:
        [first] = engine.run(GenerateJob("first", asks[0], GREEDY, 24))
        price = engine.session.engine.scheduler._price
        one = price(first.finished.usage.prompt_tokens, 24)
    budget = int(1.8 * one)  # of one by one two would not fit
    with EngineHarness(
        folder, **options, prefix_cache_bytes=1 << 28, kv_budget_bytes=budget
    ) as engine:
        runner, held = engine.session.runner, []
        watch(runner.batch, held)
        engine.run(GenerateJob("first", asks[0], GREEDY, 24))
        engine.run(*(GenerateJob(f"w{i}", p, GREEDY, 24) for i, p in enumerate(asks)))
    assert max(width for width, _ in held) == 4
    assert max(nbytes for _, nbytes in held) <= budget


def test_prefill_over_shared_buffers_copies_no_more_than_a_layer_at_a_time(tmp_path) -> None:
    model = loaded("llama", tmp_path, num_hidden_layers=6)
    peaks = []
    for shared_tokens in (0, 448):
        caches = Shared(model).make()
        for start in range(0, 512, 64):
            if start == shared_tokens > 0:
                others = [cache.fork() for cache in caches]
                advance(model, others, 1)  # who is further writes behind the common tokens
            mx.reset_peak_memory()
            before = mx.get_active_memory()
            advance(model, caches, 64)
        assert len(caches[0].extents()) == (2 if shared_tokens else 1)
        peaks.append(mx.get_peak_memory() - before)
    assert peaks[1] <= peaks[0] + 2 * caches[0].nbytes


def advance(model, caches: Caches, count: int) -> None:
    model(mx.array([ids(1, count)]), cache=caches)
    mx.eval([cache.state for cache in caches])


def test_sharing_stays_out_of_models_that_compute_with_their_keys(tmp_path) -> None:
    model = loaded("deepseek_v3", tmp_path)
    shared, prefix = Shared(model), ids(1, PREFIX)
    shared.prefilled(prefix)
    prompts = [prefix + ids(i, 4) for i in (2, 3)]
    caches = [shared.prefilled(prompt) for prompt in prompts]
    assert isinstance(caches[0][0], SharedKVCache)
    assert shared.decode(prompts, caches) == [cold(model, prompt) for prompt in prompts]
    assert caches[0][0].sharing.min_tokens > 1 << 60


@pytest.mark.parametrize("name", EACH)
def test_rows_over_a_prefix_from_disk_say_what_a_cold_run_says(name, tmp_path) -> None:
    model = loaded(name, tmp_path)
    first, prefix = Shared(model, folder=tmp_path / "kv"), ids(1, PREFIX)
    first.prefilled(prefix)
    other = first.prefilled(prefix[:200] + ids(4, 60))  # in two buffers
    assert first.prefix.close(10.0)
    del other
    second = Shared(model, folder=tmp_path / "kv")
    prompts = [prefix + ids(i, 9) for i in (2, 3)] + [prefix[:200] + ids(4, 60) + ids(5, 3)]
    hit = second.prefix.match(prompts[0])
    assert isinstance(hit, Match)
    assert hit.source is HitSource.SSD
    caches = [second.prefilled(prompt) for prompt in prompts]
    assert second.decode(prompts, caches) == [cold(model, prompt) for prompt in prompts]
    second.prefix.close(10.0)


def test_requests_that_end_or_are_aborted_leave_no_buffer_behind(tmp_path) -> None:
    folder = make_model("llama", tmp_path, max_position_embeddings=8192)
    options = {"context": 4096, "parallel": 4, "dtype": "float32", "kv": "fp16"}
    before = _num_buffers()
    with EngineHarness(folder, **options, prefix_cache_bytes=1 << 26) as engine:
        system = "the quick brown fox " * 90
        for turn in range(2):
            jobs = [
                GenerateJob(f"{turn}.{i}", system * (i % 2) + f"ask {i} of {turn}", GREEDY, 80)
                for i in range(6)
            ]
            engine.submit(*jobs)
            for i in (1, 3):
                engine.abort(f"{turn}.{i}")
            engine.collect(len(jobs))
        session = engine.session
        assert session.runner.num_open == 0
        assert session.runner.kv_bytes() == 0
        engine.mlx.call(session.prefix.clear).result(10)
        assert _num_buffers() == before


@pytest.mark.parametrize("waves", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_mixed_requests_with_disconnects_hold_what_is_reserved_and_leave_nothing(
    waves, tmp_path
) -> None:
    """25 requests a wave, a third of them over one prompt, of which 30 % disconnect."""
    folder = make_model("llama", tmp_path, max_position_embeddings=8192, num_hidden_layers=1)
    options = {"context": 4096, "parallel": 8, "dtype": "float32", "kv": "fp16"}
    before, chance, excesses = _num_buffers(), random.Random(7), []
    budget = 3 * 4096 * 2048
    with EngineHarness(
        folder, **options, prefix_cache_bytes=1 << 24, kv_budget_bytes=budget
    ) as engine:
        runner, scheduler = engine.session.runner, engine.session.engine.scheduler
        step = runner.batch.step

        def watched():
            found = step()
            together = runner.counted_twice(scheduler.running)
            reserved = scheduler._gate.reserved_bytes - together
            excesses.append(max(runner.kv_bytes() - MAX_PADDING * reserved, reserved - budget))
            return found

        runner.batch.step = watched
        system = "the quick brown fox " * 420
        for wave in range(waves):
            jobs = []
            for i in range(25):
                own = "lazy dog " * chance.choice((1, 3, 30, 200))
                text = (system if i % 3 == 0 else "") + f"{own} {wave} {i}"
                jobs.append(GenerateJob(f"{wave}.{i}", text, GREEDY, chance.choice((1, 8, 40))))
            engine.submit(*jobs)
            for job in chance.sample(jobs, 8):
                engine.abort(job.request_id)
            engine.collect(len(jobs), timeout_s=300)
        assert runner.num_open == 0
        assert scheduler._gate.reserved_bytes == 0
        engine.mlx.call(engine.session.prefix.clear).result(60)
        assert _num_buffers() == before
    assert excesses
    assert max(excesses) <= 0


def _num_buffers() -> int:
    gc.collect()
    return sum(isinstance(x, Extent) and x.buffer.keys is not None for x in gc.get_objects())
