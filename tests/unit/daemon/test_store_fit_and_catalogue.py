"""Verdicts follow the plan; the catalogue is well formed and the page shows it as it is."""

import json
from pathlib import Path

import pytest
from hollow_models import make_hollow_model

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan import Accelerator, MachineLimits, PlanRequest, make_plan
from swiftlmd.store import catalogue, fit
from swiftlmd.store.fit import FitVerdict
from swiftlmd.store.names import hub_name

ROOT = Path(__file__).resolve().parents[3]
GB = 10**9


def machine(gigabytes: float) -> MachineLimits:
    return MachineLimits(
        ram_bytes=int(gigabytes * GB), accelerator=Accelerator.METAL, reserve_bytes=0
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hollow_model(tmp_path_factory.mktemp("hollow") / "m")


def test_a_small_model_fits_with_its_whole_context(folder: Path) -> None:
    found = fit.of_folder(folder, PlanRequest(), machine(64))
    plan = make_plan(read_model(folder), PlanRequest(), machine(64))
    assert (found.verdict, found.runs, found.estimated) == (FitVerdict.FITS, True, False)
    assert (found.needed_bytes, found.context) == (plan.needed_bytes, plan.settings.context)
    assert 0 < found.decode_tokens_s[0] <= found.decode_tokens_s[1]


def test_a_machine_without_room_is_told_by_how_much(folder: Path) -> None:
    found = fit.of_folder(folder, PlanRequest(), machine(0.2))
    assert (found.verdict, found.runs, found.context) == (FitVerdict.TOO_LARGE, False, 0)
    assert found.needed_bytes > found.available_bytes
    assert "short" in found.detail


def test_less_and_less_room_goes_from_fits_over_tight_to_too_large(folder: Path) -> None:
    sizes = [64, 16, 4, 2, 1, 0.7, 0.5, 0.45, 0.4, 0.3, 0.2]
    found = [fit.of_folder(folder, PlanRequest(), machine(size)).verdict for size in sizes]
    order = [FitVerdict.FITS, FitVerdict.TIGHT, FitVerdict.TOO_LARGE]
    assert found == sorted(found, key=order.index)
    assert set(found) == set(order)


def test_a_folder_that_cannot_be_planned_is_unknown(tmp_path: Path) -> None:
    found = fit.of_folder(tmp_path, PlanRequest(), machine(64))
    assert (found.verdict, found.runs) == (FitVerdict.UNKNOWN, False)
    assert "config.json" in found.detail


@pytest.mark.parametrize(
    ("size_gb", "verdict"),
    [
        (2, FitVerdict.FITS),
        (13, FitVerdict.TIGHT),
        (15, FitVerdict.TOO_LARGE),
        (0, FitVerdict.UNKNOWN),
    ],
)
def test_estimates_leave_room_for_more_than_the_weights(
    size_gb: float, verdict: FitVerdict
) -> None:
    found = fit.of_size(int(size_gb * GB), machine(16))
    assert (found.verdict, found.estimated) == (verdict, True)


def test_a_budget_binds_an_estimate_too() -> None:
    assert fit.of_size(4 * GB, machine(64), 3 * GB).verdict is FitVerdict.TOO_LARGE


def test_catalogue_entries_can_be_pulled() -> None:
    listed = catalogue.entries()
    assert len({entry.repo for entry in listed}) == len(listed) > 20
    for entry in listed:
        if entry.repo != "smollm2-135m":
            assert hub_name(entry.repo).repo == entry.repo
        assert entry.context >= 8192
        assert entry.active_b < entry.parameters_b


def test_catalogue_covers_the_families_that_people_ask_for() -> None:
    families = {entry.family for entry in catalogue.entries()}
    wanted = {
        "Qwen3",
        "Qwen3.5",
        "Qwen3.6",
        "Gemma 4",
        "Llama",
        "Mistral",
        "Phi",
        "gpt-oss",
        "SmolLM",
    }
    assert wanted <= families


def test_sizes_are_those_of_parameters_and_bits() -> None:
    entry = next(e for e in catalogue.entries() if e.repo.endswith("SmolLM3-3B-4bit"))
    assert entry.size_bytes == pytest.approx(1_747_380_812, rel=0.02)  # the real checkpoint


def test_page_shows_the_catalogue_as_it_is() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert catalogue.table(catalogue.entries()) in page


def test_catalogue_file_has_no_key_that_the_code_does_not_know() -> None:
    path = ROOT / "daemon" / "swiftlmd" / "store" / "catalogue.json"
    fields = set(catalogue.CatalogueEntry.__dataclass_fields__)
    assert all(entry.keys() == fields for entry in json.loads(path.read_text())["entries"])
