"""A real engine server (grpclib, private socket) with scripted answers instead of a model.

Run as a process by the daemon's launcher: `python fake_engine.py --socket PATH --parent PID`.
The script comes as JSON in FAKE_ENGINE; FAKE_ENGINE_DIR, if set, gets one file per load (its
name is the pid) so that tests can count loads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from grpclib.server import Server

from swiftlm_proto import messages as m


@dataclass(slots=True)
class Script:
    """What the engine does. `token_s` is the pace; `tokens` the words of every answer."""

    tokens: list[str] = field(default_factory=lambda: ["one ", "two ", "three"])
    token_size: int = 1  # times its word
    token_s: float = 0.0
    load_s: float = 0.0
    load_fault: str = ""
    load_exit: int | None = None  # ends the process in the middle of a load
    exit_after_tokens: int | None = None
    exit_code: int = 1
    block_after_tokens: int | None = None  # the step loop hangs; stats tell
    ignore_sigterm: bool = False
    ignore_shutdown: bool = False
    shutdown_s: float = 0.0
    start_s: float = 0.0  # before it listens
    footprint_bytes: int = 1000
    last_words: str = ""  # on stderr, before an exit


class FakeEngine(m.EngineBase):
    """One scripted engine; `ended` gets the exit code."""

    def __init__(self, script: Script, ended: asyncio.Future[int]) -> None:
        self._script = script
        self._ended = ended
        self._outbox: asyncio.Queue[m.StepEvents | None] = asyncio.Queue()
        self._answers: dict[str, asyncio.Task[None]] = {}
        self._blocked_at: float | None = None
        self._steps = 0
        self._tokens = 0

    async def load(self, message: m.LoadRequest) -> AsyncIterator[m.LoadEvent]:
        _count_load(message.model)
        yield m.LoadEvent(stage=m.LoadEventStage.READING, fraction=0.1)
        for part in range(1, 5):
            await asyncio.sleep(self._script.load_s / 4)
            yield m.LoadEvent(stage=m.LoadEventStage.WEIGHTS, fraction=part / 5)
        if self._script.load_exit is not None:
            _leave(self._script.load_exit, self._script.last_words)
        if self._script.load_fault:
            fault = m.Fault(kind=m.FaultKind.MODEL_BROKEN, message=self._script.load_fault)
            yield m.LoadEvent(stage=m.LoadEventStage.FAILED, fault=fault)
            return
        loaded = m.LoadedModel(model=message.model, device="cpu", context=message.context or 4096)
        yield m.LoadEvent(stage=m.LoadEventStage.READY, fraction=1.0, model=loaded)

    async def run(self, messages: AsyncIterator[m.GenerateRequest]) -> AsyncIterator[m.StepEvents]:
        reader = asyncio.create_task(self._read(messages))
        try:
            while (step := await self._outbox.get()) is not None:
                yield step
        finally:
            reader.cancel()

    async def abort(self, message: m.AbortRequest) -> m.AbortReply:
        await asyncio.sleep(0)  # a request that has just come begins first
        answer = self._answers.get(message.request_id)
        if answer is not None:
            answer.cancel()
        return m.AbortReply(found=answer is not None)

    async def stats(self, message: m.StatsRequest) -> m.EngineStats:
        blocked = self._blocked_at
        return m.EngineStats(
            running=len(self._answers),
            steps=self._steps,
            footprint_bytes=self._script.footprint_bytes,
            step_age_s=0.0 if blocked is None else time.monotonic() - blocked,
            completion_tokens=self._tokens,
        )

    async def tokenize(self, message: m.TokenizeRequest) -> m.TokenizeReply:
        return m.TokenizeReply(ids=list((message.text or "").encode()))

    async def detokenize(self, message: m.DetokenizeRequest) -> m.DetokenizeReply:
        return m.DetokenizeReply(text=bytes(message.ids).decode())

    async def embed(self, message: m.EmbedRequest) -> m.EmbedReply:
        fault = m.Fault(kind=m.FaultKind.UNSUPPORTED, message="this is no embedding model")
        return m.EmbedReply(fault=fault)

    async def cache(self, message: m.CacheRequest) -> m.CacheReply:
        return m.CacheReply(stats=m.PrefixStats(num_entries=0 if message.clear else 1))

    async def shutdown(self, message: m.EngineShutdownRequest) -> m.EngineShutdownReply:
        if not self._script.ignore_shutdown:
            for request_id in list(self._answers):
                fault = m.Fault(kind=m.FaultKind.SHUTTING_DOWN, message="the engine is stopping")
                finished = m.Finished(reason=m.FinishedReason.ERROR, fault=fault)
                self._say(m.SequenceEvent(request_id=request_id, finished=finished))
                self._answers.pop(request_id).cancel()
            loop = asyncio.get_running_loop()
            loop.call_later(0.05 + self._script.shutdown_s, _resolve, self._ended, 0)
        return m.EngineShutdownReply()

    async def _read(self, messages: AsyncIterator[m.GenerateRequest]) -> None:
        async for request in messages:
            task = asyncio.create_task(self._answer(request))
            self._answers[request.request_id] = task

    async def _answer(self, request: m.GenerateRequest) -> None:
        identity, choices = request.request_id, range(max(1, request.n))
        reason, sent = m.FinishedReason.STOP, 0
        tokens = self._script.tokens[: request.max_tokens]
        self._say(m.SequenceEvent(request_id=identity, started=m.Started(prompt_tokens=7)))
        try:
            for token in tokens:
                await asyncio.sleep(self._script.token_s)
                self._token(identity, choices, token * self._script.token_size)
                sent += 1
                if self._script.block_after_tokens == self._tokens:
                    self._blocked_at = time.monotonic()
                    await asyncio.Event().wait()
        except asyncio.CancelledError:
            if identity not in self._answers:
                return  # a shutdown has said the last word
            reason = m.FinishedReason.ABORT
        for index in choices:
            usage = m.Usage(prompt_tokens=7, completion_tokens=sent)
            finished = m.Finished(reason=reason, usage=usage)
            self._say(m.SequenceEvent(request_id=identity, index=index, finished=finished))
        self._answers.pop(identity, None)

    def _token(self, identity: str, choices: range, token: str) -> None:
        self._steps += 1
        self._tokens += 1
        self._outbox.put_nowait(
            m.StepEvents(
                text_request_ids=[identity] * len(choices),
                text_indexes=list(choices),
                texts=[token] * len(choices),
            )
        )
        if self._script.exit_after_tokens == self._tokens:
            asyncio.get_running_loop().call_later(
                0.02, _leave, self._script.exit_code, self._script.last_words
            )

    def _say(self, event: m.SequenceEvent) -> None:
        self._outbox.put_nowait(m.StepEvents(events=[event]))


def _resolve(future: asyncio.Future[int], code: int) -> None:
    if not future.done():
        future.set_result(code)


def _leave(code: int, last_words: str = "") -> None:
    if last_words:
        print(last_words, file=sys.stderr, flush=True)
    if code < 0:
        os.kill(os.getpid(), -code)
        time.sleep(5)
    os._exit(code)


def _count_load(model: str) -> None:
    folder = os.environ.get("FAKE_ENGINE_DIR")
    if folder:
        name = model.replace("/", "--")
        Path(folder, f"{name}.{os.getpid()}").touch()


def _leave_with_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(74)

    threading.Thread(target=watch, daemon=True).start()


async def _serve(path: str, script: Script) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    if script.ignore_sigterm:
        loop.add_signal_handler(signal.SIGTERM, lambda: None)
    await asyncio.sleep(script.start_s)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    server = Server([FakeEngine(script, ended)])
    await server.start(sock=listener)
    return await ended


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--log-level")
    arguments = parser.parse_args()
    _leave_with_parent(arguments.parent)
    script = Script(**json.loads(os.environ.get("FAKE_ENGINE", "{}")))
    os._exit(asyncio.run(_serve(arguments.socket, script)))


if __name__ == "__main__":
    main()
