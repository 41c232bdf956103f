"""Rotary scaling that a GGUF file states is found again as mlx-lm's setting, or refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter
from tiny_gguf import write_gguf
from tiny_models import make_model

from swiftlm_engine.convert.errors import ConvertError
from swiftlm_engine.convert.families import config_of, family_of
from swiftlm_engine.convert.gguf_file import GgufFile

TEXT, FLOAT, INT = GGUFValueType.STRING, GGUFValueType.FLOAT32, GGUFValueType.UINT32


def scaling_of(folder: Path, **changes: Any) -> Any:
    model = make_model("llama", folder / "model")
    file = GgufFile(write_gguf(model, folder / "m.gguf", "llama", **changes))
    return config_of(file, family_of(file))["rope_scaling"]


def test_no_scaling_is_none(tmp_path: Path) -> None:
    assert scaling_of(tmp_path) is None


def test_linear_scaling(tmp_path: Path) -> None:
    found = scaling_of(
        tmp_path,
        llama__rope__scaling__type=("linear", TEXT),
        llama__rope__scaling__factor=(8.0, FLOAT),
    )
    assert (found["rope_type"], found["factor"]) == ("linear", 8.0)


def test_yarn_scaling(tmp_path: Path) -> None:
    found = scaling_of(
        tmp_path,
        llama__rope__scaling__type=("yarn", TEXT),
        llama__rope__scaling__factor=(4.0, FLOAT),
        llama__rope__scaling__original_context_length=(32768, INT),
    )
    assert (found["rope_type"], found["original_max_position_embeddings"]) == ("yarn", 32768)


def test_unknown_scaling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="longrope"):
        scaling_of(
            tmp_path,
            llama__rope__scaling__type=("longrope", TEXT),
            llama__rope__scaling__factor=(4.0, FLOAT),
        )


def llama3_divisors(factor: float, base: float = 500_000.0, size: int = 64) -> list[float]:
    """What llama.cpp's converter stores, one frequency at a time."""
    divisors = []
    for i in range(0, size, 2):
        wavelength = 2 * math.pi * base ** (i / size)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def with_divisors(path: Path, divisors: list[float]) -> GgufFile:
    writer = GGUFWriter(path, "llama")
    writer.add_rope_freq_base(500_000.0)
    writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))
    for add, value in (
        (writer.add_embedding_length, 256),
        (writer.add_head_count, 4),
        (writer.add_feed_forward_length, 64),
        (writer.add_block_count, 1),
        (writer.add_context_length, 131072),
        (writer.add_layer_norm_rms_eps, 1e-5),
    ):
        add(value)
    writer.add_token_list(["a"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_divisors_become_the_setting(tmp_path: Path, factor: float) -> None:
    file = with_divisors(tmp_path / "m.gguf", llama3_divisors(factor))
    found = config_of(file, family_of(file))["rope_scaling"]
    assert (found["rope_type"], found["factor"]) == ("llama3", factor)
    assert found["original_max_position_embeddings"] == 8192


def test_other_divisors_are_refused(tmp_path: Path) -> None:
    file = with_divisors(tmp_path / "m.gguf", [2.0] * 31 + [8.0])
    with pytest.raises(ConvertError, match="not Llama 3's"):
        config_of(file, family_of(file))
