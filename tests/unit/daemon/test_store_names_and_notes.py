"""Names that users type, files that a load needs, notes between runs, the arithmetic of bars."""

import json
from pathlib import Path

import pytest

from swiftlmd.store.cache_dirs import hub_cache
from swiftlmd.store.errors import BadModelName
from swiftlmd.store.fetch.choice import RemoteFile, included_files, small_files, weight_files
from swiftlmd.store.fetch.failure import FetchFailed
from swiftlmd.store.meter import Meter
from swiftlmd.store.names import HubName, hub_name
from swiftlmd.store.records import Records, Wanted
from swiftlmd.store.types import Stage

HOME = Path("/home/someone")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("org/name", HubName("org/name", "")),
        ("org/name@v1", HubName("org/name", "v1")),
        ("https://huggingface.co/org/name", HubName("org/name", "")),
        ("hf.co/Org/Na.me-1_b", HubName("Org/Na.me-1_b", "")),
    ],
)
def test_hub_names_as_people_write_them(typed: str, expected: HubName) -> None:
    assert hub_name(typed) == expected


@pytest.mark.parametrize(
    "typed",
    ["", "name", "a/b/c", "../x", "org/..", "org/na me", "-org/x", "org/a--b", "o/" + "x" * 99],
)
def test_what_is_no_name_is_refused_with_an_example(typed: str) -> None:
    with pytest.raises(BadModelName, match="ORG/NAME"):
        hub_name(typed)


@pytest.mark.parametrize("revision", ["../main", "a b", "/x"])
def test_strange_revisions_are_refused(revision: str) -> None:
    with pytest.raises(BadModelName, match="revision"):
        hub_name("org/name", revision)


def listing(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 1, "0" * 40, large=False) for name in names]


def names_of(files: list[RemoteFile]) -> list[str]:
    return sorted(file.name for file in files)


def test_original_and_foreign_weights_stay_on_the_hub() -> None:
    files = listing(
        "config.json", "README.md", "tokenizer.model", "consolidated.safetensors",
        "model.safetensors", "model.fp16.safetensors", "onnx/model.onnx",
        "original/consolidated.00.pth", "original/tokenizer.model", "pytorch_model.bin",
        "modeling_custom.py",
    )  # fmt: skip
    assert names_of(small_files(files)) == ["config.json", "tokenizer.model"]
    assert names_of(weight_files(files, None)) == ["model.safetensors"]


def test_index_decides_which_shards_are_needed() -> None:
    files = listing(
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors"
    )
    wanted = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert names_of(weight_files(files, wanted)) == wanted


def test_index_that_names_what_the_hub_lacks_is_refused() -> None:
    with pytest.raises(FetchFailed, match=r"gone\.safetensors"):
        weight_files(listing("model.safetensors"), ["gone.safetensors"])


def test_shards_without_an_index_are_all_taken() -> None:
    files = listing("model-1.safetensors", "model-2.safetensors", "sub/model-3.safetensors")
    assert names_of(weight_files(files, None)) == ["model-1.safetensors", "model-2.safetensors"]


def test_include_that_matches_nothing_is_refused() -> None:
    with pytest.raises(FetchFailed, match=r"\*\.gguf"):
        included_files(listing("config.json"), ["*.gguf"])


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, HOME / ".cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/c"}, Path("/c/huggingface/hub")),
        ({"HF_HOME": "/h"}, Path("/h/hub")),
        ({"HF_HOME": "~/h"}, HOME / "h/hub"),
        ({"HF_HOME": "/h", "HF_HUB_CACHE": "/x"}, Path("/x")),
    ],
)
def test_hub_cache_lies_where_its_own_client_looks(environ: dict[str, str], expected: Path) -> None:
    assert hub_cache(environ, HOME) == expected


def test_notes_come_back(tmp_path: Path) -> None:
    wanted = Wanted("org/name", "v1", ("*.gguf",))
    Records(tmp_path).pulls.put(wanted)
    assert Records(tmp_path).pulls.all() == [wanted]
    Records(tmp_path).pulls.drop("org/name")
    Records(tmp_path).pulls.drop("org/name")
    assert Records(tmp_path).pulls.all() == []


def test_torn_or_foreign_notes_count_as_absent(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.pulls.put(Wanted("org/good", "", ()))
    (tmp_path / "pulls" / "torn.json").write_text('{"name": "org/t')
    (tmp_path / "pulls" / "newer.json").write_text(json.dumps({"name": "x", "later": 1}))
    (tmp_path / "pulls" / "list.json").write_text("[]")
    assert [wanted.name for wanted in records.pulls.all()] == ["org/good"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_meter_never_falls_and_never_passes_its_total() -> None:
    meter = Meter(Stage.DOWNLOAD, 100, Clock())
    assert [meter.report(n).done_bytes for n in (10, 5, 50, 170, 90)] == [10, 10, 50, 100, 100]


def test_speed_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    meter = Meter(Stage.DOWNLOAD, 10_000, clock)
    for second in range(60):
        clock.now = second
        report = meter.report(100 * second if second < 30 else 2900 + 10 * (second - 29))
    assert report.bytes_per_s == pytest.approx(10)
    assert report.eta_s == pytest.approx((10_000 - report.done_bytes) / 10)


def test_stalled_transfer_shows_no_speed_and_no_guess() -> None:
    clock = Clock()
    meter = Meter(Stage.DOWNLOAD, 100, clock)
    for second in range(20):
        clock.now = second
        report = meter.report(50)
    assert (report.bytes_per_s, report.eta_s) == (0.0, 0.0)
