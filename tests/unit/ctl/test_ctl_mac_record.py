"""Recorded Macs replayed on Linux: the doctor, the readers and the planner tell them apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B
from recorded_mac import FIXTURES, RecordedLibSystem, recorded
from typer.testing import CliRunner

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan import PlanRequest, make_plan
from swiftlm_proto import messages as m
from swiftlmctl.doctor.mac_record import COMMANDS, MacRecord, anonymous, read_record, record
from swiftlmctl.doctor.mac_verdicts import verdicts
from swiftlmctl.main import build
from swiftlmd.memory import Pressure, machine_limits
from swiftlmd.memory.devices import parse_device_info
from swiftlmd.memory.macos import MacReadings

HEALTHY, ILL = "healthy_m5_32gb", "ill_m5_16gb"
GIB = 2**30


def judged(found: MacRecord) -> dict[str, m.DoctorCheck]:
    checks: dict[str, m.DoctorCheck] = {}
    for check in verdicts(found):
        checks.setdefault(check.name, check)
    return checks


def test_a_healthy_mac_passes_every_check() -> None:
    assert {check.status for check in verdicts(recorded(HEALTHY))} == {"pass"}


def test_an_ill_mac_is_told_what_to_do() -> None:
    found = judged(recorded(ILL))
    statuses = {name: check.status for name, check in found.items() if check.status != "pass"}
    assert statuses == {
        "Metal limits": "fail",
        "MLX build": "fail",
        "memory pressure": "warn",
        "launchd": "warn",
        "compressed KV": "warn",
        "footprint": "fail",
        "price": "warn",
    }
    assert "matrix units" in found["MLX build"].reason
    assert "exfat" in found["volumes"].reason
    assert all(found[name].fix for name in statuses if name != "footprint")


@pytest.mark.parametrize(
    ("changes", "name", "status", "said"),
    [
        ({"sw_vers": "ProductVersion:\t13.6\n"}, "macOS", "fail", "14 or later"),
        ({"sw_vers": "ProductVersion:\t26.1\n"}, "MLX build", "fail", "needs macOS 26.2"),
        ({"launchctl": ""}, "launchd", "fail", "does not know"),
        ({"launchctl": "x = {\n\tstate = not running\n\tlast exit code = 78: EX_CONFIG\n}"},
         "launchd", "fail", "EX_CONFIG"),
        ({"launchctl": "x = {\n\tstate = running\n\tspawn type = daemon (3)\n}"},
         "launchd", "fail", "slowed"),
    ],
)  # fmt: skip
def test_one_fault_is_found_among_what_is_sound(
    changes: dict[str, str], name: str, status: str, said: str
) -> None:
    sound = recorded(HEALTHY)
    check = judged(replace(sound, commands=sound.commands | changes))[name]
    assert check.status == status
    assert said in check.reason


def test_rosetta_and_a_mac_without_metal_are_named() -> None:
    sound = recorded(HEALTHY)
    intel = judged(replace(sound, python=sound.python | {"machine": "x86_64"}))["Python"]
    assert "arch -arm64" in intel.fix
    blind = judged(replace(sound, mlx={"error": "No Metal device available"}))["Metal device"]
    assert blind.status == "fail"
    assert "No Metal device" in blind.reason


def test_a_chip_nobody_has_heard_of_breaks_nothing() -> None:
    sound = recorded(HEALTHY)
    new = replace(sound, mlx=sound.mlx | {"device_name": "Apple M12 Hyper"})
    assert judged(new)["MLX build"].status == "pass"
    assert verdicts(MacRecord()) != []  # nothing recorded: nothing but what is missing


@pytest.mark.parametrize(
    ("name", "pressure", "advice", "refused"),
    [(HEALTHY, Pressure.NORMAL, True, False), (ILL, Pressure.WARN, False, True)],
)
def test_the_readers_and_the_planner_run_against_the_recording(
    tmp_path: Path, name: str, pressure: Pressure, advice: bool, refused: bool
) -> None:
    found = recorded(name)
    reading = MacReadings(RecordedLibSystem(found)).read([831])
    assert (reading.pressure, reading.available_is_advice) == (pressure, advice)
    assert 0 < reading.available_bytes < reading.total_bytes
    assert reading.footprint_bytes > 6e9
    limits = machine_limits(reading, parse_device_info(json.dumps(found.mlx)))
    assert limits.working_set_bytes == found.mlx["max_recommended_working_set_size"]
    model = read_model(write_model(tmp_path, DENSE_8B, decoder(DENSE_8B, Quant(4))))
    assert make_plan(model, PlanRequest(), limits).refused is refused


def test_a_record_of_this_machine_holds_every_answer_and_nothing_personal(tmp_path: Path) -> None:
    asked: list[str] = []

    def run(command: Sequence[str]) -> str:
        asked.append(command[0])
        return f"\tenvironment = {{\n\t\tHF_TOKEN => hf_secret\n\t}}\n{Path.home()}/x\n"

    status = {"models": [{"model": "a", "pid": 7, "loaded": {"kv": "fp16"}, "path": "/private"}]}
    found = record(status, [], 501, run)
    assert len(asked) == len(COMMANDS) + 1
    text = json.dumps(found.to_json())
    assert "hf_secret" not in text
    assert "/private" not in text
    named = anonymous(
        MacRecord(commands={"mount": "/Users/anna/x on annas-mac, annabel"}),
        Path("/Users/anna"), "anna", "annas-mac.local",
    )  # fmt: skip
    assert named.commands["mount"] == "~/x on HOST, annabel"
    path = tmp_path / "record.json"
    path.write_text(text)
    assert read_record(path) == found


def test_doctor_replays_a_file_and_fails_for_the_ill_one() -> None:
    sound = CliRunner().invoke(build(), ["doctor", "--replay", str(FIXTURES / f"{HEALTHY}.json")])
    assert sound.exit_code == 0, sound.output
    ill = CliRunner().invoke(
        build(), ["doctor", "--json", "--replay", str(FIXTURES / f"{ILL}.json")]
    )
    assert ill.exit_code == 1
    assert any(check["name"] == "MLX build" for check in json.loads(ill.output)["verdicts"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}'])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"record|Expecting"):
        read_record(path)
