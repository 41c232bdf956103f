"""The KV formats by name, and the arithmetic of their bytes. No MLX: the planner may import it.

Layout of one sequence in one layer, oldest token first:
    4 sinks (exact) | pages of 64 compressed tokens | the last 64 to 127 tokens (exact)
Eight pages share one key mean (a segment); the key equaliser is one per sequence.
"""

from dataclasses import dataclass
from enum import StrEnum

PAGE_TOKENS = 64  # flush granularity; a page is full or it does not exist
SEGMENT_TOKENS = 512  # one key mean per segment
SEGMENT_PAGES = SEGMENT_TOKENS // PAGE_TOKENS
SINK_TOKENS = 4  # exact: the sinks lie far from every mean, and logits depend on them most
RECENT_TOKENS = 64  # exact: at least this many of the newest tokens

MIN_HEAD_DIM = 16
MAX_HEAD_DIM = 512


class KeyCode(StrEnum):
    """How one rotated key coordinate becomes bits."""

    LLOYD_MAX_4 = "lloyd-max-4"
    SIGN_3_1 = "3+1"  # 3-bit Lloyd-Max index and the sign of what it missed, same basis
    QJL_3_1 = "3+qjl"  # 3-bit index and the sign of a second rotation of what it missed
    UNIFORM_8 = "uniform-8"


@dataclass(frozen=True, slots=True)
class KVFormat:
    """One KV format: what `kv = NAME` means."""

    name: str
    key_code: KeyCode
    value_bits: int

    @property
    def key_bits(self) -> int:
        return 8 if self.key_code is KeyCode.UNIFORM_8 else 4

    @property
    def key_scalars(self) -> int:
        """fp16 numbers per key: the norm, and for the record of 68 bytes the residual's norm."""
        return 2 if self.key_code in (KeyCode.SIGN_3_1, KeyCode.QJL_3_1) else 1

    def token_bytes(self, head_dim: int) -> float:
        """Bytes of one compressed token in one KV head, segment means included."""
        key = head_dim * self.key_bits / 8 + 2 * self.key_scalars
        value = head_dim * self.value_bits / 8 + 2
        return key + value + 2 * head_dim / SEGMENT_TOKENS

    def sequence_bytes(self, num_tokens: int, head_dim: int, exact_itemsize: int = 2) -> int:
        """Bytes of `num_tokens` in one KV head, with the exact zone and the equaliser."""
        pages = num_pages(num_tokens)
        exact = num_tokens - pages * PAGE_TOKENS
        bits = head_dim * (self.key_bits + self.value_bits) + 16 * (self.key_scalars + 1)
        means = -(-pages // SEGMENT_PAGES) * head_dim * 2
        equaliser = head_dim * 2 if pages else 0
        return (
            pages * PAGE_TOKENS * bits // 8
            + means
            + equaliser
            + exact * 2 * head_dim * exact_itemsize
        )


K4V3 = KVFormat("k4v3", KeyCode.LLOYD_MAX_4, 3)
SPEC = KVFormat("spec", KeyCode.SIGN_3_1, 3)
SPEC_SRHT = KVFormat("spec-srht", KeyCode.QJL_3_1, 3)
K8V3 = KVFormat("k8v3", KeyCode.UNIFORM_8, 3)
K4V4 = KVFormat("k4v4", KeyCode.LLOYD_MAX_4, 4)

FORMATS = {f.name: f for f in (K4V3, SPEC, SPEC_SRHT, K8V3, K4V4)}
DEFAULT = K4V3


class UnknownFormat(ValueError):
    """The operator named a KV format that does not exist."""


def parse_format(name: str) -> KVFormat:
    """The format called `name`; raises `UnknownFormat` with the names there are."""
    try:
        return FORMATS[name]
    except KeyError:
        raise UnknownFormat(f"no KV format {name!r}; choose from {', '.join(FORMATS)}") from None


def num_pages(num_tokens: int) -> int:
    """Pages a sequence of `num_tokens` holds once everything that may be compressed is."""
    return max(0, num_tokens - SINK_TOKENS - RECENT_TOKENS) // PAGE_TOKENS
