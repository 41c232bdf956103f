"""HTTPS for the local network, with real clients: who trusts the authority, and who does not."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from pathlib import Path

import aiohttp
import live_daemon
import pytest
from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.config.load import ConfigError
from swiftlmd.config.settings import Settings
from swiftlmd.http import lan_port
from swiftlmd.http.certificates import Authority, Names, fingerprint, own_names
from swiftlmd.http.lan_port import LanPort

NAMES = Names(("mac.local", "localhost"), ("127.0.0.1", "192.168.1.20"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def answer(url: str, trusted: ssl.SSLContext | bool, **headers: str) -> tuple[int, bytes]:
    session = aiohttp.ClientSession()
    async with session as http, http.get(url, ssl=trusted, headers=headers) as reply:
        return reply.status, await reply.read()


async def test_the_network_gets_https_and_this_machine_plain_http(tmp_path: Path) -> None:
    async with live_daemon.home("hollow") as home:
        async with live_daemon.daemon(home) as daemon:
            key = (await daemon.admin.add_key(m.AddKeyRequest(name="desk", admin=True))).key
        port = free_port()
        home.environ |= {"SWIFTLM_HTTP_HOST": "0.0.0.0", "SWIFTLM_HTTP_TLS": "auto"}
        home.environ["SWIFTLM_HTTP_TLS_PORT"] = str(port)
        async with live_daemon.daemon(home) as daemon:
            status = await daemon.admin.status(m.StatusRequest())
            assert status.http_address == f"127.0.0.1:{home.port}"
            assert status.https_address == f"0.0.0.0:{port}"
            bearer = {"Authorization": f"Bearer {key}"}
            plain, _ = await answer(f"{daemon.url}/v1/models", True, **bearer)
            assert plain == 200

            url = f"https://127.0.0.1:{port}"
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await answer(f"{url}/v1/models", True, **bearer)
            # As a phone does it: fetched once, compared with what the trusted screen shows.
            _, content = await answer(f"{url}/authority.crt", False)
            file = tmp_path / "authority.crt"
            file.write_bytes(content)
            shown = await offered(daemon.url, bearer)
            assert shown["fingerprint"] == fingerprint(file)
            assert shown["url"].startswith("https://")
            assert shown["url"].endswith(f":{port}")
            trusted = ssl.create_default_context(cafile=str(file))
            assert (await answer(f"{url}/v1/models", trusted, **bearer))[0] == 200
            assert (await answer(f"{url}/v1/models", trusted))[0] == 401
            named = {**bearer, "Host": f"{own_names().hosts[0]}:{port}"}  # as the certificate says
            assert (await answer(f"{url}/v1/models", trusted, **named))[0] == 200
            foreign = {**bearer, "Host": f"evil.example:{port}"}
            assert (await answer(f"{url}/v1/models", trusted, **foreign))[0] == 403


async def offered(url: str, headers: dict[str, str]) -> dict[str, str]:
    session = aiohttp.ClientSession(headers=headers)
    async with session as http, http.post(f"{url}/admin/pair_offer", json={}) as reply:
        found: dict[str, str] = await reply.json()
        return found


def test_a_certificate_stays_until_the_addresses_change_and_the_authority_beyond(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "tls")
    first = authority.certificate(NAMES).chain.read_bytes()
    trusted = authority.file.read_bytes()
    assert authority.certificate(NAMES).chain.read_bytes() == first
    moved = Names(NAMES.hosts, ("127.0.0.1", "10.0.0.7"))
    assert authority.certificate(moved).chain.read_bytes() != first
    assert authority.file.read_bytes() == trusted
    for file in (tmp_path / "tls").glob("*.key"):
        assert file.stat().st_mode & 0o077 == 0


def test_a_certificate_that_holds_is_looked_at_without_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    authority = Authority(tmp_path / "tls", lambda: now[0])
    first = authority.certificate(NAMES).chain.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("swiftlmd.http.certificates._openssl", lambda *words: pytest.fail(words[0]))
        assert authority.holds(NAMES)
        assert authority.certificate(NAMES).chain.read_bytes() == first
    now[0] += 380 * 24 * 3600  # of 397 days
    assert not authority.holds(NAMES)
    second = authority.certificate(NAMES).chain.read_bytes()
    assert second != first
    (tmp_path / "tls" / "server.crt").write_text("broken by hand")
    assert not authority.holds(NAMES)
    authority.certificate(NAMES)
    assert authority.holds(NAMES)


@pytest.mark.parametrize("names", [NAMES, own_names()])
def test_what_the_authority_vouches_for_is_believed(tmp_path: Path, names: Names) -> None:
    authority = Authority(tmp_path / "tls")
    for host in (*names.hosts, *(a for a in names.addresses if "." in a)):
        assert shake_hands(authority, names, host)


@pytest.mark.parametrize(
    "names", [Names(("bank.example",), ("127.0.0.1",)), Names(("mac.local",), ("9.9.9.9",))]
)
def test_a_stolen_authority_is_believed_for_nothing_public(tmp_path: Path, names: Names) -> None:
    authority = Authority(tmp_path / "tls")
    authority.certificate(NAMES)
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
        shake_hands(authority, names, names.hosts[0])


def shake_hands(authority: Authority, names: Names, host: str) -> bool:
    """A whole TLS handshake in memory, verified as strictly as a client does."""
    made = authority.certificate(names)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(made.chain, made.key)
    client = ssl.create_default_context(cafile=str(authority.file))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(back, there, server_hostname=host),
        server.wrap_bio(there, back, server_side=True),
    )
    done: set[int] = set()
    while len(done) < 2:
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                pass
    return True


async def test_files_that_are_no_certificate_are_named(tmp_path: Path) -> None:
    (tmp_path / "mine.crt").write_text("nothing")
    settings = Settings(
        http_tls="files",
        http_tls_certificate=str(tmp_path / "mine.crt"),
        http_tls_key=str(tmp_path / "mine.key"),
    )
    with pytest.raises(ConfigError, match=r"mine\.crt"):
        LanPort(settings, tmp_path)._load()


def test_an_openssl_that_hangs_is_given_up(tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "openssl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr("swiftlmd.http.certificates._SEARCHED", os.fspath(tmp_path))
    monkeypatch.setattr("swiftlmd.http.certificates._PATIENCE_S", 0.05, raising=False)
    with pytest.raises(ConfigError, match="took longer"):
        Authority(tmp_path / "tls").certificate(NAMES)


def test_without_openssl_the_way_out_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("swiftlmd.http.certificates._SEARCHED", os.fspath(tmp_path))
    with pytest.raises(ConfigError, match="openssl"):
        Authority(tmp_path / "tls").certificate(NAMES)


async def test_a_busy_https_port_is_told_and_taken_once_it_is_free(tmp_path: Path) -> None:
    async with live_daemon.home("hollow") as home:
        async with live_daemon.daemon(home) as daemon:
            await daemon.admin.add_key(m.AddKeyRequest(name="phone"))
        with socket.socket() as other:
            other.bind(("0.0.0.0", 0))
            other.listen()
            port = int(other.getsockname()[1])
            home.environ |= {"SWIFTLM_HTTP_HOST": "0.0.0.0", "SWIFTLM_HTTP_TLS": "auto"}
            home.environ |= {
                "SWIFTLM_HTTP_TLS_PORT": str(port),
                "XPC_SERVICE_NAME": "io.github.swiftlm.swiftlmd",
            }
            async with live_daemon.daemon(home) as daemon:
                status = await daemon.admin.status(m.StatusRequest())
                assert any(f"port {port} (http.tls_port)" in w for w in status.warnings)
                assert (await answer(f"{daemon.url}/ready", True))[0] == 200
                other.close()
                watched = daemon.admin.watch_status(m.WatchStatusRequest(interval_s=0.2))
                async with asyncio.timeout(15):
                    async for status in watched:
                        if not status.warnings:
                            break
                assert (await answer(f"https://127.0.0.1:{port}/ready", False))[0] == 200


async def test_an_address_that_comes_later_gets_its_https_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lan_port, "_AGAIN_S", 0.01)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    settings = Settings(http_host="203.0.113.7", http_tls="auto")
    port = LanPort(settings, tmp_path / "tls")
    options = HttpOptions(host="203.0.113.7", tls_port=free_port())
    async with port.listening(runner, options):
        assert "203.0.113.7 (http.host) is not an address" in port.problem
        opened = asyncio.Event()

        class Site(web.TCPSite):
            async def start(self) -> None:
                opened.set()

        monkeypatch.setattr(web, "TCPSite", Site)
        await asyncio.wait_for(opened.wait(), 5)
        await asyncio.sleep(0)
        assert port.problem == ""
    await runner.cleanup()
