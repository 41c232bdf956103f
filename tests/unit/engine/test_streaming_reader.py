"""Reads that fail in odd ways: one caller hears of it, and nothing strange is computed with."""

from __future__ import annotations

import os
import threading
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


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_where_the_system_gives_no_more_threads_fewer_read_and_none_is_missed(
    path, num_threads, monkeypatch
) -> None:
    """A thread that cannot be started raises where work is handed to it, and the work stays in the
    pool's queue: it would run later, into memory that was given away."""
    start, started = threading.Thread.start, []

    def scarce(thread: threading.Thread) -> None:
        if sum(one.is_alive() for one in started) >= num_threads:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    streamer, target, jobs = opened(path)
    told: list[bool] = []
    for _ in range(3):
        target[:] = bytes(SIZE)
        streamer.read(jobs)
        assert target == b"a" * SIZE
        streamer.read_ahead(jobs, told.append)
        streamer.settle()
    assert told == [False] * 3 if num_threads < 4 else [True] * 3
    streamer.close()


def test_no_thread_is_started_once_a_model_is_loaded(path, monkeypatch) -> None:
    streamer, target, jobs = opened(path)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    told: list[bool] = []
    streamer.read(jobs)
    streamer.read_ahead(jobs, told.append)
    streamer.settle()
    assert target == b"a" * SIZE
    assert told == [True]
    streamer.close()
