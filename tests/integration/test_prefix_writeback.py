"""What reaches the SSD: bounded queues, back-pressure, states that must pay, free space, crashes.

Caches without a model; a disk whose gate the test opens. No test waits for time to pass.
"""

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache
from prefix_runner import write_out

from swiftlm_engine.brain.prefix_index import Kind
from swiftlm_engine.prefix import ssd
from swiftlm_engine.prefix.cache import HitSource, Match, Miss, MissReason, PrefixCache, StoreResult
from swiftlm_engine.prefix.fingerprint import Fingerprint
from swiftlm_engine.prefix.namespace import FolderInUse
from swiftlm_engine.prefix.ssd import SsdLimits, SsdTier
from swiftlm_engine.prefix.writer import PosixDisk

DIM = 64
TOKEN_BYTES = 2 * DIM * 4
STATE_BYTES = 64 * TOKEN_BYTES
LONG = 30.0


pytestmark = pytest.mark.usefixtures("on_the_cpu")


class GatedDisk(PosixDisk):
    def __init__(self, free: int = 1 << 50):
        self.gate = threading.Event()
        self.free = free
        self.num_written = 0

    def write(self, path, pieces):
        assert self.gate.wait(LONG)
        written = super().write(path, pieces)
        self.num_written += written
        return written

    def free_bytes(self, folder):
        return self.free


@pytest.fixture
def disk():
    disk = GatedDisk()
    yield disk
    disk.gate.set()


def plain(count: int = 0) -> list[KVCache]:
    cache = KVCache()
    if count:
        cache.keys, cache.values = rows(count), rows(count)
        cache.offset = count
    return [cache]


def rows(count: int) -> mx.array:
    positions = mx.arange(count, dtype=mx.float32)[None, None, :, None]
    return mx.contiguous(mx.broadcast_to(positions, (1, 1, count, DIM)))


