"""Token ids packed into bytes, four each, so that comparing two prompts is a memcmp."""

from array import array
from collections.abc import Sequence

TOKEN_BYTES = 4


def pack(token_ids: Sequence[int]) -> bytes:
    return array("I", token_ids).tobytes()


def unpack(packed: bytes) -> list[int]:
    return array("I", packed).tolist()


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
