"""The SSD tier under every cache class: survives restarts, writes deltas, and never lies.

A restart is a new PrefixCache on the same folder. Text after a hit from disk equals a cold run.
"""

import os
import time

import pytest
import tiny_models
from families import EACH
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load
from prefix_runner import Runner, tokens, write_out

from swiftlm_engine.brain.prefix_folders import PrefixFolders
from swiftlm_engine.brain.prefix_index import Kind
from swiftlm_engine.prefix.cache import HitSource, Match, Miss, PrefixCache
from swiftlm_engine.prefix.fingerprint import Fingerprint
from swiftlm_engine.prefix.ssd import SsdLimits, SsdTier

SAME = Fingerprint({"model": "a"})
LIMITS = SsdLimits(max_bytes=1 << 30, min_free_bytes=0, block_tokens=32)


pytestmark = pytest.mark.usefixtures("on_the_cpu")


@pytest.fixture(scope="module", params=EACH)
def model(request, tmp_path_factory):
    folder = tiny_models.make_model(request.param, tmp_path_factory.mktemp(request.param))
    return load(str(folder))[0]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return load(str(tiny_models.make_model("llama", tmp_path_factory.mktemp("llama"))))[0]


def start(model, folder, limits=LIMITS, fingerprint=SAME, ram_bytes=1 << 30) -> Runner:
    def new_caches():
        return make_prompt_cache(model)

    tier = SsdTier(folder, fingerprint, new_caches, limits)
    return Runner(model, PrefixCache(new_caches, ram_bytes, tier))


def test_conversation_goes_on_after_a_restart_without_a_second_prefill(model, tmp_path):
    cold, prompt = Runner(model), tokens(1, 130)
    first = start(model, tmp_path)
    reply = first.generate(prompt, boundaries=(40, 129))
    assert first.cache.close(10.0)
    second = start(model, tmp_path)
    longer = prompt + reply + tokens(2, 20)
    assert second.generate(longer) == cold.generate(longer)
    assert second.num_prefilled <= 20 + 1
    assert second.cache.close(10.0)
    third = start(model, tmp_path)
    edited = prompt[:-1] + tokens(3, 30)
    assert third.generate(edited) == cold.generate(edited)
    assert third.num_prefilled <= 30
    third.cache.close(10.0)


def test_every_length_served_from_disk_gives_the_text_of_a_cold_run(model, tmp_path):
    cold, prompt = Runner(model), tokens(1, 130)
    first = start(model, tmp_path)
    first.generate(prompt, boundaries=(40, 90))
    first.generate(prompt[:70] + tokens(4, 50), boundaries=(70,))
    assert first.cache.close(10.0)
    for length in (130, 111, 91, 90, 65, 41, 33):
        again = start(model, tmp_path)
        assert again.generate(prompt[:length], store=False) == cold.generate(prompt[:length])
        again.cache.close(10.0)


def test_hit_on_disk_is_reported_as_such(model, tmp_path):
    first = start(model, tmp_path)
    first.generate(tokens(1, 130))
    first.cache.close(10.0)
    again = start(model, tmp_path)
    match = again.cache.match(tokens(1, 130))
    assert isinstance(match, Match)
    assert match.source is HitSource.SSD
    assert again.cache.match(tokens(1, 130)).source is HitSource.RAM
    again.cache.close(10.0)


def test_appending_writes_no_more_than_twice_the_kv_of_what_is_new(model, tmp_path):
    runner = start(model, tmp_path, SsdLimits(1 << 30, 0, block_tokens=256))
    caches, prompt = make_prompt_cache(model), []
    kv_of_prompt = []
    for turn in range(6):
        fresh = tokens(turn, 100)
        runner._prefill(fresh, caches)
        prompt += fresh
        runner.cache.store(prompt, caches, Kind.TURN)
        write_out(runner.cache)
        kv_of_prompt.append(per_token_bytes(caches))
    written = runner.cache.stats().ssd.bytes_written
    assert written <= 2 * 600 * kv_of_prompt[-1] + 6 * 4096  # headers
    runner.cache.close(10.0)


def per_token_bytes(caches) -> float:
    """KV bytes of one token, from the arrays that have a token axis; states count per 512."""
    from swiftlm_engine.prefix.disk_leaves import DiskLayout, token_arrays
    from swiftlm_engine.prefix.snapshot import leaf_nbytes, leaves_of

    leaves = leaves_of(caches)
    layout = DiskLayout.of(leaves)
    held = [token_arrays(leaves[i]) for i in (*layout.trunk, *layout.windows)]
    by_token = sum(a.nbytes / (t.end - t.first) for t in held for a in t.arrays)
    return by_token or sum(map(leaf_nbytes, leaves)) / 512


