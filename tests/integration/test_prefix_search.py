"""Reading a prefix from disk in portions: who decodes goes on, and the result is the same."""

import mlx.core as mx
import pytest
import tiny_models
from engine_harness import EngineHarness
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load
from prefix_runner import Runner, tokens

from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.prefix.cache import HitSource, Match, Miss, PrefixCache, ended
from swiftlm_engine.prefix.fingerprint import Fingerprint
from swiftlm_engine.prefix.ssd import SsdLimits, SsdTier
from swiftlm_engine.run import runner
from swiftlm_engine.sampling.settings import SamplingSettings

LIMITS = SsdLimits(max_bytes=1 << 30, min_free_bytes=0, block_tokens=32)
PROMPT = tokens(1, 130)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    mx.set_default_device(mx.cpu)
    return load(str(tiny_models.make_model("llama", tmp_path_factory.mktemp("llama"))))[0]


@pytest.fixture
def prefix(model, tmp_path):
    """A cache on a folder where an earlier process left PROMPT and its answer."""

    def new_caches():
        return make_prompt_cache(model)

    def start() -> PrefixCache:
        tier = SsdTier(tmp_path, Fingerprint({"model": "a"}), new_caches, LIMITS)
        return PrefixCache(new_caches, 1 << 30, tier)

    before = start()
    Runner(model, before).generate(PROMPT)
    assert before.close(10.0)
    after = start()
    yield after
    after.close(10.0)


def test_search_pauses_after_each_file_it_reads(prefix):
    search = prefix.search(PROMPT)
    for _ in range(-(-len(PROMPT) // LIMITS.block_tokens)):
        assert next(search) is True
    found = ended(search)
    assert found.source is HitSource.SSD
    assert found.length == len(PROMPT) - 1


def test_second_search_for_a_prefix_waits_for_the_first_and_reads_nothing(prefix):
    first, second = prefix.search(PROMPT), prefix.search(PROMPT)
    assert next(first) is True
    assert next(second) is False
    assert ended(first).source is HitSource.SSD
    read = prefix.stats().ssd.bytes_read
    found = ended(second)
    assert isinstance(found, Match)
    assert found.source is HitSource.RAM
    assert prefix.stats().ssd.bytes_read == read


def test_search_that_is_given_up_lets_the_next_one_read(prefix):
    given_up = prefix.search(PROMPT)
    next(given_up)
    given_up.close()
    assert ended(prefix.search(PROMPT)).source is HitSource.SSD


def test_files_that_go_during_a_pause_make_a_miss_and_count_as_no_damage(prefix):
    search = prefix.search(PROMPT)
    next(search)
    prefix.clear()
    assert isinstance(ended(search), Miss)
    assert prefix.stats().ssd.num_corrupt == 0


def test_others_decode_while_a_prefix_is_read_from_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "READ_SLICE_S", 0.0)  # one file or leaf in each step
    folder = tiny_models.make_model("llama", tmp_path / "model", max_position_embeddings=2048)
    options = {
        "prefix_cache_bytes": 64 << 20,
        "prefix_cache_dir": tmp_path / "prefix",
        "prefix_cache_dir_bytes": 1 << 30,
    }
    greedy = SamplingSettings(temperature=0)
    long = GenerateJob("long", tuple(tokens(2, 1200)), greedy, max_tokens=8, ignore_eos=True)
    with EngineHarness(folder, **options) as first:
        (cold,) = first.run(long)
    with EngineHarness(folder, **options) as second:
        order: list[str] = []
        opened, decoded = second.session.runner.open, second.session.runner.decode
        scheduler = second.session.engine.scheduler

        def open_and_note(sequence):
            spared = opened(sequence)
            order.append("waits" if spared is None else "opens")
            return spared

        def decode_and_note():
            result = decoded()
            order.extend("token" for token in result if token.row.sequence.request_id == "other")
            return result

        monkeypatch.setattr(scheduler, "_open", open_and_note)
        monkeypatch.setattr(second.session.runner, "decode", decode_and_note)
        other = GenerateJob("other", (5, 6, 7), greedy, max_tokens=400, ignore_eos=True)
        second.submit(other, long)
        answers = second.collect(2)
    warm = answers["long", 0]
    assert warm.started.cached_tokens == 1199
    assert "ssd" in warm.started.cache_note
    assert warm.content == cold.content
    reading = order[order.index("waits") : len(order) - order[::-1].index("opens")]
    num_waits = reading.count("waits")
    assert num_waits >= 5  # files of 256 tokens
    assert reading.count("token") >= num_waits - 2


def test_another_models_cache_may_go_while_a_prefix_is_read(prefix, model, tmp_path):
    def new_caches():
        return make_prompt_cache(model)

    tier = SsdTier(tmp_path / "other", Fingerprint({"model": "b"}), new_caches, LIMITS)
    other = PrefixCache(new_caches, 1 << 30, tier)
    search = prefix.search(PROMPT)
    next(search)
    other.clear()
    assert other.close(10.0)
    assert ended(search).source is HitSource.SSD
