"""Broken model folders: the error names the file at fault and what is wrong with it."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_headers import Entry, Quant, linear, write_file, write_header, write_model

from swiftlm_engine.brain import facts
from swiftlm_engine.brain.facts import (
    BadConfig,
    LyingHeader,
    MissingFile,
    ModelFilesError,
    TruncatedFile,
)

CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
    "vocab_size": 100, "intermediate_size": 128,
}  # fmt: skip
ENTRIES = [*linear("model.embed_tokens", 100, 64), *linear("lm_head", 100, 64)]


def write(folder: Path, **changes: Any) -> Path:
    return write_model(folder, CONFIG | changes, ENTRIES)


def test_folder_without_config_is_no_model_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"config\.json"):
        facts.read_model(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": 3}', "null", "\xff"])
def test_config_that_is_no_config_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadConfig, match=r"config\.json"):
        facts.read_model(tmp_path)


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "4", 10**20, True])
def test_size_that_no_model_has_is_refused_with_its_key(
    key: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match=key):
        facts.read_model(write(tmp_path, **{key: value}))


def test_folder_without_weights_says_what_was_looked_for(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.incomplete").touch()
    with pytest.raises(MissingFile, match=r"1 unfinished downloads.*\*\.safetensors"):
        facts.read_model(tmp_path)


def test_single_file_with_any_name_loads_without_an_index(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert facts.read_model(tmp_path).num_files == 1


def test_several_files_load_without_an_index(tmp_path: Path) -> None:
    write_model(tmp_path, CONFIG, ENTRIES, shards=2)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert facts.read_model(tmp_path).num_files == 2


def test_missing_shard_is_found_without_an_index_by_its_number(tmp_path: Path) -> None:
    write_model(tmp_path, CONFIG, ENTRIES, shards=2)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(MissingFile, match="model-00001-of-00002"):
        facts.read_model(tmp_path)


def test_missing_shard_is_named_by_the_index(tmp_path: Path) -> None:
    write_model(tmp_path, CONFIG, ENTRIES, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(MissingFile, match=r"1 of 2 weight files are missing.*00002-of-00002"):
        facts.read_model(tmp_path)


def test_shard_without_a_promised_tensor_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, CONFIG, ENTRIES, shards=2)
    write_file(tmp_path / "model-00002-of-00002.safetensors", [])
    with pytest.raises(LyingHeader, match=r"00002-of-00002.*lm_head\.weight"):
        facts.read_model(tmp_path)


@pytest.mark.parametrize("cut", [1, 4096, 12_000])
def test_cut_file_says_how_much_is_here(cut: int, tmp_path: Path) -> None:
    write(tmp_path)
    write_file(tmp_path / "model.safetensors", ENTRIES, cut=cut)
    with pytest.raises(TruncatedFile, match=r"model\.safetensors is cut"):
        facts.read_model(tmp_path)


def test_file_cut_inside_its_header_or_before_is_truncated(tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 5, 20):
        file.write_bytes(whole[:length])
        with pytest.raises(TruncatedFile):
            facts.read_model(tmp_path)


def test_pointer_of_git_lfs_is_told_from_a_model(tmp_path: Path) -> None:
    write(tmp_path)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    with pytest.raises(TruncatedFile, match="LFS pointer"):
        facts.read_model(tmp_path)


def _entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


LIES: dict[str, tuple[dict[str, Any], int]] = {
    "offsets span less than the shape": ({"a": _entry("F32", [4], 0, 8)}, 8),
    "negative dimension": ({"a": _entry("F32", [-4], 0, 16)}, 16),
    "fractional dimension": ({"a": _entry("F32", [4.0], 0, 16)}, 16),
    "unknown dtype": ({"a": _entry("F33", [4], 0, 16)}, 16),
    "no offsets": ({"a": {"dtype": "F32", "shape": [4]}}, 16),
    "entry is a number": ({"a": 3}, 16),
    "overlap": ({"a": _entry("F32", [4], 0, 16), "b": _entry("F32", [4], 8, 24)}, 24),
    "hole": ({"a": _entry("F32", [4], 0, 16), "b": _entry("F32", [4], 20, 36)}, 36),
    "unclaimed bytes": ({"a": _entry("F32", [4], 0, 16)}, 20),
    "a shape that would overflow": ({"a": _entry("F32", [2**40, 2**40], 0, 16)}, 16),
}


@pytest.mark.parametrize("lie", LIES)
def test_header_that_contradicts_itself_is_refused(lie: str, tmp_path: Path) -> None:
    write(tmp_path)
    write_header(tmp_path / "model.safetensors", *LIES[lie])
    with pytest.raises(LyingHeader, match=r"model\.safetensors"):
        facts.read_model(tmp_path)


def test_header_length_beyond_reason_is_not_read(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(LyingHeader, match="claims a header"):
        facts.read_model(tmp_path)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/a.safetensors", "a"])
def test_index_that_points_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path)
    index = {"weight_map": {"model.embed_tokens.weight": name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(LyingHeader, match="strange weight file"):
        facts.read_model(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": {}}', '{"weight_map": []}', "3"])
def test_index_that_is_no_index_is_named(text: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(LyingHeader, match=r"index\.json"):
        facts.read_model(tmp_path)


def test_tensor_in_two_files_names_both(tmp_path: Path) -> None:
    write(tmp_path)
    write_file(tmp_path / "model-extra.safetensors", ENTRIES[:1])
    with pytest.raises(LyingHeader, match=r"in both .*model.*safetensors"):
        facts.read_model(tmp_path)


@pytest.mark.parametrize(
    "change", [{"hidden_size": 128}, {"vocab_size": 101}], ids=["hidden size", "vocabulary"]
)
def test_config_of_another_model_is_found_out(change: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(LyingHeader, match=r"embed_tokens\.weight is 100 x 64"):
        facts.read_model(write(tmp_path, **change))


def test_number_of_experts_must_be_that_of_the_files(tmp_path: Path) -> None:
    config = CONFIG | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}
    stacked = linear("model.layers.0.mlp.switch_mlp.up_proj", 4, 32, 64)
    with pytest.raises(LyingHeader, match=r"of 4 experts, config\.json says 8"):
        facts.read_model(write_model(tmp_path / "a", config, ENTRIES + stacked))
    apart = linear("model.layers.0.mlp.experts.8.up_proj", 32, 64)
    with pytest.raises(LyingHeader, match=r"of 9 experts, config\.json says 8"):
        facts.read_model(write_model(tmp_path / "b", config, ENTRIES + apart))


def _quantised(tmp_path: Path, quantization: Any, entries: list[Entry]) -> facts.ModelFacts:
    config = CONFIG | ({"quantization": quantization} if quantization else {})
    return facts.read_model(write_model(tmp_path / "model", config, entries))


def test_packed_weights_need_a_quantization_entry(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no quantization entry"):
        _quantised(tmp_path, None, linear("model.embed_tokens", 100, 64, quant=Quant(4)))


def test_packing_claimed_for_a_module_must_fit_its_header(tmp_path: Path) -> None:
    entries = linear("model.embed_tokens", 100, 64, quant=Quant(8))
    claim = {"bits": 4, "group_size": 64, "model.embed_tokens": {"bits": 6, "group_size": 64}}
    with pytest.raises(LyingHeader, match=r"config\.json says 6 bits in groups of 64"):
        _quantised(tmp_path, claim, entries)


def test_bits_that_mlx_has_not_are_refused(tmp_path: Path) -> None:
    entries = linear("model.embed_tokens", 100, 64, quant=Quant(4))
    with pytest.raises(BadConfig, match="7 bits"):
        _quantised(tmp_path, {"bits": 7, "group_size": 64}, entries)


def test_mixed_packing_is_read_per_module(tmp_path: Path) -> None:
    entries = linear("model.embed_tokens", 100, 64, quant=Quant(8))
    entries += linear("lm_head", 100, 64, quant=Quant(4))
    entries += linear("model.layers.0.mlp.up_proj", 128, 64, quant=Quant(6, 32))
    claim = {
        "bits": 4,
        "group_size": 64,
        "model.layers.0.mlp.up_proj": {"bits": 6, "group_size": 32},
    }
    found = _quantised(tmp_path, claim, entries).quantisation
    assert {name: (p.bits, p.group_size) for name, p in found.modules.items()} == {
        "model.embed_tokens": (8, 64),  # not named in the config: its shapes tell
        "lm_head": (4, 64),
        "model.layers.0.mlp.up_proj": (6, 32),
    }
    assert found.mixed
    assert found.describe() == "4-bit g64, mixed"


def test_unknown_family_is_priced_as_plain_attention_and_says_so(tmp_path: Path) -> None:
    found = facts.read_model(write(tmp_path, model_type="rwkv7"))
    assert found.kv_assumed
    assert found.kv_bytes(256) == 2 * 64 * 2 * 256


def _fault_path(file: Path) -> Path | None:
    try:
        facts.read_header(file)
    except ModelFilesError as error:
        return error.path
    return None


@given(data=st.binary(max_size=200))
def test_random_bytes_are_a_named_error_never_a_crash(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("random") / "model.safetensors"
    file.write_bytes(data)
    assert _fault_path(file) in (None, file)


@given(
    header=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["dtype", "shape", "data_offsets", "F32", "a"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_random_headers_are_a_named_error_never_a_crash(
    header: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("random") / "model.safetensors"
    write_header(file, header, 16)
    assert _fault_path(file) in (None, file)
