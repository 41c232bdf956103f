"""Bodies that came compressed: unpacked in pieces, never more than one past the limit."""

from __future__ import annotations

import zlib

PIECE_BYTES = 1 << 16
MAX_MEMBERS = 1000  # of one gzip body: each costs a copy of what is behind it

# The way zlib is told of each; `deflate` comes with its header and without.
_GZIP, _ZLIB, _BARE = 31, 15, -15
_UNREADABLE = frozenset({"br", "zstd", "compress"})


class TooLarge(Exception):
    """It unpacks to more than the limit."""


def is_unreadable(encoding: str) -> bool:
    """Nothing here unpacks it."""
    return encoding in _UNREADABLE


def unpack(raw: bytes, encoding: str, limit: int) -> bytes:
    """What `raw` holds by its Content-Encoding; an encoding that nobody knows packs nothing.

    Raises `TooLarge`, or `zlib.error` for what is damaged or cut. zlib lets other threads run.
    """
    if encoding in ("gzip", "x-gzip"):
        return _unpack(raw, _GZIP, limit)
    if encoding == "deflate":
        has_header = raw[:1] and raw[0] & 0x0F == 8
        return _unpack(raw, _ZLIB if has_header else _BARE, limit)
    return raw


def _unpack(raw: bytes, wbits: int, limit: int) -> bytes:
    stream, num_members = zlib.decompressobj(wbits), 1
    unpacked = bytearray()
    for start in range(0, len(raw), PIECE_BYTES):  # in slices, as zlib copies what it leaves over
        left = raw[start : start + PIECE_BYTES]
        while True:
            if stream.eof:
                left = left.lstrip(b"\0") if wbits == _GZIP else b""  # padding, or what is no part
                if not left:
                    break
                num_members += 1
                if num_members > MAX_MEMBERS:
                    raise zlib.error("it has too many members")
                stream = zlib.decompressobj(wbits)
            piece = stream.decompress(left, PIECE_BYTES)
            unpacked += piece
            if len(unpacked) > limit:
                raise TooLarge
            left = stream.unused_data if stream.eof else stream.unconsumed_tail
            if not left and (stream.eof or len(piece) < PIECE_BYTES):
                break
    if not stream.eof:
        raise zlib.error("the stream is cut short")
    return bytes(unpacked)
