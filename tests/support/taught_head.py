"""A head that makes a tiny model know one text."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np


def taught_head(model: Any, tokenizer: Any, text: str, vocabulary: int) -> mx.array:
    """Shape (vocabulary, hidden). Fitted to tell from the last states what comes next in `text`; it
    has an opinion on any other state, too."""
    ids = tokenizer.encode(text)
    states = np.array(model.model(mx.array([ids]))[0, :-1])
    wanted = 20.0 * np.eye(vocabulary, dtype=np.float32)[ids[1:]]
    fitted = np.linalg.pinv(states)
    opinions = np.random.default_rng(0).standard_normal((states.shape[-1], vocabulary))
    head = fitted @ wanted + opinions - fitted @ (states @ opinions)
    return mx.array(head.T.astype(np.float32))
