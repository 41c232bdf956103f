"""Reads through page-locked memory: what arrives, and in how many copies. The driver is a fake."""

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from swiftlm_engine.streaming import gpu_memory
from swiftlm_engine.streaming.counters import StreamCounters
from swiftlm_engine.streaming.gpu_memory import GpuReads
from swiftlm_engine.streaming.reader import ExpertReader, Job, ReadSource

CONTENT = bytes(i * 7 % 251 for i in range(1000))


class FakeDriver:
    def __init__(self) -> None:
        self.copied: list[int] = []

    def page_locked(self, num_bytes: int) -> memoryview:
        return memoryview(mmap.mmap(-1, num_bytes))

    def copy(self, pairs: Sequence[tuple[memoryview, memoryview]]) -> None:
        for target, source in pairs:
            target[:] = source
            self.copied.append(target.nbytes)


@pytest.fixture
def fd(tmp_path: Path):
    path = tmp_path / "weights"
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_one_read_is_copied_to_every_target_in_order(fd: int):
    targets = [memoryview(bytearray(n)) for n in (100, 300, 50)]
    driver = FakeDriver()
    assert GpuReads(driver, os.preadv)(fd, targets, 20) == 450
    assert b"".join(targets) == CONTENT[20:470]
    assert driver.copied == [100, 300, 50]


def test_file_that_ends_early_gives_what_there_was(fd: int):
    targets = [memoryview(bytearray(n)) for n in (600, 600)]
    assert GpuReads(FakeDriver(), os.preadv)(fd, targets, 0) == len(CONTENT)
    assert b"".join(targets) == CONTENT + bytes(200)


def test_more_than_the_staging_holds_comes_in_several_reads(
    fd: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gpu_memory, "MAX_RUN_BYTES", 64)
    target = memoryview(bytearray(100))
    reads = GpuReads(FakeDriver(), os.preadv)
    first = reads(fd, [target], 0)
    assert first == 64
    assert reads(fd, [target[first:]], first) == 36
    assert target == CONTENT[:100]


def test_direct_reads_are_of_whole_pages_and_deliver_what_was_asked_for(tmp_path: Path):
    assert _read_by(_paged_reader(), tmp_path, 5000, 9000) == _pages()[5000:14000]


def test_file_system_without_direct_reads_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = os.open

    def refuse_direct(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not here")
        return plain(path, flags)

    monkeypatch.setattr(os, "open", refuse_direct)
    assert _read_by(_paged_reader(), tmp_path, 1, 16000) == _pages()[1:16001]


def test_direct_reads_reach_the_uneven_end_of_a_file(tmp_path: Path):
    assert _read_by(_paged_reader(), tmp_path, 20000, 5000) == _pages()[20000:]


def _pages() -> bytes:
    return CONTENT * 25


def _paged_reader() -> ExpertReader:
    def preadv(fd: int, views: Sequence[memoryview], offset: int) -> int:
        assert offset % 4096 == 0
        assert all(len(view) % 4096 == 0 for view in views)
        return os.preadv(fd, views, offset)

    reads = GpuReads(FakeDriver(), preadv)
    return ExpertReader(StreamCounters(), 2, reads, nocache=True, direct=True)


def _read_by(reader: ExpertReader, folder: Path, offset: int, size: int) -> bytes:
    path = folder / "experts"
    path.write_bytes(_pages())
    target = bytearray(size)
    reader.open(path)
    reader.read([Job(ReadSource(path, offset, size, "U8"), memoryview(target), "U8")])
    reader.close()
    return bytes(target)
