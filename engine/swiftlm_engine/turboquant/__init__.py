"""TurboQuant: the KV cache of full-attention layers in a quarter of the memory.

For the engine, on its MLX thread:

    from swiftlm_engine import turboquant
    turboquant.install(model)                     # once per loaded model; routes its attention
    made = turboquant.make_caches(model, "k4v3")  # made.caches: one per layer; made.verdict: why
    made.verdict.lines()                          # ["28 of 28 layers k4v3"]
    logits = model(tokens, cache=made.caches)

The caches keep mlx-lm's protocol: `update_and_fetch`, `offset`, `size`, `state` / `from_state`
(complete: mlx-lm 0.32 has no `meta_state`), `trim`, `make_mask`, `nbytes`, `merge` ->
`TurboBatchKVCache` with `prepare`, `finalize`, `filter`, `extend`, `extract`. They add `fork()` (a
copy that shares memory until one side writes; `copy.deepcopy` is the same), `num_compressed`
(tokens) and `format`. `state` holds the compressed arrays as they are, ints and the format's name;
save it as it is. Tokens are compressed inside the attention call, so evaluate `cache.state` after
every prefill chunk, as mlx-lm does.

Modes: `formats.FORMATS` (k4v3, spec, spec-srht, k8v3, k4v4); `formats.parse_format(name)` gives
`token_bytes(head_dim)` and `sequence_bytes(tokens, head_dim)` per KV head, without MLX. Which
layers a model may compress: `policy.decide(config, mode)` from config.json alone,
`policy.self_test(...)` measured.

Names are imported on first use, so that `turboquant.formats` and `turboquant.verdict` stay free of
MLX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swiftlm_engine.turboquant.build import Caches, make_caches, model_verdict
    from swiftlm_engine.turboquant.cache import TurboBatchKVCache, TurboKVCache
    from swiftlm_engine.turboquant.routing import install

__all__ = [
    "Caches",
    "TurboBatchKVCache",
    "TurboKVCache",
    "install",
    "make_caches",
    "model_verdict",
]

_HOME = {
    "Caches": "build",
    "TurboBatchKVCache": "cache",
    "TurboKVCache": "cache",
    "install": "routing",
    "make_caches": "build",
    "model_verdict": "build",
}


def __getattr__(name: str) -> Any:  # PEP 562
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
