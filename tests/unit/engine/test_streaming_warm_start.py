"""Which experts sat in slots, kept and read back: order, limits, and files that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from swiftlm_engine.streaming import warm_start
from swiftlm_engine.streaming.reader import ReadFault
from swiftlm_engine.streaming.slots import PolicyKind, SlotMap, make_policy
from swiftlm_engine.streaming.warm_start import SlotKeeper, kept_experts, read_back


class Layer:
    """Slots without arrays; `reads` are the experts in the order of reading."""

    def __init__(self, path: str, num_slots: int, reads: list[tuple[str, int]]) -> None:
        self.path = path
        self.slots = SlotMap(num_slots, make_policy(PolicyKind.LRU, num_slots))
        self.reads = reads
        self.broken = False

    def wanted(self) -> list[int]:
        return self.slots.most_wanted()

    def take_in(self, experts: Sequence[int]) -> int:
        plan = self.slots.plan(experts)
        if self.broken:
            self.slots.abandon(plan)
            raise ReadFault("the disk is gone")
        self.slots.commit(plan)
        self.reads += [(self.path, install.expert) for install in plan.installs]
        return len(plan.installs)

    def rank(self, experts: Sequence[int]) -> None:
        self.slots.touch([expert for expert in reversed(experts) if expert in self.slots])


def ask(layer: Layer, *experts: int) -> None:
    layer.slots.commit(layer.slots.plan(experts))


@pytest.mark.parametrize("kind", list(PolicyKind))
def test_every_policy_ranks_exactly_what_is_in_slots(kind: PolicyKind) -> None:
    slots = SlotMap(4, make_policy(kind, 4))
    for expert in (1, 2, 3, 4, 1, 5, 1, 6):
        slots.commit(slots.plan([expert]))
    ranked = slots.most_wanted()
    assert sorted(ranked) == [expert for expert in range(8) if expert in slots]
    assert 1 in ranked


def test_slots_come_back_in_the_order_in_which_they_were_wanted(tmp_path: Path) -> None:
    path = tmp_path / "slots.json"
    before = Layer("l", 12, [])
    keeper = SlotKeeper([before], path, lambda: 100.0)
    for expert in (*range(12), 3, 7):
        ask(before, expert)
    keeper.idle()
    after = Layer("l", 12, [])
    ask(after, 60, 61)  # of the load's own tests
    assert read_back([after], kept_experts(path, 64), 12) == 12
    assert after.wanted() == before.wanted()
    assert after.wanted()[:2] == [7, 3]


def test_fewer_slots_take_the_most_wanted_of_all_layers_first() -> None:
    reads: list[tuple[str, int]] = []
    layers = [Layer(path, 10, reads) for path in "ab"]
    kept = {path: list(range(20)) for path in "ab"}
    assert read_back(layers, kept, 10) == 20
    assert reads[:16] == [(path, expert) for path in "ab" for expert in range(8)]
    assert {layer.path: sorted(layer.wanted()) for layer in layers} == {
        path: list(range(10)) for path in "ab"
    }


def test_reading_back_ends_at_its_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, 0.0, warm_start.LIMIT_S + 1))
    layer = Layer("a", 32, [])
    assert read_back([layer], {"a": list(range(32))}, 32, clock=lambda: next(now)) == 8


def test_a_disk_that_fails_costs_no_load(caplog: pytest.LogCaptureFixture) -> None:
    layer = Layer("a", 8, [])
    layer.broken = True
    assert read_back([layer], {"a": [1, 2]}, 8) == 0
    assert layer.wanted() == []
    assert "the disk is gone" in caplog.text


def test_slots_are_kept_now_and_then_and_only_when_a_request_changed_them(tmp_path: Path) -> None:
    path, now = tmp_path / "slots.json", [0.0]
    layer = Layer("a", 4, [])
    ask(layer, 9)  # by the load itself
    keeper = SlotKeeper([layer], path, lambda: now[0])
    keeper.idle()
    assert not path.exists()
    ask(layer, 1)
    keeper.idle()
    assert kept_experts(path, 64) == {"a": [1, 9]}
    ask(layer, 2)
    keeper.idle()
    assert kept_experts(path, 64) == {"a": [1, 9]}
    now[0] += warm_start.SAVE_EVERY_S
    keeper.idle()
    assert kept_experts(path, 64) == {"a": [2, 1, 9]}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 3}', '{"a": [64]}', '{"a": [-1]}', '{"a": ["x"]}', '{"a": [[]]}']
)
def test_a_file_of_odd_values_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "slots.json"
    path.write_text(text)
    assert kept_experts(path, 64) == {}
    assert kept_experts(None, 64) == kept_experts(tmp_path / "absent", 64) == {}


def test_a_full_disk_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Layer("a", 4, [])
    keeper = SlotKeeper([layer], tmp_path / "file" / "slots.json")
    (tmp_path / "file").write_text("no folder")
    ask(layer, 1)
    keeper.idle()
    assert "cold slots" in caplog.text
