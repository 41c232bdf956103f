"""Token ids packed into bytes, four each, so that comparing two prompts is a memcmp; what two
prompts begin with."""

from array import array
from collections.abc import Sequence
from typing import Any

TOKEN_BYTES = 4


def pack(token_ids: Sequence[int]) -> bytes:
    return array("I", token_ids).tobytes()


def unpack(packed: bytes) -> list[int]:
    return array("I", packed).tolist()


def common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many first tokens, or letters, are the same; slices are compared, not one by one."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # the first `low` are the same, the first `high + 1` are not
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_tokens(a: bytes, b: bytes) -> int:
    """How many leading tokens two packed runs share."""
    high = min(len(a), len(b)) // TOKEN_BYTES
    if a[: high * TOKEN_BYTES] == b[: high * TOKEN_BYTES]:
        return high
    low = 0
    while high - low > 1:  # a and b agree before low and differ before high
        middle = (low + high) // 2
        span = slice(low * TOKEN_BYTES, middle * TOKEN_BYTES)
        if a[span] == b[span]:
            low = middle
        else:
            high = middle
    return low
