"""How fast the BLAS of this process multiplies one row and sixteen; `python -m` prints it as JSON.

A good one takes two to six times as long for sixteen rows as for one, since it reads the weights
once; the reference BLAS of MLX's wheel takes sixteen times as long, and so does a prompt.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict, dataclass
from functools import cache

import mlx.core as mx

from swiftlm_engine.expansion.orientation import fastest_s, some_rows

_ROWS, _COLUMNS = 576, 1536
_SLOW = 10.0  # sixteen rows in as many times of one
_TRIES = 3  # a busy machine makes a good one look slow for a moment, never the other way round


@dataclass(frozen=True, slots=True)
class BlasSpeed:
    """Seconds of a float32 product with a matrix of 576 x 1536."""

    name: str
    one_row_s: float
    sixteen_rows_s: float

    @property
    def slow(self) -> bool:
        return self.sixteen_rows_s > _SLOW * self.one_row_s

    def __str__(self) -> str:
        one, sixteen = 1e3 * self.one_row_s, 1e3 * self.sixteen_rows_s
        return f"{self.name}: one row {one:.2f} ms, sixteen rows {sixteen:.2f} ms"


@cache
def measure() -> BlasSpeed:
    """On the CPU, once a process, in a few milliseconds (a tenth of a second with a slow one).

    Before the weights are read: the 4 MB that it takes meanwhile then add to no peak.
    """
    weight, one, sixteen = (some_rows(rows, _COLUMNS) for rows in (_ROWS, 1, 16))
    products = [lambda: mx.eval(one @ weight.T), lambda: mx.eval(sixteen @ weight.T)]
    for _ in range(_TRIES):
        speed = BlasSpeed(blas_name(), *fastest_s(products))
        if not speed.slow:
            break
    return speed


def blas_name() -> str:
    """Which BLAS answers float32 matmul on the CPU back end.

    The wheel's own is the reference BLAS, an order of magnitude slower in prefill than OpenBLAS;
    the daemon preloads the system's OpenBLAS where there is one.
    """
    try:
        config = ctypes.CDLL(None).openblas_get_config
    except (AttributeError, OSError):
        return "reference (slow; install OpenBLAS, see README)"
    config.restype = ctypes.c_char_p
    return str(config().decode()).strip()


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    print(json.dumps(asdict(measure())))
