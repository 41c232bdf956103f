"""The whole daemon over real sockets, with scripted engine processes: load, serve, die, restart."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import time
from functools import partial
from typing import Any

import pytest
from live_daemon import Home, LiveDaemon, daemon, eventually, home, is_alive, start

from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import DaemonExit

SLOW = {"tokens": ["word "] * 100, "token_s": 0.05}


@pytest.fixture
async def place() -> Any:
    async with home("tiny", "other") as found:
        yield found


async def first_words(live: LiveDaemon, count: int, chunks: Any) -> None:
    """Reads a stream until `count` chunks with text have come."""
    async for chunk in chunks:
        if chunk["choices"][0]["delta"].get("content"):
            count -= 1
        if count == 0:
            return


async def rest_of(chunks: Any) -> list[dict[str, Any]]:
    return [chunk async for chunk in chunks]


def ending(chunks: list[dict[str, Any]]) -> str:
    """How a stream ended: its finish reason, `error`, or `nothing`."""
    for chunk in reversed(chunks):
        if "error" in chunk:
            return "error"
        for choice in chunk.get("choices", []):
            if choice.get("finish_reason"):
                return str(choice["finish_reason"])
    return "nothing"


async def test_ten_concurrent_first_requests_load_once(place: Home) -> None:
    async with daemon(place, {"load_s": 0.3}) as live:
        replies = await asyncio.gather(*(live.chat() for _ in range(10)))
        assert [status for status, _ in replies] == [200] * 10
        assert {r["choices"][0]["message"]["content"] for _, r in replies} == {"one two three"}
        assert place.loads == ["tiny"]


async def test_engine_killed_in_mid_answer_gives_an_error_event_and_the_next_request_works(
    place: Home,
) -> None:
    async with daemon(place, SLOW) as live:
        chunks = live.stream()
        await first_words(live, 3, chunks)
        killed = await live.engine_pid()
        os.kill(killed, signal.SIGKILL)
        rest = await asyncio.wait_for(rest_of(chunks), 10)
        assert ending(rest) == "error"
        assert {"done": True} not in rest
        error = next(chunk["error"] for chunk in rest if "error" in chunk)
        assert "SIGKILL" in error["message"]
        status, _ = await live.chat(max_tokens=2)
        assert status == 200
        assert await live.engine_pid() not in (0, killed)
        model = await live.model()
        assert model is not None
        assert model.restarts == 1


async def test_engine_that_dies_while_loading_is_told_with_its_last_words(place: Home) -> None:
    script = {"load_exit": 70, "last_words": "[METAL] Command buffer execution failed: boom"}
    async with daemon(place, script) as live:
        status, reply = await live.chat()
        assert status == 500
        assert "GPU" in reply["error"]["message"]
        async with live.http.get("/health") as health:
            assert health.status == 200


async def test_sigterm_lets_streams_finish_refuses_new_requests_and_exits_zero(
    place: Home,
) -> None:
    async with daemon(place, {"tokens": ["word "] * 20, "token_s": 0.05}) as live:
        streams = [live.stream() for _ in range(4)]
        await asyncio.gather(*(first_words(live, 1, stream) for stream in streams))
        live.signal(signal.SIGTERM)
        await eventually(lambda: "stopping in_flight" in place.log())
        status, _ = await live.chat()
        assert status == 503
        rests = await asyncio.gather(*(rest_of(stream) for stream in streams))
        assert [ending(rest) for rest in rests] == ["stop"] * 4
        assert await live.exit_code() == 0
    assert not place.paths.admin_socket.exists()


async def test_streams_that_outlast_the_drain_end_in_an_error_event_and_exit_is_zero(
    place: Home,
) -> None:
    async with daemon(place, SLOW, service__drain="0.5s") as live:
        streams = [live.stream() for _ in range(16)]
        await asyncio.gather(*(first_words(live, 1, stream) for stream in streams))
        engine, started_at = await live.engine_pid(), time.monotonic()
        live.signal(signal.SIGTERM)
        rests = await asyncio.gather(*(rest_of(stream) for stream in streams))
        assert {ending(rest) for rest in rests} == {"error"}
        assert await live.exit_code() == 0
        assert time.monotonic() - started_at < 30
        assert not is_alive(engine)


@pytest.mark.slow
async def test_a_drain_waits_until_an_answer_is_read(place: Home) -> None:
    size = 8_000_000
    async with daemon(place, {"tokens": ["x"], "token_size": size}) as live:
        await live.chat(max_tokens=1)
        channel = socket.socket()
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        channel.connect(("127.0.0.1", place.port))
        reader, writer = await asyncio.open_connection(sock=channel, limit=1 << 16)
        body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x"}]})
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        got = len(await reader.read(4096))
        live.signal(signal.SIGTERM)
        await eventually(lambda: "stopping in_flight" in place.log())
        await asyncio.sleep(6)  # more than engines and connections are given to close
        while data := await reader.read(1 << 20):
            got += len(data)
        writer.close()
        assert got > size
        assert await live.exit_code() == 0


async def test_second_sigterm_does_not_wait_for_requests(place: Home) -> None:
    async with daemon(place, SLOW) as live:
        stream = live.stream()
        await first_words(live, 1, stream)
        live.signal(signal.SIGTERM)
        await eventually(lambda: "stopping in_flight" in place.log())
        live.signal(signal.SIGTERM)
        assert ending(await asyncio.wait_for(rest_of(stream), 4)) == "error"
        assert await live.exit_code() == 0


async def test_second_daemon_leaves_with_zero_and_says_who_won(place: Home) -> None:
    async with daemon(place) as live:
        loser = await start(place)
        try:
            assert await loser.exit_code() == DaemonExit.STAY_DOWN
            assert f"pid {live.pid}" in (place.root / "output").read_text()
        finally:
            await loser.close()
        assert (await live.chat())[0] == 200


async def test_two_daemons_started_at_once_leave_one(place: Home) -> None:
    both = [await start(place), await start(place)]
    try:
        ended, running = await asyncio.wait(
            [asyncio.create_task(live.child.wait()) for live in both],
            timeout=20,
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert [task.result() for task in ended] == [0]
        winner = next(live for live in both if live.child.returncode is None)
        await winner.ready()
        for task in running:
            task.cancel()
    finally:
        for live in both:
            await live.close()


async def test_busy_port_names_its_holder_and_is_never_moved(place: Home) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", place.port))
        taken.listen()
        live = await start(place)
        try:
            assert await live.exit_code() == DaemonExit.TEMPORARY
        finally:
            await live.close()
    said = (place.root / "output").read_text()
    assert f"127.0.0.1:{place.port} is taken by" in said
    assert f"pid {os.getpid()}" in said


async def test_unload_ends_the_process_and_reports_its_bytes(place: Home) -> None:
    async with daemon(place) as live:
        await live.chat()
        engine = await live.engine_pid()
        reply = await live.admin.unload(m.UnloadModelRequest(model="tiny"))
        assert reply.was_loaded
        assert reply.pid == engine
        assert reply.freed_bytes > 10**6
        assert not is_alive(engine)
        assert await live.model() is None


async def test_engine_of_a_killed_daemon_is_gone_in_two_seconds(place: Home) -> None:
    async with daemon(place, SLOW) as live:
        await live.chat(max_tokens=1)
        engine = await live.engine_pid()
        live.signal(signal.SIGKILL)
        await eventually(lambda: not is_alive(engine), 2.5)
    async with daemon(place) as heir:  # neither lock, sockets nor port are in its way
        assert (await heir.chat())[0] == 200
        sockets = list(place.paths.runtime.glob("engine-*.sock"))
        assert len(sockets) == 1


async def test_admin_socket_is_for_its_owner_alone(place: Home) -> None:
    async with daemon(place):
        mode = place.paths.admin_socket.stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
        assert stat.S_IMODE(place.root.stat().st_mode) == 0o700


async def test_wedged_engine_is_ended_and_replaced(place: Home) -> None:
    script = SLOW | {"block_after_tokens": 3}
    async with daemon(place, script, engine__stall="1s") as live:
        rest = await asyncio.wait_for(rest_of(live.stream()), 15)
        assert ending(rest) == "error"
        assert "no step" in next(c["error"]["message"] for c in rest if "error" in c)
        status, _ = await live.chat(max_tokens=2)
        assert status == 200


async def test_a_model_that_cannot_be_removed_stays_loaded(place: Home) -> None:
    own = place.root / "own"
    (place.paths.models / "tiny").rename(own)
    place.paths.config_file.write_text(f'[models]\nfolders = ["{own}"]\n')
    async with daemon(place) as live:
        assert (await live.chat(model="own"))[0] == 200
        before = await live.admin.status(m.StatusRequest())
        removed = await live.admin.remove_model(m.RemoveModelRequest(model="own"))
        assert "your own folder" in removed.fault.message
        after = await live.admin.status(m.StatusRequest())
        assert [r.pid for r in after.models if r.pid] == [r.pid for r in before.models if r.pid]
        assert (await live.chat(model="own"))[0] == 200


async def test_request_is_listed_and_cancelled_by_its_id(place: Home) -> None:
    async with daemon(place, SLOW) as live:
        stream = live.stream()
        await first_words(live, 2, stream)
        listed = (await live.admin.requests(m.RequestsRequest())).requests
        assert [request.model for request in listed] == ["tiny"]
        found = await live.admin.cancel(m.CancelRequest(request_id=listed[0].request_id))
        assert found.found
        await asyncio.wait_for(rest_of(stream), 5)
        assert (await live.admin.status(m.StatusRequest())).in_flight == 0


async def test_twenty_disconnects_leave_nothing_running(place: Home) -> None:
    async with daemon(place, SLOW) as live:
        streams = [live.stream() for _ in range(20)]
        await asyncio.gather(*(first_words(live, 1, stream) for stream in streams))
        for stream in streams:
            await stream.aclose()

        async def nothing_runs() -> bool:
            model = await live.model()
            assert model is not None
            assert model.stats is not None
            status = await live.admin.status(m.StatusRequest())
            return model.stats.running == 0 and status.in_flight == 0 and model.leases == 0

        await eventually(nothing_runs, 15)


async def test_sighup_takes_over_the_file_and_a_broken_one_changes_nothing(place: Home) -> None:
    async with daemon(place) as live:
        assert (await live.chat())[0] == 200
        from_a_page = {"Origin": "https://a.example"}
        async with live.http.get("/health", headers=from_a_page) as reply:
            assert reply.status == 403
        place.paths.config_file.write_text(
            '[models]\ndefault = "other"\npinned = ["tiny"]\n'
            '[http]\nport = 1\nallowed_origins = ["https://a.example"]\n'
        )
        live.signal(signal.SIGHUP)

        async def default_is_other() -> bool:
            return (await live.admin.status(m.StatusRequest())).default_model == "other"

        await eventually(default_is_other)
        async with live.http.get("/health", headers=from_a_page) as reply:
            assert reply.status == 200
        status = await live.admin.status(m.StatusRequest())
        assert status.http_address.endswith(str(place.port))
        assert [model.model for model in status.models if model.pinned] == ["tiny"]
        place.paths.config_file.write_text("[models\n")
        live.signal(signal.SIGHUP)
        await eventually(lambda: "configuration not reloaded" in place.log())
        status = await live.admin.status(m.StatusRequest())
        assert status.default_model == "other"
        assert any("config.toml" in warning for warning in status.warnings)
        place.paths.config_file.write_text("[http]\nport = 1\n[model.tiny]\ncontext = 100\n")
        changed = (await live.admin.reload_config(m.ReloadConfigRequest())).entries
        assert [(e.key, e.value) for e in changed] == [
            ("http.allowed_origins", "[]"),
            ("models.default", "smollm2-135m"),
            ("models.pinned", "[]"),
            ("model.tiny", "context = 100"),
        ]
        status = await live.admin.status(m.StatusRequest())
        assert not any("config.toml" in warning for warning in status.warnings)
        place.paths.config_file.write_text("[models\n")
        assert (
            "not valid TOML"
            in (await live.admin.reload_config(m.ReloadConfigRequest())).fault.message
        )


async def test_what_the_configuration_gets_wrong_is_told_while_the_daemon_serves(
    place: Home,
) -> None:
    disk = place.root / "disk"
    disk.mkdir()
    place.paths.config_file.write_text(f'[models]\nfolders = ["{disk}"]\ndefault = "gone"\n')
    async with daemon(place) as live:

        async def warns_of(*expected: str) -> bool:
            warnings = (await live.admin.status(m.StatusRequest())).warnings
            return all(any(words in warning for warning in warnings) for words in expected)

        await eventually(partial(warns_of, "models.default: 'gone' is not here"))
        assert not await warns_of("config.toml")
        disk.rmdir()  # its disk is unplugged
        place.paths.config_file.write_text("[http]\nprot = 1\n")  # and nobody asks for a reload
        line = "config.toml: unknown option 'http.prot'; did you mean 'http.port'?"
        await eventually(partial(warns_of, line, "no restart would work"))
        await eventually(partial(warns_of, f"the folder {disk} (models.folders) is not there"), 15)
        checks = (await live.admin.doctor(m.DoctorRequest())).checks
        assert any(line in check.reason and check.status == "warn" for check in checks)
        assert any(str(disk) in check.reason and check.status == "fail" for check in checks)


async def test_a_draft_model_that_is_not_here_is_refused_when_it_is_configured(
    place: Home,
) -> None:
    async with daemon(place) as live:
        for key in ("engine.draft", 'model."tiny".draft'):
            for value in ("gone", "/no/such/folder"):
                reply = await live.admin.set_config(m.SetConfigRequest(key=key, value=value))
                assert reply.fault is not None
                assert f"draft model '{value}' cannot be used" in reply.fault.message
            for value in ("ngram", "other"):
                reply = await live.admin.set_config(m.SetConfigRequest(key=key, value=value))
                assert reply.fault is None
        assert "gone" not in place.paths.config_file.read_text()


async def test_broken_config_keeps_the_daemon_from_starting_with_its_own_code(
    place: Home,
) -> None:
    place.paths.config_file.write_text("[http]\nprot = 5413\n")
    live = await start(place)
    try:
        assert await live.exit_code() == DaemonExit.BAD_CONFIG
    finally:
        await live.close()
    assert "did you mean 'http.port'" in (place.root / "output").read_text()


async def test_under_launchd_a_broken_config_is_recorded_and_the_daemon_stays_down(
    place: Home,
) -> None:
    place.environ["XPC_SERVICE_NAME"] = "io.github.swiftlm.swiftlmd"
    place.paths.config_file.write_text("nonsense = 1\n")
    live = await start(place)
    try:
        assert await live.exit_code() == DaemonExit.STAY_DOWN
    finally:
        await live.close()
    assert "unknown table" in place.paths.fatal_file.read_text()


async def test_logs_hold_no_text_of_prompts_or_answers(place: Home) -> None:
    async with daemon(place, {"tokens": ["zanzibar "]}, log__level="debug") as live:
        assert (await live.chat())[0] == 200
        live.signal(signal.SIGTERM)
        await live.exit_code()
    for path in place.paths.logs.iterdir():
        text = path.read_text()
        assert "secret wish" not in text
        assert "zanzibar" not in text


async def test_three_hundred_idle_connections_do_not_keep_requests_out(place: Home) -> None:
    async with daemon(place) as live:
        idle = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(300)]
        try:
            assert (await live.chat())[0] == 200
        finally:
            for _, writer in idle:
                writer.close()


async def test_removing_the_folder_of_a_loaded_model_does_not_stop_it(place: Home) -> None:
    async with daemon(place) as live:
        assert (await live.chat())[0] == 200
        for file in (place.paths.models / "tiny").iterdir():
            file.unlink()
        (place.paths.models / "tiny").rmdir()
        assert (await live.chat())[0] == 200
        await live.admin.unload(m.UnloadModelRequest(model="tiny"))
        status, reply = await live.chat()
        assert status == 404
        assert reply["error"]["code"] == "model_not_found"


async def test_daemon_without_a_model_is_small(place: Home) -> None:
    async with daemon(place) as live:
        status = await live.admin.status(m.StatusRequest())
        assert status.daemon_bytes < 80 * 2**20


async def test_after_five_failed_starts_under_launchd_the_daemon_stays_down_and_says_why(
    place: Home,
) -> None:
    place.environ["XPC_SERVICE_NAME"] = "io.github.swiftlm.swiftlmd"
    place.paths.state.mkdir()
    (place.paths.state / "starts.json").write_text(json.dumps([time.time() - 1] * 5))
    live = await start(place)
    try:
        assert await live.exit_code() == DaemonExit.STAY_DOWN
    finally:
        await live.close()
    assert "5 times" in place.paths.fatal_file.read_text()
    async with daemon(place):  # started by hand, it gets a whole budget again
        pass


async def test_a_home_too_deep_for_socket_addresses_works_all_the_same(place: Home) -> None:
    deep = place.root / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    shutil.move(place.paths.models, deep / "models")
    (deep / "loads").mkdir()
    far = Home(deep, place.port)
    async with daemon(far) as live:
        assert str(far.paths.admin_socket).startswith("/tmp/swiftlm-")
        assert (await live.chat())[0] == 200
        live.signal(signal.SIGTERM)
        assert await live.exit_code() == 0
    assert not list(far.paths.admin_socket.parent.glob("*.sock"))
    shutil.rmtree(far.paths.admin_socket.parent)
