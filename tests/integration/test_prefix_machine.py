"""Both tiers of the prefix cache under random lists of what happens to them.

The caches hold what their tokens make of them, so that any hit can be held against a cold run. The
disk fails, fills up, loses its folder and its files; the process is restarted and killed.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from swiftlm_engine.brain.prefix_index import Kind
from swiftlm_engine.prefix.cache import Match, Miss, PrefixCache
from swiftlm_engine.prefix.fingerprint import Fingerprint
from swiftlm_engine.prefix.ssd import SsdLimits, SsdTier
from swiftlm_engine.prefix.writer import PosixDisk

pytestmark = pytest.mark.usefixtures("on_the_cpu")

DIM, WINDOW, BLOCK = 4, 48, 16
TOKEN_BYTES = 2 * DIM * 4
PARTS = {name: [100 * i + j for j in range(40)] for i, name in enumerate("abcd", 1)}
Caches = list[Any]


def marks(tokens: list[int]) -> list[float]:
    """One number for each token that depends on all before it, exact in float32."""
    found, at = [], 7
    for token in tokens:
        at = (at * 31 + token) % 1_000_003
        found.append(float(at))
    return found


def rows(values: list[float]) -> mx.array:
    column = mx.array(values)[None, None, :, None]
    return mx.contiguous(mx.broadcast_to(column, (1, 1, len(values), DIM)))


def extend(caches: Caches, tokens: list[int], done: int) -> Caches:
    """As a model would: attends over what it is given, and recurs from its state."""
    values = marks(tokens)
    for cache in caches:
        if isinstance(cache, ArraysCache):
            cache[0] = mx.full((1, DIM), values[-1])
        elif done < len(tokens):
            new = rows(values[done:])
            cache.update_and_fetch(new, new)
    mx.eval([c.state for c in caches])
    return caches


def plain() -> Caches:
    return [KVCache()]


def hybrid() -> Caches:
    return [ArraysCache(1), KVCache()]


def windowed() -> Caches:
    return [RotatingKVCache(max_size=WINDOW), KVCache()]


KINDS: dict[str, Callable[[], Caches]] = {"plain": plain, "hybrid": hybrid, "windowed": windowed}


def check_holds(caches: Caches, tokens: list[int]) -> None:
    values = marks(tokens)
    for cache in caches:
        if isinstance(cache, ArraysCache):
            assert cache[0].tolist() == [[values[-1]] * DIM]
        elif isinstance(cache, RotatingKVCache):
            assert cache.offset == len(tokens)
            window = cache._temporal_order(cache.keys)[0, 0, :, 0].tolist()
            seen = [v for v in window if v in set(values)][-min(WINDOW, len(values)) :]
            assert seen == values[-len(seen) :]
            assert len(seen) >= min(WINDOW - 1, len(values))
        else:
            assert cache.offset == len(tokens)
            shared = hasattr(cache, "keys_and_values")
            keys, held = cache.keys_and_values() if shared else (cache.keys, cache.values)
            assert keys[0, 0, : len(tokens), 0].tolist() == values
            assert held[0, 0, : len(tokens), -1].tolist() == values


class FaultyDisk(PosixDisk):
    """Without fsync, which only costs time here."""

    def __init__(self) -> None:
        self.free = 1 << 40
        self.fault = 0

    def write(self, path: Path, pieces: Any) -> int:
        if self.fault:
            path.with_suffix(".tmp").write_bytes(b"half")
            raise OSError(self.fault, "no")
        content = b"".join(pieces)
        scratch = path.with_suffix(".tmp")
        scratch.write_bytes(content)
        scratch.rename(path)
        return len(content)

    def free_bytes(self, folder: Path) -> int:
        if not folder.exists():
            raise FileNotFoundError(errno.ENOENT, str(folder))
        return self.free


class World:
    def __init__(self, folder: Path, new_caches: Callable[[], Caches]) -> None:
        self.folder, self.new = folder, new_caches
        self.disk, self.time, self.num_lives = FaultyDisk(), 1000.0, 0
        self.budget = 400 * TOKEN_BYTES
        self.left: list[PrefixCache] = []  # of processes that were killed
        self.cache = self._opened()

    def _opened(self) -> PrefixCache:
        self.num_lives += 1
        limits = SsdLimits(max_bytes=40_000, min_free_bytes=0, block_tokens=BLOCK)
        tier = SsdTier(self.folder, Fingerprint({}), self.new, limits, lambda: self.time, self.disk)
        return PrefixCache(self.new, self.budget, tier, lambda: self.time)

    def ask(self, names: str, cut: int, salt: bytes) -> None:
        """A request: a hit is continued like a cold run, and stored."""
        tokens = [token for name in names for token in PARTS[name]]
        tokens = tokens[: max(2, len(tokens) - cut)]
        found = self.cache.match(tokens, salt)
        caches, done = self.new(), 0
        if isinstance(found, Match):
            assert 0 < found.length < len(tokens)
            check_holds(found.caches, tokens[: found.length])
            caches, done = found.caches, found.length
        else:
            assert isinstance(found, Miss)
        middle = len(PARTS[names[0]])
        if done < middle < len(tokens):
            extend(caches, tokens[:middle], done)
            self.cache.store(tokens[:middle], caches, Kind.SYSTEM, salt)
            done = middle
        self.cache.store(tokens, extend(caches, tokens, done), Kind.TURN, salt)
        check_holds(caches, tokens)

    def give_up(self, names: str, pauses: int, salt: bytes) -> None:
        search = self.cache.search([t for name in names for t in PARTS[name]], salt)
        for _ in range(pauses):
            if next(search, None) is None:
                break
        search.close()

    def write(self, everything: bool) -> None:
        if self.cache.pump(8 * TOKEN_BYTES) or not everything:
            return
        for _ in range(50):
            self.cache._ssd.drain(5.0)
            if self.cache.pump():
                break
        self.cache._ssd.drain(5.0)

    def resize(self, tokens: int) -> None:
        self.budget = tokens * TOKEN_BYTES
        self.cache.resize(self.budget)

    def restart(self) -> None:
        self.cache.close(5.0)
        assert self.cache.nbytes == 0
        self.cache = self._opened()

    def kill(self) -> None:
        """What is on the disk at this moment is all that is left."""
        lives_on = self.folder.with_name(f"life{self.num_lives}")
        lives_on.mkdir()
        for file in self.files():  # the writer goes on meanwhile
            with contextlib.suppress(FileNotFoundError):
                content = file.read_bytes()
                copy = lives_on / file.relative_to(self.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
        self.left.append(self.cache)
        self.folder = lives_on
        self.cache = self._opened()

    def come_back(self, names: str, how: str, salt: bytes) -> None:
        """The way to a hit on disk, which random steps seldom find."""
        self.ask(names, 0, salt)
        self.write(everything=True)
        getattr(self, how)()
        self.ask(names, 0, salt)

    def files(self) -> list[Path]:
        return sorted(p for p in self.folder.rglob("*") if p.is_file() and "lock" not in p.name)

    def damage(self, number: int, how: str) -> None:
        self.cache._ssd.drain(5.0)
        if not (files := self.files()):
            return
        file = files[number % len(files)]
        content = file.read_bytes()
        if how == "gone":
            file.unlink()
        elif how == "cut":
            file.write_bytes(content[: len(content) // 2])
        elif content:
            at = number % len(content)
            file.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])

    def lose_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def check(self) -> None:
        self.cache.check_integrity()
        stats = self.cache.stats()
        assert stats.nbytes <= self.budget
        assert stats.waiting_bytes >= 0

    def end(self) -> None:
        self.disk.fault = 0
        self.cache.clear()
        assert self.cache.nbytes == self.cache.waiting_bytes == 0
        for cache in (self.cache, *self.left):
            cache.close(5.0)


NAMES = st.sampled_from(["ab", "abc", "abcd", "abdc", "ac", "a", "dcba"])
SALTS = st.sampled_from([b"", b"", b"", b"x"])
NUMBERS = st.integers(0, 60)
CUTS = st.sampled_from([0, 0, 0, 1, 7, 35])
LIVES = st.sampled_from(["restart", "kill"])
DAMAGES = st.sampled_from(["gone", "cut", "flipped"])
ASK = st.tuples(st.just("ask"), NAMES, CUTS, SALTS)
WRITE = st.tuples(st.just("write"), st.sampled_from([True, True, False]))
STEPS = st.one_of(
    *[ASK] * 8,
    *[WRITE] * 4,
    *[st.tuples(st.just("come_back"), NAMES, LIVES, SALTS)] * 4,
    st.tuples(LIVES),
    st.tuples(st.just("give_up"), NAMES, st.integers(0, 4), SALTS),
    st.tuples(st.just("resize"), st.sampled_from([0, 30, 120, 400, 2000])),
    st.tuples(st.just("damage"), NUMBERS, DAMAGES),
    st.tuples(st.just("lose_folder")),
    st.tuples(st.just("fault"), st.sampled_from([0, 0, errno.ENOSPC, errno.EIO])),
    st.tuples(st.just("free"), st.sampled_from([0, 1 << 40])),
    st.tuples(st.just("clock"), st.sampled_from([-5000.0, 1.0, 90_000.0])),
    st.tuples(st.just("clear")),
)


def play(new_caches: Callable[[], Caches], steps: list[tuple[Any, ...]], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    world = World(folder / "life0", new_caches)
    for name, *arguments in steps:
        if name == "fault":
            world.disk.fault = arguments[0]
        elif name == "free":
            world.disk.free = arguments[0]
        elif name == "clock":
            world.time += arguments[0]
        elif name == "clear":
            world.cache.clear()
            assert world.cache.nbytes == 0
        else:
            getattr(world, name)(*arguments)
        world.check()
    world.end()


QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.mark.parametrize("kind", KINDS)
def test_a_hit_equals_a_cold_run_whatever_happened(kind: str, tmp_path: Path) -> None:
    @settings(max_examples=67, deadline=None, derandomize=True, database=None,
              suppress_health_check=QUIET)  # fmt: skip
    @given(st.lists(STEPS, min_size=6, max_size=12))
    def run(steps: list[tuple[Any, ...]]) -> None:
        play(KINDS[kind], steps, tmp_path / "world")

    run()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_hit_equals_a_cold_run_whatever_happened_for_long(kind: str, tmp_path: Path) -> None:
    @settings(max_examples=700, deadline=None, suppress_health_check=QUIET)
    @given(st.lists(STEPS, min_size=20, max_size=60))
    def run(steps: list[tuple[Any, ...]]) -> None:
        play(KINDS[kind], steps, tmp_path / "world")

    run()
