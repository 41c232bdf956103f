"""Reads through page-locked memory: what arrives, and in how many copies. The driver is a fake."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from swiftlm_engine.streaming import gpu_memory
from swiftlm_engine.streaming.gpu_memory import GpuReads

CONTENT = bytes(i * 7 % 251 for i in range(1000))


class FakeDriver:
    def __init__(self) -> None:
        self.copied: list[int] = []

    def page_locked(self, num_bytes: int) -> memoryview:
        return memoryview(bytearray(num_bytes))

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
