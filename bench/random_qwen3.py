"""Random 4-bit weights with the shape of a Qwen3: as fast as trained ones, and of no other use.

`python -m bench.random_qwen3 FOLDER CONFIG`, with the config as JSON, in a process of its own: who
measures must not hold a GPU. It writes no tokenizer.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3
from mlx_lm.utils import save_config, save_model


def write(folder: Path, config: dict[str, Any]) -> None:
    started = time.perf_counter()
    folder.mkdir(exist_ok=True)
    mx.random.seed(0)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    model.set_dtype(mx.float16)
    nn.quantize(model, group_size=64, bits=4)
    for layer in model.layers:
        mx.eval(layer.parameters())
    save_model(folder, model)
    save_config(config, folder / "config.json")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"wrote {size / 1e9:.2f} GB in {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]), json.loads(sys.argv[2]))
