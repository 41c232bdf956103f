"""The random rotation of a head: signs, Walsh-Hadamard transform, signs; or a dense matrix.

`mx.hadamard_transform` is trusted for powers of two only: for 80, 112, 160 and 224 it is not its
own inverse, 72 and 120 abort the process and 576 gives NaN (MLX 0.32.4).
"""

from functools import cache

import mlx.core as mx

from swiftlm_engine.turboquant.tables import dense_rotation, sign_arrays

QJL_SEED = 1042


class Rotation:
    """An orthogonal map of the last axis; float32 in, float32 out, lazy."""

    __slots__ = ("head_dim", "matrix", "signs")

    def __init__(self, head_dim: int, seed: int = 42) -> None:
        self.head_dim = head_dim
        fast = head_dim & (head_dim - 1) == 0
        self.signs: mx.array = mx.array(sign_arrays(head_dim, seed)) if fast else None
        self.matrix: mx.array = None if fast else mx.array(dense_rotation(head_dim, seed))

    def forward(self, x: mx.array) -> mx.array:
        if self.signs is None:
            return x @ self.matrix.T
        return mx.hadamard_transform(x * self.signs[0]) * self.signs[1]

    def inverse(self, y: mx.array) -> mx.array:
        if self.signs is None:
            return y @ self.matrix
        return mx.hadamard_transform(y * self.signs[1]) * self.signs[0]


@cache
def rotation(head_dim: int, seed: int = 42) -> Rotation:
    """One rotation per head size: its constants stay on the device."""
    return Rotation(head_dim, seed)