def hybrid(count: int = 0) -> list[KVCache | ArraysCache]:
    state = ArraysCache(1)
    if count:
        state[0] = mx.full((1, STATE_BYTES // 4), float(count))
    return [*plain(count), state]


def tokens(first: int, count: int) -> list[int]:
    return [first * 10_000 + i for i in range(count)]


def open_cache(
    folder,
    disk,
    caches=plain,
    ram_tokens=10_000,
    clock=lambda: 0.0,
    cache_clock=time.monotonic,
    **limits,
):
    defaults = {"max_bytes": 1 << 30, "min_free_bytes": 0, "block_tokens": 32}
    tier = SsdTier(folder, Fingerprint({}), caches, SsdLimits(**defaults | limits), clock, disk)
    return PrefixCache(caches, ram_tokens * TOKEN_BYTES, tier, cache_clock)


def length_on_disk(folder, prompt, caches=plain) -> int:
    disk = GatedDisk()
    disk.gate.set()
    cache = open_cache(folder, disk, caches)
    result = cache.match(prompt)
    if isinstance(result, Match):
        assert result.source is HitSource.SSD
        keys, values = result.caches[0].keys_and_values()
        expected = [float(i) for i in range(result.length)]
        assert keys[0, 0, :, 0].tolist() == values[0, 0, :, -1].tolist() == expected
    cache.close(LONG)
    return result.length


def test_queue_never_holds_more_than_its_limit_and_all_is_written_in_the_end(disk, tmp_path):
    limit = 100 * TOKEN_BYTES
    cache = open_cache(tmp_path, disk, queue_bytes=limit)
    prompt = tokens(1, 1000)
    cache.store(prompt, plain(1000))
    assert not cache.pump()
    assert 0 < cache.stats().ssd.queued_bytes <= limit
    disk.gate.set()
    assert cache.close(LONG)
    assert cache.stats().ssd.dropped == {}
    assert length_on_disk(tmp_path, [*prompt, 0]) == 1000


def test_what_is_stored_waits_until_it_is_pumped_and_is_written_at_close(disk, tmp_path):
    disk.gate.set()
    now = [3.0]
    cache = open_cache(tmp_path, disk, cache_clock=lambda: now[0])
    assert cache.waiting_since is None
    cache.store(tokens(1, 320), plain(320))
    assert cache.waiting_since == 3.0
    assert cache.waiting_bytes == cache.stats().waiting_bytes == 320 * TOKEN_BYTES
    assert cache.stats().ssd.queued_bytes == disk.num_written == 0
    assert cache.close(LONG)
    assert length_on_disk(tmp_path, [*tokens(1, 320), 0]) == 320


def test_pumping_copies_out_about_as_much_as_it_is_told(disk, tmp_path):
    cache = open_cache(tmp_path, disk)
    cache.store(tokens(1, 320), plain(320))
    assert not cache.pump(33 * TOKEN_BYTES)
    assert 33 * TOKEN_BYTES < cache.stats().ssd.queued_bytes <= 66 * TOKEN_BYTES
    assert cache.is_writing
    disk.gate.set()
    write_out(cache)
    assert not cache.is_writing
    assert cache.waiting_since is None
    cache.close(LONG)


def test_longer_prefix_takes_over_the_wait_of_the_one_it_replaces(disk, tmp_path):
    now = [3.0]
    cache = open_cache(tmp_path, disk, cache_clock=lambda: now[0])
    cache.store(tokens(1, 64), plain(64))
    now[0] = 9.0
    cache.store(tokens(1, 128), plain(128))
    assert cache.waiting_since == 3.0
    assert cache.waiting_bytes == 128 * TOKEN_BYTES
    cache.resize(0)
    assert cache.waiting_since is None


def test_what_ram_evicts_while_it_waits_is_written_then(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk, ram_tokens=1000)
    cache.store(tokens(1, 600), plain(600))
    cache.store(tokens(2, 600), plain(600))  # evicts the first
    cache.store(tokens(3, 600), plain(600))
    cache.resize(100 * TOKEN_BYTES)
    assert cache.close(LONG)
    assert cache.stats().ssd.dropped == {}
    for first in (1, 2, 3):
        assert length_on_disk(tmp_path, [*tokens(first, 600), 0]) == 600


def test_state_is_saved_whose_trunk_went_to_a_longer_prefix_while_both_waited(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk, hybrid)
    cache.store(tokens(1, 100), hybrid(100), Kind.PROMPT)
    cache.store(tokens(1, 120), hybrid(120))
    assert cache.close(LONG)
    assert length_on_disk(tmp_path, [*tokens(1, 120), 0], hybrid) == 120
    assert length_on_disk(tmp_path, tokens(1, 120), hybrid) == 100


def test_what_ram_evicts_before_the_queue_takes_it_is_dropped_and_counted(disk, tmp_path):
    cache = open_cache(tmp_path, disk, ram_tokens=1000, queue_bytes=100 * TOKEN_BYTES)
    cache.store(tokens(1, 600), plain(600))
    cache.store(tokens(2, 600), plain(600))  # evicts the first
    assert cache.stats().ssd.dropped == {"queue full": 1}
    disk.gate.set()
    assert cache.close(LONG)
    assert 0 < length_on_disk(tmp_path, tokens(1, 600)) <= 100
    assert length_on_disk(tmp_path, [*tokens(2, 600), 0]) == 600


def test_waiting_offers_keep_no_array_that_the_ram_tier_let_go(disk, tmp_path):
    cache = open_cache(tmp_path, disk, queue_bytes=TOKEN_BYTES)
    before = mx.get_active_memory()
    cache.store(tokens(1, 5000), plain(5000))
    assert mx.get_active_memory() > before + 4000 * TOKEN_BYTES
    cache.resize(0)
    assert mx.get_active_memory() <= before + 100 * TOKEN_BYTES


def test_written_prefixes_are_freed_without_a_garbage_collection(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk)
    before = mx.get_active_memory()
    gc.collect()
    gc.disable()
    try:
        cache.store(tokens(1, 5000), plain(5000))
        while not cache.pump():
            pass
        cache.resize(0)
        assert mx.get_active_memory() <= before + 100 * TOKEN_BYTES
    finally:
        gc.enable()


def test_closing_with_a_stuck_disk_keeps_its_deadline_and_frees_the_arrays(disk, tmp_path):
    cache = open_cache(tmp_path, disk)
    caches = plain(500)
    array = weakref.ref(caches[0])
    cache.store(tokens(1, 500), caches)
    del caches
    assert not cache.close(0.0)
    assert array() is None
    assert cache.nbytes == 0


def test_growing_conversation_writes_every_token_once(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk)
    for count in range(100, 1001, 100):
        cache.store(tokens(1, count), plain(count))
    assert cache.close(LONG)
    assert 1000 * TOKEN_BYTES < disk.num_written < 1000 * TOKEN_BYTES * 1.2


def test_states_are_written_only_as_tokens_pay_for_them(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk, hybrid)
    for count in range(16, 641, 16):  # a state is worth 64 tokens
        cache.store(tokens(1, count), hybrid(count))
        write_out(cache)
    assert disk.num_written <= 2 * 640 * TOKEN_BYTES * 1.2
    assert len(list(tmp_path.rglob("*.state"))) == 640 // 64
    cache.close(LONG)


def test_state_that_did_not_pay_is_saved_at_close(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk, hybrid)
    for count in (64, 70, 80):
        cache.store(tokens(1, count), hybrid(count))
        write_out(cache)
    assert len(list(tmp_path.rglob("*.state"))) == 1
    assert cache.close(LONG)
    assert length_on_disk(tmp_path, [*tokens(1, 80), 0], hybrid) == 80
    assert length_on_disk(tmp_path, tokens(1, 80), hybrid) == 70


def test_state_that_did_not_pay_is_saved_when_ram_evicts_it(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk, hybrid, ram_tokens=300)
    cache.store(tokens(1, 64), hybrid(64))
    cache.store(tokens(1, 70), hybrid(70))
    cache.store(tokens(2, 200), hybrid(200))  # evicts the first conversation
    write_out(cache)
    assert cache.match([*tokens(1, 70), 0]).length == 70
    cache.close(LONG)


def test_system_state_is_written_at_once(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk, hybrid)
    cache.store(tokens(1, 20), hybrid(20), Kind.SYSTEM)
    write_out(cache)
    assert len(list(tmp_path.rglob("*.state"))) == 1
    cache.close(LONG)


def test_free_space_below_the_floor_evicts_then_drops(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk, min_free_bytes=1000)
    cache.store(tokens(1, 64), plain(64))
    write_out(cache)
    disk.free = 1000  # not one byte to spare
    cache.store(tokens(2, 32), plain(32))
    write_out(cache)
    assert cache.stats().ssd.num_evicted > 0
    assert disk.num_written <= 100 * TOKEN_BYTES
    disk.free = 0
    cache.store(tokens(3, 320), plain(320))
    write_out(cache)
    assert cache.stats().ssd.dropped == {"directory full": 1}
    cache.close(LONG)


def test_bytes_written_in_a_day_are_bounded_and_come_back_the_next(disk, tmp_path):
    disk.gate.set()
    hour = [0.0]
    allowance = 200 * TOKEN_BYTES
    cache = open_cache(tmp_path, disk, clock=lambda: hour[0] * 3600.0, max_bytes_per_day=allowance)
    cache.store(tokens(1, 320), plain(320))
    write_out(cache)
    assert 0 < disk.num_written <= allowance * 1.1
    assert cache.stats().ssd.dropped == {"daily writes spent": 1}
    hour[0] = 24.0
    cache.store(tokens(1, 340), plain(340))
    write_out(cache)
    assert allowance < disk.num_written <= 2 * allowance * 1.1
    cache.close(LONG)


def test_least_recently_used_files_leave_first_and_age_survives_a_restart(disk, tmp_path):
    disk.gate.set()
    minute = [0.0]

    def clock() -> float:
        return minute[0] * 60.0

    limit = 7 * 34 * TOKEN_BYTES
    cache = open_cache(tmp_path, disk, clock=clock, max_bytes=limit)
    for first in (1, 2, 3):
        minute[0] += 1
        cache.store(tokens(first, 64), plain(64))
        write_out(cache)
        for path in tmp_path.rglob("*.kv"):  # written now, by this clock
            if path.stat().st_mtime > 1e6:
                os.utime(path, (clock(), clock()))
    cache.close(LONG)
    minute[0] = 10
    cache = open_cache(tmp_path, disk, clock=clock, max_bytes=limit)
    assert cache.match([*tokens(1, 64), 0]).length == 64
    cache.close(LONG)
    minute[0] = 20
    cache = open_cache(tmp_path, disk, clock=clock, max_bytes=limit)
    cache.store(tokens(4, 64), plain(64))
    cache.close(LONG)
    kept = {first: length_on_disk(tmp_path, [*tokens(first, 64), 0]) for first in (1, 2, 3, 4)}
    assert kept[2] < 64
    assert kept[1] == kept[4] == 64


def test_clear_deletes_the_files(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk)
    cache.store(tokens(1, 100), plain(100))
    cache.clear()
    write_out(cache)
    assert list(tmp_path.rglob("*.kv")) == []
    assert isinstance(cache.match(tokens(1, 100)), Miss)
    cache.close(LONG)


def test_folder_serves_one_process_at_a_time(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk)
    with pytest.raises(FolderInUse):
        open_cache(tmp_path, disk, lock_wait_s=0.0)
    cache.close(LONG)
    open_cache(tmp_path, disk, lock_wait_s=0.0).close(LONG)


def test_closed_cache_is_off_for_good_and_can_be_closed_again(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk)
    cache.store(tokens(1, 64), plain(64))
    assert cache.close(LONG)
    assert cache.close(LONG)
    cache.resize(1 << 20)
    cache.clear()
    assert cache.pump()
    assert cache.store(tokens(1, 64), plain(64)) is StoreResult.DISABLED
    assert cache.match(tokens(1, 64)).reason is MissReason.DISABLED
    assert length_on_disk(tmp_path, [*tokens(1, 64), 0]) == 64


def test_new_process_waits_for_a_predecessor_that_is_still_saving(disk, tmp_path):
    disk.gate.set()
    first = open_cache(tmp_path, disk)
    closing = threading.Timer(0.1, first.close)
    closing.start()
    open_cache(tmp_path, disk, lock_wait_s=LONG).close(LONG)
    closing.join()


def test_leftover_scratch_files_and_orphans_are_deleted_at_start(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk)
    cache.store(tokens(1, 96), plain(96))
    cache.close(LONG)
    files = sorted(tmp_path.rglob("*.kv"), key=lambda p: p.stat().st_mtime_ns)
    (files[0].parent / "0123.tmp").write_bytes(b"half a file")
    files[0].unlink()
    assert length_on_disk(tmp_path, tokens(1, 96)) == 0
    assert [p.name for p in files[0].parent.iterdir()] == ["fingerprint.json"]


def test_write_error_costs_the_file_and_what_hangs_on_it_only(tmp_path):
    class FullDisk(GatedDisk):
        num_left = 2

        def write(self, path, pieces):
            if self.num_left == 0:
                raise OSError(28, "No space left on device")
            self.num_left -= 1
            return super().write(path, pieces)

    disk = FullDisk()
    disk.gate.set()
    cache = open_cache(tmp_path, disk)
    cache.store(tokens(1, 160), plain(160))
    write_out(cache)
    assert cache.stats().ssd.dropped["write failed"] >= 1
    assert cache.match(tokens(1, 160)).source is HitSource.RAM
    cache.close(LONG)
    assert length_on_disk(tmp_path, tokens(1, 160)) == 64


def gone_folder(tmp_path) -> None:
    shutil.rmtree(tmp_path)


def unusable_folder(tmp_path) -> None:
    """As a volume that was unmounted, for a user who may not write there."""
    shutil.rmtree(tmp_path)
    tmp_path.write_text("in the way")


def evict(cache) -> None:
    cache.store(tokens(9, 900), hybrid(900))


@pytest.mark.parametrize("lose", [gone_folder, unusable_folder])
@pytest.mark.parametrize("use", [PrefixCache.pump, evict, PrefixCache.clear, PrefixCache.close])
def test_folder_that_is_lost_costs_what_it_held_and_nothing_else(tmp_path, lose, use):
    folder = tmp_path / "prefix"
    cache = open_cache(folder, PosixDisk(), hybrid, ram_tokens=1000)
    cache.store(tokens(1, 160), hybrid(160))
    write_out(cache)
    cache.store(tokens(2, 300), hybrid(300))
    lose(folder)
    use(cache)
    if use in (PrefixCache.pump, evict):
        assert cache.stats().ssd.dropped["folder gone"]
        assert cache.match([*tokens(9 if use is evict else 2, 900), 0]).source is HitSource.RAM
        cache.store(tokens(3, 64), hybrid(64))
        cache.pump()
    cache.close(LONG)
    if lose is gone_folder and use in (PrefixCache.pump, evict):
        assert length_on_disk(folder, [*tokens(3, 64), 0], hybrid) == 64


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ENODEV])
def test_disk_that_does_not_say_what_is_free_is_not_written_to(tmp_path, code):
    class SickDisk(PosixDisk):
        is_sick = False

        def free_bytes(self, folder):
            if self.is_sick:
                raise OSError(code, os.strerror(code))
            return super().free_bytes(folder)

    disk = SickDisk()
    cache = open_cache(tmp_path, disk)
    disk.is_sick = True
    cache.store(tokens(1, 64), plain(64))
    assert cache.pump()
    assert cache.stats().ssd.dropped == {"folder gone": 1}
    disk.is_sick = False
    cache.store(tokens(2, 64), plain(64))
    cache.close(LONG)
    assert length_on_disk(tmp_path, [*tokens(2, 64), 0]) == 64


