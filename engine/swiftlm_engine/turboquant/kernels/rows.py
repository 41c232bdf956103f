"""Decode over exact KV that is in many buffers: rows of any length in one launch, without padding.

A slot is the first tokens of one buffer, (1, H, capacity, D), read by one row; a row has one or
several. A threadgroup takes CHUNK tokens of one slot and one KV head, with all G query heads of it,
so that keys and values are read once. LPT lanes share a token; partial results go to `ROWS_MERGE`.
The table says of each slot its tokens, row and capacity: one array on the device for all layers.
"""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import mlx.core as mx

from swiftlm_engine.kv.parts_attention import attend_parts
from swiftlm_engine.kv.slots import Slot
from swiftlm_engine.turboquant.kernels.dialect import Dialect, Text, compiled, cuda, is_sound, metal

MAX_SLOTS = 12  # of one launch: Metal has room for 31 buffers, each shape that a text reads is one
CHUNK_TOKENS = 256


_MAX_TABLES = 64  # a step asks for the same few in every layer


@cache
def _attend_text(num_slots: int) -> Text:
    pick = "".join(f"if (slot == {i}) {{ kp = k{i}; vp = v{i}; }}\n" for i in range(1, num_slots))
    inputs = ("q", "table", *(f"{kind}{i}" for i in range(num_slots) for kind in "kv"))
    return Text(
        f"rows{num_slots}",
        inputs,
        ("part",),
        r"""
  const int DP = D / LPT, SUB = 32 / LPT, R = DP * G > 48 ? 2 : 4, STEP = NW * SUB;
  TQ_SHARED float room[NW * G * D];
  TQ_SHARED float tops[NW * G], weights[NW * G];
  const int slots = table_shape[1];
  int slot = 0, chunk = bx;
  while (slot < slots - 1) {
    const int chunks = (table[slot] + CHUNK - 1) / CHUNK;
    if (chunk < chunks) break;
    chunk -= chunks;
    ++slot;
  }
  const int row = table[slots + slot], first = chunk * CHUNK;
  const int end = first + CHUNK < table[slot] ? first + CHUNK : table[slot];
  const int own = lane % LPT, sub = lane / LPT;
  TQ_IN Z* kp = k0;
  TQ_IN Z* vp = v0;
  """
        + pick
        + r"""
  const long behind = (long)by * table[2 * slots + slot] * D + own * DP;
  kp += behind;
  vp += behind;

  float query[G][DP], acc[G][DP], top[G], weight[G];
  TQ_UNROLL for (int g = 0; g < G; ++g) {
    top[g] = -1e30f;
    weight[g] = 0.f;
    TQ_UNROLL for (int i = 0; i < DP; ++i) {
      query[g][i] = float(q[((long)(row * H + by) * G + g) * D + own * DP + i]) * SCALE;
      acc[g][i] = 0.f;
    }
  }
  for (int t = first + warp * SUB; t < end; t += STEP * R) {
    TqRow<DP, Z> k[R], v[R];
    TQ_UNROLL for (int r = 0; r < R; ++r) {
      const int at = t + r * STEP + sub < end ? t + r * STEP + sub : first;
      tq_read(k[r], kp + (long)at * D);
      tq_read(v[r], vp + (long)at * D);
    }
    TQ_UNROLL for (int g = 0; g < G; ++g) {
      float s[R], high = top[g];
      TQ_UNROLL for (int r = 0; r < R; ++r) {
        float dot = 0.f;
        TQ_UNROLL for (int i = 0; i < DP; ++i) dot = TQ_FMA(query[g][i], float(k[r].v[i]), dot);
        TQ_UNROLL for (int step = 1; step < LPT; step *= 2) dot += TQ_XOR(dot, step);
        s[r] = t + r * STEP + sub < end ? dot : -3e38f;
        high = s[r] > high ? s[r] : high;
      }
      const float shrink = TQ_EXP2(top[g] - high);
      top[g] = high;
      weight[g] *= shrink;
      TQ_UNROLL for (int i = 0; i < DP; ++i) acc[g][i] *= shrink;
      TQ_UNROLL for (int r = 0; r < R; ++r) {
        const float p = TQ_EXP2(s[r] - high);
        weight[g] += p;
        TQ_UNROLL for (int i = 0; i < DP; ++i) {
          acc[g][i] = TQ_FMA(p, float(v[r].v[i]), acc[g][i]);
        }
      }
    }
  }
  TQ_UNROLL for (int g = 0; g < G; ++g) {
    TQ_UNROLL for (int step = LPT; step < 32; step *= 2) {
      const float other = TQ_XOR(top[g], step), high = other > top[g] ? other : top[g];
      const float mine = TQ_EXP2(top[g] - high), theirs = TQ_EXP2(other - high);
      weight[g] = weight[g] * mine + TQ_XOR(weight[g], step) * theirs;
      TQ_UNROLL for (int i = 0; i < DP; ++i) {
        acc[g][i] = acc[g][i] * mine + TQ_XOR(acc[g][i], step) * theirs;
      }
      top[g] = high;
    }
    if (lane == 0) {
      tops[warp * G + g] = top[g];
      weights[warp * G + g] = weight[g];
    }
    if (sub == 0) {
      TQ_UNROLL for (int i = 0; i < DP; ++i) {
        room[(warp * G + g) * D + own * DP + i] = acc[g][i];
      }
    }
  }
  TQ_BARRIER();
  const long out = ((long)bx * H + by) * G;
  for (int n = warp * 32 + lane; n < G * D; n += NW * 32) {
    const int g = n / D, d = n % D;
    float high = -1e30f, total = 0.f, sum = 0.f;
    for (int w = 0; w < NW; ++w) high = tops[w * G + g] > high ? tops[w * G + g] : high;
    for (int w = 0; w < NW; ++w) {
      const float share = TQ_EXP2(tops[w * G + g] - high);
      total += share * weights[w * G + g];
      sum = TQ_FMA(share, room[(w * G + g) * D + d], sum);
    }
    part[(out + g) * ROW + d] = sum;
    if (d == 0) {
      part[(out + g) * ROW + D] = high;
      part[(out + g) * ROW + D + 1] = total;
    }
  }
""",
    )


