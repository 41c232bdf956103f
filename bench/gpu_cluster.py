"""One model over two CUDA GPUs through NCCL: ours beside one card and beside mlx-lm's sharding.

    python bench/gpu_cluster.py [--shape 8b] [--prompt 2048] [--tokens 128] [--rounds 5] [--out DIR]
        [--only two,peer]

Writes a random 4-bit checkpoint with the shape of Qwen3-8B and a tokenizer of as many words, and
asks in turns, greedily: our engine on one card, over two (tensor parallel), over two as a pipeline,
and `stream_generate` of a model that mlx-lm's `shard` split over two. First token is prefill and
the first step; decode is what follows. "8 at once" are eight requests in one batch, ours only.
Random weights are as fast as trained ones and say nothing of quality; the table says how far the
text of two ranks equals one's (float16 sums in another order part sooner or later).
Needs mlx with its CUDA back end, mlx-lm and what the engine needs; five minutes, of which four are
loading and compiling.
`--backend ring --shape tiny` tries it on a CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = [str(ROOT / room) for room in ("proto", "engine", "daemon", "tests/support")]
sys.path[:0] = [str(ROOT), *ROOMS]
# Multicast over NVLink is not to be had in every container; the same for everybody here.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # of every rank 0; the others say theirs

from engine_process import EngineProcess, engine_process  # noqa: E402 - the paths come first

from bench.gpu_serving import COMMON, SHAPES  # noqa: E402
from bench.table import Figure, Report, ratio  # noqa: E402
from swiftlm_proto import messages as m  # noqa: E402

VOCABULARY = {"8b": 151936, "small": 151936, "tiny": 1024}
SENTENCE = "the quick brown fox jumps over the lazy dog and says hello world to the user "
WIDTH = 8
CARDS = {
    "two": "two cards",
    "graphs": "two, CUDA graphs",
    "peer": "mlx-lm, two cards",
    "plain": "mlx-lm, no CUDA graphs",
    "one": "one card",
    "row": "two, pipeline",
}
SPLITS = {"one": "", "two": "tensor", "graphs": "tensor", "row": "pipeline"}
PEERS = ("peer", "plain")
# Ours launches kernels one by one in groups, and mlx-lm as graphs, unless told so.
ENVIRONS = {"graphs": {"MLX_USE_CUDA_GRAPHS": "1"}, "plain": {"MLX_USE_CUDA_GRAPHS": "0"}}
STARTED = time.monotonic()


@dataclass(frozen=True)
class Asked:
    """What one request took."""

    first_s: float
    decode_rate: float  # tokens per second after the first
    prompt_tokens: int
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--backend", choices=["nccl", "ring"], default="nccl")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds; no round begins later")
    parser.add_argument("--only", default="one,two,row,peer", help="of " + ", ".join(CARDS))
    parser.add_argument("--out", type=Path, default=Path(".cache/bench"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="gc", dir="/tmp"))
    try:
        write_checkpoint(folder / "model", args.shape)
        report = asyncio.run(measure(folder, args))
    except BaseException:
        for log in sorted(args.out.glob("gpu_cluster-*.log")):
            print(f"# {log.name}\n{log.read_text()[-3000:]}", flush=True)
        raise
    finally:
        shutil.rmtree(folder)
    print(report)
    report.save(args.out)


# ---- a checkpoint


def write_checkpoint(folder: Path, shape: str) -> None:
    """In a process of its own: this one must not hold a GPU."""
    config = COMMON | SHAPES[shape] | {"vocab_size": VOCABULARY[shape], "eos_token_id": 2}
    for command in (
        ["-m", "bench.random_qwen3", str(folder), json.dumps(config)],
        ["-c", _WRITE_TOKENIZER, str(folder), str(config["vocab_size"])],
    ):
        subprocess.run([sys.executable, *command], env=_environ(), cwd=ROOT, check=True)


_WRITE_TOKENIZER = """
import json, sys
from pathlib import Path
import tiny_models
folder, vocab_size = Path(sys.argv[1]), int(sys.argv[2])
# A tokenizer of the shape's size: what no text asks for are words that only a model says.
tiny_models._write_tokenizer(folder, tiny_models.CHATML)
words = json.loads((folder / "tokenizer.json").read_text())
vocabulary = words["model"]["vocab"]
for i in range(len(vocabulary), vocab_size):
    vocabulary[f"t{i}"] = i
