"""What doctor --mac judges of kernels, streaming, clocks and disks, in records of faked Macs."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from typing import Any

import pytest
from recorded_mac import recorded

from swiftlm_proto import messages as m
from swiftlmctl.doctor import mac_record
from swiftlmctl.doctor.mac_record import MacRecord
from swiftlmctl.doctor.mac_verdicts import verdicts

SOUND = recorded("healthy_m5_32gb")


def one(found: MacRecord, name: str) -> m.DoctorCheck:
    [check] = [check for check in verdicts(found) if check.name == name]
    return check


@pytest.mark.parametrize(
    ("kernel", "status", "words"),
    [
        ({"right": True, "planted": "caught"}, "pass", "planted error is refused"),
        ({"right": True, "planted": "missed"}, "fail", "faults of kernels go unseen"),
        ({"right": False, "planted": "caught"}, "fail", "wrong numbers"),
        ({"right": False, "planted": "caught", "error": "no MTLCompiler"}, "fail", "MTLCompiler"),
        ({"ended": True}, "fail", "MLX ended"),
    ],
)
def test_a_kernel_that_computes_and_a_planted_error(
    kernel: dict[str, Any], status: str, words: str
) -> None:
    check = one(replace(SOUND, mlx=SOUND.mlx | {"kernel": kernel}), "Metal kernels")
    assert (check.status, words in check.reason) == (status, True), check.reason
    assert bool(check.fix) == (status != "pass")


def fake_mlx(kernel: Any) -> types.ModuleType:
    """As much of mlx.core as the check asks."""
    core = types.ModuleType("mlx.core")
    core.__version__ = "0.32.4"  # type: ignore[attr-defined]
    core.float32 = "float32"  # type: ignore[attr-defined]
    core.metal = types.SimpleNamespace(is_available=lambda: True)  # type: ignore[attr-defined]
    core.fast = types.SimpleNamespace(metal_kernel=kernel)  # type: ignore[attr-defined]
    core.ones = lambda shape: _Matrix()  # type: ignore[attr-defined]
    core.eval = lambda *arrays: None  # type: ignore[attr-defined]
    core.arange = lambda count, dtype: _Numbers(range(count))  # type: ignore[attr-defined]
    core.device_info = lambda: {"device_name": "Apple M5"}  # type: ignore[attr-defined]
    same = lambda a, b: types.SimpleNamespace(item=lambda: list(a) == list(b))  # noqa: E731
    core.array_equal = same  # type: ignore[attr-defined]
    return core


class _Matrix:
    def __matmul__(self, other: object) -> _Matrix:
        return self


class _Numbers(list[int]):
    def __rmul__(self, factor: Any) -> list[int]:
        return [factor * number for number in self]


@pytest.mark.parametrize(
    ("refuses", "factor", "kernel"),
    [
        (True, 2, {"right": True, "planted": "caught"}),
        (False, 2, {"right": True, "planted": "missed"}),
        (True, 3, {"right": False, "planted": "caught"}),
    ],
)
def test_the_check_as_it_runs_on_a_mac(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    refuses: bool, factor: int, kernel: dict[str, Any],
) -> None:  # fmt: skip
    """The very script, with an MLX that compiles everything, or refuses what is wrong."""

    def metal_kernel(*, source: str, **_: Any) -> Any:
        if refuses and "no_such_name" in source:
            raise RuntimeError("use of undeclared identifier 'no_such_name'")
        return lambda *, inputs, **how: [[factor * number for number in inputs[0]]]

    core = fake_mlx(metal_kernel)
    package = types.ModuleType("mlx")
    package.core = core  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlx", package)
    monkeypatch.setitem(sys.modules, "mlx.core", core)
    exec(compile(mac_record._MLX, "check", "exec"), {})
    first, last = capsys.readouterr().out.splitlines()
    assert json.loads(first)["kernel"] == {"ended": True}  # what is left where it ends the process
    assert json.loads(last)["kernel"] == kernel
    assert mac_record._last_object(f"{first}\n{last}")["device_name"] == "Apple M5"


COUNTED = {"reads": 900, "bytes": 41e9, "gb_per_s": 5.2, "hit_rate": 0.81, "nocache": True}


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({}, "pass", "41.0 GB from disk at 5.2 GB/s, 81% of the experts were in memory"),
        ({"reads": 0, "bytes": 0, "gb_per_s": 0}, "warn", "nothing was read yet"),
        ({"gb_per_s": 24.0}, "warn", "page cache"),
        ({"nocache": False}, "warn", "page cache"),
        ({"read_errors": 3}, "fail", "3 reads failed"),
        ({"degraded": True, "problems": ["prefetch lags"]}, "warn", "prefetch lags"),
    ],
)
def test_the_counters_of_a_streamed_model(changes: dict[str, Any], status: str, words: str) -> None:
    stats = {"stream_counters": json.dumps(COUNTED | changes)}
    model = {"model": "qwen3-30b", "loaded": {}, "stats": stats}
    check = one(replace(SOUND, models=[model]), "streaming")
    assert (check.status, words in check.reason) == (status, True), check.reason


@pytest.mark.parametrize(
    ("with_sleep", "status", "words"),
    [
        (40_000.0, "pass", "slept 8.3 h"),
        (10_000.0, "fail", "waking is missed"),  # as long as it was awake, though it slept 8 hours
        (9_000.0, "fail", "waking is missed"),
    ],
)
def test_the_clock_that_runs_on_in_sleep(with_sleep: float, status: str, words: str) -> None:
    boot = f"{SOUND.commands['sysctl']}\nkern.boottime: {{ sec = 1800000000, usec = 1 }} Sat\n"
    clocks = {"awake": 10_000.0, "with_sleep": with_sleep, "date": 1_800_040_000.0}
    found = replace(SOUND, commands=SOUND.commands | {"sysctl": boot}, clocks=clocks)
    check = one(found, "sleep clock")
    assert (check.status, words in check.reason) == (status, True), check.reason


def test_filevault_and_a_share_are_said_and_are_no_fault() -> None:
    commands = {
        "filevault": "FileVault is On.\n",
        "mount": "//ada@nas/models on /Volumes/models (smbfs, nodev, nosuid)\n",
    }
    found = replace(SOUND, commands=SOUND.commands | commands)
    assert "logged in at the screen" in one(found, "FileVault").reason
    assert "speed of the network" in one(found, "network volumes").reason
    assert {check.status for check in verdicts(found)} == {"pass"}
