"""Image addresses: what is taken, and what must never be fetched."""

from __future__ import annotations

import asyncio
import base64
import socket

import pytest

from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import ServiceError
from swiftlmd.http.images import (
    ImageLoader,
    PublicResolver,
    is_public,
    public_socket,
    refuse_private_address,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)
WEBP = b"RIFF\x00\x00\x00\x00WEBPVP8 "


def data_uri(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


@pytest.fixture
def loader() -> ImageLoader:
    return ImageLoader(HttpOptions(max_image_bytes=1000))


@pytest.mark.parametrize(
    ("content", "media_type"),
    [(PNG, "image/png"), (WEBP, "image/webp"), (b"\xff\xd8\xff\xe0", "image/jpeg")],
)
async def test_a_data_uri_is_decoded_and_known_by_its_bytes(loader, content, media_type):
    image = await loader.load(data_uri(content, "image/lies"), "p")
    assert image.content == content
    assert image.media_type == media_type


async def test_a_percent_encoded_data_uri_is_decoded(loader):
    image = await loader.load("data:image/gif,GIF89a%00%01", "p")
    assert image.content == b"GIF89a\x00\x01"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "/etc/passwd",
        "http://example.com/a.png",
        "ftp://example.com/a.png",
        "gopher://example.com",
        "data:image/png;base64",
        "data:image/png;base64,!!!!",
        data_uri(b"<svg onload=x>"),
        data_uri(PNG + bytes(2000)),
        "",
    ],
)
async def test_anything_but_a_small_picture_is_refused(loader, url):
    with pytest.raises(ServiceError) as caught:
        await loader.load(url, "messages.0.content.1")
    assert caught.value.status == 400
    assert caught.value.param == "messages.0.content.1"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.3.4",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "[::1]",
        "[fe80::1]",
        "[fc00::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "127.1",
        "2130706433",
        "127\u30020\u30020\u30021",
        "127\uff0e0\uff0e0\uff0e1",
        "127\uff610\uff610\uff611",
        "192\u3002168\u30021\u30021",
        "\uff11\uff12\uff17.0.0.1",
        "[::127.0.0.1]",
        "[::ffff:0:127.0.0.1]",
        "[64:ff9b:1::1]",
    ],
)
async def test_private_addresses_are_refused_before_any_connection(loader, host):
    with pytest.raises(ServiceError) as caught:
        await loader.load(f"https://{host}/a.png", "p")
    assert "public" in str(caught.value)
    await loader.close()


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "64:ff9b::101:101"])
def test_public_addresses_are_public(address):
    assert is_public(address)


def test_a_redirect_away_from_https_is_refused():
    refuse_private_address("https://example.com/a.png", "p")
    for url in ("http://example.com/a.png", "file:///a", "https://[bad", "https:///a"):
        with pytest.raises(ServiceError):
            refuse_private_address(url, "p")


async def test_a_name_that_means_a_private_address_is_not_resolved(monkeypatch):
    async def resolve(host, port, type):
        addresses = ("93.184.216.34", "10.0.0.7")  # one good address does not help
        return [(socket.AF_INET, type, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    with pytest.raises(OSError, match="not a public host"):
        await PublicResolver().resolve("rebind.example", 443)


async def test_fetching_can_be_switched_off():
    loader = ImageLoader(HttpOptions(fetch_images=False))
    with pytest.raises(ServiceError) as caught:
        await loader.load("https://example.com/a.png", "p")
    assert "data: URI" in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [("127.0.0.1", 443), ("10.1.2.3", 443), ("::1", 443, 0, 0), ("fe80::1%eth0", 443, 0, 2)],
)
def test_no_socket_is_made_for_an_address_that_is_not_public(address):
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with pytest.raises(OSError, match="not a public address"):
        public_socket((family, socket.SOCK_STREAM, 6, "", address))


async def test_nothing_connects_whatever_a_name_turns_into(loader, monkeypatch):
    """The check before the connection is left out here: the one at the socket holds by itself."""
    hits = []
    server = await asyncio.start_server(lambda *peer: hits.append(peer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setattr("swiftlmd.http.images.refuse_private_address", lambda url, param: None)
    texts = set()
    for host in ("127.0.0.1", "127\u30020\u30020\u30021", "[::ffff:127.0.0.1]", "localhost"):
        for there in (port, 1):  # an open port and a closed one
            with pytest.raises(ServiceError) as caught:
                await loader.load(f"https://{host}:{there}/a.png", "p")
            texts.add(str(caught.value))
    assert not hits
    assert len(texts) == 1, "the text tells an open port from a closed one"
    server.close()
    await loader.close()


@pytest.mark.parametrize(
    "url",
    ["https://[::1/", "https://[", "https://" + "a" * 70 + ".example/", "https://x:99999999/",
     "https://\ud800/", "https:", "https://user@/", "https://\u2488.example/"],
)  # fmt: skip
async def test_an_address_that_is_none_is_a_400(loader, url):
    with pytest.raises(ServiceError) as caught:
        await loader.load(url, "p")
    assert caught.value.status == 400
    await loader.close()


async def test_large_pictures_are_judged_by_their_size_first_and_decoded_on_a_thread(monkeypatch):
    threads = []
    original = asyncio.to_thread

    async def noted(work, *args):
        threads.append(work)
        return await original(work, *args)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    loader = ImageLoader(HttpOptions(max_image_bytes=300_000))
    large = PNG + bytes(200_000)
    assert (await loader.load(data_uri(large), "p")).content == large
    quoted = "data:image/png," + "".join(f"%{byte:02x}" for byte in large)
    assert (await loader.load(quoted, "p")).content == large
    assert len(threads) == 2
    with pytest.raises(ServiceError, match="larger than"):
        await loader.load("data:image/png," + "%41" * 300_010, "p")
    assert len(threads) == 2
