"""Expert streaming on a CUDA GPU: tokens per second beside what its disk allows.

    python bench/gpu_streaming.py [--layers 12] [--tokens 48] [--folder DIR] [--out DIR]

Writes a random 4-bit checkpoint with the shapes of Qwen3-30B-A3B (fewer layers) into DIR, measures
its disk at the size of one expert, then decodes with all experts in memory and with slots for 100,
50 and 25 % of them, cold (nothing stays in the page cache) and warm, and with whole layers read for
every token. The roofline of a row is the resident model's time or that of the missed bytes at the
disk's speed, whichever is longer. Random routers ask for experts evenly: trained ones miss less.
Leaves with 1 if a result was wrong.
Needs mlx with its CUDA back end and mlx-lm; about three minutes. `--tiny` tries it on a CPU.
"""

import argparse
import gc
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from swiftlm_engine.streaming.install import install
from swiftlm_engine.streaming.report import NoCache, StreamingReport, StreamMode, StreamOptions
from swiftlm_engine.streaming.table import read_headers

MB = 1e6
BASE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 12, "vocab_size": 151936,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "tie_word_embeddings": False, "max_position_embeddings": 40960,
    "norm_topk_prob": True, "quantization": {"group_size": 64, "bits": 4},
}  # fmt: skip
TINY = {"hidden_size": 256, "vocab_size": 512, "moe_intermediate_size": 128, "num_experts": 32}


@dataclass(frozen=True)
class Speed:
    """Of one way to run the model."""

    token_s: float
    spread_s: float
    miss_bytes: float  # per token
    hit_rate: float
    sync_ms: float  # per token, waits for the layers' compute included


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="streaming-"))
    config = BASE | (TINY if args.tiny else {}) | {"num_hidden_layers": args.layers}
    try:
        print(f"mlx {mx.__version__}, {mx.default_device()}, {args.layers} layers", flush=True)
        if not (folder / "config.json").exists():
            write_checkpoint(folder, config)
        rows, wrong = measure(folder, config, args.tokens)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "gpu_streaming.json").write_text(json.dumps(rows, indent=1))
    return wrong


# ---- a checkpoint


