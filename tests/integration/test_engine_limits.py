"""Limits of a request against the context, and who may touch MLX."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from types import SimpleNamespace

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from tiny_models import make_model

from swiftlm_engine.isolation.work import Work
from swiftlm_engine.messages import EndReason, EngineFault, FaultKind, GenerateJob
from swiftlm_engine.run.mlx_thread import MlxThread
from swiftlm_engine.server import tokens, wire
from swiftlm_engine.server.service import EngineService
from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import EngineExit

CONTEXT = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def engine(folder):
    with EngineHarness(folder, context=CONTEXT) as harness:
        yield harness


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 5 * CONTEXT])
def test_prompt_that_leaves_no_room_is_refused_with_both_lengths_and_never_cut(engine, length):
    with pytest.raises(EngineFault) as refused:
        engine.run(GenerateJob("r", (5,) * length))
    assert refused.value.kind is FaultKind.CONTEXT_TOO_LONG
    assert f"{CONTEXT} tokens" in refused.value.message
    assert f"{length} tokens" in refused.value.message


def test_prompt_that_is_too_long_can_be_counted(engine):
    # Agents count to see whether they must compact; the answer "too long" would not tell them.
    said = m.Message(role="user", parts=[m.Part(text="word " * 5 * CONTEXT)])
    job = GenerateJob("", wire.chat(m.Chat(messages=[said])))
    question = tokens.ChatToTokenize(job, (), with_text=False)
    assert len(tokens.tokenize_chat(engine.session, question).ids) > 5 * CONTEXT


def test_answer_without_a_limit_may_fill_the_rest_of_the_context(engine):
    (answer,) = engine.run(GenerateJob("r", (5, 6, 7), ignore_eos=True))
    assert answer.finished.reason is EndReason.LENGTH
    assert answer.finished.usage.prompt_tokens == 3
    assert answer.finished.usage.completion_tokens == CONTEXT - 3


def test_only_the_engine_thread_evaluates(folder, monkeypatch):
    threads: set[str] = set()

    def noting(function):
        def call(*args):
            threads.add(threading.current_thread().name)
            return function(*args)

        return call

    monkeypatch.setattr(mx, "eval", noting(mx.eval))
    monkeypatch.setattr(mx, "async_eval", noting(mx.async_eval))
    with EngineHarness(folder, prefix_cache_bytes=16 << 20) as harness:
        jobs = [GenerateJob(f"r{i}", "hello world", max_tokens=8) for i in range(4)]
        harness.run(*jobs)
        harness.abort("gone")
        harness.run(*jobs)
    assert threads == {"mlx"}


async def test_step_loop_that_dies_ends_the_process_with_its_own_code(monkeypatch):
    class Broken:
        has_work = True

        def step(self):
            raise ValueError("a bug in the step")

        def idle(self):
            raise AssertionError("there is work")

    monkeypatch.setattr(os, "_exit", lambda code: None)
    service = EngineService()
    service._mlx.call(service._mlx.drive, Broken())
    code = await asyncio.wait_for(service.ended, 20)
    assert code is EngineExit.LOOP_DIED
    assert code != 0


async def test_process_ends_also_where_the_dying_engine_cannot_be_cleaned_up(monkeypatch):
    class Broken:
        has_work = True

        def step(self):
            raise ValueError("a bug in the step")

    class Engine:
        def fail_all(self, fault):
            raise RuntimeError("the device is gone")

    left = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: left.set())
    service = EngineService()
    service._session = SimpleNamespace(engine=Engine())
    service._mlx.call(service._mlx.drive, Broken())
    assert await asyncio.wait_for(service.ended, 20) is EngineExit.LOOP_DIED
    assert await asyncio.to_thread(left.wait, 20)


async def test_abort_that_meets_its_request_on_the_way_leaves_no_mark_behind():
    service = EngineService()
    service._preparing["r"] = Work()

    def abort(request_id):
        service._preparing.pop(request_id)  # as queueing it has done meanwhile
        return True

    service._session = SimpleNamespace(engine=SimpleNamespace(abort=abort))
    reply = await service.abort(m.AbortRequest(request_id="r"))
    assert reply.found
    assert not service._cancelled
    await asyncio.to_thread(service._mlx.stop, 10)


@pytest.mark.parametrize("moment", ["close", "preempt"])
def test_step_that_fails_while_a_sequence_leaves_costs_the_step_only(folder, monkeypatch, moment):
    with EngineHarness(folder, context=CONTEXT) as harness:
        runner, scheduler = harness.session.runner, harness.session.engine.scheduler
        job = GenerateJob("leaves", (5, 6, 7), ignore_eos=True)
        prepared = harness.session.preparer.prepare(job)

        def fail_once():
            harness.session.engine.submit(prepared)
            while not (scheduler.running and scheduler.running[0].output_ids):
                harness.session.step()
            original = getattr(runner, moment)

            def out_of_memory(*args, **more):
                monkeypatch.setattr(runner, moment, original)
                raise RuntimeError("[malloc] Unable to allocate")

            monkeypatch.setattr(runner, moment, out_of_memory)
            if moment == "close":
                harness.session.engine.abort("leaves")
            else:
                victim = scheduler._preempt_youngest()
                monkeypatch.setattr(scheduler, "_grow", lambda: ((), (victim,)))
            harness.session.step()
            monkeypatch.undo()

        harness.mlx.call(fail_once).result(30)
        [answer] = harness.collect(1).values()
        assert answer.finished.reason is EndReason.ERROR
        assert answer.num_finished == 1
        assert not harness.session.has_work
        [after] = harness.run(GenerateJob("after", (5, 6, 7), max_tokens=3, ignore_eos=True))
        assert after.finished.reason is EndReason.LENGTH
        assert runner.num_open == 0


class Steps:
    """An engine that always decodes."""

    has_work = True
    count = 0

    def step(self):
        self.count += 1
        time.sleep(0.001)

    def idle(self):
        raise AssertionError("there is work")


class CountingEmbedder:
    def __init__(self, steps):
        self.steps = steps
        self.seen = []

    def passes(self, ids, dimensions):
        self.seen.append(self.steps.count)
        yield
        self.seen.append(self.steps.count)
        return b"vector"


async def test_decoding_goes_on_between_the_passes_of_embeddings_however_many_ask():
    service, steps = EngineService(), Steps()
    embedder = CountingEmbedder(steps)
    facts = SimpleNamespace(vocab_size=10, context=10)
    service._session = SimpleNamespace(embedder=embedder, facts=facts)
    service._mlx.call(service._mlx.drive, steps)
    try:
        texts = [m.EmbedInput(token_ids=m.TokenIds(ids=[1]))] * 4
        asked = [service.embed(m.EmbedRequest(inputs=texts)) for _ in range(3)]
        replies = await asyncio.wait_for(asyncio.gather(*asked), 20)
    finally:
        await asyncio.to_thread(service._mlx.stop, 10)
    assert [len(reply.embeddings) for reply in replies] == [4, 4, 4]
    assert len(embedder.seen) == len(set(embedder.seen)) == 24
    assert service._num_embedding == 0


async def test_embedding_that_fails_in_any_way_is_answered():
    class Broken:
        def passes(self, ids, dimensions):
            yield
            raise ValueError("no such shape")

    service = EngineService()
    facts = SimpleNamespace(vocab_size=10, context=10)
    service._session = SimpleNamespace(embedder=Broken(), facts=facts)
    request = m.EmbedRequest(inputs=[m.EmbedInput(token_ids=m.TokenIds(ids=[1]))])
    try:
        reply = await asyncio.wait_for(service.embed(request), 20)
    finally:
        await asyncio.to_thread(service._mlx.stop, 10)
    assert "no such shape" in reply.fault.message


@pytest.mark.parametrize("num_callers", [1, 2, 3])
def test_callers_that_always_have_a_next_call_leave_a_step_for_each_of_theirs(num_callers):
    mlx, steps = MlxThread(lambda error: None), Steps()
    mlx.call(mlx.drive, steps).result(5)
    num_calls, until = [0] * num_callers, time.monotonic() + 0.3

    def again(caller: int) -> None:
        num_calls[caller] += 1
        time.sleep(0.001)
        if time.monotonic() < until:
            mlx.post(again, caller)

    for caller in range(num_callers):
        mlx.post(again, caller)
    while time.monotonic() < until:
        time.sleep(0.01)
    assert mlx.stop(5)
    assert steps.count >= max(num_calls) - 1 > 5
