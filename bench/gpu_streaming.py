"""Expert streaming on a CUDA GPU: tokens per second beside what its disk allows.

    python bench/gpu_streaming.py [--layers 12] [--tokens 48] [--folder DIR] [--out DIR] [--limit S]

Writes a random 4-bit checkpoint with the shapes of Qwen3-30B-A3B (fewer layers) into DIR, measures
its disk at the size of one expert (cached and direct reads), then decodes with all experts in
memory and with slots for 50 and 25 % of them, cold (nothing stays in the page cache) and warm, with
whole layers read for every token, and with 100 % and the resident model in turns. The roofline of a
row is the resident model's time or that of the missed bytes at the disk's best speed, whichever is
longer. Random routers ask for experts evenly: trained ones miss less.
What is measured is in `--out` row by row; after `--limit` seconds no row is begun. Leaves with 1 if
a result was wrong.
Needs mlx with its CUDA back end and mlx-lm; about three minutes. `--tiny` tries it on a CPU.
"""

import argparse
import gc
import json
import mmap
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from swiftlm_engine.streaming.install import install
from swiftlm_engine.streaming.reader import Preadv
from swiftlm_engine.streaming.report import NoCache, StreamMode, StreamOptions
from swiftlm_engine.streaming.table import read_headers

MB = 1e6
ALIGN = 4096
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
    miss_bytes: float  # per token, as all that follows
    hit_rate: float
    router_s: float  # waits for its choice, and so for the layers' compute
    read_s: float
    disk_s: float  # the part of `read_s` in which threads were in `preadv`


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    deadline = time.perf_counter() + args.limit
    folder = args.folder or Path(tempfile.mkdtemp(prefix="streaming-"))
    config = BASE | (TINY if args.tiny else {}) | {"num_hidden_layers": args.layers}
    try:
        print(f"mlx {mx.__version__}, {mx.default_device()}, {args.layers} layers", flush=True)
        if not (folder / "config.json").exists():
            write_checkpoint(folder, config)
        rows, wrong = [], False
        for row in measure(folder, config, args.tokens, args.only):
            rows.append(row)
            wrong |= row.get("wrong", False)
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                (args.out / "gpu_streaming.json").write_text(json.dumps(rows, indent=1))
            if time.perf_counter() > deadline:
                print("out of time")
                break
    finally:
        if args.folder is None:
            shutil.rmtree(folder)
    return int(wrong)


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


