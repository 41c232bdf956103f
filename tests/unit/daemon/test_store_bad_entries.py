"""One bad entry never spoils a list: it is shown with its reason, and the others as without it."""

import json
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_hub import model_files

from swiftlmd.store import hub_cache
from swiftlmd.store.folder import Inspection, inspect
from swiftlmd.store.local_models import LocalModels
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.reader import STILL_READING, FolderReader
from swiftlmd.store.records import Added, Records
from swiftlmd.store.types import StoredModel

WEIGHTS = "model.safetensors"
A, B = "a" * 40, "b" * 40


@pytest.fixture
def shelf(tmp_path: Path) -> LocalModels:
    options = StoreOptions(
        environ={}, home=tmp_path, hub_cache=tmp_path / "hub", folders=(tmp_path / "mine",)
    )
    return LocalModels(tmp_path / "models", options, Records(tmp_path / "state"))


def write(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    changes = {name.replace("__", "."): content for name, content in files.items()}
    for name, content in (model_files(2000) | changes).items():
        (folder / name).write_bytes(content)
    return folder


def snapshot(cache: Path, name: str, commit: str, *, only: tuple[str, ...] = ()) -> Path:
    """As the hub's own client leaves it; `main` points to it."""
    root = cache / f"models--{name.replace('/', '--')}"
    place = root / "snapshots" / commit
    place.mkdir(parents=True)
    (root / "blobs").mkdir(exist_ok=True)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / "main").write_text(commit)
    for file, content in model_files(2000, shards=2 if "index" in only else 1).items():
        if not only or any(file.startswith(word) or word in file for word in only):
            blob = root / "blobs" / f"{file}-{commit}"
            blob.write_bytes(content)
            (place / file).symlink_to(os.path.relpath(blob, place))
    return place


def listed(shelf: LocalModels) -> dict[str, StoredModel]:
    return {model.name: model for model in shelf.models()}


def config(**keys: object) -> bytes:
    return json.dumps(json.loads(model_files(2000)["config.json"]) | keys).encode()


def header(entries: object) -> bytes:
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw


def tensor(**entry: object) -> bytes:
    plain = {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}
    return header({"model.embed_tokens.weight": plain | entry})


