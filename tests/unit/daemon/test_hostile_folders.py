"""Whatever lies in a folder: it is listed in bounded time, and the others as without it."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import model_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swiftlmd.store.folder import inspect
from swiftlmd.store.local_models import LocalModels
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.records import Records

GOOD = model_files(2000)
CONFIG: dict[str, Any] = json.loads(GOOD["config.json"])
ODD: tuple[Any, ...] = (
    None, -1, 0, 10**9, 10**400, 1.5, "x", "", "\ud800", "\x1b[31m", [], [[1]], {}, {"a": {}}, True,
)  # fmt: skip
WORDS = (
    *("model_type", "architectures", "num_hidden_layers", "hidden_size", "vocab_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
    *("eos_token_id", "rope_scaling", "quantization", "torch_dtype", "text_config", "layer_types"),
)
BYTES = (
    b"",
    b"\0",
    b"{",
    b"[" * 5000,
    b"\xff\xfe",
    b'"',
    b"null",
    b"[]",
    b"1e999",
    b"\xef\xbb\xbf{}",
)


def header(entries: object) -> bytes:
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw


def folders() -> Iterator[tuple[str, dict[str, bytes]]]:
    for word in WORDS:
        for i, odd in enumerate(ODD):
            yield f"{word}-{i}", {"config.json": json.dumps(CONFIG | {word: odd}).encode()}
    for name in (*GOOD, "model.safetensors.index.json", "generation_config.json"):
        for i, content in enumerate(BYTES):
            yield f"{name}-{i}", {name: content}
    for key in ("dtype", "shape", "data_offsets"):
        for i, odd in enumerate(ODD):
            entry = {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]} | {key: odd}
            yield f"{key}-{i}", {"model.safetensors": header({"a.weight": entry}) + b"12"}
    for size in (1, 7, 8, 9, 2**31, 2**63, 2**64 - 1):
        yield f"length-{size}", {"model.safetensors": struct.pack("<Q", size) + b"{}"}


CORPUS = dict(folders())


def write(folder: Path, changes: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, content in (GOOD | changes).items():
        (folder / name).write_bytes(content)


def shelf(root: Path) -> LocalModels:
    options = StoreOptions(environ={}, home=root, hub_cache=root / "hub", folders=())
    return LocalModels(root / "models", options, Records(root / "state"))


def test_every_hostile_folder_has_its_line_and_the_good_one_is_as_before(tmp_path: Path) -> None:
    assert len(CORPUS) >= 150
    write(tmp_path / "models" / "good", {})
    (alone,) = shelf(tmp_path).models()
    for name, changes in CORPUS.items():
        write(tmp_path / "models" / f"bad-{name}", changes)
    begun = time.monotonic()
    found = {model.name: model for model in shelf(tmp_path).models()}
    assert time.monotonic() - begun < 20  # some hundred folders; each has a second
    assert found["good"] == alone
    for model in found.values():
        for text in (model.name, model.reason, model.model_type, model.licence):
            text.encode()


@pytest.mark.parametrize("name", ["\x1b[31m", "a\nb", "\u202etxt", " ", "-rf", "ä" * 80])
def test_no_name_of_a_folder_hides_another(name: str, tmp_path: Path) -> None:
    write(tmp_path / "models" / "good", {})
    write(tmp_path / "models" / name, {})
    assert "good" in {model.name for model in shelf(tmp_path).models()}


@given(
    bad=st.sampled_from(sorted(CORPUS)),
    file=st.sampled_from(sorted(GOOD)),
    cut=st.integers(0, 200),
    noise=st.binary(max_size=60),
)
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_folder_of_noise_is_read_without_raising(
    bad: str, file: str, cut: int, noise: bytes, tmp_path: Path
) -> None:
    place = tmp_path / f"{len(os.listdir(tmp_path))}"
    write(place, CORPUS[bad])
    content = (place / file).read_bytes()
    (place / file).write_bytes(content[:cut] + noise + content[cut + 7 :])
    begun = time.monotonic()
    inspect(place)
    assert time.monotonic() - begun < 2
