"""Quantising shard by shard gives the very weights that mlx-lm's own conversion gives."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.convert import convert as mlx_lm_convert
from tiny_models import make_model

from swiftlm_engine.convert import quantize as subject
from swiftlm_engine.convert.errors import ConvertError


def weights(folder: Path) -> dict[str, mx.array]:
    found: dict[str, mx.array] = {}
    for file in folder.glob("model*.safetensors"):
        found |= mx.load(str(file))
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("qwen3_moe", tmp_path_factory.mktemp("source"))


@pytest.mark.parametrize(("bits", "group_size"), [(4, 64), (8, 32)])
def test_weights_equal_those_of_mlx_lm(
    source: Path, tmp_path: Path, bits: int, group_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_SHARD_BYTES", 50_000)  # several shards
    subject.quantise(source, tmp_path / "ours", bits, group_size)
    mlx_lm_convert(
        str(source), tmp_path / "theirs", quantize=True, q_bits=bits, q_group_size=group_size
    )
    ours, theirs = weights(tmp_path / "ours"), weights(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype
        assert mx.array_equal(ours[name], theirs[name]).item(), name
    one, two = (json.loads((tmp_path / n / "config.json").read_text()) for n in ("ours", "theirs"))
    assert one["quantization"] == two["quantization"]


def test_every_shard_is_in_the_index(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_SHARD_BYTES", 50_000)
    result = subject.quantise(source, tmp_path / "out", 4, 64)
    index = json.loads((result.path / "model.safetensors.index.json").read_text())["weight_map"]
    files = sorted(p.name for p in result.path.glob("*.safetensors"))
    assert len(files) > 1
    assert sorted(set(index.values())) == files
    assert index.keys() == weights(result.path).keys()
    assert 4 < result.bits_per_weight < 6


def test_tokenizer_and_template_are_carried_over_unchanged(source: Path, tmp_path: Path) -> None:
    (source / "evil.py").write_text("raise SystemExit")
    result = subject.quantise(source, tmp_path / "out", 4, 64)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (result.path / name).read_bytes() == (source / name).read_bytes()
    assert not (result.path / "evil.py").exists()


def test_a_quantised_model_is_refused(source: Path, tmp_path: Path) -> None:
    once = subject.quantise(source, tmp_path / "once", 4, 64)
    with pytest.raises(ConvertError, match="quantized already"):
        subject.quantise(once.path, tmp_path / "twice", 4, 64)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["once"]


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    source = make_model("llama", tmp_path / "source")
    (source / "model.safetensors").unlink()
    with pytest.raises(ConvertError, match="cannot be loaded"):
        subject.quantise(source, tmp_path / "out", 4, 64)


def test_a_model_that_brings_its_own_code_is_refused(tmp_path: Path) -> None:
    source = make_model("llama", tmp_path / "source")
    config = json.loads((source / "config.json").read_text()) | {"model_file": "evil.py"}
    (source / "config.json").write_text(json.dumps(config))
    (source / "evil.py").write_text("raise SystemExit('executed')")
    with pytest.raises(ConvertError, match="cannot be loaded"):
        subject.quantise(source, tmp_path / "out", 4, 64)


def test_only_what_a_model_needs_is_carried_over(source: Path, tmp_path: Path) -> None:
    strange = ("experts.swiftlm-pack", "experts.swiftlm-pack.json", "optimizer.pt", "model.onnx",
               "swiftlm-origin.json", "model.py", "notes.xyz")  # fmt: skip
    for name in strange:
        (source / name).write_bytes(b"{}")
    try:
        result = subject.quantise(source, tmp_path / "out", 4, 64)
    finally:
        for name in strange:
            (source / name).unlink()
    assert not {p.name for p in result.path.iterdir()} & set(strange)
    assert (result.path / "tokenizer.json").exists()


def test_a_config_that_says_it_is_not_quantised_is_believed(source: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in source.iterdir():
        (plain / path.name).symlink_to(path)
    config = json.loads((source / "config.json").read_text()) | {"quantization_config": None}
    (plain / "config.json").unlink()
    (plain / "config.json").write_text(json.dumps(config))
    assert subject.quantise(plain, tmp_path / "out", 4, 64).bits_per_weight < 6
