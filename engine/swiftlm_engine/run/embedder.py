"""Embeddings from a language model: the mean of its last hidden states, of unit length."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from swiftlm_engine.messages import EngineFault, FaultKind


class Embedder:
    """Owned by the engine thread. Inputs run one by one: no padding can change a vector."""

    def __init__(self, model: Any, stream: Any) -> None:
        self._body = getattr(model, "model", None)
        self._stream = stream

    def embed(self, ids: list[int], dimensions: int) -> bytes:
        """Little-endian float32 bytes for the token ids of one text; `dimensions` 0 keeps all."""
        if self._body is None:
            raise EngineFault(
                FaultKind.UNSUPPORTED, "this model's hidden states cannot be read", param="model"
            )
        with mx.stream(self._stream):
            hidden = self._body(mx.array([ids]))  # (1, L, D)
            vector = hidden[0].astype(mx.float32).mean(axis=0)
            if dimensions:
                if dimensions > vector.size:
                    raise EngineFault(
                        FaultKind.INVALID,
                        f"dimensions is {dimensions}; this model has {vector.size}",
                        param="dimensions",
                    )
                vector = vector[:dimensions]
            vector = vector / mx.maximum(mx.linalg.norm(vector), 1e-12)
            mx.eval(vector)
        return np.array(vector).astype("<f4").tobytes()
