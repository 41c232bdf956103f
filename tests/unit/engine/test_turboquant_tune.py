"""The decoder of the Metal kernel is chosen by measuring, with a clock that the test holds."""

import mlx.core as mx
import pytest

from swiftlm_engine.turboquant.kernels.tune import choose_decoder
from swiftlm_engine.turboquant.sequence import SequenceKV


class SlowBackend:
    """Every attention takes what the decoder in use costs, on its own clock."""

    def __init__(self, shuffle_s: float, table_s: float) -> None:
        self.table_in_memory = False
        self.now = 0.0
        self._costs = {False: shuffle_s, True: table_s}

    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        self.now += self._costs[self.table_in_memory]
        return queries


@pytest.mark.parametrize(
    ("shuffle_s", "table_s", "chosen"), [(2.0, 1.0, True), (1.0, 2.0, False), (1.0, 1.0, False)]
)
def test_the_decoder_that_was_faster_stays(shuffle_s: float, table_s: float, chosen: bool):
    backend = SlowBackend(shuffle_s, table_s)
    choose_decoder(backend, lambda: backend.now)
    assert backend.table_in_memory is chosen
