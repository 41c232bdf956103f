"""Compressed KV in the prefix cache: whole hits are exact, cut ones leave the entry alone."""

import mlx.core as mx
import pytest
import tiny_models
from mlx_lm.utils import load
from prefix_runner import Runner, tokens, write_out

from swiftlm_engine import turboquant
from swiftlm_engine.brain.prefix_index import Kind
from swiftlm_engine.prefix.cache import HitSource, Match, PrefixCache
from swiftlm_engine.prefix.fingerprint import Fingerprint
from swiftlm_engine.prefix.snapshot import arrays_of, leaves_of
from swiftlm_engine.prefix.ssd import SsdLimits, SsdTier
from swiftlm_engine.turboquant.cache import TurboKVCache

NUM_TOKENS = 700


pytestmark = pytest.mark.usefixtures("on_the_cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("turbo")
    tiny_models.make_model("llama", folder, head_dim=64, max_position_embeddings=4096)
    model = load(str(folder))[0]
    turboquant.install(model)
    verdict = turboquant.make_caches(model, "k8v3").verdict
    return model, lambda: turboquant.make_caches(model, "k8v3", verdict).caches


def open_cache(new_caches, folder=None) -> PrefixCache:
    limits = SsdLimits(1 << 30, min_free_bytes=0)
    ssd = SsdTier(folder, Fingerprint({}), new_caches, limits) if folder else None
    return PrefixCache(new_caches, 1 << 30, ssd)


def prefilled(made, count: int = NUM_TOKENS):
    model, new_caches = made
    caches = new_caches()
    assert all(isinstance(leaf, TurboKVCache) for leaf in leaves_of(caches))
    Runner(model)._prefill(tokens(1, count), caches)
    assert caches[0].num_compressed > 0
    return caches


def continued(model, caches, fresh: list[int]) -> list[float]:
    logits = model(mx.array([fresh]), cache=caches)[0, -1]
    return logits.tolist()


def test_whole_hit_continues_exactly_like_the_sequence_it_was_stored_from(made):
    model, new_caches = made
    cache, live = open_cache(new_caches), prefilled(made)
    cache.store(tokens(1, NUM_TOKENS), live, Kind.TURN)
    fresh = tokens(2, 200)
    hits = [cache.match(tokens(1, NUM_TOKENS) + fresh).caches for _ in range(2)]
    expected = continued(model, live, fresh)
    assert [continued(model, caches, fresh) for caches in hits] == [expected] * 2


def test_hit_copies_nothing_and_a_cut_hit_leaves_the_entry_as_it_was(made):
    model, new_caches = made
    cache = open_cache(new_caches)
    cache.store(tokens(1, NUM_TOKENS), prefilled(made), Kind.TURN)
    held = mx.get_active_memory()
    whole = cache.match([*tokens(1, NUM_TOKENS), 9])
    mx.eval([arrays_of(leaf) for leaf in whole.caches])
    assert mx.get_active_memory() - held < cache.nbytes / 50
    cut = cache.match([*tokens(1, NUM_TOKENS)[:300], 9])
    assert isinstance(cut, Match)
    assert cut.length == cut.caches[0].offset == 300
    continued(model, cut.caches, tokens(3, 100))
    again = cache.match([*tokens(1, NUM_TOKENS), 9])
    fresh = tokens(2, 50)
    assert continued(model, again.caches, fresh) == continued(model, whole.caches, fresh)


def test_compressed_kv_survives_a_restart_and_can_still_be_cut(made, tmp_path):
    model, new_caches = made
    first, live = open_cache(new_caches, tmp_path), prefilled(made)
    first.store(tokens(1, NUM_TOKENS), live, Kind.TURN)
    assert first.close(30.0)
    second = open_cache(new_caches, tmp_path)
    hit = second.match([*tokens(1, NUM_TOKENS), 9])
    assert (hit.length, hit.source) == (NUM_TOKENS, HitSource.SSD)
    fresh = tokens(2, 50)
    assert continued(model, hit.caches, fresh) == continued(model, live, fresh)
    second.close(30.0)
    third = open_cache(new_caches, tmp_path)
    cut = third.match([*tokens(1, NUM_TOKENS)[:300], 9])
    assert (cut.length, cut.source, cut.caches[0].offset) == (300, HitSource.SSD, 300)
    third.close(30.0)


def test_growing_conversation_writes_its_compressed_kv_at_each_doubling_only(made, tmp_path):
    model, new_caches = made
    cache, caches, prompt = open_cache(new_caches, tmp_path), new_caches(), []
    for turn in range(16):
        fresh = tokens(turn, 100)
        Runner(model)._prefill(fresh, caches)
        prompt += fresh
        cache.store(prompt, caches, Kind.TURN)
        write_out(cache)
    assert cache.close(30.0)
    assert len(list(tmp_path.rglob("*.state"))) == 5  # at 100, 200, 400, 800, 1600 tokens
    assert cache.stats().ssd.bytes_written <= 4 * sum(leaf.nbytes for leaf in caches)
