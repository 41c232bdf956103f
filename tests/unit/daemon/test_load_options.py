"""One table of load options: what is in it arrives, wherever it is asked for."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import typer
from fakes import stored_model
from model_headers import Quant, decoder, write_model
from planned_models import MOE_30B, mac
from typer.testing import CliRunner

from swiftlm_engine.brain.disk_speed import DiskSpeed
from swiftlm_engine.server import wire
from swiftlm_proto import load_options
from swiftlm_proto import messages as m
from swiftlm_proto.layers import AUTO_LAYERS
from swiftlm_proto.load_options import BY_NAME, LOAD_OPTIONS, Kind, LoadOption
from swiftlm_proto.paths import under
from swiftlmctl.commands import load_flags
from swiftlmd.admin.load_options import options_over
from swiftlmd.calibration import CalibrationStore
from swiftlmd.config.settings import OPTIONS, Settings
from swiftlmd.planning.disk_speeds import DiskSpeeds
from swiftlmd.planning.planner import ModelPlanner, plan_request

# None of these is a default.
UNUSUAL: dict[Kind, Any] = {
    Kind.COUNT: 24,
    Kind.SIZE: "3GB",
    Kind.LAYERS: AUTO_LAYERS,
    Kind.SECONDS: 77,
}
WORDS: dict[Kind, str] = {
    Kind.COUNT: "24",
    Kind.SIZE: "3GB",
    Kind.LAYERS: "auto",
    Kind.SECONDS: "77s",
}


def unusual(option: LoadOption) -> Any:
    """A value that is no default."""
    usual = OPTIONS[option.setting].default
    choices = [one for one in option.choices if one and one != usual]
    return choices[-1] if choices else UNUSUAL.get(option.kind, "ngram")


def test_the_table_and_the_message_have_the_same_options() -> None:
    assert set(BY_NAME) == set(m.LoadOptions.__dataclass_fields__)


@pytest.mark.parametrize("option", LOAD_OPTIONS, ids=lambda one: one.name)
def test_an_option_of_a_load_is_laid_over_its_setting_alone(option: LoadOption) -> None:
    laid = options_over(Settings(), m.LoadOptions(**{option.name: unusual(option)}))
    changed = [
        one.name
        for one in dataclasses.fields(Settings)
        if getattr(laid, one.name) != getattr(Settings(), one.name)
    ]
    assert changed == [OPTIONS[option.setting].name]


def flags_of(chosen: tuple[LoadOption, ...]) -> dict[str, m.LoadOptions]:
    """What a verb gets for each flag alone, typed at a terminal."""
    got: list[m.LoadOptions] = []

    def asked(options: Any) -> None:
        got.append(options)

    app = typer.Typer()
    app.command()(load_flags.takes_load_options(asked, chosen))
    found = {}
    for option in chosen:
        words = WORDS.get(option.kind, unusual(option))
        for spelled in option.spelled:
            done = CliRunner().invoke(app, [spelled, words])
            assert done.exit_code == 0, done.output
            found[spelled] = got.pop()
    return found


@pytest.mark.parametrize("chosen", [LOAD_OPTIONS, load_options.PLANNED, load_options.GROUP])
def test_every_flag_sends_its_option_alone(chosen: tuple[LoadOption, ...]) -> None:
    found = flags_of(chosen)
    for option in chosen:
        for spelled in option.spelled:
            assert found[spelled] == m.LoadOptions(**{option.name: unusual(option)})


def test_plan_takes_every_option_that_changes_what_a_load_takes() -> None:
    left_out = {one.name for one in LOAD_OPTIONS} - {one.name for one in load_options.PLANNED}
    assert left_out == {"keep_alive_s"}


def test_a_new_row_is_a_flag_with_its_help(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Wider:
        width: int | None = None

    monkeypatch.setattr(m, "LoadOptions", Wider)
    row = LoadOption("width", Kind.COUNT, "How wide", "as wide as it goes", maximum=9)
    assert flags_of((dataclasses.replace(row, key="engine.parallel", maximum=99),)) == {
        "--width": Wider(24)
    }
    made = load_flags.takes_load_options(lambda options: None, (row,))
    (parameter,) = inspect.signature(made).parameters.values()
    assert parameter.annotation.__metadata__[0].help == "How wide (default: as wide as it goes)."


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("moe"), MOE_30B, decoder(MOE_30B, Quant(4)))


@pytest.mark.parametrize("option", load_options.PLANNED, ids=lambda one: one.name)
async def test_a_setting_reaches_the_plan_or_the_engine(
    option: LoadOption, moe: Path, tmp_path: Path
) -> None:
    machine = mac(64, 48.0)
    model = dataclasses.replace(stored_model("moe"), path=moe)
    planner = ModelPlanner(
        under(tmp_path),
        lambda **_: machine,
        DiskSpeeds(tmp_path / "speeds.json", lambda *_: DiskSpeed(1, 4, 2e9, 2e9, 2e9)),
        CalibrationStore(tmp_path),
    )
    asked = options_over(Settings(), m.LoadOptions(**{option.name: unusual(option)}))
    plans = [plan_request(one, machine) for one in (Settings(), asked)]
    sent = [
        (await planner.place(model, one, held_bytes=0, returning_bytes=0)).request
        for one in (Settings(), asked)
    ]
    assert plans[0] != plans[1] or sent[0] != sent[1]


ENGINE_ONLY = {"model": "m", "path": "/models/m", "template_kwargs": {"a": "1"}}


@pytest.mark.parametrize("name", sorted(m.LoadRequest.__dataclass_fields__))
def test_every_field_of_the_request_reaches_the_engine(name: str) -> None:
    usual = m.LoadRequest.parse(b"")
    by_type = {bool: True, str: "other", int: 3, type(None): 3}
    value = ENGINE_ONLY.get(name) or by_type[type(getattr(usual, name))]
    changed = m.LoadRequest.parse(b"")
    setattr(changed, name, value)
    before, after = wire.options(usual), wire.options(changed)
    different = [
        one.name
        for one in dataclasses.fields(before)
        if getattr(before, one.name) != getattr(after, one.name)
    ]
    assert len(different) == 1, different
