"""Fingerprints: equal for the same model served the same way, different for anything else."""

import json

import pytest

from swiftlm_engine.prefix.fingerprint import Fingerprint, fingerprint_of


def safetensors(num_bytes: int, fill: int = 0) -> bytearray:
    tensor = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}
    header = json.dumps({"w": tensor, "__metadata__": {"format": "mlx"}}).encode()
    return bytearray(len(header).to_bytes(8, "little") + header + bytes([fill]) * num_bytes)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors(10_000))
    return tmp_path


def fingerprint(folder, template: str = "t", kv_format: str = "float16", **more) -> Fingerprint:
    return fingerprint_of(folder, template=template, kv_format=kv_format, **more)


def test_same_folder_has_the_same_fingerprint(folder):
    assert fingerprint(folder).digest == fingerprint(folder).digest


def test_versions_of_all_that_computes_kv_are_part_of_it(folder):
    assert {"swiftlm", "mlx", "mlx_lm"} <= fingerprint(folder).parts.keys()


@pytest.mark.parametrize("at", [-1, -10_000, -5_000])
def test_changed_weights_change_it(folder, at):
    before = fingerprint(folder)
    data = safetensors(10_000)
    data[at] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert fingerprint(folder).changes_from(before) == ("weights",)


def test_more_shards_change_it(folder):
    before = fingerprint(folder)
    (folder / "model-2.safetensors").write_bytes(safetensors(10))
    assert fingerprint(folder).changes_from(before) == ("weights",)


def test_config_tokenizer_template_and_kv_format_change_it(folder):
    before = fingerprint(folder)
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "tokenizer.json").write_text('{"a": 1}')
    after = fingerprint(folder, template="u", kv_format="turbo")
    assert after.changes_from(before) == ("config", "kv_format", "template", "tokenizer")
    assert after.digest != before.digest


def test_adapter_changes_it(folder, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapters.safetensors").write_bytes(safetensors(10))
    changed = fingerprint(folder, adapter_folder=adapter).changes_from(fingerprint(folder))
    assert changed == ("adapter",)


def test_it_names_the_versions_it_depends_on(folder):
    assert {"mlx", "mlx_lm", "format", "machine"} <= fingerprint(folder).parts.keys()


def test_it_survives_being_written_down(folder):
    before = fingerprint(folder)
    assert Fingerprint.from_json(before.to_json()).digest == before.digest
    with pytest.raises(ValueError, match="object"):
        Fingerprint.from_json("[]")
