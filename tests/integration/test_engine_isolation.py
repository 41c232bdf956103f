"""Promise: a prompt that takes long to prepare holds up nobody, and ends when its client leaves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from engine_process import EngineProcess, engine_process
from grpclib.exceptions import GRPCError, StreamTerminatedError
from tiny_models import CHATML, make_model

from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import EngineExit

SLOW = (
    "{% if 'slow' in messages[0].content %}{% for i in range(90000) %}{% for j in range(90000) %}"
    "{% endfor %}{% endfor %}{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("llama"), template=SLOW + CHATML)


@pytest.fixture
async def engine(tmp_path: Path, folder: Path, room_path: str) -> AsyncIterator[EngineProcess]:
    async with engine_process(tmp_path, room_path) as engine:
        await engine.load(folder)
        yield engine


def chat(request_id: str, text: str) -> m.GenerateRequest:
    messages = [m.Message(role="user", parts=[m.Part(text=text)])]
    return m.GenerateRequest(request_id=request_id, chat=m.Chat(messages=messages), max_tokens=2)


async def test_a_hanging_template_holds_up_nobody_and_ends_with_its_client(
    engine: EngineProcess,
) -> None:
    await engine.ask(chat("first", "hi"))
    for i in range(3):
        await engine.requests.put(chat(f"hangs {i}", "slow"))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    _, end = await engine.ask(chat("next", "hi"))
    assert end.reason == m.FinishedReason.LENGTH
    assert time.monotonic() - began < 2
    for i in range(3):
        assert (await engine.stub.abort(m.AbortRequest(request_id=f"hangs {i}"))).found
    ends = [await next_end(engine) for _ in range(3)]
    assert {end.reason for end in ends} == {m.FinishedReason.ABORT}
    assert time.monotonic() - began < 6  # far less than the template is allowed


async def next_end(engine: EngineProcess) -> m.Finished:
    while True:
        event = await asyncio.wait_for(engine.events.get(), 10)
        assert event is not None
        if event.finished is not None:
            return event.finished


async def test_a_prompt_of_megabytes_is_refused_by_its_size(engine: EngineProcess) -> None:
    began = time.monotonic()
    _, end = await engine.ask(chat("r", "all of it " * 1_000_000))
    assert end.fault is not None
    assert end.fault.kind == m.FaultKind.CONTEXT_TOO_LONG
    assert "10,000,000 characters" in end.fault.message
    assert time.monotonic() - began < 5


# The engine as a program, with less patience for its tokenizer.
# Native code that hangs, played: it lets other threads run and cannot be stopped.
IMPATIENT = """
import runpy, time
from swiftlm_engine.text import encoder
encoder._DEADLINE_S = 1.0

def hanging(call):
    def wrapped(self, text, *rest, **named):
        if "x" * 60 in text:
            with self._natively():
                time.sleep(120)
        return call(self, text, *rest, **named)
    return wrapped

encoder.Encoder._here = hanging(encoder.Encoder._here)
encoder.Encoder.ids = hanging(encoder.Encoder.ids)
runpy.run_module("swiftlm_engine", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def panicking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tokenizer gives up on a row of x, after millions of tries, with a panic."""
    folder = make_model("llama", tmp_path_factory.mktemp("panicking"), template=CHATML)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    split = {
        "type": "Split",
        "pattern": {"Regex": "(x+x+)+y"},
        "behavior": "Isolated",
        "invert": False,
    }
    before = tokenizer["pre_tokenizer"]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, before]}
    file.write_text(json.dumps(tokenizer))
    return folder


async def test_a_tokenizer_that_panics_costs_one_request(
    tmp_path: Path, panicking: Path, room_path: str
) -> None:
    """A panic is no Exception to Python: the request was never heard of again."""
    async with engine_process(tmp_path, room_path) as engine:
        await engine.load(panicking)
        _, end = await engine.ask(chat("panics", "x" * 60))
        assert end.fault is not None
        assert (
            "the tokenizer of model 'tiny' is broken: with this prompt it fails"
            in end.fault.message
        )
        reply = await engine.stub.tokenize(m.TokenizeRequest(text="x" * 60))
        assert reply.fault is not None
        assert "retry-limit" in reply.fault.message
        _, end = await engine.ask(chat("next", "hi"))
        assert end.reason == m.FinishedReason.LENGTH


@pytest.mark.parametrize("by", ["generate", "tokenize"])
async def test_a_hanging_tokenizer_ends_its_engine_by_name(
    tmp_path: Path, folder: Path, room_path: str, by: str
) -> None:
    """Nothing less ends a thread in native code; who waits is told why."""
    async with engine_process(tmp_path, room_path, ("-c", IMPATIENT)) as engine:
        await engine.load(folder)
        await engine.ask(chat("first", "hi"))
        if by == "generate":
            _, end = await engine.ask(chat("hangs", "x" * 60))
            assert end.fault is not None
            assert end.fault.kind == m.FaultKind.MODEL_BROKEN
            assert "files of model 'tiny' are broken: its tokenizer" in end.fault.message
        else:
            with pytest.raises((GRPCError, StreamTerminatedError, ConnectionError)):
                await engine.stub.tokenize(m.TokenizeRequest(text="x" * 60))
        code = await asyncio.to_thread(engine.process.wait, 30)
        assert code == EngineExit.MODEL_BROKEN
