"""Pictures from clients: what is decoded, and what is refused before it costs anything."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image

from swiftlm_engine.vision.picture import MAX_PIXELS, BadPicture, open_picture


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = (6, 4), **options) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, "red").save(file, kind, **options)
    return file.getvalue()


def claiming(width: int, height: int) -> bytes:
    """A PNG whose header promises so many pixels; the rest is a few bytes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", crc)

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(100_000)))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_each_format_becomes_an_rgb_picture(kind):
    picture = open_picture(encoded(kind))
    assert (picture.mode, picture.size) == ("RGB", (6, 4))
    assert picture.getpixel((1, 1))[0] > 200


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1"])
def test_each_kind_of_pixel_becomes_rgb(mode):
    picture = Image.new(mode, (6, 4))
    file = io.BytesIO()
    picture.save(file, "PNG")
    assert open_picture(file.getvalue()).mode == "RGB"


@pytest.mark.parametrize("grey", [0, 1, 127, 128, 254, 255])
def test_grey_of_sixteen_bits_is_as_bright_as_in_eight(grey):
    file = io.BytesIO()
    Image.new("I;16", (6, 4), grey * 257).save(file, "PNG")
    assert Image.open(io.BytesIO(file.getvalue())).mode.startswith("I")
    assert open_picture(file.getvalue()).getpixel((1, 1)) == (grey, grey, grey)


def test_of_an_animation_the_first_frame_is_read():
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert open_picture(file.getvalue()).getpixel((1, 1)) == (255, 0, 0)


def test_a_picture_taken_sideways_stands_upright():
    turned = Image.Exif()
    turned[0x0112] = 6
    assert open_picture(encoded("JPEG", exif=turned)).size == (4, 6)


@pytest.mark.parametrize("size", [(MAX_PIXELS // 1000 + 1, 1000), (60_000, 60_000)])
def test_a_decompression_bomb_is_refused_by_what_its_header_claims(size):
    with pytest.raises(BadPicture, match="more than 64 million pixels; scale it down"):
        open_picture(claiming(*size))


def test_a_picture_that_is_all_length_is_refused():
    with pytest.raises(BadPicture, match="one side is more than 100 times the other; crop it"):
        open_picture(claiming(1010, 10))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GIF89a",
        b"\x89PNG\r\n\x1a\n" + bytes(32),
        b"RIFF\x00\x00\x00\x00WEBPVP8 ",
        encoded("PNG", size=(64, 64))[:60],
        encoded("JPEG", size=(64, 64))[:200],
        encoded("BMP"),
        encoded("TIFF"),
    ],
)
def test_what_cannot_be_decoded_is_refused_with_what_can(content):
    with pytest.raises(BadPicture, match=r"send a whole PNG, JPEG, WEBP or GIF file"):
        open_picture(content)
