"""Which kernel, with which grid: compressed storage in, attention, pages or plain KV out. All
lazy."""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx

from swiftlm_engine.turboquant import attention
from swiftlm_engine.turboquant.attention import exact_attention, plain_attention
from swiftlm_engine.turboquant.codec import Codec, Pages
from swiftlm_engine.turboquant.encoder import encode_plain
from swiftlm_engine.turboquant.formats import PAGE_TOKENS, SEGMENT_PAGES, KeyCode, KVFormat
from swiftlm_engine.turboquant.kernels.constants import constants, matrix_constants
from swiftlm_engine.turboquant.kernels.dialect import Dialect, Text, compiled, cuda, metal
from swiftlm_engine.turboquant.kernels.encode import ENCODE
from swiftlm_engine.turboquant.kernels.expand import EXPAND
from swiftlm_engine.turboquant.kernels.expand_pairs import EXPAND_PAIRS
from swiftlm_engine.turboquant.kernels.merge import MERGE
from swiftlm_engine.turboquant.kernels.scalar import MAX_SEGMENTS, SCALAR
from swiftlm_engine.turboquant.kernels.simdgroup import SIMDGROUP
from swiftlm_engine.turboquant.kernels.tensor import TENSOR
from swiftlm_engine.turboquant.kernels.tune import choose_decoder
from swiftlm_engine.turboquant.packing import NibbleOrder
from swiftlm_engine.turboquant.sequence import MAX_FRESH, SequenceKV

MAX_ROWS = MAX_FRESH  # queries that are decoded one by one; more go through `expand`
# MLX on Metal passes a smaller array as `constant`, in a kernel of another name: that one would be
# compiled inside the first request whose count reaches the other side.
_LEAST_SIZE = 8
_COUNTER_SIZE = 1 << 20  # the largest count a kernel can be told, in pages: 8 M tokens
_MAX_KEPT = 256  # counts and steps; a decode step asks for the same few in every layer


@dataclass(frozen=True, slots=True)
class KernelShape:
    """What a decode kernel is compiled for."""

    group: int  # query heads per threadgroup
    blocks: int  # threadgroups per KV head
    warps: int
    turn: bool  # rotate in the kernel (a Hadamard matrix exists)
    resident: int  # threadgroups that fill the GPU


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """Both launches of a decode step, all but their arrays: the same in every layer of one shape,
    and building a call is host time."""

    turn: bool
    append: bool  # the exact zone is written anew, with this step's tokens
    pages: Any  # partials of compiled kernels, as MLX types them
    merge: Any
    num_pages: mx.array  # counts
    num_exact: mx.array


