"""The ledger: prices before allocation, gives back once, never goes past its limit."""

import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlm_engine.brain.ledger import EntryKind, Ledger, Measured, NotEnoughMemory


def test_reservation_is_taken_and_given_back_once() -> None:
    ledger = Ledger(1000)
    entry = ledger.reserve(EntryKind.KV, 600, "request-1")
    assert ledger.available_bytes == 400
    entry.release()
    entry.release()
    assert ledger.available_bytes == 1000
    assert ledger.priced_bytes == 0


def test_what_does_not_fit_is_refused_with_the_sum_and_changes_nothing() -> None:
    ledger = Ledger(20_000_000_000)
    ledger.reserve(EntryKind.WEIGHTS, 15_000_000_000, "model")
    with pytest.raises(NotEnoughMemory) as caught:
        ledger.reserve(EntryKind.KV, 8_000_000_000, "request")
    assert str(caught.value) == "kv needs 8.0 GB, 5.0 GB available, 3.0 GB short"
    assert caught.value.shortfall == 3_000_000_000
    assert ledger.priced_bytes == 15_000_000_000


def test_leaving_the_block_releases_even_on_an_error() -> None:
    ledger = Ledger(100)
    with pytest.raises(RuntimeError, match="boom"), ledger.reserve(EntryKind.SCRATCH, 100):
        raise RuntimeError("boom")
    assert ledger.available_bytes == 100


def test_growth_that_does_not_fit_leaves_the_reservation_as_it_was() -> None:
    ledger = Ledger(100)
    entry = ledger.reserve(EntryKind.KV, 60)
    with pytest.raises(NotEnoughMemory):
        entry.resize(101)
    assert entry.num_bytes == 60
    entry.resize(100)
    entry.resize(10)
    assert ledger.priced_bytes == 10


def test_released_reservation_cannot_grow() -> None:
    ledger = Ledger(100)
    entry = ledger.reserve(EntryKind.KV, 10)
    entry.release()
    with pytest.raises(ValueError, match="was released"):
        entry.resize(20)
    assert ledger.priced_bytes == 0


def test_force_goes_past_the_limit_and_the_next_one_is_still_refused() -> None:
    ledger = Ledger(100)
    ledger.reserve(EntryKind.WEIGHTS, 150, "model", force=True)
    assert ledger.available_bytes == -50
    with pytest.raises(NotEnoughMemory):
        ledger.reserve(EntryKind.KV, 1)


def test_lower_limit_takes_nothing_back() -> None:
    ledger = Ledger(100)
    entry = ledger.reserve(EntryKind.PREFIX_CACHE, 80)
    ledger.set_limit(50)
    assert ledger.available_bytes == -30
    entry.resize(40)
    assert ledger.available_bytes == 10


def test_unlimited_ledger_counts() -> None:
    ledger = Ledger()
    ledger.reserve(EntryKind.WEIGHTS, 10**12)
    assert ledger.available_bytes is None
    assert ledger.snapshot().priced_bytes == 10**12


def test_bytes_of_a_dead_owner_come_back_at_once() -> None:
    ledger = Ledger(100)
    entry = ledger.reserve(EntryKind.KV, 30, "engine-a")
    ledger.reserve(EntryKind.WEIGHTS, 20, "engine-a")
    ledger.reserve(EntryKind.WEIGHTS, 10, "engine-b")
    assert ledger.owned_bytes("engine-a") == 50
    assert ledger.release_owner("engine-a") == 50
    entry.release()
    assert ledger.priced_bytes == 10


@pytest.mark.parametrize("size", [-1, -(10**12)])
def test_negative_sizes_are_errors(size: int) -> None:
    ledger = Ledger(100)
    with pytest.raises(ValueError, match="cannot reserve"):
        ledger.reserve(EntryKind.KV, size)
    entry = ledger.reserve(EntryKind.KV, 10)
    with pytest.raises(ValueError, match="cannot hold"):
        entry.resize(size)
    assert ledger.priced_bytes == 10


def test_snapshot_groups_by_kind_and_compares_with_the_measurement() -> None:
    ledger = Ledger(1000)
    ledger.reserve(EntryKind.KV, 100, "a")
    ledger.reserve(EntryKind.KV, 50, "b")
    ledger.reserve(EntryKind.WEIGHTS, 250, "model")
    ledger.reserve(EntryKind.BUFFER_POOL, 100, "model")
    ledger.record(Measured(active_bytes=380, pool_bytes=40, footprint_bytes=450))
    shot = ledger.snapshot()
    assert [(row.kind, row.priced_bytes, row.entries) for row in shot.rows] == [
        (EntryKind.WEIGHTS, 250, 1),
        (EntryKind.KV, 150, 2),
        (EntryKind.BUFFER_POOL, 100, 1),
    ]
    assert shot.rows[2].measured_bytes == 40
    assert shot.ratio == 450 / 500
    assert shot.available_bytes == 500
    assert shot.to_json()["rows"][1] == {
        "kind": "kv",
        "priced_bytes": 150,
        "measured_bytes": None,
        "entries": 2,
    }


def test_snapshot_of_nothing_has_no_ratio() -> None:
    ledger = Ledger(10)
    assert ledger.snapshot().ratio is None
    ledger.record(Measured(footprint_bytes=5))
    assert ledger.snapshot().ratio is None


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["reserve", "release", "resize"]),
            st.integers(0, 400),
            st.integers(0, 5),
        ),
        max_size=60,
    )
)
def test_sum_of_entries_is_the_price_and_never_past_the_limit(
    steps: list[tuple[str, int, int]],
) -> None:
    ledger, held = Ledger(1000), []
    for act, size, which in steps:
        with suppress(NotEnoughMemory):
            if act == "reserve":
                held.append(ledger.reserve(EntryKind.KV, size))
            elif held and act == "release":
                held.pop(which % len(held)).release()
            elif held:
                held[which % len(held)].resize(size)
        assert ledger.priced_bytes == sum(entry.num_bytes for entry in held) <= 1000


def test_reservations_of_many_threads_add_up() -> None:
    ledger = Ledger(8 * 500)

    def take_and_give() -> None:
        for _ in range(500):
            entry = ledger.reserve(EntryKind.KV, 8)
            entry.resize(3)
            entry.release()

    threads = [threading.Thread(target=take_and_give) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.priced_bytes == 0
    assert ledger.snapshot().rows == ()
