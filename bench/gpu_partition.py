"""Layers on the GPU and the rest on the CPU: the same logits at every split, and what each costs.

    python bench/gpu_partition.py [--layers 8] [--tokens 16] [--tiny]

Equality: random float32 models with plain, windowed, recurrent and compressed caches, no layer,
half of them and all of them on the GPU, against the model as mlx-lm runs it: a chunked prefill and
decode steps. Speed: a 4-bit model 2,048 wide, tokens/s of a 256-token prefill and of decode.
Leaves with 1 if logits differ by more than 0.1 % of their size (5 % over compressed KV, where a
difference in the last bit moves a code). `--tiny` tries it on a CPU, which then is both parts.
"""

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # else float32 is not float32 on the GPU
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine import turboquant
from swiftlm_engine.split import cpu_gpu

LIMIT, LIMIT_COMPRESSED = 1e-3, 5e-2
LLAMA = {
    "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "max_position_embeddings": 1024, "tie_word_embeddings": False,
    "vocab_size": 512,
}  # fmt: skip
WINDOWED = LLAMA | {
    "model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 2,
    "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 64,
}  # fmt: skip
RECURRENT = LLAMA | {
    "model_type": "qwen3_next", "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [],
    "decoder_sparse_step": 1, "moe_intermediate_size": 64, "norm_topk_prob": True,
    "shared_expert_intermediate_size": 64, "partial_rotary_factor": 0.5,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
}  # fmt: skip
LARGE = LLAMA | {
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32000,
}  # fmt: skip
PROMPT = [7 + 13 * i % 500 for i in range(256)]
DECODED = (5, 9, 200)

MakeCaches = Callable[[Any], list[Any]]  # of a model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    print(f"mlx {mx.__version__}, {mx.default_device()}", flush=True)
    wrong = equality()
    large = (LLAMA if args.tiny else LARGE) | {"num_hidden_layers": args.layers}
    speed(large, args.tokens)
    return int(wrong)


def equality() -> bool:
    """Prints the table; True if a split changed the logits."""
    print("\n| caches | layers on the GPU | error / logits | |\n|---|---|---|---|")
    wrong = False
    cases: list[tuple[str, dict[str, Any], MakeCaches]] = [
        ("plain", LLAMA, make_prompt_cache),
        ("windowed", WINDOWED, make_prompt_cache),
        ("recurrent", RECURRENT, make_prompt_cache),
        ("k4v3", LLAMA, _compressed),
    ]
    for name, config, make_caches in cases:
        weights = random_weights(config)
        whole = logits(build(config, weights), make_caches)
        for num in _splits(config["num_hidden_layers"]):
            model = build(config, weights)
            cpu_gpu.install(model, num, mx.new_stream(mx.cpu))
            error = _rms(logits(model, make_caches) - whole) / _rms(whole)
            equal = error <= (LIMIT_COMPRESSED if make_caches is _compressed else LIMIT)
            wrong |= not equal
            mark = "ok" if equal else "WRONG"
            print(f"| {name} | {num} of {config['num_hidden_layers']} | {error:.1e} | {mark} |")
    return wrong


def speed(config: dict[str, Any], num_tokens: int) -> None:
    weights = random_weights(config, dtype=mx.bfloat16)
    print(
        "\n| layers on the GPU | prefill tokens/s | decode tokens/s | peak GB |\n|---|---|---|---|"
    )
    for num in reversed(_splits(config["num_hidden_layers"])):
        model = build(config, weights)
        nn.quantize(model, group_size=64, bits=4)
        mx.eval(model.parameters())
        cpu_gpu.install(model, num, mx.new_stream(mx.cpu))
        logits(model, make_prompt_cache)  # moves weights and compiles kernels
        mx.reset_peak_memory()
        prefill, decode = _timed(model, num_tokens)
        peak = mx.get_peak_memory() / 1e9
        print(f"| {num} of {config['num_hidden_layers']} | {prefill} | {decode} | {peak:.2f} |")


def _timed(model: Any, num_tokens: int, repeats: int = 3) -> tuple[str, str]:
    prefills, decodes = [], []
    for _ in range(repeats):
        caches = make_prompt_cache(model)
        started = time.perf_counter()
        mx.eval(model(mx.array([PROMPT]), cache=caches)[:, -1])
        prefills.append(len(PROMPT) / (time.perf_counter() - started))
        for _ in range(num_tokens):
            started = time.perf_counter()
            mx.eval(model(mx.array([[5]]), cache=caches))
            decodes.append(1 / (time.perf_counter() - started))
    return _spread(prefills), _spread(decodes)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def build(config: dict[str, Any], weights: dict[str, mx.array]) -> Any:
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.update(tree_unflatten(list(weights.items())))
    model.eval()
    return model


def random_weights(config: dict[str, Any], dtype: mx.Dtype = mx.float32) -> dict[str, mx.array]:
    mx.random.seed(1)
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.set_dtype(dtype)
    weights = dict(tree_flatten(model.parameters()))
    mx.eval(weights)
    return weights


def logits(model: Any, make_caches: MakeCaches) -> mx.array:
    """Of two chunks of a prompt and three decode steps. Evaluated."""
    caches = make_caches(model)
    found = [model(mx.array([chunk]), cache=caches) for chunk in (PROMPT[:200], PROMPT[200:])]
    found += [model(mx.array([[token]]), cache=caches) for token in DECODED]
    joined = mx.concatenate(found, axis=1).astype(mx.float32)
    mx.eval(joined)
    return joined


def _compressed(model: Any) -> list[Any]:
    turboquant.install(model)
    return turboquant.make_caches(model, "k4v3").caches


def _splits(num_layers: int) -> tuple[int, int, int]:
    return 0, num_layers // 2, num_layers


def _rms(values: mx.array) -> float:
    return float(mx.sqrt(mx.mean(values * values)).item())


if __name__ == "__main__":
    sys.exit(main())
