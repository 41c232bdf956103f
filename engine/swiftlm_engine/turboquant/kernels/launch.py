"""Which kernel, with which grid: compressed storage in, attention, pages or plain KV out. All
lazy."""

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from swiftlm_engine.turboquant import attention
from swiftlm_engine.turboquant.backend import exact_attention
from swiftlm_engine.turboquant.codec import Codec, Pages
from swiftlm_engine.turboquant.encoder import encode_plain
from swiftlm_engine.turboquant.formats import PAGE_TOKENS, SEGMENT_PAGES, KeyCode, KVFormat
from swiftlm_engine.turboquant.kernels.constants import constants, matrix_constants
from swiftlm_engine.turboquant.kernels.dialect import Dialect, Text, compiled, cuda, metal
from swiftlm_engine.turboquant.kernels.encode import ENCODE
from swiftlm_engine.turboquant.kernels.exact import EXACT
from swiftlm_engine.turboquant.kernels.expand import EXPAND
from swiftlm_engine.turboquant.kernels.merge import MERGE
from swiftlm_engine.turboquant.kernels.scalar import MAX_SEGMENTS, SCALAR
from swiftlm_engine.turboquant.kernels.simdgroup import SIMDGROUP
from swiftlm_engine.turboquant.kernels.tensor import TENSOR
from swiftlm_engine.turboquant.packing import NibbleOrder
from swiftlm_engine.turboquant.sequence import SequenceKV

MAX_ROWS = 4  # queries that are decoded one by one; more go through `expand`
_COUNTER_SIZE = 1 << 17  # the largest count a kernel can be told, in pages: 8 M tokens
_EXACT_WARPS = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """What a decode kernel is compiled for."""

    group: int  # query heads per threadgroup
    blocks: int  # threadgroups per KV head
    warps: int
    turn: bool  # rotate in the kernel (a Hadamard matrix exists)


