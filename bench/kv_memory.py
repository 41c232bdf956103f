"""What compressed KV takes while a long prompt is read, and afterwards, against exact fp16 KV.

    python bench/kv_memory.py [--tokens N] [--layers L] [--formats F ...]

A random model of the attention shape of an 8B llama (32 query heads, 8 KV heads of 128) and little
else reads N tokens in chunks of 2,048. Resident: bytes the caches hold at the end. Peak: MLX's own
count, less what was held before the first chunk, so with the scratch of attention in both.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine import turboquant

CHUNK = 2048


@dataclass(frozen=True, slots=True)
class Held:
    resident: int
    peak: int


def main() -> int:
    options = parse_arguments()
    model = shaped_model(options.layers)
    turboquant.install(model)
    exact = measure(model, make_prompt_cache(model), options.tokens)
    print(f"fp16      resident {exact.resident / 1e6:9.1f} MB   peak {exact.peak / 1e6:9.1f} MB")
    for format in options.formats:
        ours = measure(model, turboquant.make_caches(model, format).caches, options.tokens)
        resident, peak = ours.resident / exact.resident, ours.peak / exact.peak
        print(
            f"{format:9s} resident {ours.resident / 1e6:9.1f} MB ({resident:.3f})"
            f"   peak {ours.peak / 1e6:9.1f} MB ({peak:.3f})"
        )
    return 0


def measure(model: nn.Module, caches: list[Any], tokens: int) -> Held:
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for start in range(0, tokens, CHUNK):
        mx.clear_cache()
        model(mx.random.randint(0, 100, (1, min(CHUNK, tokens - start))), cache=caches)
        mx.eval([c.state for c in caches])
    return Held(sum(c.nbytes for c in caches), mx.get_peak_memory() - before)


def shaped_model(layers: int) -> nn.Module:
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama", hidden_size=512, num_hidden_layers=layers, intermediate_size=256,
            num_attention_heads=32, num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-5,
            vocab_size=100, tie_word_embeddings=True,
        )
    )  # fmt: skip
    model.set_dtype(mx.float16)
    mx.eval(model.parameters())
    return model


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--formats", nargs="+", default=["k4v3", "spec", "k8v3"])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
