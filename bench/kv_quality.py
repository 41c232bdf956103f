"""What each KV format costs a real model: divergence from the same model with exact KV.

    python bench/kv_quality.py [MODEL] [--text NAME=FILE ...] [--tokens N ...] [--formats F ...]

Per text the first N tokens run once with the model's own cache and once per format in chunks of
16, so that a query sees the newest 64 to 143 tokens exactly, as decoding does. Scored: the last
three quarters. Prints a table, writes OUT/kv_quality-MODEL.json. Minutes per model on a CPU; with
float32 weights preload OpenBLAS (docs/turboquant.md has the commands).
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm import load
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache
from models import smollm2_dense

from swiftlm_engine import turboquant
from swiftlm_engine.turboquant.formats import FORMATS

CHUNK = 16
TEXTS = {  # on every machine with Python and Debian's base files
    "code": Path(argparse.__file__),
    "licence": Path("/usr/share/common-licenses/GPL-3"),
}


@dataclass(frozen=True, slots=True)
class Cost:
    text: str
    tokens: int
    format: str
    kld: float  # nats, mean over positions
    p99: float
    perplexity: float  # relative change
    top1: float  # share of positions with the same most likely token
    compressed: int  # tokens per layer that were really compressed at the end
    kv_bytes: float  # of exact fp16, at the end
    by_position: tuple[float, ...]  # mean KLD of each sixteenth of the scored positions


def main() -> int:
    options = parse_arguments()
    folder = options.model or smollm2_dense()
    model, tokenizer = load(str(folder))
    turboquant.install(model)
    costs: list[Cost] = []
    print(f"{'text':9s} {'tokens':>6s} {'format':10s} {'KLD':>8s} {'p99':>8s} {'PPL':>7s} top-1")
    for name, path in texts(options.text).items():
        ids = tokenizer.encode(path.read_text(errors="replace"))
        for tokens in options.tokens:
            costs += measure_text(model, name, ids[:tokens], options.formats)
            write(options.out / f"kv_quality-{folder.name}.json", folder.name, costs)
    return 0


def write(target: Path, model: str, costs: list[Cost]) -> None:
    """After every text: a run of many minutes that is stopped keeps what it had."""
    target.parent.mkdir(parents=True, exist_ok=True)
    record = {"model": model, "chunk": CHUNK, "costs": [asdict(c) for c in costs]}
    target.write_text(json.dumps(record, indent=1))


def measure_text(model: nn.Module, name: str, ids: list[int], formats: list[str]) -> list[Cost]:
    tokens = mx.array([ids])
    exact = np.concatenate(list(log_probabilities(model, tokens, make_prompt_cache(model))))
    costs = []
    for format in formats:
        start = time.perf_counter()
        caches = caches_of(model, format)
        turbo = log_probabilities(model, tokens, caches)
        cost = compare(
            exact, turbo, ids, Cost(name, len(ids), format, 0, 0, 0, 0, 0, 0, ()), caches
        )
        costs.append(cost)
        print(
            f"{name:9s} {len(ids):6d} {format:10s} {cost.kld:8.5f} {cost.p99:8.4f}"
            f" {cost.perplexity:+7.2%} {cost.top1:.3f}  {cost.kv_bytes:.3f} of fp16"
            f"  ({time.perf_counter() - start:.0f} s)",
            flush=True,
        )
    return costs


def log_probabilities(
    model: nn.Module, tokens: mx.array, caches: list[Any]
) -> Iterator[np.ndarray]:
    """Per chunk the (L, V) log probabilities of the scored positions."""
    first = tokens.shape[1] // 4
    for start in range(0, tokens.shape[1], CHUNK):
        logits = model(tokens[:, start : start + CHUNK], cache=caches)[0].astype(mx.float32)
        logs = logits - mx.logsumexp(logits, -1, keepdims=True)
        mx.eval(logs, [c.state for c in caches])
        if start >= first:
            yield np.array(logs)


def compare(
    exact: np.ndarray, turbo: Iterator[np.ndarray], ids: list[int], blank: Cost, caches: list[Any]
) -> Cost:
    """Chunk by chunk, so that only one set of probabilities is held."""
    divergences, surprises, agree, at = [], [], [], 0
    first = len(ids) - len(exact)
    for ours in turbo:
        theirs = exact[at : at + len(ours)]
        divergences.append(np.sum(np.exp(theirs) * (theirs - ours), -1))
        agree.append(theirs.argmax(-1) == ours.argmax(-1))
        following = ids[first + at + 1 : first + at + 1 + len(ours)]
        rows = np.arange(len(following))
        surprises.append(theirs[rows, following] - ours[rows, following])
        at += len(ours)
    kld = np.concatenate(divergences)
    return Cost(
        blank.text,
        blank.tokens,
        blank.format,
        float(kld.mean()),
        float(np.percentile(kld, 99)),
        float(np.exp(np.concatenate(surprises).mean()) - 1),
        float(np.concatenate(agree).mean()),
        max((c.num_compressed for c in caches if hasattr(c, "num_compressed")), default=0),
        share_of_fp16(caches, len(ids)),
        tuple(float(part.mean()) for part in np.array_split(kld, 16)),
    )


def share_of_fp16(caches: list[Any], tokens: int) -> float:
    """Bytes of the compressed layers, exact zone counted as fp16, over those of fp16 KV."""
    held = whole = 0.0
    for cache in caches:
        if isinstance(cache, turboquant.TurboKVCache):
            heads, _, dim = cache.kv.exact_keys.shape
            held += heads * cache.format.sequence_bytes(tokens, dim)
            whole += heads * dim * 4 * tokens
        elif isinstance(cache, QuantizedKVCache):
            words, scales, _ = cache.keys
            heads, dim = words.shape[1], words.shape[-1] * 32 // cache.bits
            held += 2 * heads * tokens * (dim * cache.bits / 8 + scales.shape[-1] * 4)
            whole += heads * dim * 4 * tokens
    return held / whole if whole else 1.0


def caches_of(model: nn.Module, format: str) -> list[Any]:
    """Caches of one of our formats, or of mlx-lm's `kv_bits` as affine4 and affine8."""
    if format in FORMATS:
        return turboquant.make_caches(model, format).caches
    bits = int(format.removeprefix("affine"))
    return [
        QuantizedKVCache(group_size=64, bits=bits) if type(c) is KVCache else c
        for c in make_prompt_cache(model)
    ]


def texts(given: list[str]) -> dict[str, Path]:
    if not given:
        return {name: path for name, path in TEXTS.items() if path.exists()}
    return {name: Path(path) for name, _, path in (g.partition("=") for g in given)}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="default: SmolLM2 from PyPI")
    parser.add_argument("--text", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024])
    known = [*FORMATS, "affine8", "affine4"]
    parser.add_argument("--formats", nargs="+", choices=known, default=known)
    parser.add_argument("--out", type=Path, default=Path("."))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
