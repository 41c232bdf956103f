"""What each KV format costs a real model: divergence from the same model with exact KV.

    python bench/kv_quality.py [MODEL] [--text NAME=FILE ...] [--tokens N ...] [--formats F ...]

Per text the first N tokens run through the model's own cache and through all formats side by side,
in chunks of 16, so that a query sees the newest 64 to 143 tokens exactly, as decoding does. Scored:
the last three quarters. Prints a table and adds to OUT/kv_quality-MODEL.json; what stands there is
not measured again. Minutes per model on a CPU; with float32 weights preload OpenBLAS
(docs/turboquant.md has the commands).
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from kv_peers import PEERS, PeerKVCache, peer_caches
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache
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


@dataclass(slots=True)
class Run:
    """One format on its way through one text."""

    format: str
    caches: list[Any]
    divergences: list[np.ndarray] = field(default_factory=list)
    surprises: list[np.ndarray] = field(default_factory=list)  # nats more than with exact KV
    agreements: list[np.ndarray] = field(default_factory=list)

    def score(self, exact: mx.array, ours: mx.array, following: mx.array) -> None:
        """(L, V) log probabilities of both, and the next tokens as far as there are any."""
        rows = mx.arange(following.size)
        results = (
            mx.sum(mx.exp(exact) * (exact - ours), -1),
            exact[rows, following] - ours[rows, following],
            mx.argmax(exact, -1) == mx.argmax(ours, -1),
        )
        mx.eval(results)
        lists = (self.divergences, self.surprises, self.agreements)
        for kept, result in zip(lists, results, strict=True):
            kept.append(np.array(result))

    def cost(self, text: str, tokens: int) -> Cost:
        kld = np.concatenate(self.divergences)
        return Cost(
            text,
            tokens,
            self.format,
            float(kld.mean()),
            float(np.percentile(kld, 99)),
            float(np.exp(np.concatenate(self.surprises).mean()) - 1),
            float(np.concatenate(self.agreements).mean()),
            max((getattr(c, "num_compressed", 0) for c in self.caches), default=0),
            share_of_fp16(self.caches, tokens),
            tuple(float(part.mean()) for part in np.array_split(kld, 16)),
        )


def main() -> int:
    options = parse_arguments()
    folder = options.model or smollm2_dense()
    target = options.out / f"kv_quality-{folder.name}.json"
    costs = read(target)
    model, tokenizer = load(str(folder))
    turboquant.install(model)
    print(f"{'text':9s} {'tokens':>6s} {'format':10s} {'KLD':>8s} {'p99':>8s} {'PPL':>7s} top-1")
    for name, path in texts(options.text).items():
        ids = tokenizer.encode(path.read_text(errors="replace"))
        for tokens in options.tokens:
            known = {c.format for c in costs if (c.text, c.tokens) == (name, tokens)}
            missing = [f for f in options.formats if f not in known]
            if missing and len(ids) >= tokens:
                costs += measure(model, name, ids[:tokens], missing)
                write(target, folder.name, costs)
    return 0


def measure(model: nn.Module, name: str, ids: list[int], formats: list[str]) -> list[Cost]:
    tokens = mx.array(ids)
    exact = make_prompt_cache(model)
    runs = [Run(format, caches_of(model, format)) for format in formats]
    started = time.perf_counter()
    for start in range(0, len(ids), CHUNK):
        stop = start + CHUNK
        chunk, following = tokens[start:stop], tokens[start + 1 : stop + 1]
        theirs = log_probabilities(model, chunk, exact)
        for run in runs:
            ours = log_probabilities(model, chunk, run.caches)
            if start >= len(ids) // 4:
                run.score(theirs, ours, following)
        if start % 256 == 0:
            print(f"  {name} {start} of {len(ids)}", end="\r", file=sys.stderr, flush=True)
    costs = [run.cost(name, len(ids)) for run in runs]
    for cost in costs:
        print(
            f"{name:9s} {len(ids):6d} {cost.format:10s} {cost.kld:8.5f} {cost.p99:8.4f}"
            f" {cost.perplexity:+7.2%} {cost.top1:.3f}  {cost.kv_bytes:.3f} of fp16",
            flush=True,
        )
    print(f"{name:9s} {len(ids):6d} took {time.perf_counter() - started:.0f} s", flush=True)
    return costs


def log_probabilities(model: nn.Module, tokens: mx.array, caches: list[Any]) -> mx.array:
    logits = model(tokens[None], cache=caches)[0].astype(mx.float32)
    logs = logits - mx.logsumexp(logits, -1, keepdims=True)
    mx.eval(logs, [c.state for c in caches])
    return logs


def share_of_fp16(caches: list[Any], tokens: int) -> float:
    """Bytes of the compressed layers, exact zone counted as fp16, over those of fp16 KV."""
    held = whole = 0.0
    for cache in caches:
        if isinstance(cache, turboquant.TurboKVCache):
            heads, _, dim = cache.kv.exact_keys.shape
            held += heads * cache.format.sequence_bytes(tokens, dim)
        elif isinstance(cache, PeerKVCache):
            heads, dim = cache.keys.shape[1], cache.keys.shape[-1]
            held += cache.share_of_fp16() * heads * dim * 4 * tokens
        else:
            continue
        whole += heads * dim * 4 * tokens
    return held / whole if whole else 1.0


def caches_of(model: nn.Module, format: str) -> list[Any]:
    """Caches of one of our formats, or of another's."""
    if format in FORMATS:
        return turboquant.make_caches(model, format).caches
    return peer_caches(model, format)


def read(target: Path) -> list[Cost]:
    """What an earlier run measured the same way."""
    if not target.exists():
        return []
    record = json.loads(target.read_text())
    return [Cost(**cost) for cost in record["costs"]] if record["chunk"] == CHUNK else []


def write(target: Path, model: str, costs: list[Cost]) -> None:
    """After every text: a run of many minutes that is stopped keeps what it had."""
    target.parent.mkdir(parents=True, exist_ok=True)
    record = {"model": model, "chunk": CHUNK, "costs": [asdict(c) for c in costs]}
    half = target.with_suffix(".tmp")
    half.write_text(json.dumps(record, indent=1))
    half.replace(target)


def texts(given: list[str]) -> dict[str, Path]:
    if not given:
        return {name: path for name, path in TEXTS.items() if path.exists()}
    return {name: Path(path) for name, _, path in (g.partition("=") for g in given)}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="default: SmolLM2 from PyPI")
    parser.add_argument("--text", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024])
    known = [*FORMATS, *PEERS]
    parser.add_argument("--formats", nargs="+", choices=known, default=known)
    parser.add_argument("--out", type=Path, default=Path("."))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
