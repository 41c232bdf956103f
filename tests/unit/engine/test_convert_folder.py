"""A tiny model written as GGUF and converted back computes and says exactly what it did before."""

import json
import struct
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType, dequantize
from mlx_lm import load
from tiny_gguf import write_gguf
from tiny_models import make_model

from swiftlm_engine.convert.__main__ import main
from swiftlm_engine.convert.errors import ConvertError
from swiftlm_engine.convert.families import family_of
from swiftlm_engine.convert.folder import Converted, convert
from swiftlm_engine.convert.gguf_file import GgufFile

GEMMA = {"num_hidden_layers": 6, "sliding_window_pattern": 6}
FAMILIES = {
    "llama": ("llama", {}),
    "qwen2": ("llama", {"model_type": "qwen2", "head_dim": 16}),
    "qwen3": ("llama", {"model_type": "qwen3"}),
    "gemma3": ("gemma3_text", GEMMA),
}


def original(arch: str, folder: Path) -> Path:
    """The tiny model, with vectors that are not all ones and zeros."""
    base, overrides = FAMILIES[arch]
    made = make_model(base, folder / "original", **overrides)
    weights = mx.load(str(made / "model.safetensors"))
    for name, value in weights.items():
        if value.ndim == 1:
            weights[name] = value + 0.3 * mx.random.normal(value.shape, key=mx.random.key(1))
    mx.save_safetensors(str(made / "model.safetensors"), weights, metadata={"format": "mlx"})
    return made


def converted(source: Path, out: Path, dtype: str = "float32") -> Converted:
    return convert(source, out, dtype, lambda done, total, name: None)


@pytest.mark.parametrize("arch", list(FAMILIES))
def test_round_trip_keeps_logits_and_tokens(arch: str, tmp_path: Path) -> None:
    before = original(arch, tmp_path)
    result = converted(write_gguf(before, tmp_path / "m.gguf", arch), tmp_path / "out")
    assert result.losses == ()
    model, tokenizer = load(str(before))
    again, tokenizer_again = load(str(result.path))
    text = "hello world, the fox <|im_end|> jumps! 12 Ünïcode"
    ids = tokenizer.encode(text)
    assert tokenizer_again.encode(text) == ids
    assert tokenizer_again.decode(ids) == tokenizer.decode(ids)
    expected, logits = model(mx.array([ids])), again(mx.array([ids]))
    # gemma3's norms go through 1 + w and back in float32
    tolerance = 1e-4 if arch == "gemma3" else 0
    np.testing.assert_allclose(np.array(logits), np.array(expected), atol=tolerance, rtol=0)


def test_licence_is_carried_over(tmp_path: Path) -> None:
    before = original("llama", tmp_path)
    stated = {"general__license": ("apache-2.0", GGUFValueType.STRING)}
    source = write_gguf(before, tmp_path / "m.gguf", "llama", **stated)
    result = converted(source, tmp_path / "out")
    assert (result.path / "README.md").read_text() == "---\nlicense: apache-2.0\n---\n"


def test_chat_template_is_carried_over(tmp_path: Path) -> None:
    before = original("llama", tmp_path)
    result = converted(write_gguf(before, tmp_path / "m.gguf", "llama"), tmp_path / "out")
    _, one = load(str(before))
    _, two = load(str(result.path))
    chat = [{"role": "user", "content": "hi"}]
    rendered = one.apply_chat_template(chat, add_generation_prompt=True)
    assert two.apply_chat_template(chat, add_generation_prompt=True) == rendered


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0])
def test_quantised_weights_are_the_files_own(kind: Type, tmp_path: Path) -> None:
    source = write_gguf(original("qwen3", tmp_path), tmp_path / "m.gguf", "qwen3", kind)
    result = converted(source, tmp_path / "out")
    assert result.losses == ()
    model, _ = load(str(result.path))
    for tensor in GgufFile(source).tensors():
        if tensor.name == "blk.1.ffn_down.weight":
            layer = model.model.layers[1].mlp.down_proj
            read = mx.dequantize(
                layer.weight, layer.scales, layer.biases, group_size=32, bits=layer.bits
            )
            np.testing.assert_array_equal(np.array(read), dequantize(tensor.data, tensor.kind))
            return
    pytest.fail("the file has no such tensor")


def test_rounding_is_reported(tmp_path: Path) -> None:
    source = write_gguf(original("llama", tmp_path), tmp_path / "m.gguf", "llama")
    losses = converted(source, tmp_path / "out", "bfloat16").losses
    assert [loss.kind for loss in losses] == ["F32"]
    assert 0 < losses[0].relative < 0.01


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    source = write_gguf(original("llama", tmp_path), tmp_path / "m.gguf", "llama")
    content = source.read_bytes()
    source.write_bytes(content[: len(content) // 2])
    out = tmp_path / "models" / "out"
    with pytest.raises(ConvertError):
        converted(source, out)
    assert not out.exists()
    assert not out.parent.exists() or not list(out.parent.iterdir())


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    source = write_gguf(original("llama", tmp_path), tmp_path / "m.gguf", "llama")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("kept")
    with pytest.raises(ConvertError, match="exists already"):
        converted(source, out)
    assert (out / "mine").read_text() == "kept"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "original", "out"]


def test_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    source = write_gguf(original("llama", tmp_path), tmp_path / "m.gguf", "rwkv7")
    with pytest.raises(ConvertError, match=r"rwkv7 .* gemma3, llama, qwen2, qwen3"):
        family_of(GgufFile(source))


def test_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    source = write_gguf(
        original("llama", tmp_path),
        tmp_path / "m.gguf",
        "llama",
        llama__expert_count=(8, GGUFValueType.UINT32),
    )
    with pytest.raises(ConvertError, match="mixture of experts"):
        converted(source, tmp_path / "out")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(b"not a model" * 100)
    with pytest.raises(ConvertError, match="not a readable GGUF file"):
        converted(source, tmp_path / "out")


def test_missing_part_is_named(tmp_path: Path) -> None:
    source = tmp_path / "m-00001-of-00002.gguf"
    source.write_bytes(b"")
    with pytest.raises(ConvertError, match=r"missing: m-00002-of-00002\.gguf"):
        converted(source, tmp_path / "out")


def test_end_tokens_of_the_chat_are_listed(tmp_path: Path) -> None:
    source = write_gguf(original("llama", tmp_path), tmp_path / "m.gguf", "llama")
    result = converted(source, tmp_path / "out")
    config = json.loads((result.path / "generation_config.json").read_text())
    assert config["eos_token_id"] == [2, 0]


def test_a_file_nested_too_deep_is_refused(tmp_path: Path) -> None:
    def key(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    array = struct.pack("<IQ", 9, 1)  # of one array
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key(b"general.x") + struct.pack("<I", 9)
    file = tmp_path / "deep.gguf"
    file.write_bytes(head + array * 100_000 + struct.pack("<IQI", 4, 1, 7))
    with pytest.raises(ConvertError, match="nested too deep"):
        GgufFile(file)


def test_metadata_of_a_wrong_type_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_model("llama", tmp_path / "llama")
    text = GGUFValueType.STRING
    source = write_gguf(
        folder, tmp_path / "a.gguf", "llama", llama__embedding_length=("many", text)
    )
    assert main([str(source), str(tmp_path / "out")]) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["stage"] == "error"
    assert "a.gguf" in told["message"]
    assert not (tmp_path / "out").exists()
