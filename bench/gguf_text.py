"""Imported GGUF files beside llama.cpp on the same files: token ids, greedy text, logits.

    LLAMA_PYTHON=VENV/bin/python python -m bench gguf_text

That Python has llama-cpp-python. Each file is run there twice: as it is, when llama.cpp rounds
activations to eight bits, and dequantised to float32, which leaves only what the import changed.
Our side decodes the text that llama.cpp chose: up to the first difference both wrote the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGUFReader, GGUFWriter, dequantize
from mlx_lm import load
from mlx_lm.utils import dequantize_model

from bench.models import ROOMS, ROOT, gguf_files
from bench.table import Figure, Report

TOKENS = 40
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "The steam engine was improved by James Watt in the 1760s. His partner Matthew Boulton sold it "
    "to mines and mills all over the country, because it needed only a quarter of the coal that",
)
READ_ONLY = (
    "Grüße aus Zürich — 東京は今日も雨です。 Привет, мир! 👩‍👩‍👧 naïve café",
    "x  =  3.14159;\t// tabs,   runs of spaces\r\n\n\n    return  x*2e-10\n",
    "It's 12345678 o'clock; we'll see WHAT'S left: $1,234.56 (50%) <b>&amp;</b>",
    " leading space, trailing space ",
    "<|im_start|>user\nHi<|im_end|>\n<start_of_turn>model\n<|endoftext|>",
)
RANDOM = {  # families of which no package has a real file: random weights show layout and rotation
    "qwen3": ("llama", {"model_type": "qwen3"}),
    "llama (Mistral's shape)": ("llama", {"model_type": "llama", "rope_theta": 1e6}),
    "gemma3": ("gemma3_text", {"num_hidden_layers": 6, "sliding_window_pattern": 6}),
}


@dataclass(frozen=True, slots=True)
class Heard:
    """What llama.cpp made of a file."""

    read: list[list[int]]  # ids of every text
    said: list[tuple[np.ndarray, np.ndarray]]  # ids of prompt and continuation, their logits


async def run() -> Report:
    columns = ["file", "tensors", "llama.cpp runs", "ids equal", "greedy text equal"]
    report = Report("gguf text", [*columns, "same first choice", "KLD mean", "KLD largest"])
    if "LLAMA_PYTHON" not in os.environ:
        report.notes.append("left out: LLAMA_PYTHON names no Python with llama-cpp-python")
        return report
    with tempfile.TemporaryDirectory(prefix="gguf") as place:
        for name, file in (gguf_files() | _random_files(Path(place))).items():
            _compare(report, name, file, Path(place))
    report.notes.append(f"{len(PROMPTS)} prompts, {TOKENS} greedy tokens each; KLD in nats")
    return report


def _compare(report: Report, name: str, file: Path, place: Path) -> None:
    folder, dense = place / "model", place / "dense.gguf"
    environ = {**os.environ, "PYTHONPATH": ROOMS}
    command = ["-m", "swiftlm_engine.convert", str(file), str(folder), "--dtype", "float32"]
    done = subprocess.run(
        [sys.executable, *command], env=environ, check=True, capture_output=True, text=True
    )
    losses = json.loads(done.stdout.splitlines()[-1])["losses"]
    print(name, "import:", losses or "no loss", file=sys.stderr)
    model, tokenizer = load(str(folder))
    model = dequantize_model(model)  # the same numbers, and a product that BLAS can do
    runs = {"the file": file}
    if (kinds := _kinds(file)) != "F32":
        write_dense(file, dense)
        runs["float32"] = dense
    for how, played in runs.items():
        _add(report, (name, kinds, how), model, tokenizer, ask_llama(played, place))
    shutil.rmtree(folder)
    dense.unlink(missing_ok=True)


def _add(report: Report, names: tuple[str, ...], model: Any, tokenizer: Any, heard: Heard) -> None:
    texts = (*PROMPTS, *READ_ONLY)
    same_ids = sum(tokenizer.encode(t) == ids for t, ids in zip(texts, heard.read, strict=True))
    equal, agreed, divergences = [], [], []
    for prompt, (ids, logits) in zip(heard.read[: len(PROMPTS)], heard.said, strict=True):
        ours = np.array(model(mx.array(ids.astype(np.int32))[None])[0].astype(mx.float32))
        agree = ours.argmax(-1) == logits.argmax(-1)
        written = agree[len(prompt) - 1 :]
        equal.append(int(written.argmin()) if not written.all() else TOKENS)
        agreed.append(agree)
        divergences.append(divergence(logits, ours))
    first, kld = np.concatenate(agreed), np.concatenate(divergences)
    whole = sum(count == TOKENS for count in equal)
    report.add(
        *names,
        f"{same_ids} of {len(texts)}",
        f"{whole} of {len(equal)} ({', '.join(map(str, equal))})",
        f"{first.sum()} of {first.size}",
        f"{kld.mean():.2g}",
        f"{kld.max():.2g}",
        **{f"kld {' '.join(names)}": Figure(tuple(map(float, kld)), "nats")},
    )


def ask_llama(file: Path, place: Path) -> Heard:
    texts, out = [*PROMPTS, *READ_ONLY], place / "heard.npz"
    request = {"file": str(file), "texts": texts, "continued": len(PROMPTS)}
    subprocess.run(
        [os.environ["LLAMA_PYTHON"], str(ROOT / "bench" / "gguf_oracle.py")],
        input=json.dumps(request | {"tokens": TOKENS, "out": str(out)}),
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD")},
        text=True,
        check=True,
    )
    with np.load(out) as found:
        read = [found[f"read{i}"].tolist() for i in range(len(texts))]
        said = [(found[f"ids{i}"], found[f"logits{i}"]) for i in range(len(PROMPTS))]
    return Heard(read, said)


def divergence(expected: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Kullback-Leibler per position, of logits (T, vocabulary)."""
    p, q = _log_softmax(expected), _log_softmax(found)
    return (np.exp(p) * (p - q)).sum(-1)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def write_dense(source: Path, target: Path) -> None:
    """The same model with every tensor as float32."""
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture, use_temp_file=True)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind, *items = field.types
            sub_type = items[-1] if items else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        shape = [int(n) for n in reversed(tensor.shape)]
        writer.add_tensor(tensor.name, values.reshape(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random_files(place: Path) -> dict[str, Path]:
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from tiny_gguf import write_gguf
    from tiny_models import make_model

    files = {}
    for name, (base, changes) in RANDOM.items():
        architecture = name.split(" ")[0]
        folder = make_model(base, place / architecture / "original", **changes)
        file = place / f"{architecture}.gguf"
        files[f"random {name}"] = write_gguf(folder, file, architecture)
    return files


def _kinds(file: Path) -> str:
    """The quantised types, the most frequent first."""
    counts = Counter(tensor.tensor_type.name for tensor in GGUFReader(file).tensors)
    return ", ".join(kind for kind, _ in counts.most_common())
