"""The writer thread: in order, bounded, all or nothing, and never in the way of closing."""

import errno
import threading

import pytest

from swiftlm_engine.prefix.block_file import ArrayRecord, BlockHeader, FileKind, read_payload
from swiftlm_engine.prefix.writer import PosixDisk, Remove, Touch, Write, Writer

LONG = 30.0  # a deadline that a sound writer never needs


class GatedDisk(PosixDisk):
    """Writes wait for the gate; the next `num_failures` of them fail."""

    def __init__(self):
        self.gate = threading.Event()
        self.num_failures = 0
        self.threads: set[int] = set()

    def write(self, path, pieces):
        self.threads.add(threading.get_ident())
        assert self.gate.wait(LONG)
        if self.num_failures:
            self.num_failures -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(path, pieces)


def write(folder, name: str, size: int = 10) -> Write:
    record = ArrayRecord(0, "uint8", (size,), size)
    header = BlockHeader(FileKind.BLOCK, name, "", 0, 1, b"", arrays=(record,))
    return Write(folder / f"{name}.kv", header, (b"x" * size,))


@pytest.fixture
def disk():
    disk = GatedDisk()
    yield disk
    disk.gate.set()


def test_file_is_in_place_once_drained_and_reported_with_its_size(disk, tmp_path):
    disk.gate.set()
    writer = Writer(100, disk)
    writer.submit(write(tmp_path, "a"))
    assert writer.drain(LONG)
    (result,) = writer.results()
    assert (result.id, result.error) == ("a", None)
    assert result.num_bytes == (tmp_path / "a.kv").stat().st_size
    assert bytes(read_payload(tmp_path / "a.kv", bytearray())[1][0]) == b"x" * 10
    assert writer.results() == []
    assert writer.close(LONG)


def test_files_are_written_on_another_thread(disk, tmp_path):
    disk.gate.set()
    writer = Writer(100, disk)
    writer.submit(write(tmp_path, "a"))
    assert writer.close(LONG)
    assert threading.get_ident() not in disk.threads


def test_queue_counts_bytes_until_they_are_written(disk, tmp_path):
    writer = Writer(25, disk)
    assert writer.has_room(1000)  # alone, any file may pass
    writer.submit(write(tmp_path, "a"))
    assert writer.has_room(15)
    assert not writer.has_room(16)
    writer.submit(write(tmp_path, "b"))
    assert writer.queued_bytes == 20
    disk.gate.set()
    assert writer.drain(LONG)
    assert writer.queued_bytes == 0
    writer.close(LONG)


def test_removal_follows_the_write_it_was_submitted_after(disk, tmp_path):
    writer = Writer(100, disk)
    writer.submit(write(tmp_path, "a"))
    writer.submit(Remove(tmp_path / "a.kv", 10))
    writer.submit(Touch(tmp_path / "a.kv", 5.0))
    disk.gate.set()
    assert writer.close(LONG)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_is_reported_and_leaves_nothing_behind(disk, tmp_path):
    disk.num_failures = 1
    disk.gate.set()
    writer = Writer(100, disk)
    writer.submit(write(tmp_path, "a"))
    writer.submit(write(tmp_path, "b"))
    assert writer.drain(LONG)
    first, second = writer.results()
    assert "No space" in first.error
    assert second.error is None
    assert [path.name for path in tmp_path.iterdir()] == ["b.kv"]
    writer.close(LONG)


def test_failure_halfway_leaves_no_scratch_file(tmp_path):
    def pieces():
        yield b"half"
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        PosixDisk().write(tmp_path / "a.kv", pieces())
    assert list(tmp_path.iterdir()) == []


def test_unexpected_error_does_not_end_the_thread(tmp_path):
    class BrokenDisk(PosixDisk):
        def write(self, path, pieces):
            if path.name == "a.kv":
                raise MemoryError
            return super().write(path, pieces)

    writer = Writer(100, BrokenDisk())
    writer.submit(write(tmp_path, "a"))
    writer.submit(write(tmp_path, "b"))
    assert writer.drain(LONG)
    assert [result.error for result in writer.results()] == ["MemoryError", None]
    writer.close(LONG)


def test_close_gives_up_at_its_deadline_and_drops_the_rest(disk, tmp_path):
    writer = Writer(100, disk)
    for name in "abc":
        writer.submit(write(tmp_path, name))
    assert not writer.close(0.0)
    assert writer.queued_bytes <= 10  # the one in hand
    disk.gate.set()
    assert writer.drain(LONG)
    assert {path.name for path in tmp_path.iterdir()} <= {"a.kv"}
    with pytest.raises(RuntimeError, match="closed"):
        writer.submit(write(tmp_path, "d"))


def test_touched_file_carries_the_time(tmp_path):
    (tmp_path / "a.kv").write_bytes(b"")
    writer = Writer(100, PosixDisk())
    writer.submit(Touch(tmp_path / "a.kv", 1234.0))
    assert writer.close(LONG)
    assert (tmp_path / "a.kv").stat().st_mtime == 1234.0