def test_folder_that_cannot_be_read_at_start_is_unlocked_again(tmp_path):
    class SickDisk(PosixDisk):
        def free_bytes(self, folder):
            raise OSError(errno.EIO, "sick")

    with pytest.raises(OSError, match="sick"):
        open_cache(tmp_path, SickDisk())
    open_cache(tmp_path, PosixDisk()).close(LONG)


def test_state_that_no_file_can_hold_is_a_drop(disk, tmp_path):
    def odd(count: int = 0):
        caches = hybrid(count)
        if count:
            caches[1].lengths = {count}
        return caches

    disk.gate.set()
    cache = open_cache(tmp_path, disk, odd)
    cache.store(tokens(1, 64), odd(64))
    assert cache.pump()
    assert cache.stats().ssd.dropped == {"not storable": 1}
    cache.close(LONG)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES, errno.EINTR])
def test_file_that_cannot_be_read_just_now_is_a_miss_and_stays(tmp_path, monkeypatch, code):
    cache = open_cache(tmp_path, PosixDisk())
    cache.store(tokens(1, 320), plain(320))
    cache.close(LONG)
    again = open_cache(tmp_path, PosixDisk())

    def fail(path, buffer):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(ssd, "read_payload", fail)
        assert again.match([*tokens(1, 320), 0]) == Miss(MissReason.EMPTY)
    assert again.stats().ssd.num_corrupt == 0
    assert again.match([*tokens(1, 320), 0]).length == 320
    again.close(LONG)


