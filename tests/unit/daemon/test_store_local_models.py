"""What lies on the disk is listed under its name; what is not whole is listed with the reason."""

import json
import os
import shutil
from pathlib import Path

import pytest
from fake_hub import model_files

from swiftlmd.store.local_models import LocalModels
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.records import Added, Pinned, Records
from swiftlmd.store.types import ModelSource, StoredModel

WEIGHTS = "model.safetensors"
COMMIT = "c" * 40


@pytest.fixture
def shelf(tmp_path: Path) -> LocalModels:
    options = StoreOptions(
        environ={}, home=tmp_path, hub_cache=tmp_path / "hub", folders=(tmp_path / "mine",)
    )
    return LocalModels(tmp_path / "models", options, Records(tmp_path / "state"))


def write(folder: Path, **files: bytes | None) -> Path:
    """A whole model; keyword arguments replace a file (dots as __) or, None, leave it out."""
    changes = {name.replace("__", "."): content for name, content in files.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (model_files() | changes).items():
        if content is not None:
            (folder / name).write_bytes(content)
    return folder


def hub_snapshot(cache: Path, name: str, commit: str = COMMIT, seed: int = 0) -> Path:
    """As the hub's client leaves it: links to blobs, and refs/main."""
    root = cache / f"models--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir(exist_ok=True)
    for file, content in model_files(seed=seed).items():
        blob = root / "blobs" / f"{file}-{seed}"
        blob.write_bytes(content)
        (snapshot / file).symlink_to(os.path.relpath(blob, snapshot))
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / "main").write_text(commit)
    return snapshot


def named(shelf: LocalModels, name: str) -> StoredModel:
    return {model.name: model for model in shelf.models()}[name]


def reason(shelf: LocalModels, name: str) -> str:
    model = named(shelf, name)
    assert not model.ready
    return model.reason


def test_every_place_is_looked_at(shelf: LocalModels, tmp_path: Path) -> None:
    write(tmp_path / "models" / "smollm2-135m")
    write(tmp_path / "models" / "from-gguf")
    write(tmp_path / "mine" / "local")
    write(tmp_path / "elsewhere")
    shelf.records.folders.put(Added("added", str(tmp_path / "elsewhere")))
    hub_snapshot(tmp_path / "hub", "org/cached")
    write(tmp_path / ".lmstudio" / "models" / "pub" / "studio")
    found = {model.name: (model.source, model.ready) for model in shelf.models()}
    assert found == {
        "smollm2-135m": (ModelSource.BUILT_IN, True),
        "from-gguf": (ModelSource.IMPORTED, True),
        "local": (ModelSource.LOCAL, True),
        "added": (ModelSource.LOCAL, True),
        "org/cached": (ModelSource.HUB, True),
        "pub/studio": (ModelSource.LOCAL, True),
    }


def test_studio_folder_chosen_in_its_settings_is_found(shelf: LocalModels, tmp_path: Path) -> None:
    (tmp_path / ".lmstudio").mkdir()
    settings = {"downloadsFolder": str(tmp_path / "big disk")}
    (tmp_path / ".lmstudio" / "settings.json").write_text(json.dumps(settings))
    write(tmp_path / "big disk" / "pub" / "studio")
    assert named(shelf, "pub/studio").ready


def test_what_swiftlm_in_swift_downloaded_is_found(shelf: LocalModels, tmp_path: Path) -> None:
    write(tmp_path / "Library/Application Support/MLX/HuggingFace/models/org/name")
    model = named(shelf, "org/name")
    assert (model.ready, model.source) == (True, ModelSource.LOCAL)


def test_facts_are_shown(shelf: LocalModels, tmp_path: Path) -> None:
    write(tmp_path / "mine" / "local", chat_template__jinja=b"{% if tools %}{% endif %}")
    model = named(shelf, "local")
    facts = (model.model_type, model.context, model.quantization, model.tools, model.vision)
    assert facts == ("llama", 256, "float16", True, False)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"model__safetensors": None}, "pickled weights only"),
        ({"model__safetensors": None, "pytorch_model__bin": None}, "no weights"),
        ({"config__json": None}, "no config.json"),
        ({"config__json": b"{"}, "not JSON"),
        ({"tokenizer__json": None}, "no tokenizer"),
        ({"model__safetensors": b"x"}, "model.safetensors"),
        ({"model__safetensors": model_files()[WEIGHTS][:-1]}, "model.safetensors"),
        (
            {"config__json": b'{"model_type": "bert", "hidden_size": 64, "vocab_size": 312, '
             b'"num_attention_heads": 4, "num_hidden_layers": 1}'},
            "'bert' is not one that swiftlm runs",
        ),
    ],
)  # fmt: skip
def test_broken_folder_is_listed_with_the_reason(
    shelf: LocalModels, tmp_path: Path, files: dict[str, bytes | None], expected: str
) -> None:
    write(tmp_path / "models" / "broken", **files)
    assert expected in reason(shelf, "broken")


