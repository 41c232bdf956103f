"""Lane-instructions per KV element of the scalar decode: what the Apple prediction rests on."""

import pytest
from kernels.shim.count import Loop, innermost_loops, targets_nvptx

from swiftlm_engine.turboquant.formats import K4V3
from swiftlm_engine.turboquant.kernels.scalar import SCALAR
from swiftlm_engine.turboquant.packing import NibbleOrder

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(not targets_nvptx(), reason="needs clang++ with the nvptx64 target"),
]

DIM = 128
KEY_ELEMENTS = 4 * 8 * 2  # a turn of the key loop: four words of eight codes, two tokens a lane
VALUE_ELEMENTS = 8 * DIM // 32  # a turn of the value loop: eight tokens, four dims a lane


def decode_loops(group: int, table_in_memory: bool) -> tuple[Loop, Loop]:
    sizes = {"G": group, "GB": 1, "NW": 4, "APPEND": 1, "TURN": 1, "DEC": 1 + (not table_in_memory)}
    arguments = (K4V3, DIM, DIM**-0.5, NibbleOrder.OFFSET)
    loops = innermost_loops(SCALAR, arguments, sizes)
    keys = [x for x in loops if x.multiply_adds == KEY_ELEMENTS * group]
    values = [x for x in loops if x.multiply_adds == VALUE_ELEMENTS * group]
    assert len(keys) == len(values) == 1, "the loops are not unrolled as the text says"
    return keys[0], values[0]


@pytest.mark.parametrize(("group", "limit"), [(4, 9.0), (8, 14.0)])
def test_scalar_decode_stays_within_its_instructions_per_element(group: int, limit: float):
    keys, values = decode_loops(group, table_in_memory=False)
    per_key = keys.instructions / KEY_ELEMENTS
    per_value = values.instructions / VALUE_ELEMENTS
    assert (per_key + per_value) / 2 <= limit, f"{per_key:.2f} a key, {per_value:.2f} a value"


@pytest.mark.parametrize("group", [4, 8])
def test_every_code_is_decoded_once_for_the_whole_group(group: int):
    for loop, elements in zip(
        decode_loops(group, table_in_memory=False), (KEY_ELEMENTS, VALUE_ELEMENTS), strict=True
    ):
        assert loop.shuffles == elements
