"""When freed memory is given back: once in a pause, never between two steps of one answer."""

from __future__ import annotations

import ctypes
import sys

import pytest

from swiftlm_engine.isolation.footprint import footprint_bytes
from swiftlm_engine.run.malloc_trim import MallocTrim, trim


def trims(*steps: int) -> list[int]:
    """How many there were after each look."""
    made: list[None] = []
    heap = MallocTrim(lambda: made.append(None))
    counts = []
    for count in steps:
        heap.idle(count)
        counts.append(len(made))
    return counts


def test_a_pause_trims_once_however_long_it_lasts() -> None:
    assert trims(5, 5, 5, 5) == [0, 1, 1, 1]


def test_every_pause_trims_again() -> None:
    assert trims(5, 5, 9, 9, 9) == [0, 1, 1, 2, 2]


def test_looks_between_steps_are_no_pause() -> None:
    assert trims(0, 0, 1, 2, 3) == [0, 0, 0, 0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap is measured")
def test_what_was_freed_goes_back_to_the_system() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(64 << 10) for _ in range(1024)]  # 64 MiB of the heap, none mapped
    for block in blocks:
        ctypes.memset(block, 1, 64 << 10)
    last = libc.malloc(64 << 10)  # holds the end of the heap, so that free alone gives nothing back
    for block in blocks:
        libc.free(ctypes.c_void_p(block))
    before = footprint_bytes()
    trim()
    libc.free(ctypes.c_void_p(last))
    assert before - footprint_bytes() > 48 << 20