def write_checkpoint(folder: Path, config: dict[str, Any]) -> None:
    started = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    hidden, dim, inner = config["hidden_size"], config["head_dim"], config["moe_intermediate_size"]
    ends: dict[str, mx.array] = {"model.norm.weight": mx.ones(hidden, mx.float16)}
    for name in ("model.embed_tokens", "lm_head"):
        ends |= linear(name, config["vocab_size"], hidden)
    mx.save_safetensors(str(folder / "model-ends.safetensors"), ends)
    for layer in range(config["num_hidden_layers"]):
        at, experts = f"model.layers.{layer}", config["num_experts"]
        tensors = {f"{at}.{n}_layernorm.weight": mx.ones(hidden, mx.float16)
                   for n in ("input", "post_attention")}  # fmt: skip
        for name in ("q_norm", "k_norm"):
            tensors[f"{at}.self_attn.{name}.weight"] = mx.ones(dim, mx.float16)
        tensors |= linear(f"{at}.self_attn.q_proj", heads * dim, hidden)
        tensors |= linear(f"{at}.self_attn.k_proj", kv_heads * dim, hidden)
        tensors |= linear(f"{at}.self_attn.v_proj", kv_heads * dim, hidden)
        tensors |= linear(f"{at}.self_attn.o_proj", hidden, heads * dim)
        tensors |= linear(f"{at}.mlp.gate", experts, hidden)
        for name, rows, columns in (
            ("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner),
        ):  # fmt: skip
            tensors |= linear(f"{at}.mlp.switch_mlp.{name}", rows, columns, experts)
        mx.save_safetensors(str(folder / f"model-{layer:02d}.safetensors"), tensors)
    (folder / "config.json").write_text(json.dumps(config))
    size = sum(file.stat().st_size for file in folder.iterdir())
    seconds = time.perf_counter() - started
    print(f"wrote {size / 1e9:.2f} GB in {seconds:.0f} s, with fsync {sync(folder):.0f} s more")


def linear(name: str, rows: int, columns: int, experts: int = 0) -> dict[str, mx.array]:
    """Random codes; the products of unit inputs have unit size."""
    lead = (experts,) if experts else ()
    groups = (*lead, rows, columns // 64)
    scale = mx.random.uniform(0.8, 1.2, groups) / (4.6 * columns**0.5)
    arrays = {
        f"{name}.weight": random_words(*lead, rows, columns // 8),
        f"{name}.scales": scale.astype(mx.float16),
        f"{name}.biases": (-7.5 * scale).astype(mx.float16),
    }
    mx.eval(arrays)
    return arrays


def random_words(*shape: int) -> mx.array:
    high = mx.random.randint(0, 1 << 16, shape).astype(mx.uint32) << 16
    return high | mx.random.randint(0, 1 << 16, shape).astype(mx.uint32)


def sync(folder: Path) -> float:
    """Only what is on the disk can leave the page cache."""
    started = time.perf_counter()
    for file in folder.glob("*.safetensors"):
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    return time.perf_counter() - started


# ---- the disk


def disk_speed(folder: Path, record: int, threads: int) -> float:
    """Bytes per second of cold reads of `record` bytes at random places, over one second."""
    drop(folder)
    files = [(os.open(f, os.O_RDONLY), f.stat().st_size) for f in folder.glob("model-[0-9]*")]
    buffers = [bytearray(record) for _ in range(threads)]
    # Each place once: the second time it would come from memory.
    places = [(fd, at) for fd, size in files for at in range(0, size - record, record)]
    random.Random(threads).shuffle(places)
    deadline = time.perf_counter() + 1.0

    def read(number: int) -> int:
        done = 0
        for fd, at in places[number::threads]:
            done += os.preadv(fd, [buffers[number]], at)
            if time.perf_counter() > deadline:
                break
        return done

    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, range(threads)))
    seconds = time.perf_counter() - started
    for fd, _ in files:
        os.close(fd)
    return total / seconds


def drop(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


# ---- the model


def measure(folder: Path, config: dict[str, Any], tokens: int) -> tuple[list[dict[str, Any]], int]:
    experts, layers = config["num_experts"], config["num_hidden_layers"]
    inside = [t for n, t in read_headers(folder).items() if ".layers.0.mlp.switch_mlp." in n]
    record = sum(tensor.num_bytes for tensor in inside) // experts
    disks = {threads: disk_speed(folder, record, threads) for threads in (1, 4, 8, 16)}
    best = max(disks.values())
    print(f"one expert {record / MB:.2f} MB; cold disk GB/s by threads: "
          + ", ".join(f"{n}: {speed / 1e9:.2f}" for n, speed in disks.items()))  # fmt: skip
    resident, wanted = run(folder, None, tokens)
    print(f"{'':16s} tok/s   spread  hit rate  MB/token  sync ms  roofline  ratio")
    show("resident", resident, 0.0)
    rows, wrong = [{"disk": disks, "record": record, "layers": layers}], 0
    rows.append({"what": "resident", "token_s": resident.token_s})
    for name, options in ways(experts).items():
        whole = options.mode is StreamMode.LAYERS
        speed, logits = run(folder, options, min(tokens, 10) if whole else tokens)
        error = mx.abs(logits - wanted).max().item() / mx.abs(wanted).max().item()
        bad = not error < 2e-2
        wrong |= bad
        least = max(resident.token_s, speed.miss_bytes / best)
        cold = options.nocache is NoCache.ON
        show(name, speed, least if cold else 0.0, f"WRONG {error:.3g}" if bad else "")
        rows.append({"what": name, "token_s": speed.token_s, "miss_bytes": speed.miss_bytes,
                     "hit_rate": speed.hit_rate, "roofline_s": least, "error": error})  # fmt: skip
    print("targets: cold ratio >= 0.7; 100 % >= 0.95 of resident")
    return rows, wrong


def ways(experts: int) -> dict[str, StreamOptions]:
    cold = {
        f"{share} % cold": StreamOptions(experts * share // 100, nocache=NoCache.ON)
        for share in (100, 50, 25)
    }
    warm = {
        f"{share} % warm": StreamOptions(experts * share // 100, nocache=NoCache.OFF)
        for share in (50, 25)
    }
    layers = StreamOptions(mode=StreamMode.LAYERS, nocache=NoCache.ON)
    return cold | warm | {"layers cold": layers}


def show(name: str, speed: Speed, least_s: float, note: str = "") -> None:
    line = f"{name:16s} {1 / speed.token_s:6.2f}  {speed.spread_s / speed.token_s:6.1%}"
    line += f"  {speed.hit_rate:8.3f}  {speed.miss_bytes / MB:8.1f}  {speed.sync_ms:7.1f}"
    if least_s:
        line += f"  {1 / least_s:8.2f}  {least_s / speed.token_s:5.2f}"
    print(line, note, flush=True)


def run(folder: Path, options: StreamOptions | None, tokens: int) -> tuple[Speed, mx.array]:
    """Decodes the same random tokens; the logits are those after the first."""
    model, _ = load_model(folder, lazy=True)
    model.eval()
    report = install(model, "qwen3_moe", folder, options) if options else None
    mx.eval([array for _, array in tree_flatten(model.parameters())])
    cache = make_prompt_cache(model)
    ids = random.Random(0).choices(range(500), k=tokens)
    logits = model(mx.array([[1]]), cache=cache).astype(mx.float32)
    mx.eval(logits)
    warm = max(4, tokens // 4)
    for token in ids[:warm]:  # fills slots
        mx.eval(model(mx.array([[token]]), cache=cache))
    before = counted(report)
    times = []
    for token in ids[warm:]:
        started = time.perf_counter()
        mx.eval(model(mx.array([[token]]), cache=cache))
        times.append(time.perf_counter() - started)
    after = counted(report)
    if report is not None:
        assert not report.streamer.counters.problems()
        report.streamer.close()
    del model, cache
    gc.collect()  # streamed blocks and their cycle hold each other
    mx.clear_cache()
    num_bytes, hits, wanted, sync_s = (b - a for a, b in zip(before, after, strict=True))
    quartiles = statistics.quantiles(times, n=4)
    speed = Speed(
        sum(times) / len(times), quartiles[2] - quartiles[0], num_bytes / len(times),
        hits / wanted if wanted else 1.0, sync_s / len(times) * 1e3,
    )  # fmt: skip
    return speed, logits


def counted(report: StreamingReport | None) -> tuple[float, ...]:
    if report is None:
        return 0.0, 0.0, 0.0, 0.0
    report.streamer.settle()
    counters, layers = report.streamer.counters, report.streamer.counters.layers.values()
    return (counters.bytes, sum(c.hits for c in layers), sum(c.wanted for c in layers),
            counters.sync_s)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
