"""A load of a model that is spread: planned over the hosts of the group, told to the engines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import stored_model
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B, mac

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan import GroupHost, LinkSpeed, MachineLimits, Range
from swiftlm_proto.paths import under
from swiftlmd.calibration import CalibrationStore
from swiftlmd.config.settings import Settings
from swiftlmd.engines.group import group_arguments
from swiftlmd.engines.placement import OnHosts, Placement
from swiftlmd.faults import ServiceError
from swiftlmd.planning.disk_speeds import DiskSpeeds
from swiftlmd.planning.planner import ModelPlanner

CABLE = LinkSpeed(Range(3e9, 4e9), Range(2e-5, 4e-5))
GROUP = Settings(
    engine_cluster=True,
    engine_context=4096,
    engine_parallel=1,
    cluster_hosts=("localhost", "studio"),
    cluster_agents={"studio": "10.0.0.2:5415"},
)


class FakeSurvey:
    """Two Macs, the other one as it is told."""

    def __init__(self, other: MachineLimits) -> None:
        self.other = other

    def hosts(
        self,
        settings: Settings,
        name: str,
        fingerprint: str,
        own: MachineLimits,
        elsewhere: OnHosts,
    ) -> list[GroupHost]:
        return [GroupHost("this machine", own), GroupHost("studio", self.other, CABLE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("dense"), DENSE_8B, decoder(DENSE_8B, Quant(4)))


async def place(
    tmp_path: Path, folder: Path, other: MachineLimits, settings: Settings = GROUP, **how: Any
) -> Placement:
    def limits(*, committed_bytes: int, returning_bytes: int) -> MachineLimits:
        return mac(16, 5.2)

    planner = ModelPlanner(
        under(tmp_path),
        limits,
        DiskSpeeds(tmp_path / "disks.json"),
        CalibrationStore(tmp_path),
        FakeSurvey(other),  # type: ignore[arg-type] # a fake
    )
    model = replace(stored_model("large"), path=folder)
    return await planner.place(model, settings, held_bytes=0, returning_bytes=0, **how)


async def test_a_model_too_large_for_one_machine_is_loaded_over_two(
    tmp_path: Path, folder: Path
) -> None:
    small = mac(16, 5.2)
    alone = await place(tmp_path, folder, small, replace(GROUP, engine_cluster=False))
    assert alone.request.stream_experts == "layers"  # only with most of it on disk
    spread = await place(tmp_path, folder, small)
    assert spread.fits
    assert spread.request.stream_experts == "off"
    assert spread.needed_bytes < alone.needed_bytes
    assert json.loads(spread.plan)["group"]["split"] == "tensor"


async def test_the_engine_prices_requests_in_the_whole_models_kv(
    tmp_path: Path, folder: Path
) -> None:
    spread = await place(tmp_path, folder, mac(16, 4.0))
    whole = read_model(folder).kv_bytes(0, 4096)
    assert spread.request.kv_budget_bytes == whole
    assert spread.price_request(1000, 24) < whole  # what this machine pays is its share


def told(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(file).read_text())
    return found


async def test_engines_are_told_the_split_of_the_plan(tmp_path: Path, folder: Path) -> None:
    spread = await place(tmp_path, folder, mac(64, 48.0), replace(GROUP, engine_kv="fp16"))
    paths = under(tmp_path)
    _, file = group_arguments(GROUP, paths, "one", spread.group)
    for other in ("two", "o-ne", "o/ne"):  # models that load at the same time
        group_arguments(GROUP, paths, other)
    assert len(list(Path(file).parent.iterdir())) == 4
    group = told(file)
    assert group["split"] == json.loads(spread.plan)["group"]["split"]
    assert group["fingerprint"] == read_model(folder).fingerprint
    assert group["agents"] == {"studio": "10.0.0.2:5415"}
    assert group["layers"] == []  # tensor parallel: each rank has all of them
    assert (paths.state / "cluster-secret").stat().st_mode & 0o077 == 0


async def test_a_host_that_is_short_refuses_the_load_by_its_name(
    tmp_path: Path, folder: Path
) -> None:
    refused = await place(tmp_path, folder, mac(8, 1.0))
    assert not refused.fits
    assert "does not fit over 2 hosts: studio needs" in refused.refusal
    assert (await place(tmp_path, folder, mac(8, 1.0), force=True)).fits


async def test_a_model_that_cannot_be_cut_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = {**DENSE_8B, "model_type": "phi3"}
    other = write_model(tmp_path / "phi", config, decoder(config, Quant(4)))
    with pytest.raises(ServiceError, match=r"family phi3; studio has no room for any layer"):
        await place(tmp_path, other, mac(8, 0.1))
