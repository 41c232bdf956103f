"""How each weight is packed, read from config.json and held against the headers.

MLX stores a packed weight as uint32 words beside `.scales` (and `.biases`); the two widths fix the
product bits x group size, so a config that claims something else is found out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swiftlm_engine.brain.facts.config import Config
from swiftlm_engine.brain.facts.errors import BadConfig, LyingHeader
from swiftlm_engine.brain.facts.safetensors import TensorHeader

_NO_WEIGHTS = (".scales", ".biases", "_scales", "scale_inv", ".qzeros")
# Two 4-bit codes to the byte (gpt-oss as published), eight to the word (GPTQ, AWQ).
_CODES = {"U8": 2, "I32": 8}
_BITS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True, slots=True)
class Packing:
    """How one module's weight is packed."""

    bits: int
    group_size: int
    mode: str = "affine"


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The packing of every packed module. `default` is None for a model that is not quantised.

    `bits_per_weight` counts scales and biases, over all weights of the checkpoint.
    """

    default: Packing | None
    modules: Mapping[str, Packing]
    bits_per_weight: float

    @property
    def mixed(self) -> bool:
        return len(set(self.modules.values())) > 1

    def describe(self) -> str:
        """`4-bit g64`, `4-bit g64, mixed` or the dtype's width."""
        if self.default is None:
            return f"{self.bits_per_weight:.0f}-bit"
        text = f"{self.default.bits}-bit g{self.default.group_size}"
        text += "" if self.default.mode == "affine" else f" {self.default.mode}"
        return text + (", mixed" if self.mixed else "")


def read_packings(config: Config, tensors: Mapping[str, TensorHeader]) -> dict[str, Packing]:
    """Module path to packing, for each module with `.scales` in the headers."""
    declared = declared_packing(config)
    section = _section(config)
    packings: dict[str, Packing] = {}
    for name, scales in tensors.items():
        if not name.endswith(".scales"):
            continue
        module = name.removesuffix(".scales")
        weight = tensors.get(module + ".weight")
        if weight is None or weight.dtype != "U32":
            raise LyingHeader(scales.file, f"{name} has no packed weight beside it")
        claim = section.get(module)
        packings[module] = _packing(weight, scales, declared, claim)
    if packings and declared is None:
        raise BadConfig(
            config.path, "the weights are quantized but config.json has no quantization entry"
        )
    return packings


def declared_packing(config: Config) -> Packing | None:
    """What config.json says for all modules it does not name."""
    section = _section(config)
    if not section:
        return None
    method = section.get("quant_method", section.get("mode"))
    if method in ("mxfp4", "mxfp8"):
        return Packing(4 if method == "mxfp4" else 8, 32, str(method))
    if "bits" not in section or "group_size" not in section:
        return None
    return _claimed(config, section)


def _section(config: Config) -> Mapping[str, Any]:
    for key in ("quantization", "quantization_config"):
        if section := config.section(key):
            return section
    return {}


def _claimed(config: Config, section: Mapping[str, Any]) -> Packing:
    bits, group = section.get("bits"), section.get("group_size")
    if bits not in _BITS or group not in (16, 32, 64, 128, 256):
        raise BadConfig(config.path, f"config.json: {bits!r} bits in groups of {group!r}")
    return Packing(bits, group, str(section.get("mode", "affine")))


def _packing(
    weight: TensorHeader, scales: TensorHeader, declared: Packing | None, claim: object
) -> Packing:
    if not weight.shape or not scales.shape:
        raise LyingHeader(weight.file, f"{weight.name} or its scales have no shape")
    words, groups = weight.shape[-1], scales.shape[-1]
    if weight.shape[:-1] != scales.shape[:-1] or not groups or (32 * words) % groups:
        raise LyingHeader(weight.file, f"{weight.name} and its scales have different shapes")
    product = 32 * words // groups
    if isinstance(claim, Mapping):
        bits, group = claim.get("bits"), claim.get("group_size")
        if (
            not isinstance(bits, int)
            or not isinstance(group, int)
            or not 0 < bits <= 16
            or bits * group != product
        ):
            raise LyingHeader(
                weight.file,
                f"{weight.name}: config.json says {bits} bits in groups of {group}, "
                f"the header says {product} bits per group",
            )
        return Packing(bits, group, str(claim.get("mode", "affine")))
    if declared is None:
        return Packing(4, product // 4)
    return _inferred(weight, declared, product, scales.dtype)


def _inferred(weight: TensorHeader, declared: Packing, product: int, scale_dtype: str) -> Packing:
    """A module config.json does not name: the default, or what its shapes leave possible."""
    if declared.bits * declared.group_size == product:
        return declared
    if scale_dtype == "U8":
        known = {64: Packing(4, 16, "nvfp4"), 128: Packing(4, 32, "mxfp4"),
                 256: Packing(8, 32, "mxfp8")}  # fmt: skip
        if product in known:
            return known[product]
    elif product % declared.group_size == 0 and product // declared.group_size in _BITS:
        return Packing(product // declared.group_size, declared.group_size)
    raise LyingHeader(weight.file, f"{weight.name}: {product} bits per group fit no packing")


def logical_size(tensor: TensorHeader, packings: Mapping[str, Packing]) -> int:
    """Weights a tensor stands for; scales, biases and zero points stand for none."""
    if tensor.name.endswith(_NO_WEIGHTS):
        return 0
    if tensor.dtype == "U32" and (packing := packings.get(tensor.name.removesuffix(".weight"))):
        return tensor.size * 32 // packing.bits
    return tensor.size * _CODES.get(tensor.dtype, 1)
