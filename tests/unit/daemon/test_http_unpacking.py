"""Compressed bodies are unpacked in pieces, and no further than the limit."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib

import pytest

from swiftlmd.http.unpacking import PIECE_BYTES, TooLarge, unpack

TEXTS = (b"{}", b"a" * 5 * PIECE_BYTES, os.urandom(3 * PIECE_BYTES + 7), b"")


@pytest.mark.parametrize("text", TEXTS)
def test_every_encoding_gives_back_what_was_packed(text):
    bare = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(text, mtime=0),
        "deflate": zlib.compress(text),
        "identity": text,
        "": text,
    }
    for encoding, raw in packed.items():
        assert unpack(raw, encoding, len(text)) == text
    assert unpack(bare.compress(text) + bare.flush(), "deflate", len(text)) == text


def test_a_bomb_is_left_at_the_limit():
    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(TooLarge):
        unpack(bomb, "gzip", 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize("raw", [b"", b"no gzip", gzip.compress(b"text", mtime=0)[:-9]])
def test_what_is_damaged_or_cut_is_an_error(raw):
    with pytest.raises(zlib.error):
        unpack(raw, "gzip", 100)


def test_gzip_of_several_members_is_read_whole():
    members = b"".join(gzip.compress(part) for part in (b"one ", b"two ", b"x" * 300_000))
    assert unpack(members, "gzip", 10**6) == b"one two " + b"x" * 300_000
    with pytest.raises(TooLarge):
        unpack(members, "gzip", 1000)
    with pytest.raises(zlib.error):
        unpack(gzip.compress(b"one") + b"rubbish", "gzip", 1000)
    with pytest.raises(zlib.error, match="members"):
        unpack(gzip.compress(b"") * 2000, "gzip", 1000)
    assert unpack(gzip.compress(b"one") + b"\0" * 9, "gzip", 1000) == b"one"