@dataclass(slots=True)
class KernelBackend:
    """Attention, encoding and expansion by kernels; plain ops where a format has none."""

    dialect: Dialect
    table_in_memory: bool = False  # decode table in threadgroup memory, not spread over lanes
    parallel_groups: int = 264  # threadgroups that fill the GPU
    _kernels: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _steps: dict[tuple[Any, ...], LaunchStep] = field(default_factory=dict)
    _counter: mx.array | None = None
    _ahead: mx.array | None = None  # the layer of prefill that was started last
    _counts: dict[tuple[int, ...], mx.array] = field(default_factory=dict)

    def key_order(self, format: KVFormat, head_dim: int) -> NibbleOrder:
        if self.dialect.name == "cuda" and _fits_tensor(format, head_dim):
            return NibbleOrder.SIGN
        return NibbleOrder.OFFSET

    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        rows = queries.shape[-2]
        if not kv.num_pages:
            out = exact_attention(kv, queries, scale)
            return out if rows <= MAX_ROWS else self._started(out)
        if not _has_kernels(kv.codec):
            return attention.attend(kv, queries, scale)
        if rows == 1:
            return self._decode(kv, queries, scale)
        if rows <= MAX_ROWS:
            parts = mx.split(queries, rows, axis=-2)
            outs = [self._decode(kv, q, scale, rows - 1 - i) for i, q in enumerate(parts)]
            return mx.concatenate(outs, axis=-2)
        return self._started(plain_attention(queries, *self.expand(kv), scale))

    def encode(self, kv: SequenceKV, count: int) -> Pages:
        if not (_has_kernels(kv.codec) and _turns(kv.codec.head_dim)):
            return encode_plain(kv, count)
        zone = kv.settled()
        _, heads, _, dim = zone.shape
        codec, words = kv.codec, dim * kv.codec.format.key_bits // 32
        value_words = dim // 2 + (dim // 4 if codec.format.value_bits == 3 else dim // 2)
        kernel = self._kernel(ENCODE, codec, 1.0)
        first = self._count(kv.num_pages)
        out = kernel(
            inputs=[zone, kv.means, kv.equaliser, first],
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
        zone = kv.settled()
        _, heads, _, dim = zone.shape
        blocks = kv.num_pages + -(-kv.num_exact // PAGE_TOKENS)
        pairs = kv.codec.order is NibbleOrder.SIGN and dim >= 128
        kernel = self._kernel(EXPAND_PAIRS if pairs else EXPAND, kv.codec, 1.0)
        keys, values = kernel(
            inputs=[
                *kv.held_pages.arrays(),
                kv.means,
                kv.equaliser,
                zone,
                self._count(kv.num_pages),
                self._count(kv.num_exact),
            ],
            template=[("T", zone.dtype)],
            grid=(blocks * 256, heads, 1),
            threadgroup=(256, 1, 1),
            output_shapes=[(heads, kv.num_tokens, dim)] * 2,
            output_dtypes=[zone.dtype] * 2,
        )
        return keys, values

    def _started(self, out: mx.array) -> mx.array:
        """Starts a layer of prefill and waits for the one before: the host runs ahead of the GPU,
        and every layer would be held expanded before the first is done with."""
        mx.async_eval(out)
        if self._ahead is not None:
            mx.eval(self._ahead)
        self._ahead = out
        return out

    def _decode(self, kv: SequenceKV, query: mx.array, scale: float, hidden: int = 0) -> mx.array:
        """(..., Hq, 1, d) query that does not see the newest `hidden` tokens -> the same."""
        self._ahead = None
        given, zone = kv.num_fresh, kv.zone
        seen = max(0, given - hidden)
        held = kv.num_exact - given if given else kv.num_exact - hidden
        counts = kv.num_pages, held, seen, given
        step = self._step(kv.codec, query, zone, scale, counts)
        part, *news = step.pages(
            inputs=[
                query,
                *kv.held_pages.arrays(),
                kv.means,
                kv.equaliser if step.turn else _turned(kv, query),
                zone,
                *(kv.fresh or (zone, zone)),
                step.num_pages,
                step.num_exact,
            ]
        )
        if step.append:
            kv.adopt_zone(news[0])
        out: mx.array = step.merge(inputs=[part, step.num_pages])[0]
        if step.turn:
            return out
        return (kv.codec.rotation.inverse(out[0]) + out[1]).astype(query.dtype)

    def _step(
        self,
        codec: Codec,
        query: mx.array,
        zone: mx.array,
        scale: float,
        counts: tuple[int, int, int, int],
    ) -> LaunchStep:
        shapes = query.shape, query.dtype, zone.shape, zone.dtype
        key = (codec, *shapes, scale, counts, self.table_in_memory)
        found = self._steps.get(key)
        if found is None:
            if len(self._steps) >= _MAX_KEPT:
                self._steps.clear()
            found = self._steps[key] = self._new_step(codec, query, zone, scale, counts)
        return found

    def _new_step(
        self,
        codec: Codec,
        query: mx.array,
        zone: mx.array,
        scale: float,
        counts: tuple[int, int, int, int],
    ) -> LaunchStep:
        pages, held, seen, given = counts
        heads, append = zone.shape[1], 0 < given == seen
        text, shape = self._choose(codec, query.shape[-3] // heads)
        groups = heads * shape.blocks
        splits, zones = self._splits(pages, groups, shape)
        blocks = splits + zones
        part = (groups, blocks, shape.group, codec.head_dim + 2)
        attend = partial(
            self._kernel(text, codec, scale, self._sizes(text, shape, append)),
            template=[("Z", zone.dtype)],
            grid=(blocks * shape.warps * 32, groups, 1),
            threadgroup=(shape.warps * 32, 1, 1),
            output_shapes=[part, zone.shape if append else (1,)],
            output_dtypes=[mx.float32, zone.dtype],
        )
        merge = self._merger(codec, shape, scale, query)
        num_pages, num_exact = self._count(pages, zones), self._count(held, seen, given)
        return LaunchStep(shape.turn, append, attend, merge, num_pages, num_exact)

    def _merger(self, codec: Codec, shape: KernelShape, scale: float, query: mx.array) -> Any:
        warps = min(16, 2048 // max(codec.head_dim, 128))
        dtype = query.dtype if shape.turn else mx.float32
        sizes = {"G": shape.group, "NW": warps, "TURN": int(shape.turn)}
        return partial(
            self._kernel(MERGE, codec, scale, sizes),
            template=[("T", dtype)],
            grid=(query.shape[-3] * warps * 32, 1, 1),
            threadgroup=(warps * 32, 1, 1),
            output_shapes=[query.shape if shape.turn else (2, *query.shape)],
            output_dtypes=[dtype],
        )

    def _choose(self, codec: Codec, group: int) -> tuple[Text, KernelShape]:
        dim = codec.head_dim
        size = max(n for n in range(1, 9) if group % n == 0 and (n <= 4 or dim <= 256))
        blocks = group // size
        if codec.order is NibbleOrder.SIGN:  # chosen for this kernel, no other reads it
            # 8 warps; registers let two of these threadgroups on a core, one at d = 256.
            resident = self.parallel_groups // (2 if dim == 256 else 1)
            return TENSOR, KernelShape(size, blocks, 8, True, resident)
        warps = 4 if dim <= 256 else 2
        shape = KernelShape(size, blocks, warps, _turns(dim), self.parallel_groups * 8 // warps)
        return (SIMDGROUP if self.dialect.name == "metal" and size >= 5 else SCALAR), shape

    def _sizes(self, text: Text, shape: KernelShape, append: bool) -> dict[str, int]:
        sizes = {"G": shape.group, "GB": shape.blocks, "NW": shape.warps, "APPEND": int(append)}
        if text is not TENSOR:
            sizes["TURN"] = int(shape.turn)
        if text is SCALAR:
            sizes["DEC"] = 1 if self.table_in_memory else 2
        return sizes

    def _splits(self, pages: int, groups: int, shape: KernelShape) -> tuple[int, int]:
        """Threadgroups per KV head for the pages and for the exact zone: enough to fill the GPU,
        each with a page per warp and few segments."""
        fill = max(2, shape.resident // groups)
        most = max(1, 2 * pages // shape.warps)
        least = -(-pages // (SEGMENT_PAGES * (MAX_SEGMENTS - 2)))
        # The exact zone takes what short contexts leave idle, and a thirtieth in long ones.
        zones = min(4, max(1, fill // 32, fill - most))
        return max(least, min(fill - zones, most)), zones

    def _count(self, *numbers: int) -> mx.array:
        """An array whose shape says them: shapes reach a kernel by value, numbers from memory."""
        found = self._counts.get(numbers)
        if found is None:
            if self._counter is None:
                self._counter = mx.zeros((_COUNTER_SIZE,), mx.uint8)
            if len(self._counts) >= _MAX_KEPT:
                self._counts.clear()
            shape = [*(n + 1 for n in numbers), _LEAST_SIZE]
            found = self._counts[numbers] = self._counter[: math.prod(shape)].reshape(shape)
        return found

    def _kernel(
        self, text: Text, codec: Codec, scale: float, sizes: dict[str, int] | None = None
    ) -> Any:
        sizes = sizes or {}
        key = (text.name, codec, scale, *sizes.items())
        if key not in self._kernels:
            numbers = constants(codec.format, codec.head_dim, scale, codec.order)
            if text in (TENSOR, EXPAND_PAIRS):
                numbers += matrix_constants(codec.format)
            self._kernels[key] = compiled(self.dialect, text, numbers, sizes)
        return self._kernels[key]


def metal_backend() -> KernelBackend:
    backend = KernelBackend(metal(), parallel_groups=64)
    choose_decoder(backend)
    return backend


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


def _turned(kv: SequenceKV, query: mx.array) -> mx.array:
    """The query rotated by plain ops, for head sizes that kernels cannot turn."""
    dim = kv.codec.head_dim
    smooth = query.astype(mx.float32).reshape(kv.equaliser.shape[0], -1, dim)
    return kv.codec.rotation.forward(smooth * kv.equaliser[:, None])