ROWS_MERGE = Text(
    "rows_merge",
    ("part", "table", "sinks"),
    ("o",),
    r"""
  const int N = (D + 31) / 32, head = bx % (H * G), row = bx / (H * G);
  const int slots = table_shape[1];
  TQ_SHARED float sums[NW * N * 32], weights[NW];

  float highest = SINKS ? float(sinks[head]) * 1.44269504f : -1e30f;
  for (int s = 0, first = 0; s < slots; ++s) {
    const int chunks = (table[s] + CHUNK - 1) / CHUNK;
    for (int c = lane; table[slots + s] == row && c < chunks; c += 32) {
      const float x = part[((long)(first + c) * (H * G) + head) * ROW + D];
      highest = x > highest ? x : highest;
    }
    first += chunks;
  }
  highest = tq_max(highest);

  float total = 0.f, a[N];
  TQ_UNROLL for (int i = 0; i < N; ++i) a[i] = 0.f;
  for (int s = 0, first = 0; s < slots; ++s) {
    const int chunks = (table[s] + CHUNK - 1) / CHUNK;
    for (int c = warp; table[slots + s] == row && c < chunks; c += NW) {
      TQ_IN float* one = part + ((long)(first + c) * (H * G) + head) * ROW;
      const float share = TQ_EXP2(one[D] - highest);
      total += share * one[D + 1];
      TQ_UNROLL for (int i = 0; i < N; ++i) {
        if (i * 32 + lane < D) a[i] = TQ_FMA(share, one[i * 32 + lane], a[i]);
      }
    }
    first += chunks;
  }
  TQ_UNROLL for (int i = 0; i < N; ++i) sums[(warp * N + i) * 32 + lane] = a[i];
  if (lane == 0) weights[warp] = total;
  TQ_BARRIER();
  if (warp == 0) {
    total = SINKS ? TQ_EXP2(float(sinks[head]) * 1.44269504f - highest) : 0.f;
    for (int w = 0; w < NW; ++w) total += weights[w];
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      float sum = 0.f;
      for (int w = 0; w < NW; ++w) sum += sums[(w * N + i) * 32 + lane];
      if (i * 32 + lane < D) o[(long)bx * D + i * 32 + lane] = T(sum / total);
    }
  }
""",
)


