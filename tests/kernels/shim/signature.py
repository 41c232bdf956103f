"""The function MLX writes around a kernel body: the same parameters in the same order."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Template = Sequence[tuple[str, Any]]

_TYPES = {
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float16": "float16_t",
    "bfloat16": "bfloat16_t",
    "float32": "float",
}
_METAL_ATTRIBUTES = {  # name -> (type, what the shim passes)
    "simdgroup_index_in_threadgroup": ("uint", "p_.sg"),
    "thread_index_in_simdgroup": ("uint", "p_.lane"),
    "thread_position_in_grid": ("uint3", "p_.tpg"),
    "thread_position_in_threadgroup": ("uint3", "p_.tpt"),
    "threadgroup_position_in_grid": ("uint3", "p_.gpg"),
    "threadgroups_per_grid": ("uint3", "p_.gpgn"),
}
_SHAPE_PARTS = (
    ("_shape", "const constant int*"),
    ("_strides", "const constant int64_t*"),
    ("_ndim", "const constant int&"),
)
_CONSTANT_BELOW = 8  # elements: MLX puts smaller inputs into constant space


class ShimError(RuntimeError):
    """`kind`: compile, address space, lint, limit, launch or sanitizer."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"[{kind}] {message}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Buffer:
    ctype: str
    kind: str  # in, out, _shape, _strides, _ndim
    name: str


@dataclass(frozen=True, slots=True)
class Signature:
    text: str
    function: str
    call: str  # template arguments
    buffers: tuple[Buffer, ...]
    arguments: tuple[str, ...]  # what follows the buffers in the call


def type_name(dtype: Any) -> str:
    """C type of an MLX or numpy dtype."""
    found = re.search(r"(bfloat16|float16|float32|u?int(?:8|16|32|64))", str(dtype))
    if found is None:
        raise ShimError("lint", f"no kernel type for {dtype!r}")
    return _TYPES[found.group(1)]


def template_call(template: Template) -> tuple[str, str]:
    """("template <...>", "<arguments>"), both empty without template values."""
    if not template:
        return "", ""
    kinds = ["int" if isinstance(v, int | bool | np.integer) else "typename" for _, v in template]
    heads = [f"{kind} {name}" for kind, (name, _) in zip(kinds, template, strict=True)]
    values = [
        str(int(v)) if kind == "int" else type_name(v)
        for kind, (_, v) in zip(kinds, template, strict=True)
    ]
    return f"template <{', '.join(heads)}>\n", f"<{', '.join(values)}>"


def metal_signature(
    name: str,
    inputs: dict[str, tuple[np.ndarray, str]],
    outputs: dict[str, str],
    source: str,
    header: str,
    template: Template,
) -> Signature:
    """`inputs` and `outputs` give the C type of each; as mlx/backend/metal/custom_kernel.cpp."""
    head, call = template_call(template)
    buffers = []
    for key, (array, ctype) in inputs.items():
        space = "constant" if array.size < _CONSTANT_BELOW else "device"
        buffers.append(Buffer(f"const {space} {ctype}*", "in", key))
        buffers += [Buffer(t, part, key) for part, t in _SHAPE_PARTS if key + part in source]
    buffers += [Buffer(f"device {ctype}*", "out", key) for key, ctype in outputs.items()]
    attributes = {n: a for n, a in _METAL_ATTRIBUTES.items() if n in source}
    if not attributes:
        raise ShimError("lint", "no thread attribute in the source: MLX would write no signature")
    function = f"custom_kernel_{name}"
    lines = [
        f"  {b.ctype} {b.name}{'' if b.kind in ('in', 'out') else b.kind} [[buffer({i})]]"
        for i, b in enumerate(buffers)
    ]
    lines += [f"  {ctype} {n} [[{n}]]" for n, (ctype, _) in attributes.items()]
    text = f"{header}{head}[[kernel]] void {function}(\n" + ",\n".join(lines) + ") {\n"
    text += f'#line 1 "kernel.source"\n{source}\n}}\n'
    if call:
        text += f"template [[kernel]] decltype({function}{call}) {function}{call};\n"
    passed = tuple(value for _, value in attributes.values())
    return Signature(text, function, call, tuple(buffers), passed)


def cuda_signature(
    name: str,
    inputs: dict[str, tuple[np.ndarray, str]],
    outputs: dict[str, str],
    source: str,
    header: str,
    template: Template,
) -> Signature:
    """Shapes by value, as mlx/backend/cuda/custom_kernel.cpp passes them."""
    head, call = template_call(template)
    buffers = []
    for key, (_, ctype) in inputs.items():
        buffers.append(Buffer(f"const {ctype}*", "in", key))
        if key + "_shape" in source:
            buffers.append(Buffer("const Shape&", "_shape", key))
    buffers += [Buffer(f"{ctype}*", "out", key) for key, ctype in outputs.items()]
    parameters = [
        f"  {b.ctype} {b.name}{'' if b.kind in ('in', 'out') else b.kind}" for b in buffers
    ]
    parameters += ["  uint3 threadIdx", "  uint3 blockIdx", "  uint3 gridDim"]
    text = f"{header}{head}void {name}(\n" + ",\n".join(parameters) + ") {\n"
    text += f'#line 1 "kernel.source"\n{source}\n}}\n'
    return Signature(text, name, call, tuple(buffers), ("p_.tpt", "p_.gpg", "p_.gpgn"))