def test_disk_that_others_have_filled_costs_nothing_of_what_is_kept(disk, tmp_path):
    disk.gate.set()
    cache = open_cache(tmp_path, disk, min_free_bytes=1 << 20)
    cache.store(tokens(1, 64), plain(64))
    write_out(cache)
    disk.free = 0
    cache.store(tokens(2, 64), plain(64))
    write_out(cache)
    assert cache.stats().ssd.dropped == {"directory full": 1}
    cache.close(LONG)
    assert length_on_disk(tmp_path, [*tokens(1, 64), 0]) == 64


def test_block_that_was_discarded_is_not_served_before_its_second_write(disk, tmp_path):
    cache = open_cache(tmp_path, disk, ram_tokens=100)
    cache.store(tokens(1, 64), plain(64))
    cache.pump()
    cache._ssd.clear()
    cache._offers.add(cache._ram.snapshots(list(cache._ram._index)), Kind.TURN)
    cache.pump()  # the same blocks are planned again, behind their removal
    disk.gate.set()
    assert cache._ssd._writer.drain(LONG)
    results = cache._ssd._writer.results()
    assert len(results) == 4
    cache._ssd._writer.results = lambda: results[:2]
    cache._ssd.reap()
    assert not any(item.is_ready for item in cache._ssd.tree.items())
    cache._ssd._writer.results = lambda: results[2:]
    cache._ssd.reap()
    assert all(item.is_ready for item in cache._ssd.tree.items())
    cache.close(LONG)


