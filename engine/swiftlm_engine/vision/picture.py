"""From a client's bytes to a picture; formats and sizes are checked before a pixel is decoded."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, ImageOps

MAX_PIXELS = 64_000_000  # 192 MB once decoded
MAX_REQUEST_PIXELS = 800_000_000  # of all pictures of a request: half a minute of decoding
MAX_RATIO = 100  # of the longer to the shorter side: every family scales the longer one down
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# What Pillow's decoders raise for broken files.
_DECODE_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    TypeError,
    MemoryError,
    OverflowError,
    struct.error,
    zlib.error,
)


class BadPicture(ValueError):
    """The caller's image cannot be used; the text says why."""


def count_pixels(content: bytes) -> int:
    """As its header claims; no pixel is decoded. Raises `BadPicture`."""
    with _decode_errors(), Image.open(io.BytesIO(content), formats=FORMATS) as picture:
        _check_size(*picture.size)
        return picture.width * picture.height


def open_picture(content: bytes) -> Image.Image:
    """RGB, upright, the first frame of several. Raises `BadPicture`."""
    with _decode_errors():
        picture: Image.Image = Image.open(io.BytesIO(content), formats=FORMATS)
        _check_size(*picture.size)
        ImageOps.exif_transpose(picture, in_place=True)  # copies only what is turned
        picture = _in_eight_bits(picture)
        picture.load()
        return picture if picture.mode == "RGB" else picture.convert("RGB")


@contextmanager
def _decode_errors() -> Iterator[None]:
    try:
        yield
    except BadPicture:
        raise
    except Image.DecompressionBombError as error:
        raise BadPicture(_too_large("it claims")) from error
    except _DECODE_ERRORS as error:
        raise BadPicture(f"it cannot be decoded ({error}); send a whole {_names()} file") from error


def _in_eight_bits(picture: Image.Image) -> Image.Image:
    """Grey of 16 bits scaled to 8; Pillow's own conversion makes all above 255 white."""
    if picture.mode != "I" and not picture.mode.startswith("I;16"):
        return picture
    wide = picture.convert("I")  # the modes of 16 bits cannot all be scaled
    return wide.point(lambda value: value * (1 / 257) + 0.5).convert("L")


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise BadPicture(_too_large(f"{width} x {height} are"))
    if max(width, height) > MAX_RATIO * min(width, height):
        raise BadPicture(
            f"{width} x {height}: one side is more than {MAX_RATIO} times the other; crop it"
        )


def _too_large(what: str) -> str:
    return f"{what} more than {MAX_PIXELS // 1_000_000} million pixels; scale it down"


def _names() -> str:
    return f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
