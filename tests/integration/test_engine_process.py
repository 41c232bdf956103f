"""The engine process over its socket: one terminal event for everything, and a truthful end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_process import engine_process
from tiny_models import make_model

from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import EngineExit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
async def engine(folder, tmp_path, room_path):
    async with engine_process(tmp_path, room_path) as process:
        events = await process.load(folder)
        assert events[-1].stage is m.LoadEventStage.READY
        yield process


def chat(text: str, **fields: object) -> m.GenerateRequest:
    fields.setdefault("max_tokens", 8)
    fields.setdefault("sampling", m.Sampling(temperature=0.0))
    message = m.Message(role="user", parts=[m.Part(text=text)])
    return m.GenerateRequest(request_id="r", chat=m.Chat(messages=[message]), **fields)


async def test_a_loaded_model_says_what_its_template_knows(folder, tmp_path, room_path):
    async with engine_process(tmp_path, room_path) as process:
        model = (await process.load(folder))[-1].model
    assert model.tool_format == "hermes"
    assert not model.reasoning


async def test_chat_is_answered_and_counted(engine):
    _, finished = await engine.ask(chat("hello", ignore_eos=True))
    assert finished.reason is m.FinishedReason.LENGTH
    assert finished.usage.completion_tokens == 8
    stats = await engine.stub.stats(m.StatsRequest())
    assert (stats.requests, stats.running, stats.waiting) == (1, 0, 0)
    assert stats.footprint_bytes > 0


BAD_REQUESTS = {
    "no prompt": (m.GenerateRequest(request_id="r"), "prompt"),
    "token outside the vocabulary": (
        m.GenerateRequest(request_id="r", token_ids=m.TokenIds(ids=[5, 10**6])),
        "prompt",
    ),
    "prompt longer than the context": (
        m.GenerateRequest(request_id="r", token_ids=m.TokenIds(ids=[5] * 300)),
        "prompt",
    ),
    "logit_bias outside the vocabulary": (
        chat("x", sampling=m.Sampling(logit_bias={999_999: 5.0})),
        "logit_bias",
    ),
    "temperature below zero": (chat("x", sampling=m.Sampling(temperature=-1.0)), "temperature"),
    "stop token outside the vocabulary": (
        chat("x", stop_token_ids=[10**6], min_tokens=2),
        "stop_token_ids",
    ),
    "n above the limit": (chat("x", n=100), "n"),
    "max_tokens zero": (chat("x", max_tokens=0), "max_tokens"),
    "tool parameters that are no JSON": (
        m.GenerateRequest(
            request_id="r",
            chat=m.Chat(
                messages=[m.Message(role="user", parts=[m.Part(text="x")])],
                tools=[m.Tool(name="f", parameters="{")],
            ),
        ),
        "tools",
    ),
    "a template of one's own": (
        m.GenerateRequest(
            request_id="r",
            chat=m.Chat(
                messages=[m.Message(role="user", parts=[m.Part(text="x")])],
                template_kwargs={"chat_template": '"{{ 1 }}"'},
            ),
            max_tokens=2,
        ),
        "chat_template_kwargs",
    ),
    "no messages": (m.GenerateRequest(request_id="r", chat=m.Chat()), "messages"),
}


async def test_bad_requests_are_refused_by_field_and_the_engine_goes_on(engine):
    for i, (name, (request, param)) in enumerate(BAD_REQUESTS.items()):
        request.request_id = f"r{i}"
        _, finished = await engine.ask(request)
        assert finished.reason is m.FinishedReason.ERROR, name
        assert finished.fault is not None, name
        assert finished.fault.param == param, name
    _, finished = await engine.ask(chat("still there?"))
    assert finished.reason in (m.FinishedReason.STOP, m.FinishedReason.LENGTH)


async def test_odd_but_valid_requests_are_answered(engine):
    for request in (
        m.GenerateRequest(request_id="r", text="", max_tokens=2),
        chat("x", sampling=m.Sampling(top_k=10**6, temperature=1.0)),
        chat("x", max_tokens=10**6, ignore_eos=True),
        chat("\x00\ud7ff\U0001f600"),
    ):
        _, finished = await engine.ask(request)
        assert finished.reason in (m.FinishedReason.STOP, m.FinishedReason.LENGTH)


async def test_abort_ends_a_request_within_a_step(engine):
    await engine.requests.put(
        chat("go on", max_tokens=10_000, ignore_eos=True, sampling=m.Sampling(temperature=1.0))
    )
    await asyncio.wait_for(engine.events.get(), 10)
    asked_at = time.monotonic()
    reply = await engine.stub.abort(m.AbortRequest(request_id="r"))
    assert reply.found
    while (event := await asyncio.wait_for(engine.events.get(), 10)) is not None:
        if event.finished is not None:
            break
    assert event.finished.reason is m.FinishedReason.ABORT
    assert time.monotonic() - asked_at < 2
    stats = await engine.stub.stats(m.StatsRequest())
    assert (stats.running, stats.waiting) == (0, 0)


async def test_abort_right_behind_a_request_is_not_lost(engine):
    for _ in range(20):
        await engine.requests.put(chat("x", max_tokens=200, ignore_eos=True))
        while not (await engine.stub.abort(m.AbortRequest(request_id="r"))).found:
            pass  # it is not there yet
        while (event := await asyncio.wait_for(engine.events.get(), 10)).finished is None:
            pass
        assert event.finished.reason is m.FinishedReason.ABORT
    stats = await engine.stub.stats(m.StatsRequest())
    assert (stats.running, stats.waiting) == (0, 0)


async def test_deadline_ends_a_request(engine):
    request = chat("x", max_tokens=230, ignore_eos=True, deadline_s=0.05)
    _, finished = await engine.ask(request)
    assert finished.fault is not None
    assert finished.fault.kind is m.FaultKind.DEADLINE


async def test_shutdown_ends_streams_with_an_error_and_exits_zero(engine):
    await engine.requests.put(chat("x", max_tokens=230, ignore_eos=True))
    await asyncio.wait_for(engine.events.get(), 10)
    await engine.stub.shutdown(m.EngineShutdownRequest(deadline_s=5))
    last = None
    while (event := await asyncio.wait_for(engine.events.get(), 10)) is not None:
        last = event
    assert last is not None
    assert last.finished is not None
    assert last.finished.fault.kind is m.FaultKind.SHUTTING_DOWN
    assert await asyncio.to_thread(engine.process.wait, 10) == EngineExit.DONE


async def test_sigterm_exits_zero(engine):
    engine.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(engine.process.wait, 10) == EngineExit.DONE


async def test_broken_folder_fails_the_load_and_names_the_file(tmp_path, room_path, folder):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((folder / "config.json").read_text())
    async with engine_process(tmp_path, room_path) as process:
        events = await process.load(broken)
    assert events[-1].stage is m.LoadEventStage.FAILED
    assert events[-1].fault.kind is m.FaultKind.MODEL_BROKEN
    assert "safetensors" in events[-1].fault.message


def test_engine_ends_within_two_seconds_of_its_parent(tmp_path, room_path):
    script = (
        "import subprocess, sys, os, time\n"
        f"p = subprocess.Popen([sys.executable, '-m', 'swiftlm_engine', '--socket', "
        f"{str(tmp_path / 'o.sock')!r}, '--parent', str(os.getpid())], stderr=subprocess.DEVNULL)\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": room_path},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and _alive(pid):
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"