def test_wait_begins_anew_once_nothing_waits(disk, tmp_path):
    now = [3.0]
    cache = open_cache(tmp_path, disk, cache_clock=lambda: now[0], ram_tokens=100)
    cache.store(tokens(1, 64), plain(64))
    now[0] = 500.0
    cache.store(tokens(2, 64), plain(64))  # evicts the first
    assert cache.waiting_since == 500.0


CHILD = """
import sys
sys.path[:0] = {path!r}
import mlx.core as mx
mx.set_default_device(mx.cpu)
from pathlib import Path
from test_prefix_writeback import GatedDisk, open_cache, plain, tokens, write_out
disk = GatedDisk()
disk.gate.set()
cache = open_cache(Path({folder!r}), disk)
for count in range(50, 2000, 50):
    cache.store(tokens(1, count), plain(count))
    if count == 500:
        write_out(cache)
        print("ready", flush=True)
"""


def test_killed_process_loses_only_what_was_not_yet_written(tmp_path):
    here = Path(__file__).parent
    script = textwrap.dedent(CHILD).format(path=[*sys.path, str(here)], folder=str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait(LONG)
    child.stdout.close()
    assert length_on_disk(tmp_path, [*tokens(1, 2000), 0]) >= 500


@pytest.mark.parametrize("deadline_s", [LONG, 0.0])
def test_closing_on_a_full_disk_gives_everything_back(tmp_path, deadline_s):
    class Full(PosixDisk):
        def write(self, path, pieces):
            raise OSError(errno.ENOSPC, "no space left on device")

    cache = open_cache(tmp_path, Full())
    cache.store(tokens(1, 100), plain(100))
    cache.close(deadline_s)
    assert (cache.nbytes, cache.waiting_bytes) == (0, 0)
    cache.stats()
    open_cache(tmp_path, PosixDisk(), lock_wait_s=0.0).close(LONG)  # its lock, too