BAD_FILES: dict[str, dict[str, bytes]] = {
    "layers": {"config__json": config(num_hidden_layers=10**9)},
    "layers of another family": {
        "config__json": config(model_type="longcat_flash", num_layers=10**9)
    },
    "pattern": {
        "config__json": config(model_type="nemotron_h", hybrid_override_pattern="M" * 1_000_000)
    },
    "context": {
        "config__json": config(
            rope_scaling={"type": "yarn", "original_max_position_embeddings": 10**400, "factor": 2}
        )
    },
    "shape of large numbers": {"model__safetensors": tensor(shape=[10**4000] * 3)},
    "shape of many numbers": {"model__safetensors": tensor(shape=[2**62] * 200_000)},
    "offsets": {"model__safetensors": tensor(data_offsets=[0, 10**4000])},
    "layer of many digits": {
        "model__safetensors": header(
            {f"model.layers.{'9' * 5000}.x": {"dtype": "F16", "shape": [0], "data_offsets": [0, 0]}}
        )
    },
    "scalar scales": {
        "config__json": config(quantization={"bits": 4, "group_size": 32}),
        "model__safetensors": header({
            "a.weight": {"dtype": "U32", "shape": [], "data_offsets": [0, 4]},
            "a.scales": {"dtype": "F16", "shape": [], "data_offsets": [4, 6]},
        }) + b"123456",
    },
    "negative bits": {
        "config__json": config(
            quantization={"bits": 4, "group_size": 32, "a": {"bits": -4, "group_size": -16}}
        ),
        "model__safetensors": header({
            "a.weight": {"dtype": "U32", "shape": [1, 2], "data_offsets": [0, 8]},
            "a.scales": {"dtype": "F16", "shape": [1, 1], "data_offsets": [8, 10]},
        }) + b"1234567890",
    },
    "header length": {"model__safetensors": struct.pack("<Q", 2**63) + b"{}"},
    "not utf-8": {"config__json": b'{"model_type": "\xff"}'},
    "half a surrogate": {"config__json": config(model_type="\ud800")},
    "type of a model": {"config__json": config(model_type=["llama"], architectures=5)},
    "index": {"model__safetensors__index__json": b'{"weight_map": {"a": ["x"]}}'},
    "index of many": {
        "model__safetensors__index__json": json.dumps(
            {"weight_map": {f"t{i}": f"m{i}.safetensors" for i in range(6000)}}
        ).encode()
    },
    "deep config": {"config__json": b"[" * 100_000},
    "deep template": {
        "tokenizer_config__json": b'{"chat_template": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    },
    "long reason": {"model__safetensors": header({"x" * 2_000_000: {"dtype": "F16"}})},
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_hostile_file_is_its_folder_s_reason(
    shelf: LocalModels, tmp_path: Path, kind: str
) -> None:
    write(tmp_path / "models" / "good")
    alone = shelf.models()
    write(tmp_path / "models" / "bad", **BAD_FILES[kind])
    begun = time.monotonic()
    both = listed(shelf)
    assert time.monotonic() - begun < 5  # a second, on a machine that has nothing else to do
    assert [both["good"]] == alone
    bad = both["bad"]
    assert bad.ready == (kind in ("deep template", "layer of many digits", "context"))
    assert len(bad.reason) < 1100
    for text in (bad.name, bad.reason, bad.model_type, bad.quantization, bad.licence):
        text.encode()  # can be sent


@pytest.mark.parametrize(
    "name",
    ["config.json", WEIGHTS, "tokenizer_config.json", "README.md", "chat_template.jinja",
     "model.safetensors.index.json"],
)  # fmt: skip
@pytest.mark.parametrize("special", ["pipe", "device", "folder", "loop"])
def test_only_regular_files_are_opened(
    shelf: LocalModels, tmp_path: Path, name: str, special: str
) -> None:
    write(tmp_path / "models" / "good")
    place = write(tmp_path / "models" / "bad") / name
    place.unlink(missing_ok=True)
    match special:
        case "pipe":
            os.mkfifo(place)
        case "device":
            place.symlink_to("/dev/zero")
        case "folder":
            place.mkdir()
        case "loop":
            place.symlink_to(place.name)
    found: list[dict[str, StoredModel]] = []
    thread = threading.Thread(target=lambda: found.append(listed(shelf)), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "the listing hangs"
    assert found[0]["good"].ready
    optional = name in ("tokenizer_config.json", "README.md", "chat_template.jinja")
    assert found[0]["bad"].ready == (optional and special in ("pipe", "folder"))


def refuses(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """As for another user: nothing below can be looked at. Root may read everything."""
    real_scandir, real_stat, real_open = os.scandir, os.stat, os.open

    def check(path: object) -> None:
        if isinstance(path, str | os.PathLike) and Path(os.fspath(path)).is_relative_to(place):
            raise PermissionError(13, "Permission denied", str(path))

    def guard(real: Callable[..., object], inner_only: bool) -> Callable[..., object]:
        def call(path: object = ".", *args: object, **more: object) -> object:
            if not (inner_only and isinstance(path, str | os.PathLike) and Path(path) == place):
                check(path)
            return real(path, *args, **more)

        return call

    monkeypatch.setattr(os, "scandir", guard(real_scandir, inner_only=False))
    monkeypatch.setattr(os, "listdir", guard(os.listdir, inner_only=False))
    monkeypatch.setattr(os, "stat", guard(real_stat, inner_only=True))
    monkeypatch.setattr(os, "lstat", guard(os.lstat, inner_only=True))
    monkeypatch.setattr(os, "open", guard(real_open, inner_only=True))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("hub/models--org--bad", "org/bad"),
        ("hub/models--org--bad/snapshots", "org/bad"),
        (f"hub/models--org--bad/snapshots/{A}", "org/bad"),
        (".lmstudio/models/org/studio", "org/studio"),
        (".lmstudio/models/org", "org"),
        ("mine/one", "one"),
        ("mine", "mine"),
        ("models/own", "own"),
        ("added", "added"),
    ],
)
def test_a_folder_that_may_not_be_read_is_listed_with_the_reason(
    shelf: LocalModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, name: str
) -> None:
    snapshot(tmp_path / "hub", "org/bad", A)
    snapshot(tmp_path / "hub", "org/good", B)
    for own in (".lmstudio/models/org/studio", "mine/one", "models/own", "models/good", "added"):
        write(tmp_path / own)
    shelf.records.folders.put(Added("added", str(tmp_path / "added")))
    before = listed(shelf)
    refuses(monkeypatch, tmp_path / place)
    fresh = LocalModels(shelf.models_folder, shelf.options, shelf.records)
    after = listed(fresh)
    assert not after[name].ready
    assert "Permission denied" in after[name].reason
    hidden = {"mine": {"one"}, ".lmstudio/models/org": {"org/studio"}}.get(place, {name})
    for other in before.keys() - hidden:
        assert after[other] == before[other]


def test_nothing_is_removed_while_another_revision_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = snapshot(tmp_path, "org/x", A), snapshot(tmp_path, "org/x", B)
    for place in (other, other.parent):
        with monkeypatch.context() as patch:
            refuses(patch, place)
            with pytest.raises(PermissionError):
                hub_cache.plan_removal(hub_cache.repo(tmp_path, "org/x"), mine)


@pytest.mark.parametrize("touched", [("config", "tokenizer"), ("config", "index")])
def test_a_whole_commit_stays_when_another_program_touches_a_newer_one(
    shelf: LocalModels, tmp_path: Path, touched: tuple[str, ...]
) -> None:
    whole = snapshot(tmp_path / "hub", "org/x", A)
    snapshot(tmp_path / "hub", "org/x", B, only=touched)
    model = listed(shelf)["org/x"]
    assert (model.path, model.ready) == (whole, True)
    shutil.rmtree(whole)
    assert "org/x" not in listed(shelf) or not listed(shelf)["org/x"].ready


def test_of_whole_commits_main_goes_first_then_the_newest(
    shelf: LocalModels, tmp_path: Path
) -> None:
    first = snapshot(tmp_path / "hub", "org/x", A)
    second = snapshot(tmp_path / "hub", "org/x", B)
    os.utime(first, (2e9, 2e9))
    assert listed(shelf)["org/x"].path == second
    (first.parents[1] / "refs" / "main").write_text("gone" * 10)
    assert listed(shelf)["org/x"].path == first


def test_a_part_that_becomes_its_blob_meanwhile_ends_no_list(
    shelf: LocalModels, tmp_path: Path
) -> None:
    blobs = snapshot(tmp_path / "hub", "org/x", A).parents[1] / "blobs"
    ended = threading.Event()

    def rename() -> None:
        while not ended.is_set():
            (blobs / "x.swiftlm-part").write_bytes(b"x")
            (blobs / "x.swiftlm-part").replace(blobs / "x")

    thread = threading.Thread(target=rename)
    thread.start()
    try:
        for _ in range(500):
            assert listed(shelf)["org/x"].ready
    finally:
        ended.set()
        thread.join()


def test_what_systems_put_on_a_disk_is_no_model(shelf: LocalModels, tmp_path: Path) -> None:
    write(tmp_path / "mine" / "good")
    for name in ("lost+found", "$RECYCLE.BIN", "System Volume Information", "@eaDir", ".Trashes"):
        (tmp_path / "mine" / name).mkdir()
    assert list(listed(shelf)) == ["good"]


def test_a_broken_model_does_not_hide_a_whole_one_of_its_name(
    shelf: LocalModels, tmp_path: Path
) -> None:
    (snapshot(tmp_path / "hub", "org/x", A) / WEIGHTS).unlink()
    studio = write(tmp_path / ".lmstudio" / "models" / "org" / "x")
    assert listed(shelf)["org/x"].path == studio


def test_folders_of_one_name_are_all_listed(shelf: LocalModels, tmp_path: Path) -> None:
    write(tmp_path / "models" / "same")
    write(tmp_path / "mine" / "same")
    write(tmp_path / "other" / "same")
    shelf.options = StoreOptions(
        environ={},
        home=tmp_path,
        hub_cache=tmp_path / "hub",
        folders=(tmp_path / "mine", tmp_path / "other"),
    )
    assert list(listed(shelf)) == ["mine/same", "other/same", "same"]


def test_a_repository_that_was_moved_and_linked_back_is_whole(
    shelf: LocalModels, tmp_path: Path
) -> None:
    root = snapshot(tmp_path / "hub", "org/x", A).parents[1]
    shutil.move(root, tmp_path / "disk")
    root.symlink_to(tmp_path / "disk")
    assert listed(shelf)["org/x"].ready
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (root / "snapshots" / A / "added_tokens.json").symlink_to(secret)
    assert "leads out" in listed(shelf)["org/x"].reason


def test_a_name_that_is_no_text_can_be_sent(shelf: LocalModels, tmp_path: Path) -> None:
    write(tmp_path / "models" / "good")
    write(tmp_path / "models" / os.fsdecode(b"\xff\xfe"))
    names = [model.name for model in shelf.models()]
    assert [name.encode() for name in names]
    assert len(names) == 2


def test_a_folder_that_lists_too_much_is_no_model(shelf: LocalModels, tmp_path: Path) -> None:
    bad = write(tmp_path / "models" / "bad")
    write(tmp_path / "models" / "good")
    real = os.scandir

    class Many:
        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            with real(bad) as found:
                entry = next(iter(found))
            return iter([entry] * 50_000)

        def __exit__(self, *_: object) -> None:
            return None

    def scandir(path: str | Path) -> object:
        return Many() if Path(path) == bad else real(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        found = listed(shelf)
    assert "more than 20,000 files" in found["bad"].reason
    assert found["good"].ready


def test_a_folder_that_takes_long_delays_no_list(shelf: LocalModels, tmp_path: Path) -> None:
    go_on = threading.Event()
    reader = FolderReader(limit_s=0.05)
    bad, good = tmp_path / "bad", tmp_path / "good"

    def slow() -> Inspection:
        go_on.wait(20)
        return Inspection(1, "")

    begun, threads = time.monotonic(), threading.active_count()
    assert reader.read(bad, 1, slow).reason.endswith(STILL_READING)
    assert reader.read(bad, 1, slow).reason.endswith(STILL_READING)  # the same reading goes on
    assert reader.read(good, 1, lambda: Inspection(2, "")).size_bytes == 2
    assert time.monotonic() - begun < 5
    assert threading.active_count() <= threads + 4  # not one per question
    go_on.set()
    for _ in range(100):
        found = reader.read(bad, 1, lambda: Inspection(9, "never asked"))
        if not found.reason:
            break
    assert found == Inspection(1, "")


def test_an_inspection_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise MemoryError("as much as it asked for")

    monkeypatch.setattr("swiftlmd.store.folder.read_model", fail)
    assert "MemoryError" in inspect(write(tmp_path / "x"), tmp_path).reason
