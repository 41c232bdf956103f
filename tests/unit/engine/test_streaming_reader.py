"""Reads that fail in odd ways: one caller hears of it, and nothing strange is computed with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swiftlm_engine.streaming.counters import StreamCounters
from swiftlm_engine.streaming.reader import ExpertReader, FilesChanged, Job, ReadFault, ReadSource
from swiftlm_engine.streaming.streamer import Streamer

SIZE = 4 << 20  # several threads' worth


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "weights"
    file.write_bytes(b"a" * SIZE)
    return file


def opened(path: Path, preadv=os.preadv) -> tuple[Streamer, bytearray, list[Job]]:
    counters = StreamCounters()
    reader = ExpertReader(counters, 4, preadv)
    reader.open(path)
    target = bytearray(SIZE)
    return (
        Streamer(reader, counters),
        target,
        [Job(ReadSource(path, 0, SIZE, "U8"), memoryview(target), "U8")],
    )


@pytest.mark.parametrize("error", [MemoryError(), ValueError("odd"), OSError(5, "EIO")])
def test_a_broken_read_ahead_is_no_ones_fault_and_the_next_read_is_right(path, error) -> None:
    broken = [True]

    def preadv(fd, views, offset):
        if broken.pop() if broken else False:
            raise error
        return os.preadv(fd, views, offset)

    streamer, target, jobs = opened(path, preadv)
    told: list[bool] = []
    streamer.read_ahead(jobs, told.append)
    streamer.settle()
    assert told == [False]
    for _ in range(3):
        streamer.read(jobs)
    assert target == b"a" * SIZE
    streamer.close()


@pytest.mark.parametrize("error", [MemoryError(), ValueError("odd")])
def test_whatever_breaks_a_read_no_thread_writes_any_more_when_it_is_told(path, error) -> None:
    writing = [0]

    def preadv(fd, views, offset):
        if offset == 0:
            raise error
        writing[0] += 1
        try:
            return os.preadv(fd, views, offset)
        finally:
            writing[0] -= 1

    streamer, _, jobs = opened(path, preadv)
    with pytest.raises(ReadFault, match="could not be read"):
        streamer.read(jobs)
    assert writing == [0]
    assert streamer.counters.problems() == []
    streamer.close()


def test_a_file_written_over_while_it_is_read_is_a_fault_of_that_very_read(path) -> None:
    def preadv(fd, views, offset):
        if offset == 0:
            with path.open("r+b") as file:
                file.write(b"b" * SIZE)
            os.utime(path, ns=(1, 1))  # whatever the clock of the file system can tell apart
        return os.preadv(fd, views, offset)

    streamer, _, jobs = opened(path, preadv)
    with pytest.raises(FilesChanged):
        streamer.read(jobs)
    streamer.close()
