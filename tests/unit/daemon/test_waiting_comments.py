"""What a silent stream says while its request waits."""

from __future__ import annotations

from fakes import FakeClock

from swiftlm_proto import messages as m
from swiftlmd.http.encoder import Awaited


def said(*steps: m.Progress) -> bytes:
    awaited = Awaited(lambda: 0.0)
    for step in steps:
        awaited.note(step)
    return awaited.comment()


def test_a_comment_counts_the_prompt_the_load_or_the_bytes_of_a_download() -> None:
    assert said() == said(m.Progress()) == b": waiting\n\n"
    assert said(m.Progress(10, 40)) == b": prefill 10/40\n\n"
    assert said(m.Progress(stage="weights", fraction=0.45)) == b": load weights 45%\n\n"
    large = m.Progress(done_bytes=5_000_000_000, total_bytes=9_000_000_000)
    assert said(large) == b": pull 5000000000/9000000000 bytes\n\n"
    parsed = m.Progress.parse(bytes(large))
    assert parsed.total_bytes == 9_000_000_000  # more than 32 bits


async def test_the_rest_is_foretold_by_the_pace_of_its_own_part_and_counts_down() -> None:
    clock = FakeClock()
    awaited = Awaited(clock.now)
    awaited.note(m.Progress(stage="weights", fraction=0.0))
    await clock.advance(10)
    awaited.note(m.Progress(stage="weights", fraction=0.5))
    assert awaited.comment() == b": load weights 50%, 10 s left\n\n"
    await clock.advance(4)
    assert awaited.comment() == b": load weights 50%, 6 s left\n\n"
    awaited.note(m.Progress(100, 1000))  # the next part says nothing of its pace yet
    assert awaited.comment() == b": prefill 100/1000\n\n"
    await clock.advance(2)
    awaited.note(m.Progress(300, 1000))
    assert awaited.comment() == b": prefill 300/1000, 7 s left\n\n"


async def test_what_takes_longer_than_foretold_is_not_foretold_again() -> None:
    clock = FakeClock()
    awaited = Awaited(clock.now)
    for fraction in (0.0, 0.9):
        awaited.note(m.Progress(stage="weights", fraction=fraction))
        await clock.advance(9)
    assert awaited.comment() == b": load weights 90%\n\n"
