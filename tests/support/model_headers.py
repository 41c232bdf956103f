"""Model folders that are all header: exact names, dtypes and shapes, data as a hole in the file.

A checkpoint of 400 GB takes a few hundred kilobytes of disk, so sizes can be tested at full scale.
"""

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZES = {"F32": 4, "BF16": 2, "F16": 2, "U32": 4, "U8": 1, "F8_E4M3": 1}


@dataclass(frozen=True)
class Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = SIZES[self.dtype]
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True)
class Quant:
    bits: int
    group: int = 64
    scale_dtype: str = "BF16"
    biases: bool = True


def linear(
    name: str, *shape: int, quant: Quant | None = None, dtype: str = "BF16", bias: bool = False
) -> list[Entry]:
    """A weight of (…, out, in) as it lies on disk, packed where `quant` says so."""
    rows = [Entry(f"{name}.bias", dtype, shape[:-1])] if bias else []
    if quant is None:
        return [Entry(f"{name}.weight", dtype, shape), *rows]
    groups = (*shape[:-1], shape[-1] // quant.group)
    packed = [
        Entry(f"{name}.weight", "U32", (*shape[:-1], shape[-1] * quant.bits // 32)),
        Entry(f"{name}.scales", quant.scale_dtype, groups),
    ]
    if quant.biases:
        packed.append(Entry(f"{name}.biases", quant.scale_dtype, groups))
    return packed + rows


def norm(name: str, size: int, dtype: str = "BF16") -> Entry:
    return Entry(f"{name}.weight", dtype, (size,))


def write_file(path: Path, entries: Iterable[Entry], *, cut: int = 0, extra: int = 0) -> None:
    """A safetensors file without data; `cut` bytes too short or `extra` bytes too long."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.nbytes],
        }
        offset += entry.nbytes
    write_header(path, header, offset - cut + extra)


def write_header(path: Path, header: dict[str, Any], data_bytes: int) -> None:
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + data_bytes)


def write_model(
    folder: Path, config: dict[str, Any], entries: list[Entry], *, shards: int = 1
) -> Path:
    """A whole folder: config, `shards` files and, with more than one, the index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write_file(folder / "model.safetensors", entries)
        return folder
    weight_map = {}
    for i in range(shards):
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = entries[i::shards]
        write_file(folder / name, part)
        weight_map |= {entry.name: name for entry in part}
    index = {"metadata": {"total_size": sum(e.nbytes for e in entries)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def decoder(config: dict[str, Any], quant: Quant | None = None) -> list[Entry]:
    """The tensors of a llama-like decoder: plain attention, SwiGLU, perhaps experts and MLA.

    Reads the keys of `config` that such families share; norms and biases included.
    """
    text = config.get("text_config", config)
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    kv, size = text.get("num_key_value_heads", heads), text.get("head_dim") or hidden // heads
    found = linear("model.embed_tokens", text["vocab_size"], hidden, quant=quant)
    for i in range(text["num_hidden_layers"]):
        base = f"model.layers.{i}"
        found += _attention(base + ".self_attn", text, hidden, heads, kv, size, quant)
        found += _feed_forward(base + ".mlp", i, text, hidden, quant)
        found += [norm(f"{base}.input_layernorm", hidden)]
        found += [norm(f"{base}.post_attention_layernorm", hidden)]
    found += [norm("model.norm", hidden)]
    if not text.get("tie_word_embeddings", False):
        found += linear("lm_head", text["vocab_size"], hidden, quant=quant)
    return found


def _attention(
    base: str, text: dict[str, Any], hidden: int, heads: int, kv: int, size: int,
    quant: Quant | None,
) -> list[Entry]:  # fmt: skip
    if "kv_lora_rank" in text:
        return _latent_attention(base, text, hidden, heads, quant)
    bias = text["model_type"] == "qwen2"
    found = linear(base + ".q_proj", heads * size, hidden, quant=quant, bias=bias)
    found += linear(base + ".k_proj", kv * size, hidden, quant=quant, bias=bias)
    found += linear(base + ".v_proj", kv * size, hidden, quant=quant, bias=bias)
    found += linear(base + ".o_proj", hidden, heads * size, quant=quant)
    if text["model_type"].startswith("qwen3"):
        found += [norm(base + ".q_norm", size), norm(base + ".k_norm", size)]
    return found


def _latent_attention(
    base: str, text: dict[str, Any], hidden: int, heads: int, quant: Quant | None
) -> list[Entry]:
    rank, rope = text["kv_lora_rank"], text["qk_rope_head_dim"]
    nope, value, q_rank = text["qk_nope_head_dim"], text["v_head_dim"], text["q_lora_rank"]
    found = linear(base + ".q_a_proj", q_rank, hidden, quant=quant)
    found += linear(base + ".q_b_proj", heads * (nope + rope), q_rank, quant=quant)
    found += linear(base + ".kv_a_proj_with_mqa", rank + rope, hidden, quant=quant)
    found += linear(base + ".embed_q", heads, rank, nope, quant=quant)
    found += linear(base + ".unembed_out", heads, value, rank, quant=quant)
    found += linear(base + ".o_proj", hidden, heads * value, quant=quant)
    return [*found, norm(base + ".q_a_layernorm", q_rank), norm(base + ".kv_a_layernorm", rank)]


def _feed_forward(
    base: str, layer: int, text: dict[str, Any], hidden: int, quant: Quant | None
) -> list[Entry]:
    count = text.get("num_experts") or text.get("n_routed_experts") or 0
    if not count or layer < text.get("first_k_dense_replace", 0):
        return _swiglu(base, hidden, text["intermediate_size"], quant)
    inner = text["moe_intermediate_size"]
    found = linear(base + ".gate", count, hidden)
    for part in ("gate_proj", "up_proj"):
        found += linear(f"{base}.switch_mlp.{part}", count, inner, hidden, quant=quant)
    found += linear(base + ".switch_mlp.down_proj", count, hidden, inner, quant=quant)
    if shared := text.get("n_shared_experts"):
        found += _swiglu(base + ".shared_experts", hidden, inner * shared, quant)
    return found


def _swiglu(base: str, hidden: int, inner: int, quant: Quant | None) -> list[Entry]:
    found = linear(base + ".gate_proj", inner, hidden, quant=quant)
    found += linear(base + ".up_proj", inner, hidden, quant=quant)
    return found + linear(base + ".down_proj", hidden, inner, quant=quant)
