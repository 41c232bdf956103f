"""Which sizes of a checkpoint's matrices must divide by the ranks that cut each layer.

mlx cuts a matrix by its output rows, or by its columns; of a packed one also the words and the
quantization groups of a row must divide. Modules go by the names that the `shard` methods of
mlx-lm's models use, and by those that their `sanitize` renames.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from swiftlm_engine.brain.facts.config import Config
from swiftlm_engine.brain.facts.safetensors import TensorHeader
from swiftlm_engine.brain.facts.sorting import layer_of

_BY_ROWS = frozenset({
    "b_proj", "f_b_proj", "g_b_proj", "g_proj", "gate_proj", "in_proj_a", "in_proj_b",
    "in_proj_z", "index_q_proj", "k_proj", "kv_b_proj", "lm_head", "q_b_proj", "q_proj", "up_proj",
    "v_proj", "w1", "w3",
})  # fmt: skip
_BY_COLUMNS = frozenset({"down_proj", "o_b_proj", "o_proj", "out_proj", "w2"})
# Several matrices in one: how many; each of them is cut.
_FUSED = {"gate_up_proj": 2, "qkv_proj": 3}
_HEAD_IS_CUT = frozenset({"muse_spark", "qwen3_5", "qwen3_5_moe"})
_LEAF = re.compile(r"(.+?)(?:\.|_)(weight|scales|qweight|blocks)$")


@dataclass(frozen=True, slots=True, order=True)
class CutWidth:
    """A size of every such module of the model, or of some; `unit` in the plural."""

    module: str
    width: int
    unit: str

    def obstacle(self, parts: int) -> str:
        """Why it cannot be cut into so many equal parts; empty where it can."""
        if self.width % parts == 0:
            return ""
        unit = self.unit if self.width != 1 else self.unit.removesuffix("s")
        return f"the {self.width:,} {unit} of {self.module} do not divide by {parts}"


def cut_widths(config: Config, tensors: Iterable[TensorHeader]) -> tuple[CutWidth, ...]:
    """Each size once."""
    head = config.root["model_type"] in _HEAD_IS_CUT
    found = set(_of_config(config))
    listed = list(tensors)
    transposed = {t.name.removesuffix(".qweight") for t in listed if t.name.endswith(".qweight")}
    for tensor in listed:
        in_layer = layer_of(tensor.name) is not None
        if in_layer or (head and tensor.name.endswith(("lm_head.weight", "lm_head.scales"))):
            found.update(_of_tensor(tensor, transposed))
    return tuple(sorted(found))


def _of_config(config: Config) -> Iterator[CutWidth]:
    """What no header tells: heads of linear attention, which share one matrix."""
    for key, unit in (
        ("linear_num_key_heads", "key heads"),
        ("linear_num_value_heads", "value heads"),
    ):
        if heads := config.maybe(key):
            yield CutWidth("linear attention", heads, unit)


def _of_tensor(tensor: TensorHeader, transposed: set[str]) -> Iterator[CutWidth]:
    match = _LEAF.match(tensor.name)
    if match is None or len(tensor.shape) < 2:
        return
    path, leaf = match.groups()
    module = path.rpartition(".")[2]
    shape = tensor.shape[:-1] if leaf == "blocks" else tensor.shape  # 16 bytes are one group
    if path in transposed:  # (in, out), as GPTQ and AWQ store it
        shape = (*shape[:-2], shape[-1], shape[-2])
        if leaf == "qweight":  # the scales say both sizes
            return
    if module in _BY_ROWS:
        yield CutWidth(module, shape[-2], "output rows")
    elif module in _FUSED:
        yield CutWidth(module, shape[-2] // _FUSED[module], "output rows")
    elif module in _BY_COLUMNS:
        is_packed = leaf in ("scales", "blocks")
        unit = "quantization groups" if is_packed else _unit(tensor)
        yield CutWidth(module, shape[-1], unit)


def _unit(tensor: TensorHeader) -> str:
    return "packed words in a row" if tensor.dtype == "U32" else "columns"