def disk_speed(folder: Path, record: int, threads: int, flags: int = 0) -> float:
    """Bytes per second of cold reads of about `record` bytes at random places, over one second."""
    drop(folder)
    record = -(-record // ALIGN) * ALIGN  # as direct reads have to be
    files = [(os.open(f, os.O_RDONLY | flags), f.stat().st_size) for f in of_layers(folder)]
    buffers = [mmap.mmap(-1, record) for _ in range(threads)]
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


def disk_speeds(folder: Path, record: int) -> dict[str, float]:
    ways = {"": 0, " direct": os.O_DIRECT}
    return {
        f"{threads}{name}": disk_speed(folder, record, threads, flags)
        for name, flags in ways.items()
        for threads in (1, 4, 8, 16)
    }


def of_layers(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-[0-9]*"))


def drop(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


# ---- the model


def measure(
    folder: Path, config: dict[str, Any], tokens: int, only: list[str]
) -> Iterator[dict[str, Any]]:
    experts, layers = config["num_experts"], config["num_hidden_layers"]
    inside = [t for n, t in read_headers(folder).items() if ".layers.0.mlp.switch_mlp." in n]
    record = sum(tensor.num_bytes for tensor in inside) // experts
    disks = disk_speeds(folder, record)
    best = max(disks.values())
    print(f"one expert {record / MB:.2f} MB; cold disk GB/s by threads: "
          + ", ".join(f"{n}: {speed / 1e9:.2f}" for n, speed in disks.items()))  # fmt: skip
    resident, wanted = run(folder, None, tokens)
    print(f"{'':14s} tok/s  spread  hits  MB  ms: token = router + read (disk) + rest  of roofline"
          "  of reads in turn")  # fmt: skip
    show("resident", resident)
    yield {"disk": disks, "record": record, "layers": layers}
    yield {"what": "resident"} | asdict(resident)
    for name, options in ways(experts).items():
        if only and name not in only:
            continue
        whole = options.mode is StreamMode.LAYERS
        speed, logits = run(folder, options, min(tokens, 10) if whole else tokens)
        error = mx.abs(logits - wanted).max().item() / mx.abs(wanted).max().item()
        wrong = not error < 2e-2
        note = f"WRONG {error:.3g}" if wrong else ""
        if options.nocache is NoCache.ON:
            note = roofs(speed, resident, best) + note
        show(name, speed, note)
        yield {"what": name, "error": error, "wrong": wrong} | asdict(speed)
    if not only or "100 %" in only:
        yield {"what": "100 %, of resident in turns"} | in_turns(folder, experts, tokens)
    print("targets: cold, of roofline >= 0.7; 100 % >= 0.95 of resident")


def ways(experts: int) -> dict[str, StreamOptions]:
    cold = {
        f"{share} % cold": StreamOptions(experts * share // 100, nocache=NoCache.ON)
        for share in (50, 25)
    }
    warm = {
        f"{share} % warm": StreamOptions(experts * share // 100, nocache=NoCache.OFF)
        for share in (50, 25)
    }
    layers = StreamOptions(mode=StreamMode.LAYERS, nocache=NoCache.ON)
    return cold | warm | {"layers cold": layers}


def roofs(speed: Speed, resident: Speed, best: float) -> str:
    """How near it comes to two bounds: reads behind compute, and reads at the disk's best after
    all that the token does besides (its router decides what is read)."""
    reading = speed.miss_bytes / best
    behind, in_turn = max(resident.token_s, reading), speed.token_s - speed.read_s + reading
    return f"{behind / speed.token_s:6.2f}  {in_turn / speed.token_s:6.2f} "


def show(name: str, speed: Speed, note: str = "") -> None:
    rest = speed.token_s - speed.router_s - speed.read_s
    ms = (speed.token_s, speed.router_s, speed.read_s, speed.disk_s, rest)
    token, router, read, disk, rest = (f"{1e3 * seconds:.2f}" for seconds in ms)
    line = f"{name:14s} {1 / speed.token_s:6.2f} {speed.spread_s / speed.token_s:6.1%}"
    line += f"  {speed.hit_rate:.3f} {speed.miss_bytes / MB:6.1f}"
    print(f"{line}  {token} = {router} + {read} ({disk}) + {rest}", note, flush=True)


def in_turns(folder: Path, experts: int, tokens: int, rounds: int = 7) -> dict[str, Any]:
    """A slot for each expert beside the resident model, in one process."""
    decoders = [Decoder(folder, options) for options in (None, StreamOptions(experts))]
    ids = random.Random(1).choices(range(500), k=tokens // 2)
    times: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            times[which].append(statistics.median(decoders[which].times(ids)))
    for decoder in decoders:
        decoder.close()
    ratios = [resident / full for resident, full in zip(*times, strict=True)][1:]
    print(f"100 %: {statistics.median(ratios):.3f} of resident ({min(ratios):.3f} to "
          f"{max(ratios):.3f}, {rounds} rounds in turns)")  # fmt: skip
    return {"ratios": ratios}


def run(folder: Path, options: StreamOptions | None, tokens: int) -> tuple[Speed, mx.array]:
    """Decodes the same random tokens; the logits are those after the first."""
    in_preadv: list[float] = []  # by call, of all threads
    if options is not None:
        options = replace(options, preadv=timed(options.preadv, in_preadv))
    decoder = Decoder(folder, options)
    ids = random.Random(0).choices(range(500), k=tokens)
    logits = decoder.logits(1).astype(mx.float32)
    mx.eval(logits)
    warm = max(4, tokens // 4)
    decoder.times(ids[:warm])  # fills slots
    before, called = decoder.counted(), len(in_preadv)
    times = decoder.times(ids[warm:])
    change = [b - a for a, b in zip(before, decoder.counted(), strict=True)]
    decoder.close()
    num_bytes, hits, wanted, router_s, read_s, busy_s = change
    quartiles = statistics.quantiles(times, n=4)
    count = len(times)
    disk = sum(in_preadv[called:]) / busy_s if busy_s else 0.0
    speed = Speed(
        sum(times) / count, quartiles[2] - quartiles[0], num_bytes / count,
        hits / wanted if wanted else 1.0, router_s / count, read_s / count, disk * read_s / count,
    )  # fmt: skip
    return speed, logits


class Decoder:
    """A loaded model and its KV."""

    def __init__(self, folder: Path, options: StreamOptions | None) -> None:
        self._model, _ = load_model(folder, lazy=True)
        self._model.eval()
        self._report = install(self._model, "qwen3_moe", folder, options) if options else None
        mx.eval([array for _, array in tree_flatten(self._model.parameters())])
        self._cache = make_prompt_cache(self._model)

    def logits(self, token: int) -> mx.array:
        return self._model(mx.array([[token]]), cache=self._cache)

    def times(self, ids: list[int]) -> list[float]:
        times = []
        for token in ids:
            started = time.perf_counter()
            mx.eval(self.logits(token))
            times.append(time.perf_counter() - started)
        return times

    def counted(self) -> tuple[float, ...]:
        if self._report is None:
            return (0.0,) * 6
        self._report.streamer.settle()
        counters, layers = self._report.streamer.counters, self._report.streamer.counters.layers
        hits, wanted = (
            sum(getattr(c, name) for c in layers.values()) for name in ("hits", "wanted")
        )
        return (counters.bytes, hits, wanted, counters.sync_s, counters.read_wall_s,
                counters.read_busy_s)  # fmt: skip

    def close(self) -> None:
        if self._report is not None:
            assert not self._report.streamer.counters.problems()
            self._report.streamer.close()
        del self._model, self._cache, self._report
        gc.collect()  # streamed blocks and their cycle hold each other
        mx.clear_cache()


def timed(preadv: Preadv, seconds: list[float]) -> Preadv:
    def call(fd: int, views: Sequence[memoryview], offset: int) -> int:
        started = time.perf_counter()
        count = preadv(fd, views, offset)
        seconds.append(time.perf_counter() - started)
        return count

    return call


if __name__ == "__main__":
    sys.exit(main())
