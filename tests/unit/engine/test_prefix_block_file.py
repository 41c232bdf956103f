"""Files of the SSD tier: what was written comes back, anything else is CorruptFile."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swiftlm_engine.brain.tokens import pack
from swiftlm_engine.prefix.block_file import (
    ArrayRecord,
    BlockHeader,
    CorruptFile,
    FileKind,
    encode,
    file_bytes,
    read_header,
    read_payload,
)

BUFFERS = [b"\x01\x02\x03\x04", b"", b"\xff" * 8]
HEADER = BlockHeader(
    kind=FileKind.BLOCK,
    id="ab",
    parent="cd",
    start=3,
    end=5,
    salt=b"\x00salt",
    tokens=pack([7, 4_000_000_000]),
    lows=(4, 5),
    trees=((2, {"tuple": [{"array": 0}, None, True, 1.5, "x"]}),),
    arrays=tuple(ArrayRecord(i, "uint8", (len(b),), len(b)) for i, b in enumerate(BUFFERS)),
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ab.kv"
    path.write_bytes(b"".join(encode(HEADER, BUFFERS)))
    return path


def test_what_was_written_comes_back(path):
    header, views = read_payload(path, bytearray())
    assert header == read_header(path) == HEADER
    assert [bytes(view) for view in views] == BUFFERS


def test_size_is_known_before_writing(path):
    assert path.stat().st_size == file_bytes(HEADER)


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200
)
@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_any_flipped_byte_is_noticed(path, at, flip):
    data = bytearray(b"".join(encode(HEADER, BUFFERS)))
    data[at % len(data)] ^= flip
    path.write_bytes(data)
    with pytest.raises(CorruptFile):
        read_payload(path, bytearray())


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(0, 10_000))
def test_any_truncation_is_noticed_from_the_header_alone(path, length):
    data = b"".join(encode(HEADER, BUFFERS))
    path.write_bytes(data[: length % len(data)])
    with pytest.raises(CorruptFile):
        read_header(path)
    with pytest.raises(CorruptFile):
        read_payload(path, bytearray())


def test_trailing_bytes_are_noticed(path):
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CorruptFile):
        read_header(path)
    with pytest.raises(CorruptFile):
        read_payload(path, bytearray())
