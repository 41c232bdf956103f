"""Verdicts follow the plan; the catalogue is well formed and the page shows it as it is."""

import json
from pathlib import Path

import pytest
from hollow_models import make_hollow_model
from model_headers import Quant, decoder, write_model
from planned_models import MOE_30B

from swiftlm_engine.brain.facts import SizeFacts, active_share, estimated_facts, read_model
from swiftlm_engine.brain.plan import SOFT_SHARE, Accelerator, MachineLimits, PlanRequest, make_plan
from swiftlmd.store import catalogue, fit
from swiftlmd.store.fit import Fit, FitVerdict
from swiftlmd.store.names import hub_name

ROOT = Path(__file__).resolve().parents[3]
GB = 10**9


def machine(gigabytes: float) -> MachineLimits:
    """A Mac whose plans may grant so much."""
    gigabytes /= SOFT_SHARE
    return MachineLimits(
        ram_bytes=int(gigabytes * GB),
        accelerator=Accelerator.METAL,
        working_set_bytes=int(gigabytes * GB),
        reserve_bytes=0,
    )


def of_folder(folder: Path, request: PlanRequest, limits: MachineLimits) -> Fit:
    return fit.of_plan_by(lambda: make_plan(read_model(folder), request, limits))


def of_size(gigabytes: float, limits: MachineLimits, active: float = 1.0, bits: float = 4.5) -> Fit:
    facts = estimated_facts("some/model", SizeFacts(int(gigabytes * GB), active, 32_768, bits))
    return fit.of_plan_by(lambda: make_plan(facts, PlanRequest(), limits), estimated=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hollow_model(tmp_path_factory.mktemp("hollow") / "m")


def test_a_small_model_fits_with_its_whole_context(folder: Path) -> None:
    found = of_folder(folder, PlanRequest(), machine(64))
    plan = make_plan(read_model(folder), PlanRequest(), machine(64))
    assert (found.verdict, found.runs, found.estimated) == (FitVerdict.FITS, True, False)
    assert (found.needed_bytes, found.context) == (plan.needed_bytes, plan.settings.context)
    assert 0 < found.decode_tokens_s[0] <= found.decode_tokens_s[1]


def test_a_machine_without_room_is_told_by_how_much(folder: Path) -> None:
    found = of_folder(folder, PlanRequest(), machine(0.2))
    assert (found.verdict, found.runs, found.context) == (FitVerdict.TOO_LARGE, False, 0)
    assert found.needed_bytes > found.available_bytes
    assert "short" in found.detail


def test_less_and_less_room_goes_from_fits_over_tight_to_too_large(folder: Path) -> None:
    sizes = [64, 16, 4, 2, 1, 0.7, 0.5, 0.45, 0.4, 0.3, 0.2]
    found = [of_folder(folder, PlanRequest(), machine(size)).verdict for size in sizes]
    order = [FitVerdict.FITS, FitVerdict.TIGHT, FitVerdict.TOO_LARGE]
    assert found == sorted(found, key=order.index)
    assert set(found) == set(order)


@pytest.mark.parametrize("room", [10, 16, 20.4, 24, 32, 64])
def test_a_smaller_model_is_never_tighter_than_a_larger_one(room: float) -> None:
    order = list(FitVerdict)
    found = [of_size(size, machine(room)).verdict for size in (0.335, 0.97, 1.7, 2.3, 4.6, 8.3)]
    assert found == sorted(found, key=order.index)


def test_a_folder_that_cannot_be_planned_is_unknown(tmp_path: Path) -> None:
    found = of_folder(tmp_path, PlanRequest(), machine(64))
    assert (found.verdict, found.runs) == (FitVerdict.UNKNOWN, False)
    assert "config.json" in found.detail


@pytest.mark.parametrize(
    ("size_gb", "verdict"),
    [(2, FitVerdict.FITS), (13, FitVerdict.TIGHT), (40, FitVerdict.STREAMS)],
)
def test_a_dense_model_larger_than_memory_streams_its_layers(
    size_gb: float, verdict: FitVerdict
) -> None:
    found = of_size(size_gb, machine(16))
    assert (found.verdict, found.estimated, found.runs) == (verdict, True, True)
    assert found.decode_tokens_s[1] > 0
    assert found.detail.startswith("estimated from the size: ")


@pytest.mark.parametrize(
    ("name", "model_type", "share"),
    [
        ("mlx-community/Qwen3-235B-A22B-4bit", "", 22 / 235),
        ("x/Qwen3.5-35B-A3B-4bit", "", 3 / 35),
        ("x/gemma-4-26b-a4b-it-4bit", "", 4 / 26),
        ("x/Mixtral-8x7B-4bit", "mixtral", 0.1),
        ("x/Qwen3-8B-4bit", "qwen3", 1.0),
        ("x/Alpha3B-4bit", "", 1.0),
        ("x/something", "", 1.0),
    ],
)
def test_a_name_says_how_much_of_a_mixture_a_token_uses(
    name: str, model_type: str, share: float
) -> None:
    assert active_share(name, model_type) == pytest.approx(share)


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.repo)
def test_every_catalogue_entry_gets_the_planners_verdict(entry: catalogue.CatalogueEntry) -> None:
    share = entry.active_b / entry.parameters_b if entry.active_b else 1.0
    found = of_size(entry.size_bytes / GB, machine(24), share)
    assert found.runs, found.detail
    assert (found.verdict is FitVerdict.STREAMS) == (entry.size_bytes > 22 * GB)
    if share < 1 and entry.size_bytes > 22 * GB:
        assert "experts" in found.detail
        dense = of_size(entry.size_bytes / GB, machine(24))
        assert found.decode_tokens_s[1] > dense.decode_tokens_s[1]


def test_an_estimate_of_a_folder_is_near_its_plan(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "moe", MOE_30B, decoder(MOE_30B, Quant(4)))
    exact = of_folder(folder, PlanRequest(), machine(12))
    size = read_model(folder).checkpoint_bytes
    share = read_model(folder).weights.active_weights / read_model(folder).weights.total_weights
    found = of_size(size / GB, machine(12), share)
    assert (found.verdict, exact.verdict) == (FitVerdict.STREAMS, FitVerdict.STREAMS)
    assert 0.3 < found.decode_tokens_s[1] / exact.decode_tokens_s[1] < 3


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
