"""Rows of unequal length that decode together on a CUDA GPU: right first, then how long it takes.

    python bench/gpu_rows.py

Needs mlx with its CUDA back end and mlx-lm; about three minutes. Attention of one layer (32 query
and 8 KV heads of size 128, float16; calls are chained over caches that exceed the L2), then decode
steps of a random model of 8B's shape with fewer layers. Leaves with 1 if a result was wrong.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs

from swiftlm_engine import turboquant
from swiftlm_engine.kv.parts_attention import attend_parts
from swiftlm_engine.kv.shared_cache import Sharing, shared_caches
from swiftlm_engine.kv.slots import Slot
from swiftlm_engine.run.row_caches import RowCaches
from swiftlm_engine.turboquant import routing
from swiftlm_engine.turboquant.kernels.rows import RowKernels, row_kernels

CALLS, ROUNDS = 64, 5
SETS_BYTES = 3e8  # of caches that calls take in turns, well above any L2
HEADS, GROUP, DIM = 8, 4, 128
SHAPES = [
    (32, 8, 128), (16, 8, 64), (9, 3, 64), (8, 4, 256), (12, 2, 96), (10, 5, 80), (16, 2, 128),
]  # fmt: skip

Step = Callable[[mx.array, int], mx.array]  # queries and the set of caches -> output
Pair = tuple[mx.array, mx.array]


def microseconds(step: Step, queries: mx.array, sets: int) -> float:
    def chain() -> None:
        x = queries
        for i in range(CALLS):
            x = step(x, i % sets)
        mx.eval(x)

    chain()
    best = 1e9
    for _ in range(ROUNDS):
        started = time.perf_counter()
        chain()
        best = min(best, time.perf_counter() - started)
    return best / CALLS * 1e6


def buffer(heads: int, tokens: int, dim: int, dtype: mx.Dtype = mx.float16) -> Pair:
    capacity = (tokens + 255) // 256 * 256
    keys, values = (mx.random.normal((1, heads, capacity, dim)).astype(dtype) for _ in range(2))
    mx.eval(keys, values)
    return keys, values


def check(kernels: RowKernels) -> bool:
    """Rows of every length at edges of chunks, one in two parts, against float32 plain ops."""
    wrong = 0
    for query_heads, heads, dim in SHAPES:
        for dtype in (mx.float16, mx.bfloat16):
            held = [buffer(heads, n, dim, dtype) for n in (1, 255, 256, 257, 3000, 1500)]
            rows = (0, 1, 1, 2, 3, 4)
            slots = [
                Slot(k, v, k.shape[2] - 1, row) for (k, v), row in zip(held, rows, strict=True)
            ]
            q = mx.random.normal((5, query_heads, 1, dim)).astype(dtype)
            for sinks in (None, mx.random.normal((query_heads,)).astype(dtype)):
                found = kernels.attend(q, slots, dim**-0.5, sinks)
                for row in range(5):
                    error = off(found[row], wanted(q[row : row + 1], slots, row, sinks))
                    if not error < (2e-3 if dtype == mx.float16 else 1e-2):
                        print("WRONG", query_heads, heads, dim, dtype, row, error)
                        wrong += 1
    print("check", "FAILED" if wrong else "passed", flush=True)
    return wrong == 0


def wanted(query: mx.array, slots: list[Slot], row: int, sinks: mx.array | None) -> mx.array:
    parts = [[a.astype(mx.float32) for a in slot.arrays()] for slot in slots if slot.row == row]
    keys, values = [k for k, _ in parts], [v for _, v in parts]
    wide = None if sinks is None else sinks.astype(mx.float32)
    scale = query.shape[-1] ** -0.5
    return attend_parts(query.astype(mx.float32), keys, values, None, scale, wide)[0]


def off(found: mx.array, want: mx.array) -> float:
    return (mx.linalg.norm(found.astype(mx.float32) - want) / mx.linalg.norm(want)).item()


def attention(kernels: RowKernels, name: str, lengths: Sequence[int]) -> None:
    scale, held = DIM**-0.5, sum(lengths) * HEADS * DIM * 4
    sets = max(1, min(6, int(SETS_BYTES // held) + 1))
    rows = [[buffer(HEADS, n, DIM) for n in lengths] for _ in range(sets)]
    slots = [
        [Slot(k, v, n, r) for r, ((k, v), n) in enumerate(zip(one, lengths, strict=True))]
        for one in rows
    ]
    q = mx.random.normal((len(lengths), HEADS * GROUP, 1, DIM)).astype(mx.float16)

    def by_kernel(x: mx.array, i: int) -> mx.array:
        return kernels.attend(x, slots[i], scale)

    def by_row(x: mx.array, i: int) -> mx.array:
        each = [
            mx.fast.scaled_dot_product_attention(one, *slot.arrays(), scale=scale)
            for one, slot in zip(mx.split(x, len(lengths)), slots[i], strict=True)
        ]
        return mx.concatenate(each) if len(each) > 1 else each[0]

    times = {f.__name__: f"{microseconds(f, q, sets):.0f} us" for f in (by_kernel, by_row)}
    print(name, times, flush=True)


def prefixed(kernels: RowKernels, num_rows: int, prefix: int, tail: int) -> None:
    """Rows over one prefix, each with a tail of its own."""
    slots = []
    for _ in range(3):
        first = buffer(HEADS, prefix, DIM)
        tails = [buffer(HEADS, tail, DIM) for _ in range(num_rows)]
        slots.append(
            [
                slot
                for row, own in enumerate(tails)
                for slot in (Slot(*first, prefix, row), Slot(*own, tail, row))
            ]
        )
    q = mx.random.normal((num_rows, HEADS * GROUP, 1, DIM)).astype(mx.float16)
    found = microseconds(lambda x, i: kernels.attend(x, slots[i], DIM**-0.5), q, 3)
    print(f"{num_rows} rows over {prefix} + {tail} tokens: {found:.0f} us", flush=True)


def model_steps(layers: int = 12) -> bool:
    """ms per decode step, with the kernel and without; and whether both say the same."""
    config = ModelArgs(
        model_type="llama", hidden_size=4096, num_hidden_layers=layers, intermediate_size=12288,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-5,
        vocab_size=32000, tie_word_embeddings=True,
    )  # fmt: skip
    model = Model(config)
    model.set_dtype(mx.float16)
    mx.eval(model.parameters())
    turboquant.install(model)
    sharing, same = Sharing(1536), True

    def prefilled(length: int) -> list:
        caches = shared_caches(make_prompt_cache(model), sharing)
        for start in range(0, length, 2048):
            stop = min(start + 2048, length)
            model(mx.arange(start, stop)[None] * 7 % 31000, cache=caches)
            mx.eval([c.state for c in caches])
        return caches

    def steps(rows: list[list], count: int = 40) -> tuple[float, list]:
        batch = RowCaches(unpadded=True, prefers_padding=False)
        batch.extend(rows)
        inputs, drawn = mx.arange(len(rows)) + 5, []
        for step in range(count):
            if step == 8:
                mx.eval(inputs)
                started = time.perf_counter()
            inputs = mx.argmax(batch.forward(model, inputs), -1)
            mx.async_eval(inputs)
            drawn.append(inputs)
        mx.eval(inputs)
        return (time.perf_counter() - started) / (count - 8) * 1e3, [d.tolist() for d in drawn]

    for name, lengths in (
        ("1", [2000]), ("4 x 1k", [1000] * 4), ("8 x 2k", [2000] * 8), ("16 x 1k", [1000] * 16),
        ("1 x 16k + 7 x 1.5k", [16000] + [1500] * 7),
    ):  # fmt: skip
        held = {n: prefilled(n) for n in set(lengths)}
        found = {}
        for label, kernels in (("kernel", row_kernels), ("row by row", lambda: None)):
            routing.row_kernels = kernels
            rows = [[c.fork() for c in held[n]] for n in lengths]
            found[label] = min((steps(fresh(rows)) for _ in range(2)), key=lambda r: r[0])
        equal = sum(
            a == b
            for x, y in zip(found["kernel"][1], found["row by row"][1], strict=True)
            for a, b in zip(x, y, strict=True)
        )
        print(name, {k: f"{v[0]:.2f} ms" for k, v in found.items()},
              f"equal tokens {equal} of {40 * len(lengths)}", flush=True)  # fmt: skip
        same &= equal > 0.5 * 40 * len(lengths)
    prefix = prefilled(16000)
    routing.row_kernels = row_kernels
    before = mx.get_active_memory()
    rows = [[c.fork(15900) for c in prefix] for _ in range(8)]
    shared, text = steps(rows)
    held_bytes = mx.get_active_memory() - before
    own, alone = steps([[copied(c.fork(15900)) for c in prefix] for _ in range(8)])
    print(f"8 rows over one prefix of 15,900: shared {shared:.2f} ms and {held_bytes / 1e9:.2f} GB"
          f" more, own copies {own:.2f} ms; one prefix is {prefix[0].nbytes * layers / 1e9:.2f} GB;"
          f" equal {text == alone}", flush=True)  # fmt: skip
    return same


def copied(cache):
    """The same tokens in a buffer of its own."""
    twin = cache.fork(0)
    keys, values = cache.keys_and_values()
    twin.append(mx.contiguous(keys), mx.contiguous(values))
    mx.eval(twin.state)
    return twin


def fresh(rows: list[list]) -> list[list]:
    return [[copied(cache) for cache in row] for row in rows]


def main() -> int:
    mx.random.seed(1)
    kernels = row_kernels()
    if kernels is None:
        print("no kernel here")
        return 1
    good = check(kernels)
    for name, lengths in (
        ("8 x 2k", [2000] * 8), ("1 x 30k + 7 x 1.5k", [30000] + [1500] * 7),
        ("8 x 8k", [8000] * 8), ("16 x 1k", [1000] * 16), ("4 x 1k", [1000] * 4),
        ("2 x 1k", [1000] * 2), ("1 x 4k", [4000]), ("1 x 32k", [32000]),
    ):  # fmt: skip
        attention(kernels, name, lengths)
    prefixed(kernels, 8, 30000, 100)
    prefixed(kernels, 8, 4000, 100)
    return 0 if good & model_steps() else 1


if __name__ == "__main__":
    raise SystemExit(main())