def test_damaged_file_is_a_miss_and_is_deleted(llama, tmp_path):
    first = start(llama, tmp_path)
    first.generate(tokens(1, 130))
    first.cache.close(10.0)
    block = sorted(tmp_path.rglob("*.kv"), key=lambda p: p.stat().st_size)[-1]
    damaged = bytearray(block.read_bytes())
    damaged[-5] ^= 1
    block.write_bytes(damaged)
    again, cold = start(llama, tmp_path), Runner(llama)
    assert again.generate(tokens(1, 130), store=False) == cold.generate(tokens(1, 130))
    assert again.cache.stats().ssd.num_corrupt == 1
    again.cache.close(10.0)
    assert not block.exists()


def test_truncated_file_is_deleted_at_start(llama, tmp_path):
    first = start(llama, tmp_path)
    first.generate(tokens(1, 130))
    first.cache.close(10.0)
    blocks = list(tmp_path.rglob("*.kv"))
    for block in blocks:
        block.write_bytes(block.read_bytes()[:-7])
    again = start(llama, tmp_path)
    assert isinstance(again.cache.match(tokens(1, 130)), Miss)
    assert again.cache.stats().ssd.num_corrupt == len(blocks)
    assert not list(tmp_path.rglob("*.kv"))
    again.cache.close(10.0)


def test_files_of_another_fingerprint_are_deleted_and_reported(llama, tmp_path):
    first = start(llama, tmp_path)
    first.generate(tokens(1, 130))
    first.cache.close(10.0)
    other = start(llama, tmp_path, fingerprint=Fingerprint({"model": "b"}))
    (deleted,) = other.cache.stats().ssd.deleted
    assert deleted.name == SAME.digest
    assert deleted.nbytes > 0
    assert deleted.changed == ("model",)
    assert not (tmp_path / SAME.digest).exists()
    assert isinstance(other.cache.match(tokens(1, 130)), Miss)
    other.cache.close(10.0)


def test_trying_a_kv_format_loses_no_prefix_of_the_other(llama, tmp_path):
    exact, tried = (Fingerprint({"model": "a", "kv_format": kv}) for kv in ("fp16", "k4v3"))
    first = start(llama, tmp_path, fingerprint=exact)
    first.generate(tokens(1, 130))
    first.cache.close(10.0)
    other = start(llama, tmp_path, fingerprint=tried)
    assert other.cache.stats().ssd.deleted == ()
    assert isinstance(other.cache.match(tokens(1, 130)), Miss)
    other.cache.close(10.0)
    again = start(llama, tmp_path, fingerprint=exact)
    assert isinstance(again.cache.match(tokens(1, 130)), Match)
    again.cache.close(10.0)


def test_clearing_takes_what_every_kv_format_kept(llama, tmp_path):
    for kv in ("fp16", "k4v3"):
        runner = start(llama, tmp_path, fingerprint=Fingerprint({"model": "a", "kv_format": kv}))
        runner.generate(tokens(1, 130))
        if kv == "k4v3":
            runner.cache.clear()
        runner.cache.close(10.0)
    assert not list(tmp_path.rglob("*.kv"))


def test_what_another_kv_format_kept_goes_first_when_the_folder_is_full(tmp_path):
    folders = PrefixFolders(tmp_path)
    for folder, age in (("new", 10), ("old", 50)):
        path = folders.of("m") / folder / "1.kv"
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (time.time() - age,) * 2)
    assert folders.trim(1000, but=folders.of("m") / "new") == (1000, 0)
    assert [path.parent.name for path in tmp_path.rglob("*.kv")] == ["new"]


def test_directory_stays_within_its_limit_and_keeps_the_newest(llama, tmp_path):
    limits = SsdLimits(max_bytes=400_000, min_free_bytes=0, block_tokens=32)
    runner = start(llama, tmp_path, limits)
    for seed in range(12):
        runner.generate(tokens(seed, 60))
        write_out(runner.cache)
        assert on_disk(tmp_path) <= limits.max_bytes
    runner.cache.close(10.0)
    again = start(llama, tmp_path, limits)
    assert isinstance(again.cache.match(tokens(11, 60)), Match)
    assert again.cache.stats().ssd.nbytes == on_disk(tmp_path)
    again.cache.close(10.0)


def test_lower_limit_is_enforced_at_start(llama, tmp_path):
    runner = start(llama, tmp_path)
    for seed in range(6):
        runner.generate(tokens(seed, 60))
    runner.cache.close(10.0)
    assert on_disk(tmp_path) > 200_000
    again = start(llama, tmp_path, SsdLimits(200_000, 0, block_tokens=32))
    write_out(again.cache)
    assert 0 < on_disk(tmp_path) <= 200_000
    again.cache.close(10.0)


def on_disk(folder) -> int:
    return sum(p.stat().st_size for s in ("*.kv", "*.state") for p in folder.rglob(s))
