"""The one place where attention over our caches leaves mlx-lm's path.

mlx-lm's models call `scaled_dot_product_attention(queries, keys, values, cache=..., ...)` as a
global of their module. `install` puts `attend` in its place in the modules of one loaded model; any
other cache is passed on to what stood there, so installing is harmless and repeatable.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import base

from swiftlm_engine.turboquant.cache import TurboBatchKVCache, TurboKVCache
from swiftlm_engine.turboquant.kernels.rows import row_kernels

_NAME = "scaled_dot_product_attention"


class MaskNotSupported(ValueError):
    """The model adds to the attention logits what compressed KV does not carry."""


def install(model: nn.Module) -> int:
    """Route `model`'s attention; returns in how many modules the call is routed now."""
    modules = set(_modules_with_attention(model))
    for module in modules:
        original = getattr(module, _NAME)
        if not isinstance(original, _Routed):
            setattr(module, _NAME, _Routed(original))
    return len(modules)


def is_installed(model: nn.Module) -> bool:
    found = [isinstance(getattr(m, _NAME), _Routed) for m in _modules_with_attention(model)]
    return bool(found) and all(found)


class _Routed:
    """mlx-lm's attention function, with ours in front."""

    def __init__(self, original: Callable[..., mx.array]) -> None:
        functools.update_wrapper(self, original)
        self._original = original

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,  # any cache class of any model
        scale: float,
        mask: mx.array | str | None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        extra: dict[str, Any] = {} if sinks is None else {"sinks": sinks}
        if hasattr(keys, "attend_rows"):  # run.unpadded_cache: exact KV, row by row
            if hasattr(keys, "rows") and mx.default_device().type == mx.DeviceType.gpu:
                extra["kernels"] = row_kernels()
            attention = self._original
            return keys.attend_rows(attention, queries, values, mask, scale=scale, **extra)
        if not isinstance(cache, TurboKVCache | TurboBatchKVCache):
            return self._original(queries, keys, values, cache, scale=scale, mask=mask, **extra)
        if sinks is not None:
            raise MaskNotSupported("attention sinks over a turbo cache")
        if isinstance(mask, mx.array) and mask.dtype != mx.bool_:
            raise MaskNotSupported("an additive attention mask over a turbo cache")
        return cache.attend(queries, scale)


def _modules_with_attention(model: nn.Module) -> Iterator[ModuleType]:
    for part in model.modules():
        for kind in type(part).__mro__:
            module = sys.modules.get(kind.__module__)
            found = getattr(module, _NAME, None)
            known = found is base.scaled_dot_product_attention or isinstance(found, _Routed)
            if module is not None and known:
                yield module
