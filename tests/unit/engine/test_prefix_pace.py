"""When stored prefixes are copied out, by a clock that the test moves."""

from dataclasses import dataclass, field

import pytest

from swiftlm_engine.prefix.pace import Bounds, Pace

BOUNDS = Bounds(
    patience_s=10, share=0.1, max_wait_s=60, max_bytes=1000, slice_bytes=8, urgent_bytes=32
)
COPY_S = 0.5


@dataclass
class Shelf:
    """What waits, as a number of slices that take `COPY_S` each."""

    now: float = 0.0
    waiting_since: float | None = None
    waiting_bytes: int = 0
    is_writing: bool = False
    pumped: list[tuple[float, int]] = field(default_factory=list)  # when, how much at most

    def store(self, nbytes: int) -> None:
        self.waiting_bytes += nbytes
        if self.waiting_since is None:
            self.waiting_since = self.now

    def pump(self, max_bytes: int) -> bool:
        self.pumped.append((self.now, max_bytes))
        self.now += COPY_S
        self.waiting_bytes = max(0, self.waiting_bytes - max_bytes)
        if not self.waiting_bytes:
            self.waiting_since = None
        return not self.waiting_bytes

    def steps(self, pace: Pace, until: float) -> None:
        """Sequences run, a step each tenth of a second."""
        while self.now < until:
            pace.between_steps()
            self.now += 0.1


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def pace(shelf) -> Pace:
    return Pace(shelf, BOUNDS, lambda: shelf.now)


def test_nothing_is_copied_out_while_sequences_run_and_nothing_waited_long(shelf, pace):
    shelf.store(100)
    shelf.steps(pace, until=9.9)
    assert shelf.pumped == []


def test_what_waits_is_copied_out_slice_by_slice_once_the_engine_is_idle(shelf, pace):
    shelf.store(20)
    assert pace.idle()
    assert pace.idle()
    assert not pace.idle()
    assert [most for _, most in shelf.pumped] == [8, 8, 8]
    assert not pace.idle()
    assert len(shelf.pumped) == 3


def test_slice_waits_for_the_one_that_is_being_written(shelf, pace):
    shelf.store(20)
    shelf.is_writing = True
    assert pace.idle()
    shelf.steps(pace, until=20)
    assert shelf.pumped == []
    shelf.is_writing = False
    assert pace.idle()
    assert len(shelf.pumped) == 1


def test_engine_that_never_rests_gives_a_share_of_its_time(shelf, pace):
    shelf.store(900)
    shelf.steps(pace, until=59)
    assert all(when >= 10 and most == 8 for when, most in shelf.pumped)
    spent = COPY_S * len(shelf.pumped)
    assert 0.05 * 49 <= spent <= 0.11 * 49


def test_what_waited_too_long_is_copied_out_with_every_step(shelf, pace):
    shelf.store(900)
    shelf.steps(pace, until=60)
    early = len(shelf.pumped)
    shelf.steps(pace, until=120)
    assert shelf.waiting_since is None
    assert shelf.now < 121
    assert {most for _, most in shelf.pumped[early:]} == {32}


def test_more_than_a_stop_could_write_is_copied_out_without_patience(shelf, pace):
    shelf.store(1100)
    shelf.steps(pace, until=3)
    assert 900 < shelf.waiting_bytes <= 1000


def test_wait_begins_anew_when_everything_was_copied_out(shelf, pace):
    shelf.store(8)
    shelf.steps(pace, until=11)
    assert len(shelf.pumped) == 1
    shelf.now = 100.0
    shelf.store(8)
    shelf.steps(pace, until=109)
    assert len(shelf.pumped) == 1
