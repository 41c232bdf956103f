"""Whether a model really computes through the layers that were given another `__call__`.

Some models read the parts of a layer themselves and never call it: what was hooked onto the call
would silently not happen. A trial builds the graph of a short prompt and of a decoded token, and
evaluates none of it, so that it costs no read and no arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

PASSES = (2, 1)  # tokens: a prompt, and what is decoded behind it


def replace_call(layer: nn.Module, call: Callable[..., Any]) -> None:
    """The layer stays what it was (models look at attributes and types of theirs), but for this."""
    base = type(layer)
    layer.__class__ = type(base.__name__, (base,), {"__call__": call})


def passed_over(model: nn.Module, calls: Callable[[], Mapping[str, int]]) -> str:
    """Why a pass does not go through every hooked layer; empty where it does. Evaluates nothing.

    `calls` counts the calls of each hooked layer so far, by its path.
    """
    caches = make_prompt_cache(model)
    for num_tokens in PASSES:
        before = dict(calls())
        try:
            model(mx.zeros((1, num_tokens), mx.int32), cache=caches)
        # Whatever a model of any kind raises where a layer's weights are there for its call alone.
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            return f"the layers of this model do not compute on their own ({error!r})"
        missed = [path for path, count in calls().items() if count == before[path]]
        if missed:
            return f"the model computes past {missed[0]} and does not call it"
    return ""
