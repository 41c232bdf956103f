"""TurboQuant on a CUDA GPU: correctness against plain ops first, then times against fp16 attention.

    python bench/gpu_turboquant.py [--out DIR] [--only NAME ...]

Needs numpy, mlx with its CUDA back end and mlx-lm; about four minutes. Prints a table, writes
DIR/gpu_turboquant.json, leaves with 1 if a result was wrong. Parts: check, decode, batch, prefill,
encode, model. Attention calls are chained (the output of one is the query of the next) over caches
that exceed the L2; device time is the wall time behind queued work minus that of the queued work.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # read once, when mlx is imported
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

import mlx.core as mx
import mlx.nn as nn
from gpu_clock import Clock, Graph, Report, exact_zone, random_kv

from swiftlm_engine.turboquant import attention
from swiftlm_engine.turboquant.backend import Backend, PlainBackend, default_backend
from swiftlm_engine.turboquant.cache import TurboBatchKVCache, TurboKVCache
from swiftlm_engine.turboquant.codec import codec
from swiftlm_engine.turboquant.formats import K4V3, K8V3, SPEC, KVFormat
from swiftlm_engine.turboquant.kernels.launch import KernelBackend, cuda_backend
from swiftlm_engine.turboquant.routing import install
from swiftlm_engine.turboquant.sequence import SequenceKV

SHAPES = [(32, 8, 128), (32, 4, 128), (16, 2, 256), (14, 2, 64)]
LENGTHS = [4096, 32768, 102400]
TARGETS = {  # times fp16, per length; None: more than at the length before
    (32, 8, 128): (1.5, 2.3, 3.0),
    (32, 4, 128): (1.3, 1.7, 2.4),
    (16, 2, 256): (1.5, 4.0, 8.0),
    (14, 2, 64): (1.0, 1.0, 1.0),
}
L2_BYTES = 300e6  # caches of one chain together, well above any L2
CALLS = 96
ROUNDS = 5
STEP_ROUNDS = 15  # many and short: a busy CPU then meets both


# ---- correctness


def check(report: Report) -> None:
    backend = cuda_backend()
    for format, shape in [(K4V3, s) for s in SHAPES] + [(SPEC, SHAPES[0]), (K8V3, SHAPES[0])]:
        num_heads, heads, dim = shape
        worst = 0.0
        for length in (133, 580, 1100, 5000):
            kv, queries = encoded(format, heads, num_heads, dim, length, backend)
            got = backend.attend(kv, queries[:, :1], dim**-0.5)
            mx.eval(got)
            with mx.stream(mx.cpu):
                wanted = attention.attend(kv, queries[:, :1], dim**-0.5)
                worst = max(worst, relative(got, wanted))
        name = f"{format.name} {num_heads}/{heads}/{dim}"
        verdict(report, f"decode {name}", worst, 2e-3)
        verdict(report, f"append {name}", append_error(backend, format, shape), 2e-3)
        kv, _ = encoded(format, heads, num_heads, dim, 1100, backend)
        verdict(report, f"expand {name}", expand_error(backend, kv), 2e-3)
        verdict(report, f"encode {name}", encode_error(backend, kv.codec.format, shape), 2e-3)


def verdict(report: Report, what: str, error: float, limit: float) -> None:
    good = error <= limit  # also false for NaN
    report.row("check", what, error, "rel", "ok" if good else "WRONG")
    if not good:
        report.failed.append(what)


def encoded(
    format: KVFormat, heads: int, num_heads: int, dim: int, length: int, backend: KernelBackend
) -> tuple[SequenceKV, mx.array]:
    """Storage encoded by plain ops on the CPU, and queries; evaluated."""
    mx.random.seed(length)
    with mx.stream(mx.cpu):
        queries = mx.random.normal((num_heads, 64, dim)).astype(mx.float16)
        kv = SequenceKV(codec(format, dim, backend.key_order(format, dim)))
        kv.append(*exact_tokens(heads, dim, length))
        kv.flush(queries, PlainBackend().encode)
        mx.eval([a for a in kv.arrays() if a is not None], queries)
    return kv, queries


def exact_tokens(heads: int, dim: int, length: int) -> tuple[mx.array, mx.array]:
    key = mx.random.key(length)
    bias = 2 * mx.random.normal((heads, 1, dim), key=key)
    keys = (mx.random.normal((heads, length, dim), key=key) + bias).astype(mx.float16)
    return keys, mx.random.normal((heads, length, dim), key=key).astype(mx.float16)


def append_error(backend: KernelBackend, format: KVFormat, shape: tuple[int, int, int]) -> float:
    """Three decoded tokens, each written by the kernel that attends to it."""
    num_heads, heads, dim = shape
    kv, queries = encoded(format, heads, num_heads, dim, 1100, backend)
    plain, worst = kv.fork(), 0.0
    for i in range(3):
        token = exact_tokens(heads, dim, i + 1)
        token = [x[:, :1] for x in token]
        mx.eval(token)
        kv.append(*token)
        got = backend.attend(kv, queries[:, i : i + 1], dim**-0.5)
        mx.eval(got, kv.zone)
        with mx.stream(mx.cpu):
            plain.append(*token)
            wanted = attention.attend(plain, queries[:, i : i + 1], dim**-0.5)
            worst = max(worst, relative(got, wanted))
    return worst


def expand_error(backend: KernelBackend, kv: SequenceKV) -> float:
    got = backend.expand(kv)
    mx.eval(got)
    with mx.stream(mx.cpu):
        wanted = kv.keys_and_values()
        return max(relative(a, b) for a, b in zip(got, wanted, strict=True))


def encode_error(backend: KernelBackend, format: KVFormat, shape: tuple[int, int, int]) -> float:
    """Share of key and value words that differ from plain ops; ties fall to either side."""
    num_heads, heads, dim = shape
    kv, _ = encoded(format, heads, num_heads, dim, 1100, backend)
    other = SequenceKV(kv.codec, means=kv.means, equaliser=kv.equaliser)
    with mx.stream(mx.cpu):
        other.append(*exact_tokens(heads, dim, 1100))
        mx.eval(other.exact_keys, other.exact_values)
    pages = backend.encode(other, kv.num_pages)
    mx.eval(pages.arrays())
    with mx.stream(mx.cpu):
        return max(
            mx.mean((a != b).astype(mx.float32)).item()
            for a, b in (
                (pages.key_words, kv.pages.key_words[:, : kv.num_pages]),
                (pages.value_words, kv.pages.value_words[:, : kv.num_pages]),
            )
        )


def relative(a: mx.array, b: mx.array) -> float:
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    return (mx.linalg.norm((a - b).flatten()) / mx.linalg.norm(b.flatten())).item()


# ---- timing


def caches_for(heads: int, dim: int, length: int) -> tuple[int, int]:
    """(caches, rounds) of a chain of `CALLS` calls that no L2 can hold."""
    num_bytes = heads * length * K4V3.token_bytes(dim)
    caches = max(2, min(48, math.ceil(L2_BYTES / num_bytes)))
    return caches, max(1, CALLS // caches)


def turbo_graph(
    shape: tuple[int, int, int], length: int, backend: KernelBackend
) -> tuple[Graph, int]:
    """A chain of attention calls over compressed caches, and how many there are."""
    num_heads, heads, dim = shape
    caches, rounds = caches_for(heads, dim, length)
    stores = [random_kv(heads, dim, length, backend) for _ in range(caches)]
    query = mx.random.normal((num_heads, 1, dim)).astype(mx.float16)
    mx.eval(query)

    def graph() -> mx.array:
        q = query
        for kv in stores * rounds:
            q = backend.attend(kv, q, dim**-0.5)
        return q

    return graph, caches * rounds


def exact_graph(shape: tuple[int, int, int], length: int) -> tuple[Graph, int]:
    num_heads, heads, dim = shape
    caches, rounds = caches_for(heads, dim, length)
    caches = max(2, min(caches, int(30e9 / (4 * heads * length * dim))))
    made = [
        [mx.random.normal((1, heads, length, dim)).astype(mx.float16) for _ in range(2)]
        for _ in range(caches)
    ]
    query = mx.random.normal((1, num_heads, 1, dim)).astype(mx.float16)
    mx.eval(made, query)

    def graph() -> mx.array:
        q = query
        for keys, values in made * rounds:
            q = mx.fast.scaled_dot_product_attention(q, keys, values, scale=dim**-0.5)
        return q

    return graph, caches * rounds


def decode(report: Report) -> None:
    """Both in turns, so that a change of clocks meets both."""
    clock, backend = Clock(), cuda_backend()
    for shape in SHAPES:
        num_heads, heads, dim = shape
        for length, target in zip(LENGTHS, TARGETS[shape], strict=True):
            exact, turbo = exact_graph(shape, length), turbo_graph(shape, length, backend)
            pairs = [
                (clock.device_us(exact[0]) / exact[1], clock.device_us(turbo[0]) / turbo[1])
                for _ in range(ROUNDS)
            ]
            name = f"{num_heads}/{heads}/{dim} @{length}"
            report.in_turns("decode", (f"{name} fp16", f"{name} k4v3"), pairs, target)
            del exact, turbo
            mx.clear_cache()


def batch(report: Report) -> None:
    """Eight rows of unequal length in one graph against the sum of each row alone."""
    clock, backend = Clock(), cuda_backend()
    shape, lengths = (32, 8, 128), [1024, 2048, 4096, 8192, 12288, 16384, 24576, 32768]
    rows = [row_cache(shape, length, backend) for length in lengths]
    query = mx.random.normal((1, 32, 1, 128)).astype(mx.float16)
    mx.eval(query)

    def together() -> mx.array:
        made = TurboBatchKVCache(rows)
        made._spans = [(0, 1)] * len(rows)
        q = mx.repeat(query, len(rows), 0)
        for _ in range(8):
            q = made.attend(q, 128**-0.5)
        return q

    def chained() -> mx.array:
        q = query
        for _ in range(8):
            for row in rows:
                q = backend.attend(row.kv, q, 128**-0.5)
        return q

    pairs = [(clock.device_us(chained) / 8, clock.device_us(together) / 8) for _ in range(ROUNDS)]
    names = "8 rows of 1k..32k, singles", "8 rows of 1k..32k, one graph"
    report.in_turns("batch", names, pairs, 0.91)


def row_cache(shape: tuple[int, int, int], length: int, backend: Backend) -> TurboKVCache:
    cache = TurboKVCache(K4V3, shape[2], backend)
    cache.kv = random_kv(shape[1], shape[2], length, backend)
    return cache


def prefill(report: Report) -> None:
    clock, backend = Clock(), cuda_backend()
    heads, dim, length, rows = 8, 128, 32768, 2048
    stores = [random_kv(heads, dim, length, backend) for _ in range(4)]
    made = [
        [mx.random.normal((1, heads, length, dim)).astype(mx.float16) for _ in range(2)]
        for _ in range(4)
    ]
    query = mx.random.normal((32, rows, dim)).astype(mx.float16)
    mx.eval(made, query)

    def exact() -> mx.array:
        q = query[None]
        for keys, values in made:
            q = mx.fast.scaled_dot_product_attention(q, keys, values, scale=0.088, mask="causal")
        return q

    def turbo() -> mx.array:
        q = query
        for kv in stores:
            q = backend.attend(kv, q, 0.088)
        return q

    def expand() -> list[mx.array]:
        return [x for kv in stores for x in backend.expand(kv)]

    pairs = [(clock.device_us(exact, 5) / 4, clock.device_us(turbo, 5) / 4) for _ in range(ROUNDS)]
    names = "2048 queries on 32k fp16", "2048 queries on 32k k4v3"
    report.in_turns("prefill", names, pairs, 0.95)
    report.row("prefill", "expand 32k of them", clock.device_us(expand) / 4, "us")


def encode(report: Report) -> None:
    clock, backend = Clock(), cuda_backend()
    for tokens in (64, 2048):
        stores = []
        for _ in range(32):
            kv = random_kv(8, 128, 1024, backend)
            kv.zone = exact_zone(8, tokens + 144, 128)
            kv.means = mx.random.normal((8, 8, 128)).astype(mx.float16)
            mx.eval(kv.zone, kv.means)
            stores.append(kv)

        def graph(stores: list[SequenceKV] = stores, tokens: int = tokens) -> list[mx.array]:
            return [backend.encode(kv, tokens // 64).key_words for kv in stores]

        report.row("encode", f"{tokens} tokens, per layer", clock.device_us(graph) / 32, "us")


# ---- a whole model


def model(report: Report) -> None:
    """Decode steps of a 36-layer 8B shape with random 4-bit weights, fp16 KV against k4v3."""
    network = random_model()
    install(network)
    backend = default_backend()
    for length, target in ((4096, 1.0), (102400, 1.25)):
        exact = [exact_cache(length) for _ in network.layers]
        turbo = [row_cache((32, 8, 128), length, backend) for _ in network.layers]
        pairs = [(step_us(network, exact), step_us(network, turbo)) for _ in range(STEP_ROUNDS)]
        names = f"8B step @{length} fp16", f"8B step @{length} k4v3"
        report.in_turns("model", names, pairs, target)
        del exact, turbo
        mx.clear_cache()


def random_model() -> nn.Module:
    from mlx_lm.models import qwen3

    arguments = qwen3.ModelArgs(
        model_type="qwen3",
        hidden_size=4096,
        num_hidden_layers=36,
        intermediate_size=12288,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        vocab_size=151936,
        max_position_embeddings=131072,
        rope_theta=1e6,
        tie_word_embeddings=False,
    )
    network = qwen3.Model(arguments)
    network.set_dtype(mx.float16)
    for part in (*network.layers, network):  # layer by layer: 16 GB at once need not fit
        nn.quantize(part, 64, 4)
        mx.eval(part.parameters())
    return network


def exact_cache(length: int) -> object:
    from mlx_lm.models.cache import KVCache

    cache = KVCache()
    capacity = -(-(length + 256) // 256) * 256  # room for the steps: growing is not what is timed
    cache.keys = mx.random.normal((1, 8, capacity, 128)).astype(mx.float16)
    cache.values = mx.random.normal((1, 8, capacity, 128)).astype(mx.float16)
    cache.offset = length
    mx.eval(cache.keys, cache.values)
    return cache


def step_us(network: nn.Module, caches: list[object], steps: int = 14) -> float:
    """Median wall time of a decode step, the next one dispatched before the last is read."""
    token = mx.array([[1]])
    walls = []
    for _ in range(steps):
        start = time.perf_counter()
        following = mx.argmax(network(token, cache=caches)[:, -1:], -1)
        mx.async_eval(following)
        token.item()
        token = following
        walls.append((time.perf_counter() - start) * 1e6)
    mx.synchronize()
    return statistics.median(walls[2:])


PARTS = {f.__name__: f for f in (check, decode, batch, prefill, encode, model)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    if not mx.cuda.is_available():
        print("needs MLX with its CUDA back end", file=sys.stderr)
        return 2
    report = Report(str(mx.device_info().get("device_name", "?")), mx.__version__)
    print(f"{report.device}, mlx {report.mlx}", flush=True)
    start = time.perf_counter()
    for name in options.only:
        try:
            PARTS[name](report)
        except Exception as error:  # one part must not cost the figures of the others
            print(f"{name}: {type(error).__name__}: {str(error)[:1500]}", flush=True)
            report.failed.append(name)
        mx.clear_cache()
        print(f"# {name} done at {time.perf_counter() - start:.0f} s", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu_turboquant.json").write_text(json.dumps(asdict(report), indent=1))
    print("FAILED: " + ", ".join(report.failed) if report.failed else "all right")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