(folder / "tokenizer.json").write_text(json.dumps(words))
"""


def _environ(**more: str) -> dict[str, str]:
    path = os.pathsep.join([*ROOMS, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


# ---- the four


async def measure(folder: Path, args: argparse.Namespace) -> Report:
    """Figures are saved after each round: a run that is cut off leaves what it had."""
    prompt, short = text_of(args.prompt), text_of(64)
    wanted = [name for name in CARDS if name in args.only.split(",")]
    found: dict[str, list[Asked]] = {name: [] for name in wanted}
    wide: dict[str, list[float]] = {name: [] for name in wanted if name not in PEERS}
    async with AsyncExitStack() as stack:
        # One after the other: groups that share two cards wait for each other in every sum (side by
        # side, the first token of three of them took 113 s; that of one alone takes 1).
        ours: dict[str, EngineProcess] = {}
        for name in wide:
            ours[name] = await stack.enter_async_context(engine(folder, name, args, SPLITS[name]))
            await load(ours[name], name, folder)
            await ask(ours[name], prompt, args.tokens, "warm")
            await ask_many(ours[name], short, args.tokens, "warm")
            said(f"{name} is warm")
        peers: dict[str, Sharded] = {}
        for name in [name for name in PEERS if name in wanted]:
            peers[name] = stack.enter_context(sharded(folder, name, args))
            await asyncio.to_thread(peers[name].warm_up, prompt, args.tokens)
            said(f"{name} is warm")
        deadline = time.monotonic() + args.limit
        for round_ in range(args.rounds):
            for name, process in ours.items():
                found[name].append(await ask(process, prompt, args.tokens, f"a{round_}"))
            for name, peer in peers.items():
                found[name].append(await asyncio.to_thread(peer.ask, prompt, args.tokens))
            for name, process in ours.items():
                wide[name].append(await ask_many(process, short, args.tokens, f"b{round_}"))
            report = _report(found, wide)
            report.save(args.out)
            said(f"round {round_ + 1} of {args.rounds}")
            if time.monotonic() > deadline:
                report.notes.append(f"cut off after {round_ + 1} rounds")
                break
    return report


def said(text: str) -> None:
    print(f"{time.monotonic() - STARTED:.0f} s: {text}", file=sys.stderr, flush=True)


def text_of(num_tokens: int) -> str:
    """About as many: the tokenizer makes one of three characters of this."""
    return (SENTENCE * (num_tokens // 16 + 1))[: num_tokens * 3]


def _report(found: dict[str, list[Asked]], wide: dict[str, list[float]]) -> Report:
    columns = ["", *(CARDS[name] for name in found), "two / one", "ours / mlx-lm"]
    report = Report("gpu_cluster", columns)
    first = {k: Figure(tuple(a.first_s * 1000 for a in v), "ms") for k, v in found.items()}
    rate = {k: Figure(tuple(a.decode_rate for a in v), "tok/s") for k, v in found.items()}
    many = {k: Figure(tuple(v), "tok/s") for k, v in wide.items()}
    tokens = next(iter(found.values()))[0].prompt_tokens

    def row(what: str, key: str, cells: dict[str, Figure], *, less: bool = False) -> None:
        def beside(a: str, b: str) -> object:
            if a not in cells or b not in cells:
                return ""
            return ratio(cells[b], cells[a]) if less else ratio(cells[a], cells[b])

        shown = [cells.get(name, "") for name in found]
        figures = {f"{key}_{name}": figure for name, figure in cells.items()}
        report.add(what, *shown, beside("two", "one"), beside("two", "peer"), **figures)

    row(f"first token after {tokens}", "first", first, less=True)
    row("decode", "decode", rate)
    row(f"decode, {WIDTH} at once", "many", many)
    own = found["two"][-1].text if "two" in found else ""
    for name in [name for name in found if own and name != "two"]:
        pairs = zip(own, found[name][-1].text, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        report.notes.append(f"{same} of {len(own)} characters of two cards are those of {name}")
    return report


# ---- ours

# An engine whose log is kept: it is all that tells of a fault on a machine that is gone.
_ENGINE = """
import os
os.environ |= {environ!r}
os.dup2(os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
from swiftlm_engine.__main__ import main
main()
"""


@asynccontextmanager
async def engine(
    folder: Path, name: str, args: argparse.Namespace, split: str = ""
) -> AsyncIterator[EngineProcess]:
    """Not loaded; over two ranks if it is to be split."""
    place = folder / name
    place.mkdir()
    log = str((args.out / f"gpu_cluster-{name}.log").resolve())
    program = ["-c", _ENGINE.format(log=log, environ=ENVIRONS.get(name, {}))]
    if split:
        program += ["--group", str(_group_file(place, args.backend, split))]
    async with engine_process(place, _environ()["PYTHONPATH"], program) as process:
        yield process


async def load(process: EngineProcess, name: str, folder: Path) -> None:
    last = (await process.load(folder / "model"))[-1]
    if last.stage is not m.LoadEventStage.READY:
        raise RuntimeError(f"{name}: {last.fault}")
    print(f"{name}: {last.model.notes}", file=sys.stderr, flush=True)


def _group_file(place: Path, backend: str, split: str) -> Path:
    secret, file = place / "secret", place / "group.json"
    secret.touch(0o600)
    secret.write_text("a secret of a group of a benchmark")
    fields = {"hosts": ["localhost"] * 2, "secret_file": str(secret), "lost_after_s": 60}
    file.write_text(json.dumps(fields | {"split": split, "backend": backend}))
    return file


def _request(name: str, prompt: str, num_tokens: int) -> m.GenerateRequest:
    sampling = m.Sampling(temperature=0.0)
    return m.GenerateRequest(
        request_id=name, text=prompt, max_tokens=num_tokens, ignore_eos=True, sampling=sampling
    )


async def ask(process: EngineProcess, prompt: str, num_tokens: int, name: str) -> Asked:
    text, end = await process.ask(_request(name, prompt, num_tokens))
    if end.fault is not None or end.timings is None or end.usage is None:
        raise RuntimeError(f"{name}: {end}")
    took = end.timings
    rate = (num_tokens - 1) / took.decode_s
    return Asked(took.first_token_s, rate, end.usage.prompt_tokens, text)


async def ask_many(process: EngineProcess, prompt: str, num_tokens: int, name: str) -> float:
    """Tokens per second of all together, their prefill included."""
    started, open_ = time.perf_counter(), WIDTH
    for i in range(WIDTH):
        await process.requests.put(_request(f"{name}-{i}", prompt, num_tokens))
    while open_:
        event = await process.events.get()
        if event is None or (event.finished is not None and event.finished.fault is not None):
            raise RuntimeError(f"{name}: {event}")
        open_ -= event.finished is not None
    return WIDTH * num_tokens / (time.perf_counter() - started)


# ---- mlx-lm's

_RANK = """
import json, os, sys, time
import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.utils import load_model, load_tokenizer
from pathlib import Path
group = mx.distributed.init(strict=True, backend=sys.argv[2])
# As `sharded_load`, whose barrier is a sum on the CPU: NCCL has none.
model, config = load_model(Path(sys.argv[1]), lazy=True)
model.shard(group)
mx.eval(model.parameters())
mx.eval(mx.distributed.all_sum(mx.array(1.0), group=group))
tokenizer = load_tokenizer(Path(sys.argv[1]))
if sys.argv[2] == "ring":  # as the engine does on a CPU
    model.set_dtype(mx.float32)
tokenizer._eos_token_ids = set()
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    prompt = tokenizer.encode(asked["prompt"], add_special_tokens=False)
    started, first, text = time.perf_counter(), None, ""
    for part in stream_generate(model, tokenizer, prompt, max_tokens=asked["tokens"]):
        text += part.text
        first = first or time.perf_counter() - started
    total = time.perf_counter() - started
    found = {"first_s": first, "total_s": total, "prompt_tokens": len(prompt), "text": text}
    print(json.dumps(found), flush=True)
"""


class Sharded:
    """`stream_generate` in two processes, which wait in `read` while ours is measured."""

    def __init__(self, ranks: list[subprocess.Popen[str]]) -> None:
        self._ranks = ranks

    def warm_up(self, prompt: str, num_tokens: int) -> None:
        for rank in range(len(self._ranks)):
            self._read(rank)  # they say that they are ready
        self.ask(prompt, num_tokens)

    def ask(self, prompt: str, num_tokens: int) -> Asked:
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps({"prompt": prompt, "tokens": num_tokens}) + "\n")
            rank.stdin.flush()
        found, _ = [json.loads(self._read(rank)) for rank in range(len(self._ranks))]
        rate = (num_tokens - 1) / (found["total_s"] - found["first_s"])
        return Asked(found["first_s"], rate, found["prompt_tokens"], found["text"])

    def _read(self, rank: int) -> str:
        output = self._ranks[rank].stdout
        assert output is not None
        if line := output.readline():
            return line
        raise RuntimeError(f"rank {rank} of mlx-lm ended")


@contextmanager
def sharded(folder: Path, name: str, args: argparse.Namespace) -> Iterator[Sharded]:
    ports = [_free_port(), _free_port()]
    hosts = folder / f"{name}.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
    common = dict(ENVIRONS.get(name, {}))
    common |= {"MLX_HOSTFILE": str(hosts)} if args.backend == "ring" else {}
    common |= {"NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": str(ports[0]), "MLX_WORLD_SIZE": "2"}
    command = [sys.executable, "-c", _RANK, str(folder / "model"), args.backend]
    ranks = []
    try:
        for rank in ("0", "1"):
            environ = _environ(**common, MLX_RANK=rank, CUDA_VISIBLE_DEVICES=rank)
            with (args.out / f"gpu_cluster-{name}{rank}.log").open("wb") as log:
                pipe = subprocess.PIPE
                ranks.append(
                    subprocess.Popen(
                        command, env=environ, stdin=pipe, stdout=pipe, stderr=log, text=True
                    )
                )
        yield Sharded(ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