def test_missing_shard_is_named(shelf: LocalModels, tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "sharded"
    folder.mkdir(parents=True)
    for name, content in model_files(shards=3).items():
        (folder / name).write_bytes(content)
    assert named(shelf, "sharded").ready
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in reason(shelf, "sharded")


def test_gguf_folder_says_how_to_import_it(shelf: LocalModels, tmp_path: Path) -> None:
    folder = tmp_path / ".lmstudio" / "models" / "pub" / "gguf"
    folder.mkdir(parents=True)
    (folder / "m-Q4_K_M.gguf").write_bytes(b"GGUF")
    assert "swiftlmctl import" in reason(shelf, "pub/gguf")


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        (b"---\ntags: [mlx]\nlicense: mit\n---\n# A model\n", "mit"),
        (b"---\nlicense: other\nlicense_name: 'llama3.1'\n---\n", "llama3.1"),
        (b"---\nlicense: other\n---\n", "other"),
        (b"# A model\nlicense: mit\n", ""),
        (b"---\ntags: [mlx]\n---\nlicense: mit\n", ""),
        (None, ""),
    ],
)
def test_licence_is_what_the_card_states(
    shelf: LocalModels, tmp_path: Path, card: bytes | None, licence: str
) -> None:
    write(tmp_path / "mine" / "one", README__md=card)
    assert named(shelf, "one").licence == licence


def test_licence_of_a_pulled_model_is_the_one_noted_then(
    shelf: LocalModels, tmp_path: Path
) -> None:
    hub_snapshot(tmp_path / "hub", "org/one")
    pinned = Pinned("org/one", "main", COMMIT, (WEIGHTS,), 1, "apache-2.0", 0.0)
    shelf.records.pinned.put(pinned)
    assert named(shelf, "org/one").licence == "apache-2.0"


def test_repaired_folder_is_seen_at_once(shelf: LocalModels, tmp_path: Path) -> None:
    folder = write(tmp_path / "mine" / "local", tokenizer__json=None)
    assert reason(shelf, "local")
    (folder / "tokenizer.json").write_bytes(b"{}")
    assert named(shelf, "local").ready


def test_a_link_out_of_the_folder_is_not_followed(shelf: LocalModels, tmp_path: Path) -> None:
    folder = write(tmp_path / "mine" / "local", model__safetensors=None)
    secret = tmp_path / "secret"
    secret.write_bytes(model_files()[WEIGHTS])
    (folder / WEIGHTS).symlink_to(secret)
    assert "leads out of" in reason(shelf, "local")


def test_a_hub_snapshot_may_link_to_its_blobs_but_not_out_of_the_cache(
    shelf: LocalModels, tmp_path: Path
) -> None:
    snapshot = hub_snapshot(tmp_path / "hub", "org/cached")
    assert named(shelf, "org/cached").ready
    (snapshot / WEIGHTS).unlink()
    (tmp_path / "secret").write_bytes(model_files()[WEIGHTS])
    (snapshot / WEIGHTS).symlink_to(tmp_path / "secret")
    assert "leads out of" in reason(shelf, "org/cached")


def test_a_snapshot_added_by_path_may_link_to_its_blobs(shelf: LocalModels, tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path / "other cache", "org/cached")
    shelf.records.folders.put(Added("mine", str(snapshot)))
    assert named(shelf, "mine").ready


def test_dangling_snapshot_is_broken(shelf: LocalModels, tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path / "hub", "org/cached")
    (snapshot / WEIGHTS).resolve().unlink()
    assert not named(shelf, "org/cached").ready


def test_repositories_of_other_programs_are_left_out(shelf: LocalModels, tmp_path: Path) -> None:
    (tmp_path / "hub" / "datasets--org--text" / "snapshots").mkdir(parents=True)
    tokenizer_only = tmp_path / "hub" / "models--org--tokenizer" / "snapshots" / COMMIT
    tokenizer_only.mkdir(parents=True)
    (tokenizer_only / "tokenizer.json").write_bytes(b"{}")
    snapshot = hub_snapshot(tmp_path / "hub", "org/whisper")
    config = json.loads((snapshot / "config.json").read_bytes()) | {"model_type": "hubert"}
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text(json.dumps(config))
    assert shelf.models() == []


def test_main_decides_which_of_two_snapshots_is_listed(shelf: LocalModels, tmp_path: Path) -> None:
    hub_snapshot(tmp_path / "hub", "org/cached", "a" * 40, seed=1)
    hub_snapshot(tmp_path / "hub", "org/cached", "b" * 40, seed=2)
    assert named(shelf, "org/cached").revision == "b" * 40


def test_pinned_commit_goes_before_main(shelf: LocalModels, tmp_path: Path) -> None:
    hub_snapshot(tmp_path / "hub", "org/cached", "a" * 40, seed=1)
    hub_snapshot(tmp_path / "hub", "org/cached", "b" * 40, seed=2)
    shelf.records.pinned.put(Pinned("org/cached", "main", "a" * 40, (WEIGHTS,), 1, "", 0.0))
    assert named(shelf, "org/cached").revision == "a" * 40


def test_file_that_another_program_deleted_is_missed(shelf: LocalModels, tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path / "hub", "org/cached")
    files = (WEIGHTS, "tokenizer_config.json")
    shelf.records.pinned.put(Pinned("org/cached", "main", COMMIT, files, 1, "", 0.0))
    (snapshot / "tokenizer_config.json").unlink()
    assert "tokenizer_config.json is gone" in reason(shelf, "org/cached")


def test_a_part_beside_a_whole_model_does_not_hide_it(shelf: LocalModels, tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path / "hub", "org/cached")
    (snapshot.parents[1] / "blobs" / "abc.swiftlm-part").write_bytes(b"x")
    assert named(shelf, "org/cached").ready
    shutil.rmtree(snapshot)
    assert "not complete" in reason(shelf, "org/cached")


def test_unreadable_folders_do_not_break_the_listing(shelf: LocalModels, tmp_path: Path) -> None:
    write(tmp_path / "models" / "good")
    (tmp_path / "mine").write_text("a file where a folder should be")
    (tmp_path / "hub").write_text("another one")
    assert [model.name for model in shelf.models()] == ["good"]
