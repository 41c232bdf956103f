"""Keys that are made and revoked while the daemon runs, and a restart that its page asks for."""

from __future__ import annotations

import asyncio
import hashlib

import aiohttp
import grpclib
import live_daemon
import pytest

from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import DaemonExit
from swiftlmctl.commands import keys


async def _status(url: str, key: str = "") -> int:
    async with aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with http.get(f"{url}/v1/models", headers=headers) as answer:
            return answer.status


async def test_a_key_counts_from_its_making_to_its_removal():
    async with live_daemon.home("hollow") as home, live_daemon.daemon(home) as daemon:
        assert await _status(daemon.url) == 200
        first = await daemon.admin.add_key(m.AddKeyRequest(name="laptop"))
        second = await daemon.admin.add_key(m.AddKeyRequest(name="phone"))
        assert await _status(daemon.url) == 401
        assert await _status(daemon.url, second.key) == 200
        await daemon.admin.remove_key(m.RemoveKeyRequest(name="phone"))
        assert await _status(daemon.url, second.key) == 401
        assert await _status(daemon.url, first.key) == 200
        assert (await daemon.admin.list_keys(m.ListKeysRequest())).names == ["laptop"]


async def test_the_command_line_makes_lists_and_removes_keys(monkeypatch, capsys):
    async with live_daemon.home("hollow") as home, live_daemon.daemon(home) as daemon:
        monkeypatch.setenv("SWIFTLM_HOME", str(home.root))

        async def said(verb, *words):
            await asyncio.to_thread(verb, *words)  # a verb has a loop of its own
            return capsys.readouterr().out.strip()

        assert await said(keys.list_keys) == "no key is asked for"
        key = await said(keys.add, "phone")
        assert await _status(daemon.url, key) == 200
        assert await said(keys.list_keys) == "phone"
        assert key not in home.paths.config_file.read_text()
        assert "removed" in await said(keys.remove, "phone")
        assert await _status(daemon.url) == 200


async def test_the_network_is_not_let_in_without_a_key():
    async with live_daemon.home("hollow") as home, live_daemon.daemon(home) as daemon:
        opened = m.SetConfigRequest(key="http.host", value="0.0.0.0")
        assert "no API key is set" in (await daemon.admin.set_config(opened)).fault.message
        await daemon.admin.add_key(m.AddKeyRequest(name="laptop"))
        assert (await daemon.admin.set_config(opened)).fault is None
        removed = await daemon.admin.remove_key(m.RemoveKeyRequest(name="laptop"))
        assert "the last key" in removed.fault.message


async def test_a_supervised_daemon_leaves_so_that_it_is_started_again():
    async with live_daemon.home("hollow") as home:
        home.environ["XPC_SERVICE_NAME"] = "io.github.swiftlm.swiftlmd"
        async with live_daemon.daemon(home) as daemon:
            await daemon.admin.shutdown(m.ShutdownRequest(restart=True))
            assert await daemon.exit_code() == DaemonExit.RESTART


async def test_a_daemon_that_nobody_would_start_again_does_not_leave():
    async with live_daemon.home("hollow") as home, live_daemon.daemon(home) as daemon:
        with pytest.raises(grpclib.GRPCError, match="swiftlmctl restart"):
            await daemon.admin.shutdown(m.ShutdownRequest(restart=True))
        assert await _status(daemon.url) == 200


async def test_a_device_pairs_over_the_address_that_the_network_sees():
    async with live_daemon.home("hollow") as home:
        digest = hashlib.sha256(b"trusted").hexdigest()
        home.paths.config_file.parent.mkdir(parents=True, exist_ok=True)
        home.paths.config_file.write_text(f'[http.keys]\nscreen = "sha256:{digest};admin"\n')
        async with (
            live_daemon.daemon(home, http__host="0.0.0.0"),
            aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as http,
        ):
            here = f"http://127.0.0.1:{home.port}"
            async with http.post(f"{here}/admin/pair_offer", data="{}") as answer:
                assert answer.status == 401
            trusted = {"Authorization": "Bearer trusted"}
            async with http.post(f"{here}/admin/pair_offer", data="{}", headers=trusted) as answer:
                offer = await answer.json()
            given = {"token": offer["token"], "name": "phone"}
            async with http.post(f"{offer['url']}/pair", json=given) as answer:
                paired = await answer.json()
            assert paired["name"] == "phone"
            assert await _status(offer["url"], paired["key"]) == 200
            async with http.post(f"{offer['url']}/pair", json=given) as answer:
                assert answer.status == 403
