"""What macOS keeps beside files on foreign volumes is no part of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from foreign_volume import add_apple_doubles
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B

from swiftlm_engine.brain.facts import MissingFile, read_model, weight_files
from swiftlm_engine.prefix.fingerprint import fingerprint_of
from swiftlm_engine.streaming.pack import checkpoint_hash
from swiftlm_engine.streaming.table import read_headers
from swiftlmd.planning.planner import _stamp
from swiftlmd.store.folder import has_gguf, inspect

SMALL = DENSE_8B | {"num_hidden_layers": 2, "max_position_embeddings": 2048}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m", SMALL, decoder(SMALL, Quant(4)))


def test_every_reader_of_weights_sees_the_folder_as_it_was(folder: Path) -> None:
    def seen() -> tuple[object, ...]:
        return (
            read_model(folder).fingerprint,
            fingerprint_of(folder, template="", kv_format="fp16"),
            checkpoint_hash(folder),
            read_headers(folder).keys(),
            _stamp(folder)[1:],
            inspect(folder).reason,
            [path.name for path in weight_files(folder)],
        )

    before = seen()
    add_apple_doubles(folder)
    assert seen() == before


def test_weights_under_another_name_than_model_are_found_beside_apple_doubles(
    folder: Path,
) -> None:
    next(folder.glob("model*.safetensors")).rename(folder / "weights.safetensors")
    before = read_model(folder).fingerprint
    assert read_model(add_apple_doubles(folder)).fingerprint == before


def test_a_folder_with_nothing_but_an_apple_double_holds_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "._model.safetensors").write_bytes(bytes(4096))
    (tmp_path / "._x.gguf").write_bytes(bytes(4096))
    assert not has_gguf(tmp_path)
    with pytest.raises(MissingFile):
        read_model(tmp_path)
    assert "GGUF" not in inspect(tmp_path).reason
