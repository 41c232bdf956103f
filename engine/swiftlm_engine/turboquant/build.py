"""Caches for a loaded model: compressed where a layer allows it, mlx-lm's own elsewhere."""

from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from swiftlm_engine.turboquant.backend import Backend, default_backend
from swiftlm_engine.turboquant.cache import TurboKVCache
from swiftlm_engine.turboquant.formats import KVFormat
from swiftlm_engine.turboquant.layer_support import Config, LayerVerdict, Verdict, decide, head_dim
from swiftlm_engine.turboquant.routing import is_installed


class NotInstalled(RuntimeError):
    """`install(model)` was not called, or found no attention to route."""


@dataclass(frozen=True, slots=True)
class Caches:
    """One cache per layer, and the verdict that chose them."""

    caches: list[Any]
    verdict: Verdict


def model_config(model: nn.Module) -> Config:
    """The config a loaded mlx-lm model was built from."""
    args = getattr(model, "args", None) or model.config  # classes differ in the name
    return asdict(args) if is_dataclass(args) and not isinstance(args, type) else dict(vars(args))


def model_verdict(model: nn.Module, mode: str) -> Verdict:
    """`decide`, corrected by the cache classes the model really makes."""
    wanted = decide(model_config(model), mode)
    caches = make_prompt_cache(model)
    if len(caches) != len(wanted.layers):
        why = f"{len(caches)} caches for {len(wanted.layers)} layers"
        return Verdict(tuple(LayerVerdict(i, None, why) for i in range(len(caches))))
    return Verdict(tuple(map(_checked, wanted.layers, caches)))


def make_caches(
    model: nn.Module, mode: str, verdict: Verdict | None = None, backend: Backend | None = None
) -> Caches:
    """Fresh caches for one sequence; a `verdict` (the self-test's, say) overrules `mode`."""
    verdict = model_verdict(model, mode) if verdict is None else verdict
    own = make_prompt_cache(model)
    if not verdict.num_compressed_layers:
        return Caches(own, verdict)
    if not is_installed(model):
        raise NotInstalled("call turboquant.install(model) before making its caches")
    backend = default_backend() if backend is None else backend
    dim = head_dim(model_config(model))
    caches = [
        TurboKVCache(layer.format, dim, backend)
        if layer.format and type(cache) is KVCache
        else cache
        for layer, cache in zip(verdict.layers, own, strict=True)
    ]
    return Caches(caches, verdict)


def _checked(layer: LayerVerdict, cache: Any) -> LayerVerdict:
    kind = getattr(cache, "stands_for", type(cache))  # of a layer that another rank holds
    if layer.format is None or kind is KVCache:
        return layer
    return LayerVerdict(layer.index, None, f"the model keeps a {kind.__name__} there")


def only(verdict: Verdict, index: int, format: KVFormat) -> Verdict:
    """A verdict that compresses one layer alone, for measuring it."""
    return Verdict(
        tuple(
            LayerVerdict(layer.index, format if layer.index == index else None, layer.reason)
            for layer in verdict.layers
        )
    )