@dataclass(slots=True)
class RowKernels:
    """Attention of one query per row over slots. Lazy."""

    dialect: Dialect
    _kernels: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _tables: dict[tuple[int, ...], mx.array] = field(default_factory=dict)

    @staticmethod
    def fits(queries: mx.array, keys: mx.array, values: mx.array) -> bool:
        """Whether there is a kernel for these shapes and this number type."""
        heads, dim = keys.shape[1], keys.shape[3]
        group = queries.shape[1] // heads
        plain = queries.shape[2] == 1 and values.shape[3] == dim and queries.dtype == keys.dtype
        half = keys.dtype in (mx.float16, mx.bfloat16)
        return plain and half and lanes_per_token(dim) > 0 and group * dim <= 1024

    def attend(
        self, queries: mx.array, slots: list[Slot], scale: float, sinks: mx.array | None = None
    ) -> mx.array:
        """(B, Hq, 1, D) -> the same. `slots` in the order of their rows, of which each has one."""
        outs, start = [], 0
        while start < len(slots):
            some = _first_rows(slots[start:])
            first, end = some[0].row, some[-1].row + 1
            asked = queries if len(some) == len(slots) else queries[first:end]
            outs.append(self._attend(asked, some, scale, sinks))
            start += len(some)
        return outs[0] if len(outs) == 1 else mx.concatenate(outs)

    def _attend(
        self, queries: mx.array, slots: list[Slot], scale: float, sinks: mx.array | None
    ) -> mx.array:
        rows, query_heads, _, dim = queries.shape
        heads = slots[0].keys.shape[1]
        group, table = query_heads // heads, self._table(slots)
        count = next(n for n in (2, 4, 8, MAX_SLOTS) if n >= len(slots))
        padded = slots + [slots[0]] * (count - len(slots))
        warps = 4 if group * dim <= 512 else 2
        sizes = {"H": heads, "G": group, "NW": warps, "LPT": lanes_per_token(dim)}
        chunks = sum(-(-slot.length // CHUNK_TOKENS) for slot in slots)
        (part,) = self._kernel(_attend_text(count), dim, scale, sizes)(
            inputs=[queries, table, *(a for slot in padded for a in (slot.keys, slot.values))],
            template=[("Z", queries.dtype)],
            grid=(chunks * warps * 32, heads, 1),
            threadgroup=(warps * 32, 1, 1),
            output_shapes=[(chunks, heads, group, dim + 2)],
            output_dtypes=[mx.float32],
        )
        merge_sizes = {"H": heads, "G": group, "NW": 4, "SINKS": int(sinks is not None)}
        (out,) = self._kernel(ROWS_MERGE, dim, scale, merge_sizes)(
            inputs=[part, table, part if sinks is None else sinks],
            template=[("T", queries.dtype)],
            grid=(rows * query_heads * 4 * 32, 1, 1),
            threadgroup=(4 * 32, 1, 1),
            output_shapes=[queries.shape],
            output_dtypes=[queries.dtype],
        )
        attended: mx.array = out
        return attended

    def _table(self, slots: list[Slot]) -> mx.array:
        """int32 (3, slots): tokens, rows, capacities. Computed on the device: a kernel reads what
        the host wrote over the bus."""
        first = slots[0].row
        columns = ((slot.length, slot.row - first, slot.keys.shape[2]) for slot in slots)
        key = tuple(number for row in zip(*columns, strict=True) for number in row)
        found = self._tables.get(key)
        if found is None:
            if len(self._tables) >= _MAX_TABLES:
                self._tables.clear()
            found = mx.array(key, dtype=mx.int32).reshape(3, -1) + mx.zeros((1,), mx.int32)
            self._tables[key] = found
        return found

    def _kernel(self, text: Text, dim: int, scale: float, sizes: dict[str, int]) -> Any:
        key = (text.name, dim, scale, *sizes.items())
        if key not in self._kernels:
            lines = {"D": dim, "ROW": dim + 2, "CHUNK": CHUNK_TOKENS}
            numbers = "".join(f"#define {name} {value}\n" for name, value in lines.items())
            numbers += f"#define SCALE {scale * math.log2(math.e)!r}f\n"
            self._kernels[key] = compiled(self.dialect, text, numbers, sizes)
        return self._kernels[key]


def _first_rows(slots: list[Slot]) -> list[Slot]:
    """Those of as many whole rows as fit into one launch."""
    if len(slots) <= MAX_SLOTS:
        return slots
    stop = MAX_SLOTS
    while slots[stop - 1].row == slots[stop].row:
        stop -= 1
    return slots[:stop]


@cache
def row_kernels() -> RowKernels | None:
    """Those of the GPU that MLX uses; None on the CPU, and where their first result is wrong."""
    if mx.default_device().type != mx.DeviceType.gpu:
        return None
    kernels = RowKernels(metal() if mx.metal.is_available() else cuda())
    without = "rows are attended to one by one"
    return kernels if is_sound(lambda: _first_error(kernels), _MAX_ERROR, without) else None


_MAX_ERROR = 0.02


def _first_error(kernels: RowKernels) -> float:
    """Relative, of three rows with parts of unequal length."""
    heads, dim, lengths = 2, 64, ((0, 300), (1, 5), (1, 40), (2, 257))
    slots = []
    for row, length in lengths:
        keys, values = mx.random.normal((2, 1, heads, 320, dim)).astype(mx.float16)
        slots.append(Slot(keys, values, length, row))
    queries = mx.random.normal((3, 2 * heads, 1, dim)).astype(mx.float16)
    found, wanted = kernels.attend(queries, slots, dim**-0.5), []
    for row in range(3):
        pairs = [s.arrays() for s in slots if s.row == row]
        query, parts = queries[row : row + 1], ([k for k, _ in pairs], [v for _, v in pairs])
        wanted.append(attend_parts(query, *parts, None, dim**-0.5))
    want = mx.concatenate(wanted).astype(mx.float32)
    error = mx.linalg.norm(found.astype(mx.float32) - want) / mx.linalg.norm(want)
    return float(error.item())


def lanes_per_token(dim: int) -> int:
    """As many as can each read whole 16, else 8 bytes; 0: no kernel for this head size."""
    for width in (8, 4):
        for lanes in (32, 16, 8, 4):
            if dim % (lanes * width) == 0 and dim // lanes <= 20:
                return lanes
    return 0