@dataclass(slots=True)
class KernelBackend:
    """Attention, encoding and expansion by kernels; plain ops where a format has none."""

    dialect: Dialect
    table_in_memory: bool = False  # decode table in threadgroup memory, not spread over lanes
    parallel_groups: int = 264  # threadgroups that fill the GPU
    _kernels: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _counter: mx.array | None = None

    def key_order(self, format: KVFormat, head_dim: int) -> NibbleOrder:
        if self.dialect.name == "cuda" and _fits_tensor(format, head_dim):
            return NibbleOrder.SIGN
        return NibbleOrder.OFFSET

    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        if not kv.num_pages:
            return exact_attention(kv, queries, scale)
        if not _has_kernels(kv.codec):
            return attention.attend(kv, queries, scale)
        rows = queries.shape[1]
        if rows <= MAX_ROWS:
            outs = [self._decode(kv, queries[:, i], scale, rows - 1 - i) for i in range(rows)]
            return mx.stack(outs, axis=1)
        keys, values = self.expand(kv)
        return mx.fast.scaled_dot_product_attention(
            queries[None], keys[None], values[None], scale=scale, mask="causal"
        )[0]

    def encode(self, kv: SequenceKV, count: int) -> Pages:
        if not (_has_kernels(kv.codec) and _turns(kv.codec.head_dim)):
            return encode_plain(kv, count)
        heads, _, dim = kv.exact_keys.shape
        codec, words = kv.codec, dim * kv.codec.format.key_bits // 32
        value_words = dim // 2 + (dim // 4 if codec.format.value_bits == 3 else dim // 2)
        kernel = self._kernel(ENCODE, codec, 1.0)
        first = self._count(kv.num_pages)
        out = kernel(
            inputs=[kv.exact_keys, kv.exact_values, kv.means, kv.equaliser, first],
            template=[("H", mx.float16)],
            grid=(count * 256, heads, 1),
            threadgroup=(256, 1, 1),
            output_shapes=[
                (heads, count, words, PAGE_TOKENS),
                (heads, count, codec.format.key_scalars, PAGE_TOKENS),
                (heads, count, 8, value_words),
                (heads, count, PAGE_TOKENS),
            ],
            output_dtypes=[mx.uint32, mx.float16, mx.uint32, mx.float16],
        )
        return Pages(*out)

    def expand(self, kv: SequenceKV) -> tuple[mx.array, mx.array]:
        """All tokens as ordinary (H, N, d) keys and values in the model's dtype."""
        if not _turns(kv.codec.head_dim):
            return kv.keys_and_values()
        heads, _, dim = kv.exact_keys.shape
        blocks = kv.num_pages + -(-kv.num_exact // PAGE_TOKENS)
        dtype = kv.exact_keys.dtype
        kernel = self._kernel(EXPAND, kv.codec, 1.0)
        keys, values = kernel(
            inputs=[
                *kv.held_pages.arrays(),
                kv.means,
                kv.equaliser,
                kv.exact_keys,
                kv.exact_values,
                self._count(kv.num_pages),
                self._count(kv.num_exact),
            ],
            template=[("T", dtype)],
            grid=(blocks * 256, heads, 1),
            threadgroup=(256, 1, 1),
            output_shapes=[(heads, kv.num_tokens, dim)] * 2,
            output_dtypes=[dtype] * 2,
        )
        return keys, values

    def _decode(self, kv: SequenceKV, query: mx.array, scale: float, hidden: int) -> mx.array:
        """(Hq, d) query that does not see the newest `hidden` tokens -> (Hq, d)."""
        heads = kv.exact_keys.shape[0]
        num_heads, dim = query.shape
        text, shape = self._choose(kv.codec, num_heads // heads)
        equaliser = kv.equaliser
        if not shape.turn:
            smooth = query.astype(mx.float32).reshape(heads, -1, dim) * equaliser[:, None]
            equaliser = kv.codec.rotation.forward(smooth).reshape(num_heads, dim)
        groups = heads * shape.blocks
        splits = self._splits(kv.num_pages, groups, shape.warps)
        pages = self._kernel(text, kv.codec, scale)(
            inputs=[query, *kv.held_pages.arrays(), kv.means, equaliser, self._count(kv.num_pages)],
            template=self._template(text, shape),
            **_partials(groups, splits, shape.group, dim, shape.warps),
        )
        exact = self._exact(kv, query, scale, shape, kv.num_exact - hidden)
        return self._merge(kv, [*pages, *exact], shape, scale, query.dtype)

    def _exact(
        self, kv: SequenceKV, query: mx.array, scale: float, shape: Shape, count: int
    ) -> list[mx.array]:
        groups = kv.exact_keys.shape[0] * shape.blocks
        splits = -(-count // (32 * _EXACT_WARPS))
        template = [("G", shape.group), ("GB", shape.blocks), ("NW", _EXACT_WARPS)]
        partial: list[mx.array] = self._kernel(EXACT, kv.codec, scale)(
            inputs=[query, kv.exact_keys, kv.exact_values, self._count(count)],
            template=template,
            **_partials(groups, splits, shape.group, query.shape[1], _EXACT_WARPS),
        )
        return partial

    def _merge(
        self, kv: SequenceKV, parts: list[mx.array], shape: Shape, scale: float, dtype: mx.Dtype
    ) -> mx.array:
        dim = kv.codec.head_dim
        num_heads = parts[0].shape[0] * shape.group
        warps = min(16, 2048 // max(dim, 128))
        halves = 1 if shape.turn else 2
        template = [("G", shape.group), ("NW", warps), ("TURN", shape.turn)]
        out = self._kernel(MERGE, kv.codec, scale)(
            inputs=parts,
            template=[*template, ("T", dtype if shape.turn else mx.float32)],
            grid=(num_heads * warps * 32, 1, 1),
            threadgroup=(warps * 32, 1, 1),
            output_shapes=[(halves * num_heads, dim)],
            output_dtypes=[dtype if shape.turn else mx.float32],
        )[0]
        if shape.turn:
            return out
        turned = kv.codec.rotation.inverse(out[:num_heads])
        return (turned + out[num_heads:]).astype(dtype)

    def _choose(self, codec: Codec, group: int) -> tuple[Text, Shape]:
        dim = codec.head_dim
        size = max(n for n in range(1, 9) if group % n == 0 and (n <= 4 or dim <= 256))
        blocks = group // size
        warps = 4 if dim <= 256 else 2
        if codec.order is NibbleOrder.SIGN:  # chosen for this kernel, no other reads it
            return TENSOR, Shape(size, blocks, 8 if dim < 256 else 4, True)
        if self.dialect.name == "metal" and size >= 5:
            return SIMDGROUP, Shape(size, blocks, warps, _turns(dim))
        return SCALAR, Shape(size, blocks, warps, _turns(dim))

    def _template(self, text: Text, shape: Shape) -> list[tuple[str, int]]:
        sizes = [("G", shape.group), ("GB", shape.blocks), ("NW", shape.warps)]
        if text is TENSOR:
            return sizes
        sizes.append(("TURN", int(shape.turn)))
        return sizes if text is SIMDGROUP else [*sizes, ("DEC", 1 if self.table_in_memory else 2)]

    def _splits(self, pages: int, groups: int, warps: int) -> int:
        """Enough threadgroups to fill the GPU, each with a page per warp and few segments."""
        fill = max(1, self.parallel_groups * 8 // warps // groups)
        most = max(1, 2 * pages // warps)
        least = -(-pages // (SEGMENT_PAGES * (MAX_SEGMENTS - 2)))
        return max(least, min(fill, most))

    def _count(self, n: int) -> mx.array:
        """An array whose length says n: lengths reach a kernel by value, numbers from memory."""
        if self._counter is None:
            self._counter = mx.zeros((_COUNTER_SIZE,), mx.uint8)
        return self._counter[: n + 1]

    def _kernel(self, text: Text, codec: Codec, scale: float) -> Any:
        key = (text.name, codec.format.name, codec.head_dim, scale, codec.order)
        if key not in self._kernels:
            numbers = constants(codec.format, codec.head_dim, scale, codec.order)
            if text is TENSOR:
                numbers += matrix_constants(codec.format)
            self._kernels[key] = compiled(self.dialect, text, numbers)
        return self._kernels[key]


def metal_backend() -> KernelBackend:
    return KernelBackend(metal(), parallel_groups=64)


def cuda_backend() -> KernelBackend:
    return KernelBackend(cuda())


def _turns(dim: int) -> bool:
    return dim & (dim - 1) == 0


def _has_kernels(codec: Codec) -> bool:
    dim = codec.head_dim
    return codec.format.key_code is not KeyCode.QJL_3_1 and dim >= 64 and dim % 16 == 0


def _fits_tensor(format: KVFormat, dim: int) -> bool:
    four = format.key_code in (KeyCode.LLOYD_MAX_4, KeyCode.SIGN_3_1)
    return four and format.value_bits == 3 and dim in (64, 128, 256)


def _partials(groups: int, splits: int, group: int, dim: int, warps: int) -> dict[str, Any]:
    sizes = (groups, splits, group)
    return {
        "grid": (splits * warps * 32, groups, 1),
        "threadgroup": (warps * 32, 1, 1),
        "output_shapes": [sizes, sizes, (*sizes, dim)],
        "output_dtypes": [mx.float32] * 3,
    }
