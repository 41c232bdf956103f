"""One file of the SSD tier: magic, header (JSON) with its checksum, payload of raw arrays.

A BLOCK holds the tokens [start, end) of a chain of blocks and their KV. A STATE holds what cannot
be cut by token, for one position of a block. Anything that does not read back exactly as written
raises CorruptFile. Bytes only, no MLX: the writer thread runs this.
"""

import base64
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1
_MAGIC = b"swiftkv1"
_PRELUDE = struct.Struct("<8sIIQI")  # magic, header bytes and crc, payload bytes and crc
_MAX_HEADER_BYTES = 16 << 20


class CorruptFile(ValueError):
    """The file is not what was written: torn, truncated or damaged."""


class FileKind(Enum):
    BLOCK = "block"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """One array in the payload: which leaf it belongs to and how to read its bytes."""

    leaf: int
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """`parent` is the block below this one: for a STATE, the block its position `end` lies in."""

    kind: FileKind
    id: str
    parent: str
    start: int
    end: int
    salt: bytes
    tokens: bytes = b""  # BLOCK: packed token ids of [start, end)
    lows: tuple[int, ...] = ()  # BLOCK: per window leaf, first position held
    floor: int = 0  # STATE: shortest prefix it serves
    has_windows: bool = False  # STATE: holds the window leaves too
    trees: tuple[tuple[int, Any], ...] = ()  # STATE: leaf and its state with arrays left out
    arrays: tuple[ArrayRecord, ...] = ()

    @property
    def payload_bytes(self) -> int:
        return sum(record.nbytes for record in self.arrays)


def encode(header: BlockHeader, buffers: Sequence[bytes]) -> Iterator[bytes]:
    """The pieces of the file, in order."""
    text = _header_text(header)
    crc, size = 0, 0
    for buffer in buffers:
        crc, size = zlib.crc32(buffer, crc), size + len(buffer)
    yield _PRELUDE.pack(_MAGIC, len(text), zlib.crc32(text), size, crc)
    yield text
    yield from buffers


def file_bytes(header: BlockHeader) -> int:
    """What `encode` will write, before it is written."""
    return _PRELUDE.size + len(_header_text(header)) + header.payload_bytes


def read_header(path: Path) -> BlockHeader:
    """The header; raises CorruptFile also when the file is shorter or longer than it says."""
    with path.open("rb") as file:
        size, _, header = _read_prelude(file)
        if os.fstat(file.fileno()).st_size != size:
            raise CorruptFile(f"{path.name}: not {size} bytes")
    return header


def read_payload(path: Path, buffer: bytearray) -> tuple[BlockHeader, list[memoryview]]:
    """The header and one view into `buffer` per array, checked against the checksum.

    The buffer grows as needed; used for one file after the other it saves most of the time, which
    would go into fresh memory. A view is good until the buffer is used again.
    """
    with path.open("rb") as file:
        size, crc, header = _read_prelude(file)
        if os.fstat(file.fileno()).st_size != size:
            raise CorruptFile(f"{path.name}: not {size} bytes")
        if len(buffer) < header.payload_bytes:
            buffer.extend(bytes(header.payload_bytes - len(buffer)))
        payload = memoryview(buffer)[: header.payload_bytes]
        if file.readinto(payload) != len(payload) or zlib.crc32(payload) != crc:
            raise CorruptFile(f"{path.name}: payload does not match its checksum")
    views, at = [], 0
    for record in header.arrays:
        views.append(payload[at : at + record.nbytes])
        at += record.nbytes
    return header, views


def _read_prelude(file: Any) -> tuple[int, int, BlockHeader]:
    """(size of the whole file, payload crc, header)."""
    prelude = file.read(_PRELUDE.size)
    if len(prelude) != _PRELUDE.size:
        raise CorruptFile("shorter than a prelude")
    magic, text_bytes, text_crc, payload_bytes, payload_crc = _PRELUDE.unpack(prelude)
    if magic != _MAGIC or text_bytes > _MAX_HEADER_BYTES:
        raise CorruptFile("not a prefix cache file")
    text = file.read(text_bytes)
    if len(text) != text_bytes or zlib.crc32(text) != text_crc:
        raise CorruptFile("header does not match its checksum")
    header = _header_of(text)
    if header.payload_bytes != payload_bytes:
        raise CorruptFile("arrays do not add up to the payload")
    return _PRELUDE.size + text_bytes + payload_bytes, payload_crc, header


def _header_text(header: BlockHeader) -> bytes:
    fields = {
        "kind": header.kind.value,
        "id": header.id,
        "parent": header.parent,
        "start": header.start,
        "end": header.end,
        "salt": _text(header.salt),
        "tokens": _text(header.tokens),
        "lows": header.lows,
        "floor": header.floor,
        "has_windows": header.has_windows,
        "trees": header.trees,
        "arrays": [[a.leaf, a.dtype, a.shape, a.nbytes] for a in header.arrays],
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _header_of(text: bytes) -> BlockHeader:
    try:
        fields = json.loads(text)
        arrays = [ArrayRecord(leaf, d, tuple(shape), n) for leaf, d, shape, n in fields["arrays"]]
        return BlockHeader(
            kind=FileKind(fields["kind"]),
            id=fields["id"],
            parent=fields["parent"],
            start=fields["start"],
            end=fields["end"],
            salt=base64.b64decode(fields["salt"]),
            tokens=base64.b64decode(fields["tokens"]),
            lows=tuple(fields["lows"]),
            floor=fields["floor"],
            has_windows=fields["has_windows"],
            trees=tuple((leaf, tree) for leaf, tree in fields["trees"]),
            arrays=tuple(arrays),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"unreadable header: {error}") from error


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
